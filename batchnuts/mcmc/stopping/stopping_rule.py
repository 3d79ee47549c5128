"""When the draws suffice, or cannot (limits.py has the limits): a function of the first draws of all chains.

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

from batchnuts.mcmc.settings.superchains import superchain_of
from batchnuts.mcmc.settings.until import Condition, Until
from batchnuts.mcmc.statistics.chain_moments import MINIMUM_DRAWS
from batchnuts.mcmc.statistics.chain_numbers import named_chains
from batchnuts.mcmc.statistics.convergence import convergence
from batchnuts.mcmc.statistics.nested_rhat import nested_of
from batchnuts.mcmc.statistics.reductions import NESTED, in_order, reduce_draws
from batchnuts.mcmc.statistics.rounding import vary_beyond_rounding
from batchnuts.mcmc.statistics.stuck_chains import PERSISTENCE_LIMIT, find_stuck
from batchnuts.mcmc.stopping.limits import reason_of_gradients

GROWTH = 1.25
"""The factor between interim analyses: with 1.25, all together cost at most five times the last one, and a run makes at
most a quarter more draws than it needs."""

ESS_DRAWS = 10
"""With fewer draws, halves of chains have too few lags: the estimate then ignores autocorrelation, and is too high."""

SOONER = 2.0
"""How much sooner than in proportion to the draws a condition may come to hold; it is not looked at before."""

LONGEST_WAIT = 4.0
"""Times as many draws after which conditions are looked at again in any case."""

VALUES_AT_ONCE = 200_000
"""The most numbers of draws of coefficients that are processed together."""

STUCK_FOR, FEWEST_STUCK_DRAWS = 4, 100
"""Times as many draws as those at which chains were first found to be stuck, and the fewest draws of each chain, after
which a condition on R-hat cannot be met."""

WORDS = {"ess_bulk": "bulk ESS", "ess_tail": "tail ESS"}
"""Conditions on effective sample sizes, in messages."""


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
        return ESS_DRAWS if set(WORDS) & set(self.until.conditions) else MINIMUM_DRAWS

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
            if self.until.rhat is not None:
                decision = self._hopeless(draws, last, decision)
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

    def _hopeless(self, draws: NDArray[Any], last: Decision, decision: Decision) -> Decision:
        """The decision, with when chains were first found to be stuck; the run ends once they have been for long."""
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
            f"R-hat cannot be met, because {subject} {stay} from all others since draw {since}, after {length} draws"
        )
        return replace(decision, reason=f"{reason} of each chain")

    def _met(self, conditions: tuple[Condition, ...]) -> str:
        """A clause that says that all conditions hold; conditions: with their values."""
        names = self.until.parameters
        subject = (
            f"{', '.join(names)} {'has' if len(names) == 1 else 'have'}" if names else "all sampled parameters have"
        )
        clauses = [f"{WORDS[name]} >= {getattr(self.until, name):g}" for name in self.until.conditions if name in WORDS]
        if self.until.rhat is not None:
            limit = f"{self.until.rhat:g}"
            rhat = next((condition for condition in conditions if condition.name == "rhat"), None)
            if rhat is not None and rhat.found >= self.until.rhat:  # by what chance lets expect of so few draws
                limit = f"{rhat.wanted:.4f} (worst {rhat.found:.4f}; {self.until.rhat:g} plus what chance allows)"
            clauses.append(f"{'nested ' * self.nested}R-hat < {limit}")
        return f"{subject} {' and '.join(filter(None, [', '.join(clauses[:-1]), clauses[-1]]))}"

    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that are asked for, without values."""
        return tuple(Condition(name, math.nan, float(getattr(self.until, name))) for name in self.until.conditions)

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
            short = np.stack([_shortfall(name, statistics[name], bounds[name]) for name in conditions])
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
        if self.until.rhat is not None:
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
        sizes = tuple(name for name in self.until.conditions if name in WORDS)
        rhat = ("rhat",) * ("rhat" in self.until.conditions)
        return [part for part in ((sizes, rhat) if self.nested else (sizes + rhat,)) if part]

    def _statistics(
        self, draws: NDArray[Any], conditions: tuple[str, ...]
    ) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
        """By condition, of each coefficient: its value, and its bound, which sizes must reach and R-hat be below.

        Nested R-hat may exceed what is asked for by what chance lets expect (`RhatNoise.limits_for`).
        """
        bounds = {name: np.full(draws.shape[2], float(getattr(self.until, name))) for name in conditions}
        if "rhat" not in conditions:
            return convergence(draws, conditions), bounds
        if self.nested:
            reduced = reduce_draws(in_order(draws), {NESTED})
            nested = nested_of(reduced, superchain_of(self.chains, self.superchains))
            return {"rhat": nested.rhat}, {"rhat": nested.noise.limits_for(bounds["rhat"][0])}
        statistics = convergence(draws, [*conditions, "r_hat"])
        return {**statistics, "rhat": statistics["r_hat"]}, bounds

    def _unmet(self, name: str, condition: str, value: float, bound: float) -> str:
        """A clause that says that a condition does not hold of a coefficient."""
        if np.isnan(value):
            return f"{name} did not move, or is not finite"
        if condition == "rhat":
            return f"{'nested ' * self.nested}R-hat of {name} is {value:.4f} (wanted below {bound:.4f})"
        return f"{WORDS[condition]} of {name} is {value:.0f} (wanted {bound:g})"


def _shortfall(condition: str, values: NDArray[np.float64], bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each coefficient is from a condition; above 0 where it does not hold."""
    if condition == "rhat":
        short = np.maximum(values - bounds, np.where(values < bounds, -np.inf, np.finfo(float).tiny))
    else:
        short = np.log(bounds / values)
    return np.where(np.isnan(values), np.inf, short)


def _when(failing: dict[str, tuple[float, float]], draws: int) -> tuple[float, float]:
    """The draws of each chain before which conditions that do not hold of a coefficient are unlikely to hold, and those
    at which they are expected to (infinite where it never moved).

    failing: by condition, value and bound. Effective sizes grow in proportion to the draws. The excess of
    R-hat over 1 falls at least so, and with the square of the draws where it is what is left of the start.
    """
    least, expected = [1.0], [1.0]
    for condition, (value, bound) in failing.items():
        factor = (value**2 - 1.0) / (bound**2 - 1.0) if condition == "rhat" else bound / value
        expected.append(math.inf if math.isnan(factor) else factor)
        least.append(math.sqrt(factor) if condition == "rhat" else factor)
    largest = max((factor for factor in least if not math.isnan(factor)), default=1.0)
    return draws * min(largest / SOONER, LONGEST_WAIT), draws * max(expected)
