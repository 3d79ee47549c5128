"""When warmup is done: what two windows in a row, and the chains of one, must agree on.

- step: the step size that this window came to, and the one that it began with.
- metric: the scales that the two windows' draws suggest.
- drift: how far the mean over all chains moved from one window to the next.
- memory: how far apart the superchains are (nested R-hat): what is left of where they started.

All are relative: to the step size, the scale, the posterior's standard deviation. The last two hold for every number of
the position and for the log-density.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.quantile_functions import f_exceeded
from batchnuts.mcmc.statistics.window_moments import BATCHES, Centre, Float, Moments

STEP, METRIC, DRIFT, MEMORY = 0.15, 0.1, 0.1, 0.02
"""Tolerances. A metric that is off by a tenth costs nothing that could be measured; a step size of a sixth less costs a
sixth more gradients. MEMORY is a share of the posterior's variance: draws from a start that is still 0.14 standard
deviations away are forgotten within a few transitions of the draws."""

STANDARD_ERRORS = 3.0
"""The standard errors of a drift, or of what is left of the starts, that a window of few chains may show by chance."""

FALSE_ALARM = 0.05
"""Probability that chains which agree are found to differ, where each is a superchain of its own."""


@dataclass(frozen=True)
class Agreement:
    """The largest difference of each kind; `single` if each chain is a superchain of its own; `earlier` if a window is
    compared with an earlier run; `metric_tolerance` where another one will do."""

    step: float
    metric: float
    drift: float
    memory: float
    single: bool
    earlier: bool = False
    metric_tolerance: float = METRIC

    @property
    def reached(self) -> bool:
        """Whether all are within their tolerances."""
        return not self.missing()

    def missing(self) -> tuple[str, ...]:
        """What is not within its tolerance, in words."""
        differences = []
        if not self.step <= STEP:
            differences.append(
                f"the step size {'is off' if self.earlier else 'still changes'} by {_percent(self.step)}"
            )
        if not self.metric <= self.metric_tolerance:
            differences.append(
                f"the metric's scales {'are off' if self.earlier else 'still change'} by {_percent(self.metric)}"
            )
        if not self.drift <= DRIFT:
            moves = "is off" if self.earlier else "still moves,"
            differences.append(f"the mean of all chains {moves} by {self.drift:.2g} standard deviations")
        if not self.memory <= MEMORY:
            differences.append(
                f"groups of chains with the same start still differ, by {math.sqrt(self.memory):.2g} standard "
                "deviations"
                if not self.single
                else f"the chains still differ, by {math.sqrt(self.memory):.2g} standard deviations"
            )
        return tuple(differences)


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):.0f}%" if log_ratio < 5 else "more than a hundredfold"


def change_of_step(previous: Float, current: Float) -> float:
    """Median over chains of the |log ratio| of their step sizes [chains]."""
    return float(np.median(np.abs(np.log(current / previous))))


def change_of_metric(previous: Float, current: Float) -> float:
    """Root mean square of the log ratios of the scales of two metrics, given as for `log_ratios`."""
    return float(np.sqrt(np.mean((0.5 * log_ratios(previous, current)) ** 2)))


def log_ratios(previous: Float, current: Float) -> Float:
    """Log ratios of two metrics' squared scales: [2, dimension]; [2, chains, dimension] if one differs by chain."""
    first, second = (scales[:, None] if scales.ndim == 2 else scales for scales in (previous, current))
    ratios: Float = np.log(second / first)
    return ratios


def drift(previous: Centre, current: Centre, variance: Float) -> float:
    """By how many standard deviations the pooled mean has moved in the worst column, beyond its standard errors.

    variance [columns]: the posterior's.
    """
    error = np.sqrt(previous.squared_error + current.squared_error)
    moved = np.abs(current.mean - previous.mean) - STANDARD_ERRORS * error
    return _largest(np.maximum(moved, 0.0), np.sqrt(variance))


def memory(moments: Moments, superchain: NDArray[np.int64], standard_errors: float = 0.0) -> float:
    """What is left of the starts, as a share of the posterior's variance, in the worst column.

    superchain [chains]: the number of each chain's. Nested R-hat is sqrt(1 + B/W), with B the variance between the
    means of superchains, and W the mean over superchains of the variance between their chains plus that within chains
    (Margossian et al. 2024, equation (6)). Of chains that have forgotten their starts, B is the variance between
    the chains of a superchain over their number; that is subtracted here, so that what is left is zero on average.
    Its standard error is sqrt(2/(superchains - 1)) of what is subtracted; standard_errors: so many are forgiven.

    Where each chain is a superchain of its own, B is the variance between the means of chains, W that within them, and
    by chance B is the squared error of these means (`Moments.squared_error`). Of few chains it varies much, and the
    worst of many columns counts, so as much is forgiven as these let expect (`_largest_by_chance`).
    """
    numbers, place = np.unique(superchain, return_inverse=True)
    if len(numbers) < 2:
        return math.inf
    size = np.bincount(place)
    means = np.stack([moments.mean[place == k].mean(axis=0) for k in range(len(numbers))])
    within = np.stack([moments.variance[place == k].mean(axis=0) for k in range(len(numbers))]).mean(axis=0)
    between = means.var(axis=0, ddof=1)
    if (size < 2).any():
        by_chance = moments.squared_error.mean(axis=0) * _largest_by_chance(len(numbers), len(within))
        return _largest(np.maximum(between - by_chance, 0.0), within)
    among = np.stack([moments.mean[place == k].var(axis=0, ddof=1) for k in range(len(numbers))])
    by_chance = (among / size[:, None]).mean(axis=0)
    by_chance *= 1.0 + standard_errors * math.sqrt(2.0 / (len(numbers) - 1))
    return _largest(np.maximum(between - by_chance, 0.0), among.mean(axis=0) + within)


def _largest_by_chance(chains: int, columns: int) -> float:
    """The ratio of the variance between means of chains to their squared error, which the largest of so many columns
    exceeds with probability FALSE_ALARM: of normal means it has an F distribution."""
    return f_exceeded(FALSE_ALARM / columns, chains - 1, chains * (BATCHES - 1))


def _largest(values: Float, scale: Float) -> float:
    """The largest ratio; a column in which nothing varies counts if it differs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(values > 0, values / scale, 0.0)
    return float(ratio.max())
