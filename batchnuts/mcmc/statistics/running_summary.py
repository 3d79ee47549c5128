"""Draws reduced while they come in: memory does not grow with their number.

What is kept of each coefficient: count, mean, variance and, up to COVARIANCES coefficients, covariances with all
others; a sketch of its quantiles; and means and variances of *segments* of each chain, equally long ones. From these
follow R-hat (of chains' halves), nested R-hat, and effective sample sizes.

R-hat is that of moments: ranks change with every new draw. So heavy tails, and chains that differ in spread but not in
mean, are seen less well than from draws (convergence.py).

Effective sizes are of means, by *replicated batch means* (Argon and Andradottir, "Replicated batch means for
steady-state simulations", Naval Research Logistics 53, 2006; Gupta and Vats, "Estimating Monte Carlo variance from
multiple Markov chains", 2020): the variance between means of batches of all chains about their common mean. Where there
are so many chains that one batch for each is enough it is m n var+ / B of Gelman, Carlin, Stern, Rubin, "Bayesian Data
Analysis", 2nd edition, section 11.6. Its relative standard error is about sqrt(2 / batches). It is too large by about
tau / b for an autocorrelation time tau and batches of b draws, and takes chains that have not mixed into account.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.autocorrelation import SHORTEST
from batchnuts.mcmc.statistics.chain_moments import ChainMoments
from batchnuts.mcmc.statistics.convergence import split_rhat
from batchnuts.mcmc.statistics.rhat_noise import RhatNoise, noise_of_halves

Float = NDArray[np.float64]

COVARIANCES = 256
"""Coefficients up to which all covariances are kept: a matrix of half a megabyte."""

BATCHES = 128
"""At least, over all chains, where draws suffice: the relative standard error of effective sizes is below an eighth."""

SEGMENTS = 8
"""The fewest segments of a chain: so most draws of a run that is interrupted are in whole segments."""

SEGMENT_DRAWS = 4
"""The fewest draws of a segment, where there are enough draws."""

SKETCH = 1600
"""The parameter k of the KLL sketches: ranks are within 0.18% with a confidence of 99%, in 18 kB for each coefficient
of float32 draws (Karnin, Lang, Liberty, "Optimal quantile approximation in streams", FOCS 2016)."""

VALUES = 2**19
"""The most numbers of draws, in float64, that are processed together."""


def segments_of(chains: int, draws: int) -> int:
    """How many segments a chain has; an even number, 0 where there are too few draws for two of them."""
    count = SEGMENTS
    while count * chains < BATCHES:
        count *= 2
    while count > 2 and draws // count < SEGMENT_DRAWS:
        count //= 2
    return count if draws // count >= 2 else 0


class RunningSummary:
    """The draws of all chains, the next ones of each at a time.

    draws: how many each chain is expected to make; if a chain makes fewer, some of them count for means and quantiles
    only, if more, too. dtype: of what is added; sketches of other than float32 are in float64.
    """

    ARRAYS = ("count", "mean", "squares", "pooled_mean", "products")
    """The attributes that hold what was added, except for the sketches."""

    def __init__(self, chains: int, draws: int, coefficients: int, dtype: Any) -> None:
        import datasketches

        self.chains, self.coefficients = chains, coefficients
        self.count = 0
        """Draws of each chain so far."""
        self.segments = segments_of(chains, draws)
        self.length = draws // self.segments if self.segments else 0
        """Draws of a segment. What comes after the last one is in the last row of what follows."""
        shape = (self.segments + 1, chains, coefficients)
        self.mean, self.squares = np.zeros(shape), np.zeros(shape)
        """[segments + 1, chains, coefficients]: sums of squares are about the mean."""
        self.pooled_mean = np.zeros(coefficients)
        self.products: Float = np.zeros((coefficients,) * (2 if coefficients <= COVARIANCES else 1))
        """Sums of products of differences from the mean: of all pairs, or squares."""
        single = np.dtype(dtype) == np.float32
        sketch = datasketches.kll_floats_sketch if single else datasketches.kll_doubles_sketch
        self.dtype = np.float32 if single else np.float64
        self.sketches = [sketch(SKETCH) for _ in range(coefficients)]

    def add(self, values: NDArray[Any]) -> None:
        """The next draws [chains, draws, coefficients] of all chains."""
        draws = values.shape[1]
        step = max(1, VALUES // max(1, draws * self.coefficients))
        with np.errstate(invalid="ignore", over="ignore"):  # generated quantities may be anything
            for start in range(0, self.chains, step):
                part = slice(start, min(start + step, self.chains))
                part_values = values[part].astype(np.float64)
                for segment, place, rows in self._pieces(draws):
                    self._add_to_segment(segment, part, place, part_values[:, rows])
                self._add_to_all(
                    self.count * self.chains + part.start * draws, part_values.reshape(-1, self.coefficients)
                )
        for sketch, column in zip(self.sketches, np.moveaxis(values, 2, 0)):
            sketch.update(np.ascontiguousarray(column, dtype=self.dtype).reshape(-1))
        self.count += draws

    def _pieces(self, draws: int) -> Iterator[tuple[int, int, slice]]:
        """Of the next draws: the segment, how many draws are in it already, and which ones come to it."""
        position, end = self.count, self.count + draws
        while position < end:
            segment = min(position // self.length, self.segments) if self.segments else 0
            begins = segment * self.length
            stop = end if segment == self.segments else min(end, begins + self.length)
            yield segment, position - begins, slice(position - self.count, stop - self.count)
            position = stop

    def _add_to_segment(self, segment: int, chains: slice, previous_count: int, values: Float) -> None:
        mean = values.mean(axis=1)
        squares = ((values - mean[:, None]) ** 2).sum(axis=1)
        old = self.mean[segment, chains], self.squares[segment, chains]
        merged = _merged(previous_count, *old, values.shape[1], mean, squares)
        self.mean[segment, chains], self.squares[segment, chains] = merged

    def _add_to_all(self, previous_count: int, values: Float) -> None:
        """values [draws, coefficients], which are changed."""
        count = len(values)
        mean = values.mean(axis=0)
        values -= mean
        difference = mean - self.pooled_mean
        weight = previous_count * count / (previous_count + count)
        if self.products.ndim == 2:
            self.products += values.T @ values + weight * np.outer(difference, difference)
        else:
            self.products += np.einsum("nk,nk->k", values, values) + weight * difference**2
        self.pooled_mean += difference * (count / (previous_count + count))

    def saved(self) -> dict[str, NDArray[Any]]:
        """All arrays by name, for `restore`."""
        parts = [np.frombuffer(sketch.serialize(), np.uint8) for sketch in self.sketches]
        return {
            **{name: np.asarray(getattr(self, name)) for name in self.ARRAYS},
            "sketches": np.concatenate([np.empty(0, np.uint8), *parts]),
            "sizes": np.array([len(part) for part in parts], np.int64),
        }

    def restore(self, saved: dict[str, NDArray[Any]]) -> None:
        """Take over what `saved` gave, of as many chains and coefficients."""
        for name in self.ARRAYS[1:]:
            getattr(self, name)[...] = saved[name]
        self.count = int(saved["count"])
        ends = np.cumsum(saved["sizes"])
        parts = np.split(saved["sketches"], ends[:-1]) if len(ends) else []
        self.sketches = [type(old).deserialize(part.tobytes()) for old, part in zip(self.sketches, parts, strict=True)]

    # ---- what is found -----------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """Draws of all chains."""
        return self.count * self.chains

    @property
    def covariance(self) -> Float | None:
        """[coefficients, coefficients], divided by the number of draws less 1; None of too many coefficients."""
        return self.products / max(self.total - 1, 1) if self.products.ndim == 2 else None

    @property
    def variance(self) -> Float:
        """[coefficients], likewise."""
        squares = self.products.diagonal() if self.products.ndim == 2 else self.products
        return squares / max(self.total - 1, 1)

    def quantiles(self, probabilities: Sequence[float]) -> Float:
        """[probabilities, coefficients]; NaN where no draw is a number."""
        quantiles = np.full((len(probabilities), self.coefficients), np.nan)
        for column, sketch in enumerate(self.sketches):
            if not sketch.is_empty():
                quantiles[:, column] = sketch.get_quantiles(list(probabilities))
        return quantiles

    @property
    def rank_error(self) -> float:
        """How far the rank of a quantile may be off, as a share of all draws, with a confidence of 99%."""
        return float(self.sketches[0].normalized_rank_error(False)) if self.sketches else 0.0

    def range(self) -> tuple[Float, Float]:
        """The smallest and the largest draw [coefficients]; NaN where none is a number."""
        ends = [(s.get_min_value(), s.get_max_value()) if not s.is_empty() else (np.nan,) * 2 for s in self.sketches]
        low, high = np.array(ends, np.float64).reshape(-1, 2).T
        return low, high

    @property
    def whole_segments(self) -> int:
        """The whole segments that each chain has so far, or one less: an even number, so that they make halves."""
        return min(self.count // self.length, self.segments) // 2 * 2 if self.length else 0

    @property
    def moments(self) -> ChainMoments:
        """The moments of chains and of their halves; without halves where there are no two whole segments."""
        rows = [(n, *self._segment(n)) for n in range(self.segments + 1)]
        mean, squares = _joined([row for row in rows if self._draws_in(row[0])], self._draws_in)
        none = np.empty((self.coefficients, 0))
        half = self.whole_segments // 2
        if not half:
            return ChainMoments(mean.T, squares.T / self.count, none, none)
        halves = [_joined(rows[part], self._draws_in) for part in (slice(half), slice(half, 2 * half))]
        half_mean = np.concatenate([mean for mean, _ in halves]).T
        half_variance = np.concatenate([squares for _, squares in halves]).T / (half * self.length - 1)
        return ChainMoments(mean.T, squares.T / self.count, half_mean, half_variance)

    def _segment(self, number: int) -> tuple[Float, Float]:
        return self.mean[number], self.squares[number]

    def _draws_in(self, segment: int) -> int:
        remaining = max(self.count - segment * self.length, 0)
        return remaining if segment == self.segments else min(remaining, self.length)

    def precision(self) -> Precision:
        """Effective sizes and Monte Carlo standard errors, of replicated batch means."""
        batches, batch_length = self._batches()
        nothing = np.full(self.coefficients, np.nan)
        if len(batches) * self.chains < 2 or batch_length < 2:
            return Precision(nothing, nothing, nothing)
        means = np.stack([mean for mean, _ in batches])
        about = np.stack([squares for _, squares in batches]) / batch_length + (means - self.pooled_mean) ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            asymptotic = batch_length * _spread(means)  # of a mean: this over the number of draws is its squared error
            variance = self.variance
            # more than all draws where these are antithetic; at most as many as ArviZ and Stan allow
            size = np.minimum(self.total * variance / asymptotic, self.total * np.log10(self.total))
            of_mean = np.sqrt(variance / size)
            of_sd = np.sqrt(batch_length * _spread(about) / self.total / variance) / 2  # delta method
        return Precision(size, of_mean, of_sd)

    def _batches(self) -> tuple[list[tuple[Float, Float]], int]:
        """Means and sums of squares [chains, coefficients] of each of a chain's batches, and the draws of a batch."""
        number = 1
        while number * self.chains < BATCHES and 2 * number <= self.whole_segments:
            number *= 2
        if number == 1:
            moments = self.moments
            return [(moments.mean.T, moments.variance.T * self.count)], self.count
        segments = self.whole_segments // number
        rows = [(n, *self._segment(n)) for n in range(segments * number)]
        parts = [rows[start : start + segments] for start in range(0, len(rows), segments)]
        return [_joined(part, self._draws_in) for part in parts], segments * self.length

    def rhat(self) -> Float:
        """Split R-hat [coefficients] of moments: Gelman, Carlin, Stern, Dunson, Vehtari, Rubin, "Bayesian Data
        Analysis", 3rd edition, equations 11.1 to 11.4, of chains' halves; NaN for fewer than 2 chains or 4 draws."""
        half = self.whole_segments // 2 * self.length
        if half < 2 or self.chains < 2:
            return np.full(self.coefficients, np.nan)
        return split_rhat(self.moments, half)

    def rhat_noise(self) -> RhatNoise:
        """What chance alone adds to this R-hat: from the variance within chains between the means of segments."""
        segments, half = self.whole_segments, self.whole_segments // 2 * self.length
        if half < 2:
            return noise_of_halves(np.full(self.coefficients, np.nan), self.chains, max(half, 1), 1)
        means = self.mean[:segments]
        with np.errstate(divide="ignore", invalid="ignore"):
            time = self.length * means.var(axis=0, ddof=1).mean(axis=0) / self.variance
            sizes = self.total / np.maximum(time, SHORTEST)
        return noise_of_halves(sizes, self.chains, half, 1)


