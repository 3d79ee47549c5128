"""What shows reports: called with each, as a context manager that ends with everything shown.

A view may be entered several times, once for each part of the command line that reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from html import escape
from types import TracebackType
from typing import Any, Self

from batchnuts.mcmc.storage.progress import Phase, Progress
from batchnuts.progress.words import details, is_open, is_over, is_worth_a_line, left, plain_line, share

View = AbstractContextManager[Callable[[Progress], None] | None]
"""Entering it gives what is to be called, None where nothing is shown."""

LINE_EVERY, UPDATE_EVERY = 10.0, 0.25
"""Seconds between two lines of a log, and between two updates of what can be replaced."""


@contextmanager
def phase(view: View, name: Phase) -> Iterator[Callable[[float], None]]:
    """Report the beginning and the end of a phase that has no transitions; gives what reports the share in between."""
    began = time.monotonic()
    with view as report:
        if report is not None:
            report(Progress(name, 0, 1, 0.0))

        def advance(share: float) -> None:
            if report is not None and 0 < share < 1:
                elapsed = time.monotonic() - began
                remaining = elapsed * (1 - share) / share
                report(Progress(name, int(100 * share), 100, elapsed, remaining=remaining))

        yield advance
        if report is not None:
            report(Progress(name, 1, 1, time.monotonic() - began))


class LimitedView:
    """Shows the first and the last report of each phase, and of those between them one in `every` seconds at most."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._latest: Progress | None = None
        self._shown: Progress | None = None
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show_latest()

    def __call__(self, progress: Progress) -> None:
        """Show the progress of the run, or keep it until something newer comes."""
        begins = self._latest is None or self._latest.phase != progress.phase
        if begins:
            self._show_latest()
        self._latest = progress
        ends = is_over(progress) and not (self._shown is not None and is_over(self._shown))
        if begins or ends or time.monotonic() - self._shown_at >= self._every:
            self._show_latest()

    def _show_latest(self) -> None:
        if self._latest is None or self._latest is self._shown:
            return
        begins = self._shown is None or self._shown.phase != self._latest.phase
        self._shown, self._shown_at = self._latest, time.monotonic()
        with suppress(OSError):  # nobody can read it any more
            self.show(self._latest, begins)

    def show(self, progress: Progress, begins: bool) -> None:
        """Show a report. begins: whether it is the first of its phase."""
        raise NotImplementedError


class LinesView(LimitedView):
    """Plain lines, for a log or a pipe."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(LINE_EVERY)
        self._write = write

    def show(self, progress: Progress, begins: bool) -> None:
        """Print one line; of brief phases of the command line none."""
        if is_worth_a_line(progress, progress.elapsed):
            self._write(plain_line(progress))


class NotebookView(LimitedView):
    """One display in the output of a notebook's cell for each phase, updated as the run goes on."""

    def __init__(self) -> None:
        super().__init__(UPDATE_EVERY)
        self._display: Any = None

    def show(self, progress: Progress, begins: bool) -> None:
        """A bar, and in front ends without HTML a line."""
        from IPython.display import display

        content = {"text/plain": plain_line(progress), "text/html": as_html(progress)}
        if begins:
            self._display = display(content, raw=True, display_id=True)
        else:
            self._display.update(content, raw=True)


def as_html(progress: Progress) -> str:
    """A report as an element of HTML with a bar."""
    bar = f' value="{progress.done}" max="{progress.total}"' if progress.total and not is_open(progress) else ""
    time_left = ", ".join(filter(None, [f"{progress.elapsed:.0f} s", left(progress)]))
    head = f"<b>{progress.phase}</b> <progress{bar}></progress> {share(progress)} {time_left}"
    return f"<div>{head}<br><small>{escape(' · '.join(details(progress)))}</small></div>"
