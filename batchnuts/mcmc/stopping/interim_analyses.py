"""The interim analyses of a run: at each, once all chains have passed it, stopping rule and limits are asked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import map_leaves
from batchnuts.mcmc.execution.runner import Counts, RunningStretch
from batchnuts.mcmc.kernel.chain_program import ChainResult
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.model.library_choice import DensityLibrary
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.model.natural_parameters import NaturalParameters, natural_parameters
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.settings.superchains import count_superchains
from batchnuts.mcmc.settings.until import Condition
from batchnuts.mcmc.stopping.conditions import CONDITION_KINDS
from batchnuts.mcmc.stopping.limits import reason_of_seconds, seconds_left
from batchnuts.mcmc.stopping.stopping_rule import START, Decision, StoppingRule
from batchnuts.settings.schema import SettingsError


def interim_analyses_of(
    model: Model, density_library: DensityLibrary, sampler: SamplerSettings, execution: ExecutionSettings
) -> InterimAnalyses | None:
    """Those of a run with `sampler.until`, else None.

    Raises SettingsError for names that the model does not have, and for a condition that compares chains, of one chain.
    """
    if sampler.until is None:
        return None
    comparing = [CONDITION_KINDS[name] for name in sampler.until.conditions if CONDITION_KINDS[name].compares_chains]
    if comparing and sampler.chain_count < 2:
        kind = comparing[0]
        raise SettingsError(
            f"sampler.until.{kind.name}: found {getattr(sampler.until, kind.name):g} with one chain; {kind.words} "
            "compares chains, so expected null, or sampler.chains of at least 2"
        )
    key, names = "sampler.until.parameters", sampler.until.parameters
    parameters = natural_parameters(model, density_library, execution, sampler.seed, names, key)
    superchains = count_superchains(sampler)
    rule = StoppingRule(sampler.until, parameters.names, sampler.chain_count, superchains, parameters.may_be_constant)
    return InterimAnalyses(rule, parameters, sampler.draws)


AT_ONCE = 2**22
"""Numbers of positions whose parameters are computed together."""


@dataclass(frozen=True)
class Ended:
    """How sampling ended."""

    draws: int
    """Draws of each chain that are kept."""
    reason: str

    def of(self, result: ChainResult) -> ChainResult:
        """The result with these draws of each chain alone."""
        records: Record = map_leaves(lambda array: array[:, : self.draws], result.records)
        return result._replace(records=records, done=np.full_like(result.done, self.draws))


@dataclass(frozen=True)
class SavedInterimAnalyses:
    """The state of the InterimAnalyses of a run under way, for a checkpoint."""

    left: tuple[int, ...]
    last: Decision
    ended: Ended | None


class InterimAnalyses:
    """What is left to ask in one stretch of draws, and what was found.

    Draws are looked at in the order of interim analyses, however far chains have come when they are looked at: the
    answer depends on the draws alone. Only the limit on seconds depends on time.
    """

    def __init__(self, rule: StoppingRule, parameters: NaturalParameters, max_draws: int) -> None:
        self.rule = rule
        self.parameters = parameters
        self.max_draws = max_draws
        self.left = list(rule.interim_analyses(max_draws))
        self.values: NDArray[Any] = np.empty((0, rule.chains, len(parameters.names)))
        """[draws, chains, coefficients], of the draws looked at so far: in this order memory grows without a copy."""
        self.last = START
        self.ended: Ended | None = None
        self.seconds = 0.0
        """Seconds spent on the analyses."""

    @property
    def saved(self) -> SavedInterimAnalyses:
        """The state of the analyses, for `go_on`."""
        return SavedInterimAnalyses(tuple(self.left), self.last, self.ended)

    def go_on(self, saved: SavedInterimAnalyses) -> None:
        """Take over from those of the same run in an earlier process. Draws are read again at the next."""
        self.left, self.last, self.ended = list(saved.left), saved.last, saved.ended

    @property
    def next(self) -> int:
        """The next interim analysis; 0 if none is left."""
        return self.left[0] if self.left else 0

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions, with the values that they had at the last analysis."""
        return self.last.conditions or self.rule.conditions()

    def remaining(self, seconds_to: Callable[[int], float | None], seconds: float, gradients: int) -> float | None:
        """An estimate of the seconds until sampling ends, None where nothing is known: by the condition that is
        furthest, or by a limit.

        seconds_to: when all chains are likely to have so many draws, in seconds from now. seconds, gradients: of the
        stretch so far.
        """
        if self.ended is not None:
            return 0.0
        until = self.rule.until
        times: list[float | None] = []
        if not until.conditions:
            times.append(seconds_to(self.max_draws))
        elif self.last.expected < math.inf:
            points = (point for point in self.left if point >= self.last.expected)
            times.append(seconds_to(next(points, self.max_draws)))
        times += seconds_left(until, seconds, gradients)
        return min((estimate for estimate in times if estimate is not None), default=None)

    def look(self, running: RunningStretch, counts: Counts, seconds: float) -> Ended | None:
        """Ask the rule at each interim analysis that all chains have passed; `ended` once it says so, or at a limit.

        counts, seconds: of the stretch so far.
        """
        began = time.perf_counter()
        while self.left and self.ended is None:
            records = running.records(self.next)
            if records is None:
                break
            self._ask(records.position, int(records.n_steps.sum()))
        reason = reason_of_seconds(self.rule.until, seconds, counts.complete)
        if self.ended is None and reason is not None:
            self.ended = Ended(counts.complete, reason + self._but())
        self.seconds += time.perf_counter() - began
        return self.ended

    def _ask(self, position: NDArray[Any], gradients: int) -> None:
        """At the next interim analysis, with the positions [chains, draws, dimension] up to it."""
        point = self.left.pop(0)
        evaluated, at_once = len(self.values), max(1, AT_ONCE // position[:, :1].size)
        self.values.resize((point, *self.values.shape[1:]), refcheck=False)
        for start in range(evaluated, point, at_once):
            part = position[:, start : min(start + at_once, point)]
            rows = self.parameters.values(part.reshape(-1, position.shape[2]))
            self.values[start : start + part.shape[1]] = rows.reshape(*part.shape[:2], -1).transpose(1, 0, 2)
        if point == self.max_draws:  # what is missing in the end is said of all draws
            self.last = replace(self.last, not_before=0.0)
        self.last = self.rule.decide(self.values.transpose(1, 0, 2), gradients, self.last)
        if self.rule.until.gradients is None:  # which would be asked at each
            self.left = [later for later in self.left if later >= self.last.not_before or later == self.max_draws]
        if self.last.reason is not None:
            self.ended = Ended(point, self.last.reason + (self._but() if self.last.missing else ""))
        elif point == self.max_draws:
            self.ended = Ended(point, f"all {point} draws of each chain were made (sampler.draws){self._but()}")
        if self.ended is not None:
            self.values = self.values[:0].copy()  # the rest of the run needs the memory

    def _but(self) -> str:
        """A clause with what was missing at the last analysis, if anything."""
        return f"; {self.last.missing}" if self.last.missing else ""