def summary_bytes(chains: int, draws: int, coefficients: int, item: int) -> int:
    """The bytes of a RunningSummary, and of what is processed together; `item`: bytes of a number of a draw."""
    segments = 2 * 8 * (segments_of(chains, draws) + 1) * chains * coefficients
    products = 8 * coefficients ** (2 if coefficients <= COVARIANCES else 1)
    return segments + products + coefficients * 3 * SKETCH * item + 4 * 8 * VALUES


@dataclass(frozen=True, eq=False)
class Precision:
    """How precise the estimates for each coefficient are: [coefficients]; NaN where this cannot be estimated."""

    effective_size: Float
    """The effective sample size of the mean."""
    of_mean: Float
    """Monte Carlo standard errors."""
    of_sd: Float


def _spread(batches: Float) -> Float:
    """The variance [coefficients] between batches [batches, chains, coefficients] about the mean of all."""
    flat = batches.reshape(-1, batches.shape[2])
    return ((flat - flat.mean(axis=0)) ** 2).sum(axis=0) / (len(flat) - 1)  # type: ignore[no-any-return]


def _merged(
    n: int, mean: Float, squares: Float, m: int, other_mean: Float, other_squares: Float
) -> tuple[Float, Float]:
    """Mean and sum of squared differences from it, of n and m values together (Chan, Golub, LeVeque, "Updating formulae
    and a pairwise algorithm for computing sample variances", 1979)."""
    difference = other_mean - mean
    total = n + m
    return mean + difference * (m / total), squares + other_squares + difference**2 * (n * m / total)


