"""The measuring loop of all experiments: tasks of one target and size get ready, then take turns, run by run.

Taking turns spreads a change of the machine's load over all of them. Several may compile at a time; what is timed runs
alone, unless a strategy says otherwise. What is measured already is not measured again. The strategies differ in what
belongs together: a row (`row_by_row.py`), or a whole group (`whole_groups.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any, Generic, TypeVar

from batchnuts.experiments.harness.config import Config, Limits
from batchnuts.experiments.harness.processes import Missing, NoAnswer, Process
from batchnuts.experiments.harness.rows import Row, RowsFile, Status
from batchnuts.experiments.harness.task import Attempt, Figures, Preparation, Prepare, Run, Task, row_of

R = TypeVar("R", bound=Row)
Limiting = TypeVar("Limiting", bound=Limits)
Entry = TypeVar("Entry")
Answer = TypeVar("Answer")
Note = Callable[[str, int, int], None]
"""(what is being done, runs done, runs in all)"""


class Worker(Process):
    """A process that makes tasks ready and runs them: `worker.py`."""

    def __init__(self, task: Task, log: IO[str], timeout: float) -> None:
        module = "batchnuts.experiments.harness.worker"
        super().__init__(module, task.heading, log, timeout, task.process_environment())

    def prepare(self, task: Task) -> Preparation:
        """Make a task ready. Raises Missing, NoAnswer."""
        preparation: Preparation = self.ask(Prepare(task))
        return preparation

    def run(self, task: Task, seed: int) -> Figures:
        """Run it once more. Raises Missing, NoAnswer."""
        figures: Figures = self.ask(Run(task.fingerprint(), seed))
        return figures


@dataclass(frozen=True)
class Planned:
    """A task, and the curve that first asks for it."""

    task: Task
    fingerprint: str
    """The task's."""
    curve: str
    label: str
    """The task in words, for progress."""


@dataclass(frozen=True)
class Ready:
    """A task that its process made ready."""

    planned: Planned
    worker: Worker
    preparation: Preparation
    difference: float | None
    """The relative difference of its outputs from the first task's; None where they are not compared."""


def plan(config: Config[Any]) -> list[list[Planned]]:
    """Every task once, in groups of one target and size."""
    seen: set[str] = set()
    groups: dict[tuple[str, int], list[Planned]] = {}
    for curve, target, size in config.points():
        task = config.task(curve, target, size)
        fingerprint = task.fingerprint()
        if fingerprint not in seen:
            seen.add(fingerprint)
            label = f"{config.curves[curve].label}, {config.targets[target].label}, {task.size_in_words}"
            planned = Planned(task, fingerprint, curve, label)
            groups.setdefault((target, size), []).append(planned)
    return list(groups.values())


def overlapped(
    pool: Executor, at_once: int, jobs: Iterable[tuple[Entry, Callable[[], Answer]]]
) -> Iterator[tuple[Entry, Future[Answer]]]:
    """The jobs in order, with at most `at_once` under way. Another starts only when the caller has finished with
    one."""
    under_way: deque[tuple[Entry, Future[Answer]]] = deque()
    for entry, job in jobs:
        if len(under_way) == at_once:
            yield under_way.popleft()
        under_way.append((entry, pool.submit(job)))
    while under_way:
        yield under_way.popleft()


