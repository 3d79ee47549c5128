"""What is drawn of thousands of chains: few numbers, whatever the size of the run. Nothing here draws.

Limits are of what can be distinguished on a panel of about 340 pixels, and keep a page below a few hundred kilobytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.rank_normal import BLOCK

Floats = NDArray[np.float64]

WORST = 4
"""Parameters that have pictures: with the table, enough to see what kind of problem it is."""

OF_STUCK_CHAINS = 2
"""Parameters among these in which stuck chains are furthest from the others, if any are: R-hat may not see them."""

SEPARATE_CHAINS = 8
"""Up to as many are drawn one by one, in colours that differ enough. Of more, quantiles over chains are drawn."""

SINGLE_CHAINS = 3
"""Chains that are drawn besides, where there are more: those of lowest, middle and highest mean."""

LINE_POINTS = 200
"""The most points of a line: a panel has fewer than two pixels for each."""

PAIR_POINTS = 800
"""The most points of a scatter: more hide each other, and each takes 80 bytes of the page."""

MARKED_POINTS = 200
"""The most draws that diverged in a scatter: more than enough to see where they are."""

RANK_BINS = 20
"""Bins of rank plots, as in Vehtari et al. 2021; fewer where a chain has fewer than DRAWS_PER_BIN draws for each."""

DRAWS_PER_BIN = 5
HISTOGRAM_BINS = 40
BANDS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles over chains: the middle half, nine tenths, and the median."""

INTERVALS = 60
"""Intervals of a phase in which speeds are averaged: chains report after many transitions, so short ones say little."""

SAMPLE = 20_000
"""Draws by which parameters are compared with divergences."""

HISTOGRAM_VALUES = 2_000_000
"""The most values of a histogram: more change no bar by a pixel."""


@dataclass(frozen=True, eq=False)
class Curves:
    """What many chains do along x [points]: bands [quantiles of BANDS, points], if any, and some chains' own lines."""

    x: Floats
    bands: Floats | None
    lines: tuple[tuple[str, Floats], ...]
    """Lines [points] by name."""


def thinned(length: int, most: int) -> NDArray[np.int64]:
    """At most `most` indices of `length`, evenly spaced, the first and the last among them."""
    count = min(length, most)
    return np.arange(count) * (length - 1) // max(count - 1, 1)


