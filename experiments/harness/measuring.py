"""The one measuring loop of all experiments: samplers of one size get ready, then take turns, run by run.

Taking turns spreads a change of the machine's load over all of them. Several may compile at a time; what is timed runs
alone (`measurement.run_at_once`). What is measured already is not measured again.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import IO, TypeVar

from batchnuts.experiments.harness.config import ExperimentConfig
from batchnuts.experiments.harness.processes import Missing, NoAnswer, Process, environment_for
from batchnuts.experiments.harness.rows import RowsFile, Status
from batchnuts.experiments.samplers.measurements import Measurement, describe
from batchnuts.experiments.samplers.task import Task
from batchnuts.experiments.samplers.worker import Timing

Entry = TypeVar("Entry")
Answer = TypeVar("Answer")
Note = Callable[[str, int, int], None]
"""(what is being done, runs done, runs in all)"""


@dataclass(frozen=True)
class Planned:
    """A task, and the curve that first asks for it."""

    task: Task
    curve: str
    problem: str

    @property
    def line(self) -> str:
        """The same for tasks that differ only in their number of chains: what stops one stops the larger ones."""
        return replace(self.task, chains=0).fingerprint()


def plan(config: ExperimentConfig) -> list[list[Planned]]:
    """Every task once, in groups of one problem and number of chains."""
    seen: set[str] = set()
    groups: dict[tuple[str, int], list[Planned]] = {}
    for curve, problem, chains in config.points():
        task = config.task(curve, problem, chains)
        if task.fingerprint() not in seen:
            seen.add(task.fingerprint())
            groups.setdefault((problem, chains), []).append(Planned(task, curve, problem))
    return list(groups.values())


def overlapped(
    pool: Executor, at_once: int, jobs: Iterable[tuple[Entry, Callable[[], Answer]]]
) -> Iterator[tuple[Entry, Future[Answer]]]:
    """The jobs in order, with at most `at_once` under way. Another begins only when the caller is through with one."""
    under_way: deque[tuple[Entry, Future[Answer]]] = deque()
    for entry, job in jobs:
        if len(under_way) == at_once:
            yield under_way.popleft()
        under_way.append((entry, pool.submit(job)))
    while under_way:
        yield under_way.popleft()


class Measuring:
    """Measures what a config asks for and the file does not have yet."""

    def __init__(
        self, config: ExperimentConfig, file: RowsFile[Measurement], log: IO[str], environment: str, note: Note
    ) -> None:
        self.config = config
        self.file = file
        self.log = log
        self.environment = environment
        self.note = note
        self.groups = plan(config)
        # why there was no run may not hold any more: it is asked again
        self.rows = [row for row in file.read() if row.ok]
        file.rewrite(self.rows)
        self.missing: dict[str, str] = {}
        """`Planned.line` of what was found missing, with the reason: the other sizes need not be tried."""
        self.ended: dict[str, str] = {}
        """`Planned.line` of what goes to no larger size, with the reason."""

    def run(self) -> None:
        """All groups in order."""
        for group in self.groups:
            waiting = []
            for planned in group:
                self.settle(planned)
                if self.repetitions_left(planned.task) and not self.settled(planned):
                    waiting.append(planned)
            at_once = self.config.measurement.workers
            for first in range(0, len(waiting), at_once):
                self.take_turns(waiting[first : first + at_once])
            for planned in group:
                self.notice_slowness(planned)

    def take_turns(self, group: Sequence[Planned]) -> None:
        """Prepare these, then one run of each in turn until all have all their repetitions."""
        settings = self.config.measurement
        with ExitStack() as stack:
            # left last: a thread of theirs waits for a process until that is ended
            compiling = stack.enter_context(ThreadPoolExecutor(settings.compile_at_once))
            running = stack.enter_context(ThreadPoolExecutor(settings.run_at_once))
            workers = [
                (planned, stack.enter_context(Worker(planned.task, self.log, settings.timeout))) for planned in group
            ]
            preparing = [(planned, worker, compiling.submit(worker.prepare)) for planned, worker in workers]
            ready: list[tuple[Planned, Worker, float]] = []
            for planned, worker, prepared in preparing:
                self.show(planned, "compiles")
                try:
                    ready.append((planned, worker, prepared.result()))
                except Missing as error:
                    self.missing[planned.line] = str(error)
                    self.settle(planned)
                except NoAnswer as error:
                    worker.end()  # one that is only slow would go on, and slow the others
                    self.give_up(planned, str(error))
            for repetition in range(settings.repetitions):
                seed = settings.seed + repetition
                turn = [entry for entry in ready if repetition in self.repetitions_left(entry[0].task)]
                runs = ((entry, partial(entry[1].run, seed)) for entry in turn)
                for entry, run in overlapped(running, settings.run_at_once, runs):
                    planned, worker, seconds = entry
                    self.show(planned, f"run {repetition + 1}")
                    try:
                        timing = run.result()
                    except (Missing, NoAnswer) as error:
                        worker.end()
                        self.give_up(planned, str(error))
                        ready.remove(entry)
                    else:
                        self.keep(planned, "ok", repetition, timing, seconds, "")

    def repetitions_left(self, task: Task) -> list[int]:
        """Those that the file does not have with the seeds of this config."""
        done = {(row.repetition, row.seed) for row in self.rows if row.task == task.fingerprint() and row.ok}
        return [repetition for repetition, seed in self.config.seeds().items() if (repetition, seed) not in done]

    def settled(self, planned: Planned) -> bool:
        """There is a reason not to run it."""
        return planned.line in self.missing or planned.line in self.ended

    def settle(self, planned: Planned) -> None:
        """Write down why a task is not run, if there is a reason."""
        if not self.repetitions_left(planned.task):
            return
        if planned.line in self.missing:
            self.keep(planned, "missing", 0, None, None, self.missing[planned.line])
        elif planned.line in self.ended:
            self.keep(planned, "stopped", 0, None, None, self.ended[planned.line])

    def give_up(self, planned: Planned, reason: str) -> None:
        """A task failed: write it down, and try no larger one."""
        self.keep(planned, "failed", 0, None, None, reason)
        self.ended[planned.line] = f"failed with {planned.task.chains} chains: {reason}"

    def notice_slowness(self, planned: Planned) -> None:
        """End a curve whose last size took too long."""
        limit = self.config.measurement.max_seconds
        times = [row.seconds for row in self.rows if row.task == planned.task.fingerprint() and row.seconds]
        if times and min(times) > limit and planned.line not in self.ended:
            chains = planned.task.chains
            self.ended[planned.line] = f"a run with {chains} chains took {min(times):.0f} s, more than {limit:g} s"

    def keep(
        self,
        planned: Planned,
        status: Status,
        repetition: int,
        timing: Timing | None,
        prepare_seconds: float | None,
        reason: str,
    ) -> None:
        """One more row."""
        figures = asdict(timing) if timing else dict.fromkeys(Timing.__dataclass_fields__)
        row = Measurement(
            **describe(planned.task),
            **figures,
            status=status,
            repetition=repetition,
            seed=self.config.measurement.seed + repetition,
            prepare_seconds=prepare_seconds,
            environment=self.environment,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            note=" ".join(reason.split()),
        )
        self.rows.append(row)
        self.file.append(row)

    def show(self, planned: Planned, doing: str) -> None:
        """Tell how far it is."""
        label = self.config.curves[planned.curve].label
        total = self.config.measurement.repetitions
        settled = Counter(row.task for row in self.rows if row.ok)
        settled.update({row.task: total for row in self.rows if not row.ok})
        tasks = [planned.task.fingerprint() for group in self.groups for planned in group]
        done = sum(min(settled[task], total) for task in tasks)
        self.note(f"{label}, {planned.task.chains} chains: {doing}", done, total * len(tasks))


class Worker(Process):
    """One sampler on one task, in a process of `batchnuts.experiments.samplers.worker`."""

    def __init__(self, task: Task, log: IO[str], timeout: float) -> None:
        self.task = task
        heading = f"{task.sampler} {json.dumps(task.options)}, {task.chains} chains"
        environment = environment_for(task.device, task.environment)
        super().__init__("batchnuts.experiments.samplers.worker", heading, log, timeout, environment)

    def prepare(self) -> float:
        """Build, compile and run once; the seconds that took. Raises Missing, NoAnswer."""
        return float(self.ask({"task": asdict(self.task)})["ready"])

    def run(self, seed: int) -> Timing:
        """One warm run. Raises NoAnswer."""
        return Timing(**self.ask({"run": seed}))
