"""Whether ranks are uniform, as those of true values among posterior draws are: bands for their ECDF, and p-values.

The empirical distribution function of n ranks in 0..L is compared with that of uniform ones at K points. At each it is
binomial; a band that all points stay within with probability 1 - alpha has at each the central interval of a smaller
level gamma, which is found by simulation (Saeilynoja, Buerkner and Vehtari 2022, Statistics and Computing 32:32,
section 2.2 and algorithm 1).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

MOST_POINTS = 50
"""Points at which distribution functions are compared, at most."""

SIMULATIONS = 20_000
"""Sets of uniform ranks by which probabilities are found."""


@dataclass(frozen=True, eq=False)
class Band:
    """Of the differences of ECDF and distribution function of uniform ranks, at some points.

    points [K]: shares of the ranks that are below. low, high [K]: a simultaneous band.
    """

    points: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Uniformity:
    """How n ranks in 0..levels are compared with uniform ones."""

    n: int
    levels: int

    @functools.cached_property
    def points(self) -> NDArray[np.int64]:
        """[K]: numbers of ranks, of levels + 1, below each point."""
        count = min(MOST_POINTS, self.levels, max(2, self.n))
        return np.unique(np.linspace(0, self.levels + 1, count + 1).round().astype(np.int64)[1:-1])

    @functools.cached_property
    def _probability(self) -> NDArray[np.float64]:
        return self.points / (self.levels + 1)

    def below(self, ranks: NDArray[Any]) -> NDArray[np.int64]:
        """[K]: how many ranks are below each point."""
        return np.searchsorted(np.sort(ranks), self.points, side="left")

    def differences(self, ranks: NDArray[Any]) -> NDArray[np.float64]:
        """[K]: by how much the ECDF of the ranks is above that of uniform ones."""
        return np.asarray(self.below(ranks) / self.n - self._probability)

    def _least_tail(self, below: NDArray[Any]) -> NDArray[np.float64]:
        """Of counts [..., K], the least over all points of twice the smaller tail probability (equation 12)."""
        left = stats.binom.cdf(below, self.n, self._probability)
        right = stats.binom.sf(below - 1, self.n, self._probability)
        least: NDArray[np.float64] = 2 * np.minimum(left, right).min(axis=-1)
        return least

    @functools.cached_property
    def _simulated(self) -> NDArray[np.float64]:
        """[SIMULATIONS], in order: the least tails of uniform ranks."""
        rng = np.random.default_rng(0)
        shares = np.diff(np.concatenate([[0], self.points, [self.levels + 1]])) / (self.levels + 1)
        counts = rng.multinomial(self.n, shares, SIMULATIONS)
        return np.sort(self._least_tail(np.cumsum(counts, axis=1)[:, :-1]))

    def band(self, alpha: float = 0.05) -> Band:
        """The band that the differences of uniform ranks stay within with probability 1 - alpha."""
        gamma = float(np.quantile(self._simulated, alpha))
        low = stats.binom.ppf(gamma / 2, self.n, self._probability) / self.n
        high = stats.binom.ppf(1 - gamma / 2, self.n, self._probability) / self.n
        return Band(self._probability, low - self._probability, high - self._probability)

    def p_value(self, ranks: NDArray[Any]) -> float:
        """The probability that uniform ranks leave the band further than these."""
        least = float(self._least_tail(self.below(ranks)))
        as_far = int(np.searchsorted(self._simulated, least, side="right"))
        return (as_far + 1) / (SIMULATIONS + 1)
