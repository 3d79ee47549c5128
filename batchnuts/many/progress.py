"""How far many fits have come: what is reported, and a line on stderr that shows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

LINE_EVERY, UPDATE_EVERY = 10.0, 0.25
"""Seconds between two lines of a log, and between two updates of a line in a terminal."""


@dataclass(frozen=True)
class ManyProgress:
    """What has been done."""

    done: int
    """Fits that have ended, those that failed included."""
    failed: int
    count: int | None
    """All fits; None where their number is not known yet."""
    seconds: float
    """Since the first began."""
    busy: float
    """The share of this time that processes have spent on fits, from 0 to 1."""

    @property
    def remaining(self) -> float | None:
        """An estimate of the seconds that are left."""
        if self.count is None or not self.done:
            return None
        return self.seconds * (self.count - self.done) / self.done

    def __str__(self) -> str:
        of_all = "" if self.count is None else f" of {self.count:,}"
        parts = [f"{self.done:,}{of_all} fits done"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if self.done and self.seconds > 0:
            parts.append(f"{self.done / self.seconds:.3g} fits/s")
            parts.append(f"{100 * self.busy:.0f}% busy")
        if self.remaining:
            parts.append(f"{_short(self.remaining)} left")
        return ", ".join(parts)


def _short(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


Report = Callable[[ManyProgress], Any]


class Line:
    """Shows progress on stderr: one line that changes in a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown_at = 0.0
        self._open = False
        """Whether other text would go on with its line."""

    def __call__(self, progress: ManyProgress) -> None:
        """Show it, if the last was shown some time ago or it is over."""
        now, over = time.monotonic(), progress.done == progress.count
        if not over and now - self._shown_at < (UPDATE_EVERY if self._terminal else LINE_EVERY):
            return
        self._shown_at, self._open = now, self._terminal and not over
        text = f"\r\x1b[K{progress}{chr(10) if over else ''}" if self._terminal else f"{progress}\n"
        self._write(text)

    def end(self) -> None:
        """Nothing more is shown: what follows begins a line."""
        if self._open:
            self._open = False
            self._write("\n")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # nobody can read it any more
            sys.stderr.write(text)
            sys.stderr.flush()


def report_of(progress: Report | bool | None) -> Report | None:
    """What is called with progress: the user's function; a line where True, or by default in a terminal."""
    if callable(progress):
        return progress
    return Line() if progress or (progress is None and sys.stderr.isatty()) else None