def single_chains(values: NDArray[Any]) -> list[int]:
    """Rows of `values` [chain, draw] to be drawn one by one: all of few, else those of extreme and of middle mean."""
    if len(values) <= SEPARATE_CHAINS:
        return list(range(len(values)))
    order = np.argsort(values.mean(axis=1, dtype=np.float64), kind="stable")
    return [int(order[place]) for place in (0, len(order) // 2, -1)][:SINGLE_CHAINS]


def traces(values: NDArray[Any], numbers: NDArray[np.int64]) -> Curves:
    """The draws [chain, draw] one after another; numbers [chain] are those of the chains."""
    points = thinned(values.shape[1], LINE_POINTS)
    selected = values[:, points].astype(np.float64)
    return Curves(points.astype(np.float64), _bands(selected), _lines(selected, values, numbers))


def rank_curves(values: NDArray[Any], numbers: NDArray[np.int64]) -> Curves:
    """How often a chain has low, middle and high ranks among all draws, 1 on average: a rank plot's bars as curves.

    values [chain, draw]; x are ranks as shares of all, at bins' middles. Chains that have forgotten where they started
    are flat but for noise (Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021, section 4.3).
    """
    chains, draws = values.shape
    bins = int(np.clip(draws // DRAWS_PER_BIN, 2, RANK_BINS))
    first = -(-np.arange(1, bins) * values.size // bins)  # the ranks that begin bins
    first_values = np.minimum(first, values.size - 1)
    edges = np.partition(values, first_values, axis=None)[first_values]
    less, equal = np.empty((2, chains, len(edges)), np.int64)
    for row, own in enumerate(np.sort(values, axis=1)):
        less[row] = np.searchsorted(own, edges, "left")
        equal[row] = np.searchsorted(own, edges, "right") - less[row]
    # draws equal to an edge have ranks in the order of their chains, and the first of them are below it
    equal_before = np.cumsum(equal, axis=0) - equal
    below = less + np.clip(first - less.sum(axis=0) - equal_before, 0, equal)
    shares = np.diff(below, axis=1, prepend=0, append=draws) * (bins / draws)
    middles = (np.arange(bins) + 0.5) / bins
    return Curves(middles, _bands(shares), _lines(shares, values, numbers))


def chance_of_ranks(draws: int, bins: int) -> tuple[float, float]:
    """Within what nine tenths of the heights of `rank_curves` are, for independent draws."""
    from scipy.special import bdtr

    below = bdtr(np.arange(draws + 1), draws, 1 / bins)  # of counts, the distribution function
    low, high = np.searchsorted(below, (0.05, 0.95)) * bins / draws
    return float(low), float(high)


def _bands(values: Floats) -> Floats | None:
    return np.quantile(values, BANDS, axis=0) if len(values) > SEPARATE_CHAINS else None


def _lines(curves: Floats, values: NDArray[Any], numbers: NDArray[np.int64]) -> tuple[tuple[str, Floats], ...]:
    return tuple((f"chain {numbers[row]}", curves[row]) for row in single_chains(values))


def histogram(values: NDArray[Any], span: tuple[float, float] | None = None) -> tuple[Floats, Floats]:
    """Edges [bins + 1] and density [bins] of finite values; `span` is the range, by default theirs."""
    flat = values.reshape(-1)
    flat = flat[thinned(flat.size, HISTOGRAM_VALUES)].astype(np.float64)
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        return np.array([0.0, 1.0]), np.zeros(1)
    low, high = span or (float(flat.min()), float(flat.max()))
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # all alike: a bin has no width otherwise
        low, high = low - 0.5 * max(abs(low), 1.0), high + 0.5 * max(abs(high), 1.0)
    counts, edges = np.histogram(flat, HISTOGRAM_BINS, (low, high))
    return edges, counts / (max(1, counts.sum()) * np.diff(edges))


def energies(values: NDArray[Any]) -> tuple[Floats, Floats]:
    """Energies less their mean, and their changes from draw to draw: as many of the values [chain, draw] as a histogram
    takes."""
    chains, draws = values.shape
    selected = values.reshape(-1)[thinned(values.size, HISTOGRAM_VALUES)].astype(np.float64)
    if draws < 2:
        return selected - values.mean(dtype=np.float64), np.empty(0)
    chain, draw = np.divmod(thinned(chains * (draws - 1), HISTOGRAM_VALUES), draws - 1)
    changes = values[chain, draw + 1].astype(np.float64) - values[chain, draw]
    return selected - values.mean(dtype=np.float64), changes


def counts_of(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers that there are among small non-negative integers, and how often each is there."""
    flat = values.reshape(-1)
    counts = np.zeros(1, np.int64)
    for start in range(0, flat.size, BLOCK):
        part = np.bincount(flat[start : start + BLOCK].astype(np.int64), minlength=len(counts))
        part[: len(counts)] += counts
        counts = part
    present = np.flatnonzero(counts)
    return present, counts[present]


def most_different(columns: NDArray[Any], marked: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Coefficients by how much marked draws differ from all others, most first.

    columns [draw, coefficient], marked [draw]. By the largest distance between both distributions (Kolmogorov-Smirnov).
    """
    order = np.argsort(columns, axis=0, kind="stable")
    of_marked = np.cumsum(marked[order], axis=0) / marked.sum()
    of_others = np.cumsum(~marked[order], axis=0) / (~marked).sum()
    return np.argsort(-np.abs(of_marked - of_others).max(axis=0), kind="stable")


@dataclass(frozen=True, eq=False)
class Speed:
    """What a phase did in intervals that begin at `edges` [intervals + 1] seconds since the run began."""

    phase: str
    edges: Floats
    gradients: Floats
    """[intervals]: useful ones a second."""
    utilization: Floats
    """[intervals]: the useful share of those executed; NaN where there was none."""


def speeds(phase: NDArray[Any], seconds: Floats, useful: Floats, executed: Floats) -> list[Speed]:
    """The speed in each phase with gradients, from the rows [rows] of a run's history (mcmc/storage/history.py)."""
    result = []
    for name in dict.fromkeys(phase.tolist()):
        rows = phase == name
        times = seconds[rows]
        if len(times) < 2 or times[-1] <= times[0] or useful[rows][-1] <= 0:
            continue
        edges = np.linspace(times[0], times[-1], min(INTERVALS, len(times) - 1) + 1)
        good, computed = (np.diff(np.interp(edges, times, counts[rows])) for counts in (useful, executed))
        shares = np.divide(good, computed, out=np.full_like(good, np.nan), where=computed > 0)
        result.append(Speed(str(name), edges, good / np.diff(edges), shares))
    return result
