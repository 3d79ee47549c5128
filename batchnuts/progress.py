"""Progress of a run on the screen: a live bar on a terminal, plain lines at intervals elsewhere (a log, a pipe).

In a notebook one line is shown and replaced. Rates, and how long it will take, are those of the phase that is shown.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column

from batchnuts.mcmc.draws import Progress

_LINE_EVERY = 10.0
"""Seconds between two plain lines."""
_WIDE = 150
"""Characters that the full line needs."""


class SafeConsole(Console):
    """rich ends the process when its output is closed; here that is an OSError, as elsewhere."""

    def on_broken_pipe(self) -> None:
        """Called while a BrokenPipeError is handled."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def default_view(progress: bool | None) -> AbstractContextManager[Any]:
    """For `sample_chains`: a view of the run, or None where nothing is to be shown.

    None: in a notebook, and where stderr is a terminal; True: everywhere.
    """
    if progress is False:
        return nullcontext()
    if _in_notebook():
        return NotebookView()
    console = SafeConsole(stderr=True, force_jupyter=False)
    return ProgressView(console) if progress or console.is_terminal else nullcontext()


def _in_notebook() -> bool:
    """Whether IPython runs in a front end that shows more than text."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookView:
    """One line in the output of a notebook's cell, replaced as the run goes on."""

    def __init__(self) -> None:
        self._line: Any = None
        self._shown_at = 0.0
        self._phase = ""

    def __enter__(self) -> NotebookView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The last line stays."""

    def __call__(self, progress: Progress) -> None:
        """Show the progress of the run."""
        from IPython.display import display

        text = {"text/plain": plain_line(progress)}
        if self._phase != progress.phase:  # a line for each phase
            self._line = display(text, raw=True, display_id=True)
        else:
            self._line.update(text, raw=True)
        self._phase = progress.phase


class ProgressView:
    """Shows each Progress it is called with; a context manager, so that the terminal is left in order."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._narrow = console.width < _WIDE
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._shown: Progress | None = None
        self._shown_at = 0.0

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            # No column may be cut by rich: in a narrow window the words are short and the bar is left out.
            fixed = Column(no_wrap=True, overflow="ignore")
            bar = () if self._narrow else (BarColumn(bar_width=20),)
            self._bar = Bar(
                TextColumn("{task.description:<8}", table_column=fixed),
                *bar,
                TextColumn("{task.percentage:>3.0f}%", table_column=fixed),
                TextColumn("{task.fields[rates]}", table_column=fixed),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}", table_column=fixed),
                console=self._console,
            )
            with suppress(OSError):
                self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Show the progress of the run; nothing if the output is closed (a terminal or pipe)."""
        with suppress(OSError):
            self._show(progress)

    def _show(self, progress: Progress) -> None:
        if self._bar is None:
            self._line(progress)
            return
        # A phase of unknown length (compilation) has a bar that only moves.
        total = progress.total or None
        if self._task is None or self._shown is None or self._shown.phase != progress.phase:
            self._close(self._bar)
            self._task = self._bar.add_task(progress.phase, total=total, rates="", left="")
        self._shown = progress
        left = remaining(progress)
        self._bar.update(
            self._task,
            completed=progress.done,
            total=total,
            rates=rates(progress, self._narrow),
            left="" if left is None else f"-{_clock(left)}" if self._narrow else f"{_clock(left)} left",
        )

    def _close(self, bar: Bar) -> None:
        """Stop the clock of the phase that ended, full or not."""
        if self._task is not None:
            if bar.tasks[self._task].total is None:
                bar.update(self._task, total=1, completed=1)
            bar.stop_task(self._task)

    def _line(self, progress: Progress) -> None:
        now = time.monotonic()
        new = self._shown is None or self._shown.phase != progress.phase
        ends = progress.total > 0 and progress.done >= progress.total
        if new or ends or now - self._shown_at >= _LINE_EVERY:
            self._console.print(plain_line(progress), highlight=False, soft_wrap=True)
            self._shown_at = now
        self._shown = progress


def plain_line(progress: Progress) -> str:
    """Phase, share, rates, what `sampler.until` still misses, seconds so far and to go."""
    share = f" {100 * progress.done / progress.total:.0f}%" if progress.total else ""
    figures = rates(replace(progress, missing=()))
    left = remaining(progress)
    to_go = f", {_clock(left)} left" if left else ""
    until = f"  until: {', '.join(progress.missing)}" if progress.missing else ""
    return f"{progress.phase}{share}{'  ' + figures if figures else ''}{until}  {progress.elapsed:.0f} s{to_go}"


def remaining(progress: Progress) -> float | None:
    """The estimated remaining seconds of the phase, at its speed so far; None if not known."""
    if progress.phase == "compile" or not progress.done or not progress.total:
        return None
    return progress.elapsed * (progress.total - progress.done) / progress.done


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def rates(progress: Progress, narrow: bool = False) -> str:
    """Draws and useful gradients per second of this phase, utilization, divergences, in words; none while compiling.

    What `sampler.until` still misses takes the place of gradients and utilization; in a narrow line the first of it.
    """
    if progress.phase == "compile":
        return ""
    unit = "draws" if progress.phase == "sampling" else "transitions"
    seconds = max(progress.elapsed, 1e-9)
    if progress.missing:
        speed = f"{short(progress.done / seconds)} {unit}/s"
        if narrow:
            return f"{speed} {progress.divergences} div until: {progress.missing[0]}"
        return f"{speed}  {progress.divergences} divergences  until: {', '.join(progress.missing)}"
    if narrow:
        unit = unit.replace("transitions", "trans")
        return (
            f"{short(progress.done / seconds)} {unit}/s {short(progress.useful_gradients / seconds)} grad/s "
            f"util {progress.utilization:.2f} {progress.divergences} div"
        )
    return (
        f"{short(progress.done / seconds)} {unit}/s  {short(progress.useful_gradients / seconds)} useful gradients/s "
        f"in {progress.phase}  utilization {progress.utilization:.2f}  {progress.divergences} divergences"
    )


def short(number: float) -> str:
    """Three significant digits, with k or M: 950, 1.23k, 45.6M."""
    for limit, divisor, unit in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if number >= limit:
            return f"{number / divisor:.3g}{unit}"
    return f"{number:.3g}"
