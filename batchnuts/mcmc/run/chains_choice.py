"""The number of chains of `sampler.chains: auto`: that which is expected to reach the asked accuracy first.

A run of M chains makes W warmup transitions and n draws in each of them. With g gradients a transition, which is taken
to be the same for all M, it takes

    (W(M) + n(M)) g s(M),    n(M) = max(first check, D(M) / M)

seconds, where s(M) are the seconds in which every chain makes one gradient (`execution/gradient_times.py` has them from
the measured density), and D(M) the draws of all chains together that what is asked takes. So g cancels. Many chains
share the draws and the cost of a kernel, and each has to be warmed up and to make the draws of the first check.

What is assumed, and what was measured (docs/results/chains.md): a draw is worth EFFICIENCY effective ones; warmup is as
long as `likely_transitions` says; what is done between windows and at interim analyses costs the same for all M.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from batchnuts.mcmc.execution.evaluation import Checked
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.run.forecast import Size, memory_problem
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.settings.superchains import count_superchains
from batchnuts.mcmc.settings.until import Until
from batchnuts.mcmc.stopping.conditions import CONDITION_KINDS
from batchnuts.mcmc.stopping.stopping_rule import StoppingRule
from batchnuts.mcmc.warmup.windows import likely_transitions
from batchnuts.settings.schema import SettingsError, in_words

EFFICIENCY = 0.5
"""Effective draws of a draw, of the worst parameter. Measured for packaged models: 0.13 to 1.6."""

MOST = 4096
"""Chains, unless cores or superchains are more: with thousands each makes fewer draws than the first check needs."""

NEIGHBOURS = 2
"""Numbers on either side of the chosen one that the reason names."""


@dataclass(frozen=True)
class Candidate:
    """A number of chains, and what a run of so many is expected to take."""

    chains: int
    warmup: int
    """Transitions of each chain."""
    draws: int
    """Draws of each chain until the conditions hold."""
    seconds: float
    """The time in which every chain makes one gradient."""

    @property
    def cost(self) -> float:
        """Seconds of a run whose transitions take one gradient each."""
        return (self.warmup + self.draws) * self.seconds


@dataclass(frozen=True)
class ChainsChoice:
    """The chosen number, why, and what it was chosen from."""

    chains: int
    reason: str
    """The reason in words, for the summary and the file."""
    table: tuple[Candidate, ...]
    checked: Checked | None = field(default=None, compare=False)
    """The result of the check of the model that was made for it."""


def with_chains(sampler: SamplerSettings, chains: int) -> SamplerSettings:
    """The same settings with a number of chains."""
    return sampler.model_copy(update={"chains": chains})


def possible_chains(
    sampler: SamplerSettings,
    execution: ExecutionSettings,
    size: Size,
    cores: int,
    *,
    starts: int = 1,
    content: Content | None = None,
    streamed: bool = False,
) -> tuple[int, ...]:
    """The numbers that are chosen from: powers of two that the other settings and the machine's memory allow.

    cores: each has a chain at least. starts: how many `init.values` gives. content, streamed: what is saved of draws,
    and whether while they are made. Raises SettingsError if there is none.
    """
    first = math.ceil(math.log2(max(sampler.fewest_chains, cores)))
    last = max(first, int(math.log2(MOST)))
    numbers: list[int] = []
    for chains in (2**power for power in range(first, last + 1)):
        settings = with_chains(sampler, chains)
        if starts > count_superchains(settings):
            continue
        problem = memory_problem(settings, execution, size, content=content, streamed=streamed)
        if problem is None:
            numbers.append(chains)
        elif not numbers:
            raise SettingsError(f"{problem}.")
        else:
            break
    if not numbers:
        raise SettingsError(
            f"sampler.init.values: found {starts} starts, more than the superchains of {MOST} chains; set "
            f"sampler.superchains to at least {starts}."
        )
    return tuple(numbers)


def choose_chains(sampler: SamplerSettings, seconds: Mapping[int, float], cores: int, dimension: int) -> ChainsChoice:
    """The best of some numbers of chains, by the time that every chain takes for one gradient, in seconds.

    sampler: with a condition in `until`. seconds: see Candidate; not empty. dimension: of a position. Of numbers with
    which `sampler.draws` are likely too few, the largest is taken only where there are no others.
    """
    table = tuple(_candidate(with_chains(sampler, chains), seconds[chains], dimension) for chains in sorted(seconds))
    suffice = [candidate for candidate in table if candidate.draws <= sampler.draws]
    best = min(suffice, key=lambda candidate: candidate.cost) if suffice else table[-1]
    return ChainsChoice(best.chains, _reason(sampler, best, table, cores), table)


def _candidate(sampler: SamplerSettings, seconds: float, dimension: int) -> Candidate:
    chains, superchains = sampler.chain_count, count_superchains(sampler)
    assert sampler.until is not None, "auto is refused without it"
    rule = StoppingRule(sampler.until, (), chains, superchains)
    ensemble = sampler.begins_with_ensemble(dimension)
    warmup = likely_transitions(sampler.warmup, chains, nested=rule.nested, ensemble=ensemble)
    together = draws_together(sampler.until, superchains, 1 if rule.nested else dimension)
    return Candidate(chains, warmup, max(rule.first_point, math.ceil(together / chains)), seconds)


def draws_together(until: Until, groups: int, columns: int) -> float:
    """How many draws of all chains together what is asked takes.

    groups: chains or superchains, where a condition compares them, in so many columns.
    """
    needed = [
        CONDITION_KINDS[name].draws_together(float(getattr(until, name)), EFFICIENCY, groups, columns)
        for name in until.conditions
    ]
    return max(needed)


def _reason(sampler: SamplerSettings, best: Candidate, table: Sequence[Candidate], cores: int) -> str:
    assert sampler.until is not None
    asked = [CONDITION_KINDS[name].asked(getattr(sampler.until, name)) for name in sampler.until.conditions]
    place = table.index(best)
    others = [
        f"{neighbour.chains} chains {neighbour.cost / best.cost:.1f} times as long"
        for neighbour in table[max(place - NEIGHBOURS, 0) : place + NEIGHBOURS + 1]
        if neighbour is not best
    ]
    processors = in_words(cores, "processor")
    text = (
        f"{best.chains} are expected to reach {' and '.join(asked)} fastest on {processors}, with about "
        f"{best.warmup} transitions of warmup and {best.draws} draws each; a gradient of one chain takes "
        f"{_short(best.seconds * min(cores, best.chains) / best.chains)} of processor time"
    )
    if best.draws > sampler.draws:
        text = (
            f"{best.chains}, the largest number considered: sampler.draws={sampler.draws} of each are likely too few "
            f"for {' and '.join(asked)}"
        )
    expected = f". Expected for other numbers: {', '.join(others)}" if others else ""
    return f"{text}{expected}. The choice depends on measured times: sampler.chains={best.chains} reproduces this run"


def _short(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} microseconds" if seconds < 1e-3 else f"{1e3 * seconds:.3g} milliseconds"
