"""What is measured, which is plain data, and what its process makes ready for that."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from textwrap import shorten
from typing import Any

from numpy.typing import NDArray

from batchnuts.experiments.harness.processes import Device, environment_for
from batchnuts.experiments.harness.task import Attempt, fingerprint
from batchnuts.experiments.vectorizers.measurements import Measurement
from batchnuts.experiments.vectorizers.registry import Method

_LONGEST_NOTE = 300
"""Characters; TensorFlow's messages can have thousands."""


@dataclass(frozen=True)
class Task:
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

    @property
    def module(self) -> str:
        """The module that prepares and runs it, imported in its process only."""
        return "batchnuts.experiments.vectorizers.timing"

    @property
    def process(self) -> str:
        """One for all ways in TensorFlow, and one for JAX: each keeps threads that spin for a while after work."""
        return "jax" if self.method == "jax" else "tensorflow"

    @property
    def heading(self) -> str:
        """The workload and its size."""
        return f"{self.kind} {self.options}, size {self.size}"

    @property
    def line(self) -> str:
        """The fingerprint that tasks of all sizes share."""
        return replace(self, size=0).fingerprint()

    def process_environment(self) -> Mapping[str, str]:
        """The variables of its process: OpenMP's threads too are as many as the cores."""
        cores = {} if self.processors is None else {"OMP_NUM_THREADS": str(min(self.processors, os.cpu_count() or 1))}
        return environment_for(self.device, cores)

    def fingerprint(self) -> str:
        """A digest of every field that affects the measurement."""
        return fingerprint(self)

    def may_be_here(self) -> bool:
        """False for JAX where it is not installed."""
        return self.method != "jax" or find_spec("jax") is not None

    def failed(self, reason: str) -> str:
        """Why no larger size is measured after a failure."""
        return f"failed at size {self.size}: {reason}"

    def slow(self, seconds: float, limit: float) -> str:
        """Why no larger size is measured after a call took so long."""
        return f"a call with size {self.size} took {seconds:.1f} s, more than {limit:g} s"

    def row(self, attempt: Attempt) -> Measurement:
        """The request, and the results of a timing."""
        preparation, figures = attempt.preparation, attempt.figures
        return Measurement(
            **describe(self),
            group=attempt.group,
            status=attempt.status,
            repetition=attempt.repetition,
            seconds=figures.get("seconds"),
            calls=figures.get("calls"),
            units=preparation.figures["units"] if preparation else None,
            difference=attempt.difference,
            prepare_seconds=preparation.seconds if preparation else None,
            load=figures.get("load"),
            environment=attempt.environment,
            started=attempt.started,
            note=shorten(attempt.note, _LONGEST_NOTE, placeholder=" ... (all of it in workers.log)"),
        )


def describe(task: Task) -> dict[str, Any]:
    """The fields of a Measurement that say what was asked."""
    return {
        "task": task.fingerprint(),
        "kind": task.kind,
        "options": json.dumps(task.options, sort_keys=True),
        "size": task.size,
        "method": task.method,
        "compiled": int(task.compiled),
        "device": task.device,
        "processors": task.processors,
    }


@dataclass(frozen=True)
class Ready:
    """A computation, compiled as far as its library allows."""

    call: Callable[[], Any]
    """Does it once, and returns when it is done."""
    units: float
    """Done by one call."""
    outputs: Callable[[Any], Sequence[NDArray[Any]]]
    """What a call gave, on the host; empty where another way may rightly give something else."""