def _joined(rows: Sequence[tuple[int, Float, Float]], draws_in: Any) -> tuple[Float, Float]:
    """Segments (number, mean, sum of squares), merged."""
    (first, mean, squares), *others = rows
    count = draws_in(first)
    for number, other_mean, other_squares in others:
        mean, squares = _merged(count, mean, squares, draws_in(number), other_mean, other_squares)
        count += draws_in(number)
    return mean, squares


class StatisticsTotals:
    """The statistics of draws, in totals of each chain."""

    SUMS = ("acceptance_rate", "n_steps", "diverging", "reached_max_treedepth")

    def __init__(self, chains: int) -> None:
        self.sums = {name: np.zeros(chains) for name in self.SUMS}
        """[chains], float64."""
        self.depths: NDArray[np.int64] = np.zeros(1, np.int64)
        """[depths]: draws whose tree had each depth."""
        self.count = 0
        self.energy_mean, self.energy_squares = np.zeros(chains), np.zeros(chains)
        self.steps, self.last = np.zeros(chains), np.full(chains, np.nan)
        """Sums of squared differences of energies from draw to draw, and the last energies."""
        self.log_density: NDArray[Any] = np.zeros(chains)
        """Log-densities of the last draws, in the dtype in which they were computed."""

    def add(self, stats: dict[str, NDArray[Any]]) -> None:
        """Add the statistics [chains, draws] of the next draws of all chains."""
        for name, total in self.sums.items():
            total += stats[name].sum(axis=1, dtype=np.float64)
        depths = np.bincount(stats["tree_depth"].reshape(-1), minlength=len(self.depths))
        depths[: len(self.depths)] += self.depths
        self.depths = depths
        energy = stats["energy"].astype(np.float64)
        previous_energy = self.last if self.count else energy[:, 0]
        self.steps += (np.diff(energy, axis=1, prepend=previous_energy[:, None]) ** 2).sum(axis=1)
        self.last, self.log_density = energy[:, -1], stats["lp"][:, -1].copy()
        mean = energy.mean(axis=1)
        squares = ((energy - mean[:, None]) ** 2).sum(axis=1)
        old = self.energy_mean, self.energy_squares
        self.energy_mean, self.energy_squares = _merged(self.count, *old, energy.shape[1], mean, squares)
        self.count += energy.shape[1]

    def saved(self) -> dict[str, NDArray[Any]]:
        """All arrays by name, for `restore`."""
        fields = {name: np.asarray(value) for name, value in vars(self).items() if name != "sums"}
        return fields | {f"sum_{name}": array for name, array in self.sums.items()}

    def restore(self, saved: dict[str, NDArray[Any]]) -> None:
        """Take over what `saved` gave, of as many chains."""
        self.sums = {name: saved[f"sum_{name}"].copy() for name in self.SUMS}
        for name in vars(self).keys() - {"sums", "count"}:
            setattr(self, name, saved[name])
        self.count = int(saved["count"])

    @property
    def bfmi(self) -> float:
        """The Bayesian fraction of missing information of all chains together; NaN for fewer than 10 draws each."""
        chains = len(self.energy_mean)
        if self.count < 10:
            return float("nan")
        variance = self.energy_squares.mean() / self.count + self.energy_mean.var()
        return float(self.steps.sum() / (chains * (self.count - 1)) / variance) if variance > 0 else float("nan")
