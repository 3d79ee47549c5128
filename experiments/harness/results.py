"""Measurements as an experiment uses them: point by point, their values, and verdicts on claims."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from batchnuts.experiments.harness.config import Claim, Config
from batchnuts.experiments.harness.rows import Row

C = TypeVar("C", bound=Config[Any])
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

    @classmethod
    def of(
        cls, size: int, figures: Sequence[float], summary: Callable[[Sequence[float]], float] = statistics.median
    ) -> Value | None:
        """The summary of some figures; None where there are none."""
        return cls(size, summary(figures), min(figures), max(figures), len(figures)) if figures else None

    def over(self, other: Value) -> Value:
        """The ratio, with the widest range that repetitions allow: from the smallest over the largest to the largest
        over the smallest."""
        return Value(
            self.size,
            self.value / other.value,
            self.low / other.high,
            self.high / other.low,
            min(self.repetitions, other.repetitions),
        )


@dataclass(frozen=True)
class Verdict:
    """A claim beside what was seen."""

    claim: Claim
    seen: Value | None
    """The claim's figure with the range that the repetitions allow; None if a part of it was not measured."""
    words: str = "-"
    """That figure in words."""
    figure: str = ""
    """Which figure it is."""
    where: str = ""
    """Where it was seen, if a claim is about several points."""

    @property
    def word(self) -> str:
        """Whether the claim holds, and whether the spread of repetitions leaves that in doubt; or that the figure was
        not measured."""
        if self.seen is None:
            return "not measured"
        lower = -math.inf if self.claim.at_least is None else self.claim.at_least
        upper = math.inf if self.claim.at_most is None else self.claim.at_most
        holds = lower <= self.seen.value <= upper
        all_within = lower <= self.seen.low and self.seen.high <= upper
        some_within = self.seen.low <= upper and lower <= self.seen.high
        doubtful = not all_within if holds else some_within
        return ("holds" if holds else "does not hold") + (_DOUBT if doubtful else "")


_DOUBT = ", but the runs differ enough to doubt it"


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

    def runs_of(self, curve: str, target: str, size: int) -> list[R]:
        """Those that are runs."""
        return [row for row in self.rows_of(curve, target, size) if row.ok]

    def runs(self) -> list[R]:
        """The rows that the figures are made of, each once."""
        rows = (row for point in self.config.points() for row in self.runs_of(*point))
        return list({(row.task, row.repetition): row for row in rows}.values())

    def absent(self) -> list[tuple[str, str, int, str]]:
        """(curve, target, size, reason) of every point that has no run."""
        return [(*point, self.why_no_run(*point)) for point in self.config.points() if not self.runs_of(*point)]

    def why_no_run(self, curve: str, target: str, size: int) -> str:
        """The reason in words."""
        rows = self.rows_of(curve, target, size)
        return next((f"{row.status}: {row.note}" for row in rows), "not measured yet")


@dataclass(frozen=True)
class ClaimResults(PointResults[C, R], ABC):
    """Results with claims on them."""

    @abstractmethod
    def judge(self, claim: Any, /) -> Verdict:
        """A claim beside its figure."""

    def verdicts(self) -> list[Verdict]:
        """Every claim beside its figure."""
        return [self.judge(claim) for claim in self.config.claims.values()]
