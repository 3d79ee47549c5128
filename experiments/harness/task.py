"""A task, whatever runs it: plain data that crosses to another process, what comes back, and the row made of both.

In its process the task's `module` makes it ready, and it is run (`worker.py`).
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from textwrap import shorten
from typing import Any, ClassVar, TypeVar, get_type_hints

from batchnuts.experiments.harness.rows import Row, Status

R = TypeVar("R", bound=Row)

Figures = Mapping[str, Any]
"""Figures by the names of a row's columns."""

_LONGEST_NOTE = 300
"""Characters; some libraries' messages have thousands."""


@dataclass(frozen=True)
class Task:
    """Base of tasks: one thing to measure at one size. Fields that take no part in comparisons do not identify it."""

    module: ClassVar[str]
    """Has `prepare(task) -> Runnable`. It is imported in the task's process only."""
    size_field: ClassVar[str]
    """The field that is the task's size: what stops one stops those that are alike but larger."""
    size_words: ClassVar[str]
    """The size in words, with {} for the number."""

    @property
    def process(self) -> str:
        """Tasks of a group with the same one share a process. As a rule each has its own: TensorFlow and JAX each keep
        threads that spin for a while after work."""
        return self.fingerprint()

    @property
    def heading(self) -> str:
        """The heading of its process in the log."""
        raise NotImplementedError

    @property
    def line(self) -> str:
        """The same for tasks that differ only in their size."""
        changes: dict[str, Any] = {self.size_field: 0}
        return fingerprint(replace(self, **changes))

    @property
    def size_in_words(self) -> str:
        """Such as `3 chains`."""
        return self.size_words.format(f"{getattr(self, self.size_field):,}")

    def process_environment(self) -> Mapping[str, str]:
        """The environment variables of its process."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """A digest of every field that affects the measurement."""
        return fingerprint(self)

    def may_be_here(self) -> bool:
        """False where the library it needs is certainly not installed."""
        return True

    def prepare(self) -> Runnable:
        """Make it ready, in its process."""
        runnable: Runnable = importlib.import_module(self.module).prepare(self)
        return runnable


def fingerprint(task: Any) -> str:
    """Twelve hexadecimal digits that change with every field of a dataclass that takes part in comparisons."""
    compared = {item.name for item in fields(task) if item.compare}
    text = json.dumps({name: value for name, value in asdict(task).items() if name in compared}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Preparation:
    """The report of a process on a task that it has prepared."""

    seconds: float
    """Building, compiling and the first run."""
    outputs: tuple[tuple[float, float], ...] = ()
    """`outputs.fingerprint` of each array that came out; empty where they are not compared."""
    figures: Figures = field(default_factory=dict)


@dataclass(frozen=True)
class Runnable:
    """A task made ready, in its process."""

    preparation: Preparation
    run: Callable[[int], Figures]
    """Runs it once more with a seed."""


@dataclass(frozen=True)
class Prepare:
    """A request to a worker: prepare a task, and send its Preparation."""

    task: Task


@dataclass(frozen=True)
class Run:
    """A request to a worker: run a prepared task, and send the figures."""

    fingerprint: str
    seed: int


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


def row_of(kind: type[R], task: Task, attempt: Attempt) -> R:
    """The row of an attempt. A column has the figure of its name, else what the attempt or the task has under it.

    Mappings of a task are written as JSON, and true and false as 1 and 0.
    """
    preparation = attempt.preparation
    figures = {**(preparation.figures if preparation else {}), **attempt.figures}
    known = {
        **{item.name: _plain(getattr(task, item.name)) for item in fields(task)},
        **{item.name: getattr(attempt, item.name) for item in fields(attempt)},
        "task": task.fingerprint(),
        "note": shorten(attempt.note, _LONGEST_NOTE, placeholder=" ... (all of it in workers.log)"),
        "prepare_seconds": preparation.seconds if preparation else None,
        **figures,
    }
    hints = get_type_hints(kind)
    columns = {item.name: hints[item.name] for item in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(figures) - set(columns)):
        raise AssertionError(f"{kind.__name__} has no column {unknown[0]}")
    return kind(**{name: known.get(name, "" if type_ is str else None) for name, type_ in columns.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True)
    return int(value) if isinstance(value, bool) else value
