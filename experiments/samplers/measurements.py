"""The measurements of samplers: one row a run."""

from __future__ import annotations

from dataclasses import dataclass

from batchnuts.experiments.harness.rows import Status


@dataclass(frozen=True)
class Measurement:
    """One run of one task; or, where `status` is not `ok`, why there is none (then the figures are None)."""

    task: str
    """The task's fingerprint."""
    sampler: str
    options: str
    """The options of the sampler, as JSON."""
    problem: str
    """The options of the problem's model, as JSON."""
    chains: int
    transitions: int
    step_size: float
    max_tree_depth: int
    leapfrogs_per_leaf: int
    start: str
    device: str
    status: Status
    repetition: int
    seed: int
    seconds: float | None
    useful_gradients: int | None
    executed_gradients: int | None
    lockstep_gradients: int | None
    asynchronous_gradients: int | None
    """What they would execute if no chain ever waited before its end (`task.Timing`)."""
    ess_min: float | None
    ess_mean: float | None
    prepare_seconds: float | None
    """Building, compiling and the first run."""
    peak_memory_mb: float | None
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
        if self.ok and (self.useful_gradients is None or not self.seconds or self.seconds < 0):
            return "found a run (status ok) without useful_gradients or without seconds above 0; expected both"
        return None

    @property
    def rate(self) -> float:
        """Useful gradients per second, over all chains."""
        assert self.useful_gradients is not None
        assert self.seconds is not None
        return self.useful_gradients / self.seconds

    @property
    def utilization(self) -> float | None:
        """Useful share of the gradients executed, where the sampler reports how many those were."""
        if self.useful_gradients is None or not self.executed_gradients:
            return None
        return self.useful_gradients / self.executed_gradients

    @property
    def lockstep_utilization(self) -> float | None:
        """What utilization would be if all chains met after every trajectory."""
        if self.useful_gradients is None or not self.lockstep_gradients:
            return None
        return self.useful_gradients / self.lockstep_gradients

    @property
    def asynchronous_utilization(self) -> float | None:
        """What it would be if no chain ever waited for another: the most that any schedule can reach."""
        if self.useful_gradients is None or not self.asynchronous_gradients:
            return None
        return self.useful_gradients / self.asynchronous_gradients

    @property
    def ess_per_minute(self) -> float | None:
        """Minimum bulk ESS of all coordinates, per minute of running; None where it was not asked for."""
        if self.ess_min is None or self.seconds is None:
            return None
        return 60 * self.ess_min / self.seconds
