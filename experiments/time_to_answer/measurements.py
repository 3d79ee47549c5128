"""The measurements of times to an answer: one row for each second start of a sampler on a posterior."""

from __future__ import annotations

from dataclasses import dataclass

from batchnuts.experiments.harness.rows import Status


@dataclass(frozen=True)
class Measurement:
    """One second start; where `status` is not `ok`, why there is none (then figures are None)."""

    task: str
    """The task's fingerprint."""
    sampler: str
    options: str
    """The options of the sampler, as JSON."""
    problem: str
    """The problem's whole config, as JSON."""
    goal: int
    """Effective draws that were asked for."""
    status: Status
    repetition: int
    seed: int
    seconds: float | None
    """Seconds from the process's start to its end, with caches warm."""
    first_seconds: float | None
    """Seconds with empty caches; None where that was not measured."""
    chains: int | None
    draws: int | None
    """Draws of each chain that are kept."""
    warmup: int | None
    """Transitions of warmup of each chain."""
    runs: int | None
    """Runs until there were enough draws; 1: the first were enough."""
    ess: float | None
    """The smallest bulk ESS."""
    ess_of: str
    """The element that has it."""
    rhat: float | None
    """The largest R-hat of the kind that decides."""
    rhat_limit: float | None
    """What it had to be below: 1.01, for nested R-hat with what few draws of each superchain add."""
    gradients: float | None
    """Gradients of the draws, and of warmup where `warmup_counted`."""
    executed: float | None
    """Gradients computed, useful or not, where the sampler says so."""
    warmup_counted: bool | None
    load: float | None
    """The machine's load average before the run."""
    environment: str
    """A name of environment.json."""
    started: str
    """Date and time, UTC."""
    note: str
    """Why there is no run."""

    @property
    def ok(self) -> bool:
        """Whether it is a run."""
        return self.status == "ok"

    def lacks(self) -> str | None:
        """What the row lacks that its status requires, in words; None for a row in order."""
        if self.ok and self.seconds is None:
            return "found a run (status ok) without seconds; expected them"
        return None