class Measuring(ABC, Generic[R, Limiting]):
    """Measures what a config asks for and the file does not have yet."""

    def __init__(self, config: Config[Limiting], file: RowsFile[R], log: IO[str], environment: str, note: Note) -> None:
        self.config = config
        self.file = file
        self.log = log
        self.environment = environment
        self.note = note
        self.groups = plan(config)
        self.rows = file.read()
        self.seeds = dict(config.seeds())
        self.missing: dict[str, str] = {}
        """`Task.line` of what was found missing, with the reason: the other sizes need not be tried."""
        self.ended: dict[str, str] = {}
        """`Task.line` of what goes to no larger size, with the reason."""

    def run(self) -> None:
        """All groups in order."""
        for group in self.groups:
            self.measure(group)
            for planned in group:
                self.notice_slowness(planned)

    @abstractmethod
    def measure(self, group: Sequence[Planned]) -> None:
        """Measure the remaining tasks of a group."""

    @abstractmethod
    def turn(self, ready: Sequence[Ready], repetition: int) -> Sequence[Ready]:
        """The tasks that run in a repetition, in order."""

    @abstractmethod
    def keep(self, row: R) -> None:
        """Keep one more row."""

    @abstractmethod
    def leave(self, planned: Planned, worker: Worker, reason: str, *, lost: bool) -> None:
        """Called before a task is recorded as missing or failed. lost: its process does not answer any more."""

    def compare(self, planned: Planned, preparation: Preparation) -> float | None:
        """The distance of its outputs from those of others, if a strategy compares them. Raises NoAnswer if too
        large."""
        return None

    def take_turns(
        self, group: Sequence[Planned], compile_at_once: int = 1, run_at_once: int = 1, name: str = ""
    ) -> None:
        """Prepare these, then one run of each in turn until all have all their repetitions."""
        with ExitStack() as stack:
            # exited last: a thread of theirs waits for a process until that is ended
            compiling = stack.enter_context(ThreadPoolExecutor(compile_at_once))
            running = stack.enter_context(ThreadPoolExecutor(run_at_once))
            workers: dict[str, Worker] = {}
            for task in (planned.task for planned in group):
                if task.process not in workers:
                    worker = Worker(task, self.log, self.config.measurement.timeout)
                    workers[task.process] = stack.enter_context(worker)
            preparing = [
                (planned, compiling.submit(workers[planned.task.process].prepare, planned.task)) for planned in group
            ]
            ready: list[Ready] = []
            for planned, prepared in preparing:
                worker = workers[planned.task.process]
                self.show(planned, "compiles")
                try:
                    preparation = prepared.result()
                    ready.append(Ready(planned, worker, preparation, self.compare(planned, preparation)))
                except Missing as error:
                    self.leave(planned, worker, str(error), lost=False)
                    self.missing[planned.task.line] = str(error)
                    self.settle(planned)
                except NoAnswer as error:
                    self.leave(planned, worker, str(error), lost=error.lost)
                    self.give_up(planned, str(error))
            for repetition, seed in self.seeds.items():
                runs = (
                    (entry, partial(entry.worker.run, entry.planned.task, seed))
                    for entry in self.turn(ready, repetition)
                )
                for entry, run in overlapped(running, run_at_once, runs):
                    self.show(entry.planned, f"run {repetition + 1}")
                    try:
                        figures = run.result()
                    except (Missing, NoAnswer) as error:
                        self.leave(entry.planned, entry.worker, str(error), lost=True)
                        self.give_up(entry.planned, str(error))
                        ready.remove(entry)
                    else:
                        self.attempt(entry.planned, "ok", repetition, entry, figures, name)

    def rows_of(self, planned: Planned) -> list[R]:
        """All rows of a task."""
        return [row for row in self.rows if row.task == planned.fingerprint]

    def repetitions_left(self, planned: Planned) -> list[int]:
        """The repetitions without a run, with the seeds of this config."""
        done = {row.repetition for row in self.rows_of(planned) if row.ok and self.config.wants(row)}
        return [repetition for repetition in self.seeds if repetition not in done]

    def settle(self, planned: Planned) -> bool:
        """Record why a task is not run, if there is a reason; returns whether there is."""
        reasons: tuple[tuple[Status, Mapping[str, str]], ...] = (("missing", self.missing), ("stopped", self.ended))
        for status, by_line in reasons:
            if planned.task.line in by_line:
                self.attempt(planned, status, reason=by_line[planned.task.line])
                return True
        return False

    def give_up(self, planned: Planned, reason: str) -> None:
        """A task failed: record it, and try no larger one."""
        self.attempt(planned, "failed", reason=reason)
        self.ended.setdefault(planned.task.line, f"failed with {planned.task.size_in_words}: {reason}")

    def notice_slowness(self, planned: Planned) -> None:
        """End a line whose last size took too long."""
        limit = self.config.measurement.max_seconds
        times = [row.seconds for row in self.rows_of(planned) if row.seconds]
        if times and min(times) > limit:
            self.ended.setdefault(
                planned.task.line,
                f"a run with {planned.task.size_in_words} took {min(times):.1f} s, more than {limit:g} s",
            )

    def attempt(
        self,
        planned: Planned,
        status: Status,
        repetition: int = 0,
        ready: Ready | None = None,
        figures: Figures | None = None,
        name: str = "",
        reason: str = "",
    ) -> None:
        """Make a row, and keep it."""
        attempt = Attempt(
            status=status,
            repetition=repetition,
            seed=self.seeds[repetition],
            environment=self.environment,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            preparation=ready.preparation if ready else None,
            figures=figures or {},
            group=name,
            difference=ready.difference if ready else None,
            note=reason,
        )
        self.keep(row_of(self.file.kind, planned.task, attempt))

    def show(self, planned: Planned, doing: str) -> None:
        """Report progress."""
        total = self.config.measurement.repetitions
        settled = Counter(row.task for row in self.rows if row.ok)
        settled.update({row.task: total for row in self.rows if not row.ok})
        tasks = [planned.fingerprint for group in self.groups for planned in group]
        done = sum(min(settled[task], total) for task in tasks)
        self.note(f"{planned.label}: {doing}", done, total * len(tasks))
