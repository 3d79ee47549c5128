"""What is measured, which is plain data, the row that is made of it, and what its process makes ready for that."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from numpy.typing import NDArray

from batchnuts.experiments.harness import task as harness
from batchnuts.experiments.harness.processes import Device, environment_for
from batchnuts.experiments.harness.rows import GroupRow, Status
from batchnuts.experiments.vectorizers.registry import Method


@dataclass(frozen=True)
class Task(harness.Task):
    """One workload at one size, vectorized in one way."""

    kind: str
    """A name of `vectorizers.KINDS`."""
    options: dict[str, Any]
    """The options of that kind; their schema stands in the registry."""
    size: int
    method: Method
    compiled: bool
    """Whether XLA compiles it; it always compiles JAX."""
    device: Device
    processors: int | None
    """How many processor cores its process may use; None: all."""
    seed: int
    """The seed of the data."""
    min_seconds: float = field(default=0.0, compare=False)
    """A timing repeats a call until about so long; that does not make it another task."""

    module = "batchnuts.experiments.vectorizers.timing"
    size_field = "size"
    size_words = "size {}"

    @property
    def process(self) -> str:
        """One for all ways in TensorFlow, and one for JAX: each keeps threads that spin for a while after work."""
        return "jax" if self.method == "jax" else "tensorflow"

    @property
    def heading(self) -> str:
        """The workload and its size."""
        return f"{self.kind} {self.options}, {self.size_in_words}"

    def process_environment(self) -> Mapping[str, str]:
        """The variables of its process: OpenMP's threads too are as many as the cores."""
        cores = {} if self.processors is None else {"OMP_NUM_THREADS": str(min(self.processors, os.cpu_count() or 1))}
        return environment_for(self.device, cores)

    def may_be_here(self) -> bool:
        """False for JAX where it is not installed."""
        return self.method != "jax" or find_spec("jax") is not None


@dataclass(frozen=True)
class Measurement(GroupRow):
    """One timing of one task; or, where `status` is not `ok`, why there is none (then the figures are None)."""

    task: str
    group: str
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
    prepare_seconds: float | None
    """Tracing, compiling and the first call."""
    load: float | None
    environment: str
    started: str
    note: str

    needed = ("units", "seconds")

    @property
    def rate(self) -> float:
        """Units per second."""
        assert self.units is not None
        assert self.seconds is not None
        return self.units / self.seconds


@dataclass(frozen=True)
class Computation:
    """A computation, compiled as far as its library allows."""

    call: Callable[[], Any]
    """Does it once, and returns when it is done."""
    units: float
    """Done by one call."""
    outputs: Callable[[Any], Sequence[NDArray[Any]]]
    """What a call gave, on the host; empty where another way may rightly give something else."""
