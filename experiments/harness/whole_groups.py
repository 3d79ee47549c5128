"""Measuring groups whole: rows are compared with each other, so those of a group are all measured together, or all
again.

The tasks of a group compute the same in different ways: one whose outputs differ from the first one's is not timed.
Some share a process; where one of them is lost, the others lose theirs too, and the group begins again without the one
at fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import IO, Protocol, TypeVar

from batchnuts.experiments.harness.config import Config, Limits
from batchnuts.experiments.harness.measuring import Measuring, Note, Planned, Ready, Worker
from batchnuts.experiments.harness.outputs import difference
from batchnuts.experiments.harness.processes import NoAnswer
from batchnuts.experiments.harness.rows import GroupRow, RowsFile
from batchnuts.experiments.harness.task import Preparation


class Tolerant(Limits, Protocol):
    """Limits, and how far outputs may differ."""

    @property
    def tolerance(self) -> float:
        """The largest relative difference that is allowed."""


G = TypeVar("G", bound=GroupRow)


class Died(Exception):
    """A process ended, or had to be ended, while it worked for a task: the others of its group lost theirs too."""

    def __init__(self, planned: Planned, reason: str) -> None:
        super().__init__(reason)
        self.planned = planned


class WholeGroups(Measuring[G, Tolerant]):
    """Measures the tasks of a group together, or all of them again."""

    def __init__(self, config: Config[Tolerant], file: RowsFile[G], log: IO[str], environment: str, note: Note) -> None:
        super().__init__(config, file, log, environment, note)
        self.reference: tuple[str, Preparation] | None = None
        """The curve and preparation of the first task of the group, with whose outputs others are compared."""

    def measure(self, group: Sequence[Planned]) -> None:
        """All of it, unless it is complete; its rows replace earlier ones when all are made."""
        if self.complete(group):
            return
        tasks = {planned.fingerprint for planned in group}
        self.rows = [row for row in self.rows if row.task not in tasks]
        going = [planned for planned in group if not self.settle(planned)]
        while going:
            self.reference = None
            try:
                self.take_turns(going, name=datetime.now(UTC).isoformat(timespec="milliseconds"))
                break
            except Died as error:
                self.rows = [row for row in self.rows if not (row.ok and row.task in tasks)]
                self.give_up(error.planned, str(error))
            going = [planned for planned in going if not self.rows_of(planned)]
        self.file.rewrite(self.rows)

    def complete(self, group: Sequence[Planned]) -> bool:
        """All tasks have all their repetitions, made in one group; or the file says why not.

        A library that was missing may be there now: then all are measured again.
        """
        rows = [self.rows_of(planned) for planned in group]
        if len({row.group for runs in rows for row in runs if row.ok}) > 1:
            return False
        return all(
            runs and (self.settled(planned, runs[0]) or not self.repetitions_left(planned))
            for planned, runs in zip(group, rows, strict=True)
        )

    def settled(self, planned: Planned, row: G) -> bool:
        """A row says why there is none, and that still holds."""
        return row.status in ("failed", "stopped") or (row.status == "missing" and not planned.task.may_be_here())

    def turn(self, ready: Sequence[Ready], repetition: int) -> Sequence[Ready]:
        """All, in an order that changes: none may always get what the same one leaves in caches and on cores."""
        return Random(repetition).sample(ready, len(ready))

    def keep(self, row: G) -> None:
        """Until its group is done."""
        self.rows.append(row)

    def leave(self, planned: Planned, worker: Worker, reason: str, *, lost: bool) -> None:
        """Begin again, if others lost their process."""
        if lost:
            raise Died(planned, reason)

    def compare(self, planned: Planned, preparation: Preparation) -> float | None:
        """Compare outputs with those of the first task that has any."""
        if not preparation.outputs:
            return None
        if self.reference is None:
            self.reference = planned.curve, preparation
        curve, first = self.reference
        apart = difference(first.outputs, preparation.outputs)
        if apart > self.config.measurement.tolerance:
            raise NoAnswer(f"its outputs are not those of {curve}: {apart:.1g} apart", lost=False)
        return apart
