"""When warmup is done: what two windows in a row, and the chains of one, must agree on.

- step: the step size of this window and of the one before.
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

from batchnuts.mcmc.warmup.moments import Float, Moments

STEP, METRIC, DRIFT, MEMORY = 0.15, 0.1, 0.1, 0.02
"""Tolerances. A metric that is off by a tenth costs nothing that could be measured; a step size of a sixth less costs a
sixth more gradients. MEMORY is a share of the posterior's variance: draws from a start that is still 0.14 standard
deviations away are forgotten within a few transitions of the draws."""

SINGLE_MEMORY = 0.1
"""The same where each chain is a superchain of its own: then it includes the chain's own autocorrelation."""

STANDARD_ERRORS = 3.0
"""Of a drift, which a window of few chains may show by chance."""


@dataclass(frozen=True)
class Agreement:
    """The largest difference of each kind; `single` if each chain is a superchain of its own."""

    step: float
    metric: float
    drift: float
    memory: float
    single: bool

    @property
    def reached(self) -> bool:
        """Whether all are within their tolerances."""
        return not self.missing()

    def missing(self) -> tuple[str, ...]:
        """What is not within its tolerance, in words."""
        found = []
        if not self.step <= STEP:
            found.append(f"the step size still changes by {_percent(self.step)}")
        if not self.metric <= METRIC:
            found.append(f"the metric's scales still change by {_percent(self.metric)}")
        if not self.drift <= DRIFT:
            found.append(f"the mean of all chains still moves, by {self.drift:.2g} standard deviations")
        if not self.memory <= (SINGLE_MEMORY if self.single else MEMORY):
            found.append(
                f"groups of chains with the same start still differ, by {math.sqrt(self.memory):.2g} standard "
                "deviations"
                if not self.single
                else f"the chains still differ, by {math.sqrt(self.memory):.2g} standard deviations"
            )
        return tuple(found)


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):.0f}%" if log_ratio < 5 else "more than a hundredfold"


def change_of_step(before: Float, now: Float) -> float:
    """Median over chains of the |log ratio| of their step sizes [chains]."""
    return float(np.median(np.abs(np.log(now / before))))


def change_of_metric(before: Float, now: Float) -> float:
    """Root mean square of the log ratios of the scales of two diagonal inverse metrics [..., dimension]."""
    return float(np.sqrt(np.mean((0.5 * np.log(now / before)) ** 2)))


def drift(before: Moments, now: Moments) -> float:
    """By how many standard deviations the pooled mean has moved in the worst column, beyond its standard errors."""
    errors = [moments.mean.var(axis=0) / len(moments.mean) for moments in (before, now)]
    moved = np.abs(now.pooled_mean - before.pooled_mean) - STANDARD_ERRORS * np.sqrt(sum(errors))
    return _largest(np.maximum(moved, 0.0), np.sqrt(now.pooled_variance))


def memory(moments: Moments, superchain: NDArray[np.int64]) -> float:
    """What is left of the starts, as a share of the posterior's variance, in the worst column.

    superchain [chains]: the number of each chain's. Nested R-hat is sqrt(1 + B/W), with B the variance between the
    means of superchains, and W the mean over superchains of the variance between their chains plus that within chains
    (Margossian et al. 2024, equation (6)). Of chains that have forgotten their starts, B is the variance between
    the chains of a superchain over their number; that is subtracted here, so that what is left is zero on average.
    Where each chain is a superchain of its own, this is B/W.
    """
    numbers, place = np.unique(superchain, return_inverse=True)
    if len(numbers) < 2:
        return math.inf
    size = np.bincount(place)
    means = np.stack([moments.mean[place == k].mean(axis=0) for k in range(len(numbers))])
    within = np.stack([moments.variance[place == k].mean(axis=0) for k in range(len(numbers))]).mean(axis=0)
    between = means.var(axis=0, ddof=1)
    if (size < 2).any():
        return _largest(between, within)
    among = np.stack([moments.mean[place == k].var(axis=0, ddof=1) for k in range(len(numbers))])
    by_chance = (among / size[:, None]).mean(axis=0)
    return _largest(np.maximum(between - by_chance, 0.0), among.mean(axis=0) + within)


def _largest(values: Float, scale: Float) -> float:
    """The largest ratio; a column in which nothing varies counts if it differs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(values > 0, values / scale, 0.0)
    return float(ratio.max())
