"""When the draws suffice, or cannot: a function of the first draws of all chains (conditions.py, limits.py).

The rule is asked at interim analyses, after numbers of draws n_1 < n_2 < ... that are fixed before the run. At n_k it
sees exactly the first n_k draws of every chain, and if it ends the run, the result has exactly these draws. Chains are
not synchronized for that: they run on out of step, and n_k is looked at when the slowest of them has passed it.

Why this does not favour fast chains: a chain's speed (the length of its trajectories, which depends on where it is) and
the speed of threads decide *when* n_k is looked at, but neither what is looked at nor what is kept. A run that ended
when some total of draws were made, or that kept what each chain had when time was up, would have more draws of chains
that were in cheap regions; this one has n_k of each, whatever they cost. So a draw of it has the distribution that the
n-th draw of a chain has, but for one thing: any rule that looks at draws and then decides whether to go on is optional
stopping. It could be biased, by stopping when a mean happens to be high, for example. Conditions on R-hat and on
effective sample sizes see how far chains agree and how far draws depend on each other, and hardly where they are, so
the bias is small.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.settings.until import Condition, Until
from batchnuts.mcmc.statistics.chain_moments import MINIMUM_DRAWS
from batchnuts.mcmc.statistics.chain_numbers import named_chains
from batchnuts.mcmc.statistics.convergence import convergence
from batchnuts.mcmc.statistics.rounding import vary_beyond_rounding
from batchnuts.mcmc.statistics.stuck_chains import PERSISTENCE_LIMIT, find_stuck
from batchnuts.mcmc.stopping.conditions import CONDITION_KINDS, ConditionKind
from batchnuts.mcmc.stopping.limits import reason_of_gradients

GROWTH = 1.25
"""The factor between interim analyses: with 1.25, all together cost at most five times the last one, and a run makes at
most a quarter more draws than it needs."""

SOONER = 2.0
"""How much sooner than in proportion to the draws a condition may come to hold; it is not looked at before."""

LONGEST_WAIT = 4.0
"""Times as many draws after which conditions are looked at again in any case."""

VALUES_AT_ONCE = 200_000
"""The most numbers of draws of coefficients that are processed together."""

STUCK_FOR, FEWEST_STUCK_DRAWS = 4, 100
"""Times as many draws as those at which chains were first found to be stuck, and the fewest draws of each chain, after
which a condition on R-hat cannot be met."""


@dataclass(frozen=True)
class Decision:
    """What the rule says at an interim analysis."""

    reason: str | None
    """Why sampling ends; None: it goes on."""
    worst: int = 0
    """The coefficient that is furthest from a condition, among those that were looked at."""
    missing: str = ""
    """The condition that does not hold of that coefficient, if any, in words."""
    conditions: tuple[Condition, ...] = ()
    """Each with the worst that was found of it, now or at an earlier interim analysis."""
    not_before: float = 0.0
    """Draws of each chain before which the conditions need not be looked at again."""
    expected: float = math.inf
    """Draws of each chain at which those that do not hold are expected to; infinite where that is not known."""
    stuck_since: int = 0
    """Draws of each chain at which chains were first found to be stuck, as they are still; 0: none are."""


START = Decision(None)
"""The decision before the first interim analysis."""


@dataclass(frozen=True)
class StoppingRule:
    """The conditions of `until` on coefficients of these names, for chains that form so many superchains."""

    until: Until
    names: tuple[str, ...]
    chains: int
    superchains: int
    may_be_constant: tuple[bool, ...] = ()
    """Which coefficients (none, if empty) are left out if they are constant but for rounding, or not finite."""

    @property
    def nested(self) -> bool:
        """Whether chains form superchains: R-hat is the nested one then."""
        return 1 < self.superchains < self.chains

    @property
    def first_point(self) -> int:
        """With fewer draws the conditions cannot be judged."""
        return max((kind.fewest_draws for kind in self.kinds), default=MINIMUM_DRAWS)

    @property
    def kinds(self) -> tuple[ConditionKind, ...]:
        """Those of the conditions that are set."""
        return tuple(CONDITION_KINDS[name] for name in self.until.conditions)

    @property
    def comparing(self) -> ConditionKind | None:
        """The condition that compares chains, if one does."""
        return next((kind for kind in self.kinds if kind.compares_chains), None)

    def wanted(self, kind: ConditionKind) -> float:
        """What is asked for."""
        return float(getattr(self.until, kind.name))

    def interim_analyses(self, max_draws: int) -> tuple[int, ...]:
        """The numbers of draws of each chain at which the rule is asked; the last one is `max_draws`.

        They grow by GROWTH, and are even, so that both halves of a chain have all its draws.
        """
        points = [self.first_point]
        while points[-1] < max_draws:
            points.append(2 * math.ceil(points[-1] * GROWTH / 2))
        return (*(point for point in points if point < max_draws), max_draws)

    def decide(self, draws: NDArray[Any], gradients: int = 0, last: Decision = START) -> Decision:
        """Whether sampling ends with these draws [chains, draws, coefficients], which took so many gradients.

        Nothing but the arguments decides. last: the decision at the last interim analysis. Its worst coefficient is
        looked at first, which saves time and changes no reason; before its `not_before` it still holds.
        """
        when = f"after {draws.shape[1]} draws of each chain"
        draws = self._without_rounding(draws)
        decision = replace(last, reason=None)
        if self.until.conditions and draws.shape[1] >= last.not_before:
            decision = self._first_missing(draws, last)
            if not decision.missing:
                return replace(decision, reason=f"{self._met(decision.conditions)} {when}")
            if self.comparing is not None:
                decision = self._hopeless(draws, last, decision, self.comparing.words)
                if decision.reason is not None:
                    return decision
        reason = reason_of_gradients(self.until, gradients, draws.shape[1])
        return decision if reason is None else replace(decision, reason=reason)

    def _without_rounding(self, draws: NDArray[Any]) -> NDArray[Any]:
        """The draws, with one value where coefficients that may be constant are so but for rounding."""
        columns = np.flatnonzero(self.may_be_constant)
        values = draws[:, :, columns]
        low, high = values.min(axis=(0, 1), initial=np.inf), values.max(axis=(0, 1), initial=-np.inf)
        constant = ~vary_beyond_rounding(low, high, draws.dtype)
        if constant.any():
            draws = draws.copy()
            draws[:, :, columns[constant]] = low[constant]
        return draws

    def _hopeless(self, draws: NDArray[Any], last: Decision, decision: Decision, words: str) -> Decision:
        """The decision, with when chains were first found to be stuck; the run ends once they have been for long.

        words: the statistic that compares chains.
        """
        mask = find_stuck(draws, VALUES_AT_ONCE).mask
        if not mask.any():
            return decision
        length = draws.shape[1]
        since = last.stuck_since or length
        decision = replace(decision, stuck_since=since, not_before=min(decision.not_before, STUCK_FOR * since))
        if length < max(STUCK_FOR * since, FEWEST_STUCK_DRAWS):
            return decision
        numbers = np.flatnonzero(mask).tolist()
        subject = named_chains(numbers)
        stay = "has stayed away" if len(numbers) == 1 else "have stayed away"
        reason = (
            f"{words} cannot be met, because {subject} {stay} from all others since draw {since}, after {length} draws"
        )
        return replace(decision, reason=f"{reason} of each chain")

    def _met(self, conditions: tuple[Condition, ...]) -> str:
        """A clause that says that all conditions hold; conditions: with their values."""
        names = self.until.parameters
        subject = (
            f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}" if names else "all sampled parameters have"
        )
        found = {condition.name: condition for condition in conditions}
        clauses = [kind.held(self.wanted(kind), found.get(kind.name), self.nested) for kind in self.kinds]
        return f"{subject} {' and '.join(filter(None, [', '.join(clauses[:-1]), clauses[-1]]))}"

    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that are asked for, without values."""
        return tuple(Condition(kind.name, math.nan, self.wanted(kind)) for kind in self.kinds)

    def _first_missing(self, draws: NDArray[Any], last: Decision) -> Decision:
        """The worst coefficient of the first part of them that has one of which a condition does not hold, and which;
        nothing is missing where all hold of all. That of the last decision is looked at first."""
        chains, length, count = draws.shape
        likely = last.worst
        if length < self.first_point:
            return Decision(None, likely, f"{length} draws of each chain are too few to tell", last.conditions)
        worst: dict[str, tuple[float, float, float]] = {}  # by condition: the largest shortfall; value, bound there
        order = np.roll(np.arange(count), -likely)
        width = max(1, VALUES_AT_ONCE // (chains * length))
        # most checks fail, and most of these because of the coefficient that was worst at the last one
        parts = [order[:1], *(order[start : start + width] for start in range(1, count, width))]
        for part, conditions in itertools.product(parts, self._together()):
            statistics, bounds = self._statistics(draws[:, :, part], conditions)
            short = np.stack([CONDITION_KINDS[name].shortfall(statistics[name], bounds[name]) for name in conditions])
            if self.may_be_constant:
                short[:, np.isnan(statistics[conditions[0]]) & np.array(self.may_be_constant)[part]] = -np.inf
            for condition, of_all in zip(conditions, short, strict=True):
                largest = int(of_all.argmax())
                if condition not in worst or of_all[largest] > worst[condition][0]:
                    values = statistics[condition][largest], bounds[condition][largest]
                    worst[condition] = float(of_all[largest]), float(values[0]), float(values[1])
            if (short > 0).any():
                row, worst_column = np.unravel_index(short.argmax(), short.shape)
                name, condition = self.names[part[worst_column]], conditions[row]
                at_worst = {c: (float(statistics[c][worst_column]), float(bounds[c][worst_column])) for c in conditions}
                reason = self._unmet(name, condition, *at_worst[condition])
                failing = [c for c, of_all in zip(conditions, short, strict=True) if of_all[worst_column] > 0]
                all_conditions = self._current_conditions(worst, last)
                return Decision(
                    None,
                    int(part[worst_column]),
                    reason,
                    all_conditions,
                    *_when({c: at_worst[c] for c in failing}, length),
                )
        all_conditions = self._current_conditions(worst, last)
        if self.comparing is not None:
            return self._stuck(draws, likely, all_conditions)
        return Decision(None, likely, conditions=all_conditions)

    def _current_conditions(
        self, worst: dict[str, tuple[float, float, float]], last: Decision
    ) -> tuple[Condition, ...]:
        """Every condition, with its shortfall and value now, or else as it was at the last interim analysis."""
        previous = {condition.name: condition for condition in (*self.conditions(), *last.conditions)}
        current = {
            name: Condition(name, value, bound, not shortfall > 0) for name, (shortfall, value, bound) in worst.items()
        }
        return tuple((previous | current)[name] for name in self.until.conditions)

    def _stuck(self, draws: NDArray[Any], likely: int, conditions: tuple[Condition, ...]) -> Decision:
        """Whether chains are stuck (stuck_chains.py), which R-hat does not see: looked at where R-hat is small."""
        evidence = find_stuck(draws, VALUES_AT_ONCE)
        if evidence.mask.any():
            chain = int(evidence.mask.argmax())
            worst = int(evidence.furthest[chain])
            also = f" and {evidence.mask.sum() - 1} more" if evidence.mask.sum() > 1 else ""
            reason = f"chain {chain}{also} stays away from all others, in {self.names[worst]}"
            stuck = Condition("stuck_chains", float(evidence.mask.sum()), 0.0)
            return Decision(None, worst, reason, (*conditions, stuck))
        worst = int(evidence.persistence.argmax())
        lasting = evidence.persistence[worst]
        if self.nested and lasting > PERSISTENCE_LIMIT:
            lasts = f"{100 * lasting:.0f}% of the variance of {self.names[worst]} is between chains and persists"
            return Decision(
                None, worst, lasts, (*conditions, Condition("persistence", float(lasting), PERSISTENCE_LIMIT))
            )
        return Decision(None, likely, conditions=conditions)

    def _together(self) -> list[tuple[str, ...]]:
        """The conditions, those together that share what they are computed from; nested R-hat shares nothing."""
        apart = tuple(kind.name for kind in self.kinds if not kind.compares_chains)
        comparing = tuple(kind.name for kind in self.kinds if kind.compares_chains)
        return [part for part in ((apart, comparing) if self.nested else (apart + comparing,)) if part]

    def _statistics(
        self, draws: NDArray[Any], conditions: tuple[str, ...]
    ) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
        """By condition, of each coefficient: its value, and its bound (see ConditionKind)."""
        kinds = [CONDITION_KINDS[name] for name in conditions]
        if self.nested and kinds[0].compares_chains:
            pairs = {kind.name: kind.of_superchains(draws, self.superchains, self.wanted(kind)) for kind in kinds}
            return {name: pair[0] for name, pair in pairs.items()}, {name: pair[1] for name, pair in pairs.items()}
        statistics = convergence(draws, [kind.statistic for kind in kinds])
        bounds = {kind.name: np.full(draws.shape[2], self.wanted(kind)) for kind in kinds}
        return {kind.name: statistics[kind.statistic] for kind in kinds}, bounds

    def _unmet(self, name: str, condition: str, value: float, bound: float) -> str:
        """A clause that says that a condition does not hold of a coefficient."""
        if np.isnan(value):
            return f"{name} did not move, or is not finite"
        return CONDITION_KINDS[condition].unmet(name, value, bound, self.nested)


def _when(failing: dict[str, tuple[float, float]], draws: int) -> tuple[float, float]:
    """The draws of each chain before which conditions that do not hold of a coefficient are unlikely to hold, and those
    at which they are expected to (infinite where it never moved).

    failing: by condition, value and bound.
    """
    least, expected = [1.0], [1.0]
    for condition, (value, bound) in failing.items():
        at_least, factor = CONDITION_KINDS[condition].factors(value, bound)
        expected.append(math.inf if math.isnan(factor) else factor)
        least.append(at_least)
    largest = max((factor for factor in least if not math.isnan(factor)), default=1.0)
    return draws * min(largest / SOONER, LONGEST_WAIT), draws * max(expected)
