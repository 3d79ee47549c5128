"""Bars on a terminal: one for each phase, which stays when the phase ends, and beneath it what is known."""

from __future__ import annotations

import errno
import os
import textwrap
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from batchnuts.mcmc.storage.progress import Progress
from batchnuts.progress.views import UPDATE_EVERY
from batchnuts.progress.words import clock, details, is_known, is_worth_a_line, left, share

_NAME = len("diagnostics")
_INDENTED = 60
"""Characters of a terminal on which lines are indented by the name of the phase."""
_BAR = (4, 60)
"""The minimum and maximum characters of a bar."""


class SafeConsole(Console):
    """rich ends the process when its output is closed; here that is an OSError, as elsewhere."""

    def on_broken_pipe(self) -> None:
        """Called while a BrokenPipeError is handled."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class PhaseBar:
    """What a terminal shows of a phase: its bar, and beneath it lines of what is known."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._first = progress.elapsed
        self._began = self._reported = time.monotonic()
        self.ended = False

    def report(self, progress: Progress) -> None:
        """Show this from now on."""
        self.progress, self._reported = progress, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the phase began; of one that has ended, until its last report."""
        return self._first + (self._reported if self.ended else time.monotonic()) - self._began

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield self._bar(width)
        indent = " " * (_NAME + 1 if width >= _INDENTED else 2)
        progress = replace(self.progress, missing=()) if self.ended else self.progress
        for line in wrapped(details(progress), width - len(indent)):
            yield Text(indent + line, no_wrap=True, overflow="ignore")

    def _bar(self, width: int) -> RenderableType:
        """Name, share, bar, time and time left; of a phase of unknown length a bar that only moves."""
        progress = self.progress
        words = [f"{progress.phase:<{_NAME}}", f"{share(progress):>4}", clock(self.seconds)]
        if not self.ended and (time_left := left(progress, time.monotonic() - self._reported)):
            words.append(time_left)
        parts: list[tuple[RenderableType, int]] = [(Text(word), len(word)) for word in words]
        room = width - sum(len(word) + 1 for word in words)
        if room < _BAR[0]:
            return Text("\n".join(wrapped([word.strip() for word in words if word.strip()], width)))
        length_known = is_known(progress)
        moves = not length_known and not self.ended
        total, done = (progress.total, progress.done) if length_known else (1, int(self.ended))
        size = min(room, _BAR[1])
        parts.insert(2, (ProgressBar(total=total, completed=done, width=size, pulse=moves), size))
        row = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
        for _, size in parts:
            row.add_column(width=size, no_wrap=True)
        row.add_row(*(part for part, _ in parts))
        return row


class BarsView:
    """Shows the phase that is under way in place, and leaves those that ended above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._bar: PhaseBar | None = None

    def __enter__(self) -> BarsView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last phase on the terminal, unless it was brief or nothing has begun yet that could fail."""
        live, bar, self._live, self._bar = self._live, self._bar, None, None
        if live is None or bar is None:
            return
        bar.ended = True
        live.transient = not is_worth_a_line(bar.progress, 0.0 if kind is not None else bar.seconds)
        with suppress(OSError):
            live.stop()

    def __call__(self, progress: Progress) -> None:
        """Show the progress of the run; nothing if the terminal is closed."""
        with suppress(OSError):
            self._show(progress)

    def _show(self, progress: Progress) -> None:
        previous = self._bar
        if previous is not None and previous.progress.phase == progress.phase:
            previous.report(progress)
            return
        self._bar = bar = PhaseBar(progress)
        if self._live is None:
            self._live = SafeLive(bar, console=self._console, refresh_per_second=1 / UPDATE_EVERY)
            self._live.start(refresh=True)
            return
        self._live.update(bar, refresh=True)
        if previous is not None:
            previous.ended = True
            if is_worth_a_line(previous.progress, previous.seconds):
                self._console.print(previous)


class SafeLive(Live):
    """rich refreshes in a thread of its own, where an error would be printed."""

    def refresh(self) -> None:
        """Draw again, if the terminal is still there."""
        with suppress(OSError):
            super().refresh()


def wrapped(phrases: Iterable[str], width: int) -> list[str]:
    """Lines of at most `width` characters; a phrase is divided only where it is longer than a line."""
    lines: list[str] = []
    for phrase in phrases:
        if lines and len(lines[-1]) + 2 + len(phrase) <= width:
            lines[-1] += f"  {phrase}"
        else:
            lines += textwrap.wrap(phrase, max(width, 1))
    return lines
