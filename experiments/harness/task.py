"""The interface of a task for the measuring loop, whatever runs it: a sampler, or a way to vectorize.

A task is plain data that crosses to another process. There its `module` makes it ready and runs it (`worker.py`); here
it says what stops it, and makes a row of each run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol, TypeVar

from batchnuts.experiments.harness.rows import Row, Status

Made = TypeVar("Made", bound=Row, covariant=True)

Figures = Mapping[str, Any]
"""Figures by the names of a row's columns."""


@dataclass(frozen=True)
class Preparation:
    """The report of a process on a task that it has prepared."""

    seconds: float
    """Building, compiling and the first run."""
    outputs: tuple[tuple[float, float], ...] = ()
    """`outputs.fingerprint` of each array that came out; empty where they are not compared."""
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """One run of a task; or, where `status` is not `ok`, why there is none."""

    status: Status
    repetition: int
    seed: int
    environment: str
    """A name of environment.json."""
    started: str
    """Date and time, UTC."""
    preparation: Preparation | None = None
    figures: Figures = field(default_factory=dict)
    """The figures that were measured in the run."""
    group: str = ""
    """Runs with the same one were made in turns, side by side."""
    difference: float | None = None
    """Relative, of the outputs from those of the first task of the group; None where they are not compared."""
    note: str = ""
    """Why there is no run."""


class Task(Protocol[Made]):
    """A frozen dataclass: one thing to measure at one size."""

    @property
    def module(self) -> str:
        """Has `prepare(task) -> Runnable`. It is imported in the task's process only."""

    @property
    def process(self) -> str:
        """Tasks of a group with the same one share a process."""

    @property
    def heading(self) -> str:
        """The heading of its process in the log."""

    @property
    def line(self) -> str:
        """The same for tasks that differ only in their size: what stops one stops the larger ones."""

    def process_environment(self) -> Mapping[str, str]:
        """The environment variables of its process."""

    def fingerprint(self) -> str:
        """The digits that the function `fingerprint` gives for the task."""

    def may_be_here(self) -> bool:
        """False where the library it needs is certainly not installed."""

    def failed(self, reason: str) -> str:
        """Why no larger one is measured after it failed."""

    def slow(self, seconds: float, limit: float) -> str:
        """Why no larger one is measured after it took so long."""

    def row(self, attempt: Attempt, /) -> Made:
        """The row of an attempt."""


class Runnable(Protocol):
    """A task made ready, in its process."""

    @property
    def preparation(self) -> Preparation:
        """The report on it for the client."""

    def run(self, seed: int) -> Figures:
        """Run it once more."""


@dataclass(frozen=True)
class Prepare:
    """A request to a worker: prepare a task, and send its Preparation."""

    task: Task[Any]


@dataclass(frozen=True)
class Run:
    """A request to a worker: run a prepared task, and send the figures."""

    fingerprint: str
    seed: int


def fingerprint(task: Any) -> str:
    """Twelve hexadecimal digits that change with every field of a dataclass that takes part in comparisons."""
    compared = {item.name for item in fields(task) if item.compare}
    text = json.dumps({name: value for name, value in asdict(task).items() if name in compared}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
