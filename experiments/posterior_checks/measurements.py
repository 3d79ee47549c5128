"""The measurements of posteriors: one row a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from batchnuts.experiments.harness.rows import Status
from batchnuts.experiments.posterior_checks.moments import Moments, decode


@dataclass(frozen=True)
class Measurement:
    """One run of one sampler on one problem; where `status` is not `ok`, why there is none (then figures are None)."""

    task: str
    """The task's fingerprint."""
    sampler: str
    options: str
    """The options of the sampler, as JSON."""
    problem: str
    """The problem's whole config, as JSON."""
    chains: int
    warmup: int
    draws: int
    status: Status
    repetition: int
    seed: int
    seconds: float | None
    """Seconds of warmup and draws."""
    compile_seconds: float | None
    divergences: int | None
    """Divergences among the draws."""
    rhat: float | None
    """The largest R-hat."""
    rhat_of: str
    """The element that has it."""
    ess: float | None
    """The smallest bulk ESS."""
    ess_of: str
    lines: int | None
    """Lines of code that a user writes for the model, where they are counted."""
    moments: str
    """moments.encode of what is compared."""
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

    @cached_property
    def decoded(self) -> Moments:
        """The moments. Raises MomentsError."""
        return decode(self.moments)

    def lacks(self) -> str | None:
        """What the row lacks that its status requires, in words; None for a row in order."""
        if self.ok and (self.seconds is None or not self.moments):
            return "found a run (status ok) without seconds or moments; expected both"
        return None
