"""What the phases of a run have taken so far, and the report of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.run.pace import Pace
from batchnuts.mcmc.stopping.interim_analyses import InterimAnalyses
from batchnuts.mcmc.storage.history import HistoryKeeper, Row
from batchnuts.mcmc.storage.progress import RUN_PHASES, Progress, RunPhase


@dataclass
class Spent:
    """The times and counts of the phases so far: the mutable state of a run."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RUN_PHASES, 0.0))
    counts: dict[str, Counts] = field(default_factory=lambda: dict.fromkeys(RUN_PHASES, Counts()))
    paces: dict[str, Pace] = field(default_factory=lambda: {phase: Pace() for phase in RUN_PHASES})
    history: HistoryKeeper = field(default_factory=HistoryKeeper)
    began: float = field(default_factory=time.perf_counter)

    def note(self, phase: RunPhase) -> None:
        """Add what the phase has done so far to the history."""
        counts, seconds = self.counts[phase], time.perf_counter() - self.began
        gradients = counts.useful_gradients, counts.executed_gradients
        self.history.add(Row(phase, seconds, counts.transitions, *gradients, counts.divergences))

    def begin(self, phase: RunPhase) -> None:
        """Note the beginning of a phase that the history does not have yet: from here on its speed is measured."""
        if all(row.phase != phase for row in self.history.rows):
            self.note(phase)

    def report(self, place: Progress, chains: int, counts: Counts, checks: InterimAnalyses | None) -> Progress:
        """How far the phase is, when `counts` have been made in the stretch under way.

        place: what does not change in the stretch; done (before it) and total are of each chain.
        """
        seconds, phase_counts, pace = self.seconds[place.phase], self.counts[place.phase], self.paces[place.phase]
        slowest = place.done + counts.complete
        pace.note(seconds, slowest)
        if checks is not None:
            remaining = checks.remaining(pace.seconds_to, seconds, phase_counts.useful_gradients)
            place = replace(place, until=checks.conditions, missing=(checks.last.missing,) * bool(checks.last.missing))
        else:
            remaining = pace.seconds_to(place.total) if place.total else None
        return replace(
            place,
            done=place.done * chains + counts.transitions,
            total=place.total * chains,
            elapsed=seconds,
            useful_gradients=phase_counts.useful_gradients,
            utilization=phase_counts.utilization,
            divergences=phase_counts.divergences,
            chains=chains,
            slowest=slowest,
            median=place.done + counts.median,
            remaining=remaining,
        )
