"""Measurements as an experiment uses them: point by point, their values, and verdicts on claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from batchnuts.experiments.harness.config import Config
from batchnuts.experiments.harness.rows import Row

C = TypeVar("C", bound=Config[Any, Any])
R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Value:
    """One point of a curve: the summary of its repetitions, and their range."""

    size: int
    """Where it is on the horizontal axis: a number of chains, or of what the experiment counts."""
    value: float
    low: float
    high: float
    repetitions: int


@dataclass(frozen=True)
class PointResults(Generic[C, R]):
    """A config and the measurements that answer it; rows of other tasks (of an earlier config) are not looked at."""

    config: C
    rows: Sequence[R]

    def rows_of(self, curve: str, target: str, size: int) -> list[R]:
        """All rows of one point, in the order of their repetitions."""
        task = self.config.task(curve, target, size).fingerprint()
        rows = [row for row in self.rows if row.task == task and self.config.wants(row)]
        return sorted(rows, key=lambda row: row.repetition)

    def runs(self) -> list[R]:
        """The rows that the figures are made of, each once."""
        by_run = {}
        for point in self.config.points():
            for row in self.rows_of(*point):
                if row.ok:
                    by_run[row.task, row.repetition] = row
        return list(by_run.values())

    def absent(self) -> list[tuple[str, str, int, str]]:
        """(curve, target, size, reason) of every point that has no run."""
        gaps = []
        for curve, target, size in self.config.points():
            rows = self.rows_of(curve, target, size)
            if not any(row.ok for row in rows):
                reason = next((f"{row.status}: {row.note}" for row in rows), "not measured yet")
                gaps.append((curve, target, size, reason))
        return gaps


def word(value: Value, at_least: float | None, at_most: float | None) -> str:
    """Whether a claim holds for a figure, and whether the spread of repetitions leaves that in doubt."""
    lower = -math.inf if at_least is None else at_least
    upper = math.inf if at_most is None else at_most
    holds = lower <= value.value <= upper
    all_within = lower <= value.low and value.high <= upper
    some_within = value.low <= upper and lower <= value.high
    doubtful = not all_within if holds else some_within
    return ("holds" if holds else "does not hold") + (_DOUBT if doubtful else "")


_DOUBT = ", but the runs differ enough to doubt it"
