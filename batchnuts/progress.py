"""Progress of a run on the screen: a live bar on a terminal, now and then a plain line elsewhere (a log, a pipe)."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column

from batchnuts.mcmc.draws import Progress

_LINE_EVERY = 10.0
"""Seconds between two plain lines."""
_WIDE = 130
"""Characters that the full line needs."""


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
                console=self._console,
            )
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Show how far the run has come."""
        if self._bar is None:
            self._line(progress)
            return
        # A phase of unknown length (compilation) has a bar that only moves.
        total = progress.total or None
        if self._task is None or self._shown is None or self._shown.phase != progress.phase:
            self._close(self._bar)
            self._task = self._bar.add_task(progress.phase, total=total, rates="")
        self._shown = progress
        self._bar.update(self._task, completed=progress.done, total=total, rates=rates(progress, self._narrow))

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
            share = f" {100 * progress.done / progress.total:.0f}%" if progress.total else ""
            figures = rates(progress)
            self._console.print(
                f"{progress.phase}{share}{'  ' + figures if figures else ''}  {progress.elapsed:.0f} s",
                highlight=False,
                soft_wrap=True,
            )
            self._shown_at = now
        self._shown = progress


def rates(progress: Progress, narrow: bool = False) -> str:
    """Draws and useful gradients per second, utilization and divergences, in words; empty while compiling."""
    if progress.phase == "compile":
        return ""
    unit = "draws" if progress.phase == "sampling" else "transitions"
    seconds = max(progress.elapsed, 1e-9)
    if narrow:
        return (
            f"{short(progress.done / seconds)} {unit}/s {short(progress.useful_gradients / seconds)} grad/s "
            f"util {progress.utilization:.2f} {progress.divergences} div"
        )
    return (
        f"{short(progress.done / seconds)} {unit}/s  {short(progress.useful_gradients / seconds)} gradients/s  "
        f"utilization {progress.utilization:.2f}  {progress.divergences} divergences"
    )


def short(number: float) -> str:
    """Three significant digits, with k or M: 950, 1.23k, 45.6M."""
    for limit, divisor, unit in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if number >= limit:
            return f"{number / divisor:.3g}{unit}"
    return f"{number:.3g}"
