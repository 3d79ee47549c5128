"""The conditions of `sampler.until`, one entry for each: its statistic, when it holds, how far it is, and its words.

A new condition is a field of `Until` and a name among `CONDITIONS` (settings/until.py), and an entry of
`CONDITION_KINDS` here; stopping rule, progress and the choice of the number of chains read these.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.settings.superchains import superchain_of
from batchnuts.mcmc.settings.until import Condition
from batchnuts.mcmc.statistics.chain_moments import MINIMUM_DRAWS
from batchnuts.mcmc.statistics.nested_rhat import nested_of
from batchnuts.mcmc.statistics.quantile_functions import chi_squared_exceeded
from batchnuts.mcmc.statistics.reductions import NESTED, in_order, reduce_draws

Array = NDArray[np.float64]

ESS_DRAWS = 10
"""With fewer draws, halves of chains have too few lags: the estimate then ignores autocorrelation, and is too high."""


@dataclass(frozen=True)
class ConditionKind(ABC):
    """A condition that may be set. `wanted` below is what `Until` has for it; `bound` the same of one coefficient."""

    name: str
    """One of CONDITIONS."""
    statistic: str
    """The statistic that it is about, of `statistics.convergence`."""
    words: str
    """The statistic in messages."""
    fewest_draws: int
    """With fewer draws of each chain it cannot be judged."""

    compares_chains: ClassVar[bool] = False
    """Whether it compares chains with each other, and so needs two: superchains, where chains form these; it is not
    met where chains are stuck."""

    def of_superchains(self, draws: NDArray[Any], superchains: int, wanted: float) -> tuple[Array, Array]:
        """The value and the bound of each coefficient, where superchains are compared; draws [chains, draws,
        coefficients]."""
        raise NotImplementedError(f"{self.name} does not compare chains")

    @abstractmethod
    def shortfall(self, values: Array, bounds: Array) -> Array:
        """How far each coefficient is from the condition; above 0 where it does not hold. Values may be NaN."""

    @abstractmethod
    def factors(self, value: float, bound: float) -> tuple[float, float]:
        """Where the condition does not hold: as a factor, how many more draws it takes at least, and is expected to."""

    @abstractmethod
    def draws_together(self, wanted: float, efficiency: float, groups: int, columns: int) -> float:
        """How many draws of all chains together it takes; see `chains_choice.draws_together`.

        efficiency: effective draws of a draw.
        """

    @abstractmethod
    def asked(self, wanted: float) -> str:
        """What is asked for, in words."""

    def held(self, wanted: float, found: Condition | None, nested: bool) -> str:
        """What holds, in words; found: the condition with the worst value. nested: of superchains."""
        return self.asked(wanted)

    @abstractmethod
    def unmet(self, coefficient: str, value: float, bound: float, nested: bool) -> str:
        """A clause that says that it does not hold of a coefficient."""


@dataclass(frozen=True)
class SizeToReach(ConditionKind):
    """An effective sample size, which grows in proportion to the draws."""

    def shortfall(self, values: Array, bounds: Array) -> Array:
        """The logarithm of the factor that is missing."""
        return _infinite_where_unknown(np.log(bounds / values), values)

    def factors(self, value: float, bound: float) -> tuple[float, float]:
        """In proportion."""
        return bound / value, bound / value

    def draws_together(self, wanted: float, efficiency: float, groups: int, columns: int) -> float:
        """The same however many chains share them."""
        return wanted / efficiency

    def asked(self, wanted: float) -> str:
        """As `bulk ESS >= 400`."""
        return f"{self.words} >= {wanted:g}"

    def unmet(self, coefficient: str, value: float, bound: float, nested: bool) -> str:
        """With the size, in whole draws."""
        return f"{self.words} of {coefficient} is {value:.0f} (wanted {bound:g})"


@dataclass(frozen=True)
class RhatBelow(ConditionKind):
    """R-hat, or nested R-hat where chains form superchains."""

    compares_chains: ClassVar[bool] = True

    def of_superchains(self, draws: NDArray[Any], superchains: int, wanted: float) -> tuple[Array, Array]:
        """Nested R-hat may exceed what is asked for by what chance lets expect (`RhatNoise.limits_for`)."""
        nested = nested_of(reduce_draws(in_order(draws), {NESTED}), superchain_of(len(draws), superchains))
        return nested.rhat, nested.noise.limits_for(wanted)

    def shortfall(self, values: Array, bounds: Array) -> Array:
        """The difference; the condition holds below the bound, not at it."""
        short = np.maximum(values - bounds, np.where(values < bounds, -np.inf, np.finfo(float).tiny))
        return _infinite_where_unknown(short, values)

    def factors(self, value: float, bound: float) -> tuple[float, float]:
        """The excess of R-hat over 1 falls at least in proportion to the draws, and with their square where it is what
        is left of the start."""
        factor = (value**2 - 1.0) / (bound**2 - 1.0)
        return math.sqrt(factor), factor

    def draws_together(self, wanted: float, efficiency: float, groups: int, columns: int) -> float:
        """In proportion to the groups that are compared.

        Where one of t draws is effective, the square of R-hat of groups that have converged is about 1 + 2 (q t - 1) /
        n for n draws in each of them (docs/how_many_chains.md): q is 1 on average; the largest of many columns has a
        chi-squared number, over its degrees of freedom, with one for each half of a chain. Superchains count as one
        column: what R-hat of them may be is not so strict (`RhatNoise.asked`).
        """
        freedom = 2 * groups - 1
        largest = chi_squared_exceeded(0.5 / columns, freedom) / freedom if columns > 1 else 1.0
        return groups * 2 * (largest / efficiency - 1) / (wanted**2 - 1)

    def asked(self, wanted: float) -> str:
        """As `R-hat < 1.01`."""
        return f"{self.words} < {wanted:g}"

    def held(self, wanted: float, found: Condition | None, nested: bool) -> str:
        """With the limit that was applied, where that is more than what was asked."""
        limit = f"{wanted:g}"
        if found is not None and found.found >= wanted:  # by what chance lets expect of so few draws
            limit = f"{found.wanted:.4f} (worst {found.found:.4f}; {wanted:g} plus what chance allows)"
        return f"{'nested ' * nested}{self.words} < {limit}"

    def unmet(self, coefficient: str, value: float, bound: float, nested: bool) -> str:
        """With four digits, as differences of R-hat are small."""
        return f"{'nested ' * nested}{self.words} of {coefficient} is {value:.4f} (wanted below {bound:.4f})"


def _infinite_where_unknown(shortfall: Array, values: Array) -> Array:
    return np.where(np.isnan(values), np.inf, shortfall)


CONDITION_KINDS: Mapping[str, ConditionKind] = {
    kind.name: kind
    for kind in (
        SizeToReach("ess_bulk", "ess_bulk", "bulk ESS", ESS_DRAWS),
        SizeToReach("ess_tail", "ess_tail", "tail ESS", ESS_DRAWS),
        RhatBelow("rhat", "r_hat", "R-hat", MINIMUM_DRAWS),
    )
}
"""By name, all of CONDITIONS, in that order."""
