"""The measurements of vectorizers: one row a timing."""

from __future__ import annotations

from dataclasses import dataclass

from batchnuts.experiments.harness.rows import Status


@dataclass(frozen=True)
class Measurement:
    """One timing of one task; or, where `status` is not `ok`, why there is none (then the figures are None)."""

    task: str
    """The task's fingerprint."""
    group: str
    """Timings with the same one were made in turns: each repetition compares all ways under the same load."""
    kind: str
    options: str
    """The options of the workload, as JSON."""
    size: int
    method: str
    compiled: int
    """1 or 0."""
    device: str
    processors: int | None
    status: Status
    repetition: int
    seconds: float | None
    """The seconds of one call."""
    calls: int | None
    """Calls that were timed together."""
    units: float | None
    """Units of work in one call."""
    difference: float | None
    """Relative, of the outputs from those of the first way of the group; None where they are not compared."""
    prepare_seconds: float | None
    """Tracing, compiling and the first call."""
    load: float | None
    """The machine's load average before the timing."""
    environment: str
    """A name of environment.json."""
    started: str
    """Date and time, UTC."""
    note: str
    """Why there is no timing."""

    @property
    def ok(self) -> bool:
        """Whether it is a timing."""
        return self.status == "ok"

    @property
    def rate(self) -> float:
        """Units per second."""
        assert self.units is not None
        assert self.seconds is not None
        return self.units / self.seconds

    def lacks(self) -> str | None:
        """What the row lacks that its status requires, in words; None for a row in order."""
        if self.ok and (not self.units or not self.seconds or self.units < 0 or self.seconds < 0):
            return "found a timing (status ok) without units or seconds above 0; expected both"
        return None
