"""What a process is asked to measure, which is plain data, and what it makes ready for that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import NDArray

from batchnuts.experiments.samplers.task import Device
from batchnuts.experiments.vectorizers import Method


@dataclass(frozen=True)
class Task:
    """One workload at one size, vectorized in one way."""

    kind: str
    """A name of `vectorizers.KINDS`."""
    options: dict[str, Any]
    """Of that kind; its schema stands in the registry."""
    size: int
    method: Method
    compiled: bool
    """By XLA; JAX always is."""
    device: Device
    processors: int | None
    """How many processor cores its process may use; None: all."""
    seed: int
    """Of the data."""

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with anything in the task."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Ready:
    """A computation, compiled as far as its library allows."""

    call: Callable[[], Any]
    """Does it once, and returns when it is done."""
    units: float
    """Done by one call."""
    outputs: Callable[[Any], Sequence[NDArray[Any]]]
    """What a call gave, on the host; empty where another way may rightly give something else."""
