"""The measuring loop of vectorizers: all ways of one workload and size get ready, then take turns, timing by timing.

Those in TensorFlow share a process, JAX has its own: their threads, which spin for a while after work, would slow each
other. A group is measured whole, so that ratios compare timings made side by side; one that was cut short is made
again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from random import Random
from textwrap import shorten
from typing import IO, Any

from batchnuts.experiments.harness.measuring import Note
from batchnuts.experiments.harness.processes import Missing, NoAnswer, Process, environment_for
from batchnuts.experiments.harness.rows import RowsFile, Status
from batchnuts.experiments.vectorizers.config import VectorizingConfig
from batchnuts.experiments.vectorizers.measurements import Measurement, describe
from batchnuts.experiments.vectorizers.task import Task
from batchnuts.experiments.vectorizers.worker import difference

MODULE = "batchnuts.experiments.vectorizers.worker"

_LONGEST_NOTE = 300
"""Characters; TensorFlow's messages can have thousands."""

StartProcess = Callable[[str], Any]


class Died(Exception):
    """A process ended, or had to be ended, while it worked for a curve: the others of its group lost theirs too."""

    def __init__(self, curve: str, reason: str) -> None:
        super().__init__(reason)
        self.curve = curve


class Measuring:
    """Measures what a config asks for and the file does not have yet."""

    def __init__(
        self,
        config: VectorizingConfig,
        file: RowsFile[Measurement],
        log: IO[str],
        environment: str,
        note: Note,
        start: StartProcess | None = None,
    ) -> None:
        """start: in place of real processes, for tests."""
        self.config = config
        self.file = file
        self.environment = environment
        self.note = note
        self.start = start or partial(_start, config, log)
        self.rows = file.read()
        self.ended: dict[tuple[str, str], str] = {}
        """(workload, curve) of what goes to no larger size, with the reason."""

    def run(self) -> None:
        """All groups in order."""
        groups = list(self.config.groups())
        for number, (workload, size, curves) in enumerate(groups):
            if not self.complete(workload, size, curves):
                self.note(f"{self.config.workloads[workload].label}, size {size}", number, len(groups))
                self.measure(workload, size, curves)
            for curve in curves:
                self.notice_slowness(workload, size, curve)

    def complete(self, workload: str, size: int, curves: Sequence[str]) -> bool:
        """All curves have all their repetitions, made in one group; or the file says why not.

        A library that was missing may be there now: then all are measured again.
        """
        settled = ("failed", "stopped") if find_spec("jax") else ("failed", "stopped", "missing")
        wanted = set(range(self.config.measurement.repetitions))
        rows = {curve: self.rows_of(self.config.task(curve, workload, size)) for curve in curves}
        if len({row.group for found in rows.values() for row in found if row.ok}) > 1:
            return False
        return all(
            found and (found[0].status in settled or wanted <= {row.repetition for row in found if row.ok})
            for found in rows.values()
        )

    def rows_of(self, task: Task) -> list[Measurement]:
        """All that the file has of a task."""
        return [row for row in self.rows if row.task == task.fingerprint()]

    def measure(self, workload: str, size: int, curves: Sequence[str]) -> None:
        """One group: all its rows are written together when it is done."""
        tasks = {curve: self.config.task(curve, workload, size) for curve in curves}
        rows: list[Measurement] = []
        going = []
        for curve, task in tasks.items():
            if (workload, curve) in self.ended:
                rows.append(self.row(task, "stopped", note=self.ended[workload, curve]))
            else:
                going.append(curve)
        while going:
            try:
                rows += self.take_turns({curve: tasks[curve] for curve in going})
                break
            except Died as error:
                rows.append(self.row(tasks[error.curve], "failed", note=str(error)))
                going.remove(error.curve)
        fingerprints = {task.fingerprint() for task in tasks.values()}
        self.rows = [row for row in self.rows if row.task not in fingerprints] + rows
        self.file.rewrite(self.rows)
        for curve, task in tasks.items():
            for row in rows:
                if row.task == task.fingerprint() and row.status == "failed":
                    self.ended.setdefault((workload, curve), f"failed at size {size}: {row.note}")

    def take_turns(self, tasks: dict[str, Task]) -> list[Measurement]:
        """The rows of these. Raises Died."""
        settings = self.config.measurement
        group = datetime.now(UTC).isoformat(timespec="milliseconds")
        rows: list[Measurement] = []
        prepared: dict[str, dict[str, Any]] = {}
        with ExitStack() as stack:
            processes: dict[bool, Any] = {}
            reference: list[list[float]] = []
            for curve, task in tasks.items():
                foreign = task.method == "jax"
                if foreign not in processes:
                    processes[foreign] = stack.enter_context(
                        self.start(f"{task.kind} {task.options}, size {task.size}")
                    )
                request = {"task": asdict(task), "name": curve, "min_seconds": settings.min_seconds}
                try:
                    answer = _ask(processes[foreign], curve, request)
                except Missing as error:
                    rows.append(self.row(task, "missing", note=str(error)))
                    continue
                except NoAnswer as error:
                    rows.append(self.row(task, "failed", note=str(error)))
                    continue
                reference = reference or answer["prints"]
                answer["difference"] = difference(reference, answer["prints"]) if answer["prints"] else None
                if answer["difference"] is not None and answer["difference"] > settings.tolerance:
                    found = f"its outputs are not those of {next(iter(prepared))}: {answer['difference']:.1g} apart"
                    rows.append(self.row(task, "failed", note=found))
                    continue
                prepared[curve] = answer
            for repetition in range(settings.repetitions):
                # no way may always follow the same one: it would get what that one leaves in caches and on cores
                for curve in Random(repetition).sample(list(prepared), len(prepared)):
                    task = tasks[curve]
                    try:
                        timing = _ask(processes[task.method == "jax"], curve, {"run": curve})
                    except NoAnswer as error:
                        raise Died(curve, str(error)) from error
                    rows.append(self.row(task, "ok", group, repetition, prepared[curve], timing))
        return rows

    def notice_slowness(self, workload: str, size: int, curve: str) -> None:
        """End a curve whose last size took too long."""
        limit = self.config.measurement.max_seconds
        rows = self.rows_of(self.config.task(curve, workload, size))
        times = [row.seconds for row in rows if row.seconds is not None]
        if times and min(times) > limit:
            reason = f"a call with size {size} took {min(times):.1f} s, more than {limit:g} s"
            self.ended.setdefault((workload, curve), reason)

    def row(
        self,
        task: Task,
        status: Status,
        group: str = "",
        repetition: int = 0,
        prepared: dict[str, Any] | None = None,
        timing: dict[str, Any] | None = None,
        note: str = "",
    ) -> Measurement:
        """One row."""
        prepared, timing = prepared or {}, timing or {}
        return Measurement(
            **describe(task),  # type: ignore[arg-type]
            group=group,
            status=status,
            repetition=repetition,
            seconds=timing.get("seconds"),
            calls=timing.get("calls"),
            units=prepared.get("units"),
            difference=prepared.get("difference"),
            prepare_seconds=prepared.get("seconds"),
            load=timing.get("load"),
            environment=self.environment,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            note=shorten(note, _LONGEST_NOTE, placeholder=" ... (all of it in workers.log)"),
        )


def _ask(process: Any, curve: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer. Raises Died where the process did; NoAnswer, Missing where it only could not."""
    try:
        answer: dict[str, Any] = process.ask(request)
    except NoAnswer as error:
        if error.lost:
            raise Died(curve, str(error)) from error
        raise
    return answer


def _start(config: VectorizingConfig, log: IO[str], heading: str) -> Process:
    environment = environment_for(config.run.device, {})
    if config.run.processors is not None:
        environment["OMP_NUM_THREADS"] = str(min(config.run.processors, os.cpu_count() or 1))
    return Process(MODULE, heading, log, config.measurement.timeout, environment)
