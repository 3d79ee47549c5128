"""Raw measurements: one CSV row a run, written as soon as it is done, and read back to go on where it stopped."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from batchnuts.autobatch.errors import BatchnutsError
from batchnuts.experiments.samplers.task import Task

Status = Literal["ok", "missing", "failed", "stopped"]


class MeasurementsError(BatchnutsError):
    """A measurements file that cannot be read; the message names the line."""


@dataclass(frozen=True)
class Measurement:
    """One run of one task; or, where `status` is not `ok`, why there is none (then the figures are None)."""

    task: str
    """The task's fingerprint: rows of one task belong together, whatever curve shows them."""
    sampler: str
    options: str
    """As JSON."""
    problem: str
    """As JSON."""
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
    """See worker.Timing."""
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
        """It is a run."""
        return self.status == "ok"

    @property
    def rate(self) -> float:
        """Useful gradients per second, over all chains."""
        assert self.useful_gradients is not None
        assert self.seconds is not None
        return self.useful_gradients / self.seconds

    @property
    def utilization(self) -> float | None:
        """Useful share of the gradients executed, where the sampler tells how many those were."""
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
        """Least bulk ESS of all coordinates, per minute of running; None where it was not asked for."""
        if self.ess_min is None or self.seconds is None:
            return None
        return 60 * self.ess_min / self.seconds


def describe(task: Task) -> dict[str, Any]:
    """The fields of a Measurement that say what was asked."""
    return {
        "task": task.fingerprint(),
        "sampler": task.sampler,
        "options": json.dumps(task.options, sort_keys=True),
        "problem": json.dumps(task.problem, sort_keys=True),
        **{
            name: getattr(task, name)
            for name in (
                "chains", "transitions", "step_size", "max_tree_depth", "leapfrogs_per_leaf", "start", "device"
            )
        },
    }  # fmt: skip


_REMEDY = "Delete that line, move the folder away, or start again with --fresh."

_FIELDS = tuple(field.name for field in fields(Measurement))
_KINDS = {field.name: str(field.type) for field in fields(Measurement)}


class MeasurementsFile:
    """A CSV file of measurements that grows by one row at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Measurement]:
        """All rows so far. A last line that a crash cut short is dropped. Raises MeasurementsError for other damage."""
        if not self.path.exists():
            return []
        try:
            text = self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise MeasurementsError(f"{self.path}: found bytes that are no UTF-8 text ({error}). {_REMEDY}") from error
        if not text.endswith("\n"):
            text = text[: text.rfind("\n") + 1]
            self.path.write_text(text, encoding="utf-8")
        try:
            rows = list(csv.reader(text.split("\n")[:-1]))
        except csv.Error as error:
            raise MeasurementsError(f"{self.path}: found what is no CSV ({error}). {_REMEDY}") from error
        if not rows:
            return []
        if tuple(rows[0]) != _FIELDS:
            raise MeasurementsError(
                f"{self.path}:1: found the columns {', '.join(rows[0])}; expected {', '.join(_FIELDS)}. The file is "
                f"damaged, or another version's. {_REMEDY}"
            )
        return [self._row(values, line) for line, values in enumerate(rows[1:], start=2)]

    def _row(self, values: Sequence[str], line: int) -> Measurement:
        if len(values) != len(_FIELDS):
            raise MeasurementsError(
                f"{self.path}:{line}: found {len(values)} values; expected {len(_FIELDS)}. {_REMEDY}"
            )
        parsed = {}
        for name, text in zip(_FIELDS, values, strict=True):
            try:
                parsed[name] = _parse(_KINDS[name], text)
            except ValueError as error:
                raise MeasurementsError(
                    f"{self.path}:{line}: column {name}: found {text!r}; expected {_KINDS[name]}. {_REMEDY}"
                ) from error
        row = Measurement(**parsed)
        if row.status not in get_args(Status):
            raise MeasurementsError(
                f"{self.path}:{line}: column status: found {row.status!r}; expected one of "
                f"{', '.join(get_args(Status))}. {_REMEDY}"
            )
        if row.ok and (row.useful_gradients is None or not row.seconds or row.seconds < 0):
            raise MeasurementsError(
                f"{self.path}:{line}: found a run (status ok) without useful_gradients or without seconds above 0; "
                f"expected both. {_REMEDY}"
            )
        return row

    def append(self, row: Measurement) -> None:
        """Write one row, safely on disk when this returns."""
        new = not self.path.exists() or self.path.stat().st_size == 0
        with self.path.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            if new:
                writer.writerow(_FIELDS)
            writer.writerow(_values(row))
            stream.flush()
            os.fsync(stream.fileno())

    def rewrite(self, rows: Sequence[Measurement]) -> None:
        """Replace the content, at once."""
        scratch = self.path.with_suffix(".new")
        with scratch.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(_FIELDS)
            writer.writerows(_values(row) for row in rows)
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(self.path)


def _values(row: Measurement) -> list[Any]:
    return ["" if value is None else value for value in asdict(row).values()]


def _parse(kind: str, text: str) -> Any:
    if kind.endswith("| None") and text == "":
        return None
    if kind.startswith("int"):
        return int(text)
    if kind.startswith("float"):
        number = float(text)
        if math.isinf(number):
            raise ValueError("infinite")
        return number
    return text
