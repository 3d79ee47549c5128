"""What a run had done at which time: some hundred rows, however long it takes.

Kept in memory while it runs, and saved in the group `progress` of its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LIMIT = 512
"""Rows. A picture of a page has fewer points, and they take about 40 kB of the file."""


class Row(NamedTuple):
    """What a phase had done when it was reported; the counts are those since it began, of all chains together."""

    phase: str
    seconds: float
    """Since the run began."""
    transitions: int
    useful_gradients: int
    executed_gradients: int
    divergences: int


@dataclass(frozen=True, eq=False)
class History:
    """The rows, one array [rows] for each field of `Row`."""

    columns: dict[str, NDArray[Any]]


@dataclass
class HistoryKeeper:
    """Takes a row at each report; at most LIMIT are kept.

    When they are full, every other one is dropped, and from then on a row is taken at every other report: the
    resolution halves, and is the same over the whole run. The first and the last row of each phase stay.
    """

    rows: list[Row] = field(default_factory=list)
    latest: Row | None = None
    """The last one, if it is not among them."""
    every: int = 1
    """Reports from one row to the next."""
    since: int = 0
    """Reports since the last row."""

    def add(self, row: Row) -> None:
        """Take one more row; its `seconds` are at least those of the one before."""
        begins = not self.rows or row.phase != self.rows[-1].phase
        self.since += 1
        if self.since < self.every and not begins:
            self.latest = row
            return
        if begins and self.latest is not None:
            self.rows.append(self.latest)
        self.latest, self.since = None, 0
        self.rows.append(row)
        if len(self.rows) >= LIMIT - 2:  # room for the last one of a phase, and the first of the next
            self._halve()

    def _halve(self) -> None:
        phases = [row.phase for row in self.rows]
        within = [False, *(a == b == c for a, b, c in zip(phases, phases[1:], phases[2:], strict=False)), False]
        self.rows = [row for n, row in enumerate(self.rows) if n % 2 == 0 or not within[n]]
        self.every *= 2

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]]) -> HistoryKeeper:
        """Make one that goes on from rows that were kept, by the names of their fields."""
        return cls([Row(*row) for row in zip(*(columns[name].tolist() for name in Row._fields), strict=True)])

    @property
    def seconds(self) -> float:
        """The seconds that the run had taken at the last report."""
        last = self.latest or (self.rows[-1] if self.rows else None)
        return 0.0 if last is None else last.seconds

    def history(self) -> History:
        """What is kept."""
        rows = self.rows if self.latest is None else [*self.rows, self.latest]
        return History({name: np.array([getattr(row, name) for row in rows]) for name in Row._fields})
