"""Measuring row by row: every run stands for itself, is written as soon as it is done, and is not made again.

Each task has a process of its own, so that one which fails leaves the others as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Protocol, TypeVar

from batchnuts.experiments.harness.config import Config, Limits
from batchnuts.experiments.harness.measuring import Measuring, Note, Planned, Ready, Worker
from batchnuts.experiments.harness.rows import Row, RowsFile

R = TypeVar("R", bound=Row)


class Concurrency(Limits, Protocol):
    """How much runs at the same time."""

    @property
    def workers(self) -> int:
        """Tasks that are kept ready and take turns."""

    @property
    def compile_at_once(self) -> int:
        """Tasks that compile at the same time, before any is timed."""

    @property
    def run_at_once(self) -> int:
        """More than 1 only where nothing but counts matters."""


class RowByRow(Measuring[R, Concurrency]):
    """Measures each run by itself, and writes its row as soon as it is done."""

    def __init__(
        self, config: Config[Concurrency], file: RowsFile[R], log: IO[str], environment: str, note: Note
    ) -> None:
        super().__init__(config, file, log, environment, note)
        # the reason for a missing run may be outdated: it is tried again
        self.rows = [row for row in self.rows if row.ok]
        file.rewrite(self.rows)

    def measure(self, group: Sequence[Planned]) -> None:
        """Measure tasks that lack repetitions, some at a time."""
        waiting = [entry for entry in group if self.repetitions_left(entry) and not self.settle(entry)]
        settings = self.config.measurement
        for first in range(0, len(waiting), settings.workers):
            together = waiting[first : first + settings.workers]
            self.take_turns(together, settings.compile_at_once, settings.run_at_once)

    def turn(self, ready: Sequence[Ready], repetition: int) -> Sequence[Ready]:
        """The tasks that lack the repetition."""
        return [entry for entry in ready if repetition in self.repetitions_left(entry.planned)]

    def keep(self, row: R) -> None:
        """Write a row, which is on disk when this returns."""
        self.rows.append(row)
        self.file.append(row)

    def leave(self, planned: Planned, worker: Worker, reason: str, *, lost: bool) -> None:
        """End it: one that is only slow would go on, and slow the others."""
        worker.end()
