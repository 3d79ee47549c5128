"""The output at the end of a run: the table, the verdict, speed, times, and where the draws are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from batchnuts.autobatch.machine import engine_infos
from batchnuts.files.groups import AnyGroup, datasets_of
from batchnuts.files.url import OutputLocation
from batchnuts.mcmc.diagnostics.coefficient_parts import DiagnosticsError
from batchnuts.mcmc.diagnostics.columns import COLUMNS, DIGITS, NESTED_RHAT, RUNNING_COLUMNS, left_out_first
from batchnuts.mcmc.diagnostics.diagnose import Diagnostics
from batchnuts.mcmc.diagnostics.summary_without_draws import diagnosed
from batchnuts.mcmc.diagnostics.verdict import diagnose_groups, judge, made_by
from batchnuts.mcmc.statistics.chain_numbers import restarted_in_words, some_numbers
from batchnuts.mcmc.storage.draws import Draws, warmup_in_words
from batchnuts.progress.terminal import SafeConsole
from batchnuts.progress.views import View, phase
from batchnuts.progress.words import short
from batchnuts.settings.schema import in_words

if TYPE_CHECKING:
    from rich.table import Table


_SPACE, _EDGES = 3, 4
"""Characters between two columns of a table, and those at its two edges together."""
_NAME = 12
"""Characters of a name that are shown on one line, whatever the width of the table."""
_PLAIN_WIDTH = 120  # of tables that do not go to a terminal
_NO_VIEW: View = nullcontext()


def print_report(
    draws: Draws,
    groups: Mapping[str, AnyGroup],
    location: OutputLocation,
    saving: float,
    view: View = _NO_VIEW,
    *,
    rows: int = 12,
    kept: bool = True,
) -> Diagnostics | None:
    """Print the report on stdout; gives the diagnostics, None without a draw that every chain has.

    groups: those of the output. saving: seconds that it took to write the file `location`. view: where progress is
    shown. rows: of the table. kept: whether draws were.
    """
    console = SafeConsole()
    if not console.is_terminal:
        console = SafeConsole(width=_PLAIN_WIDTH)
    timings = {**draws.timings, "saving": saving}
    diagnostics = None
    if draws.complete:
        started = time.monotonic()
        with phase(view, "diagnostics"):
            if "summary" in groups:
                diagnostics = diagnosed(datasets_of(groups)["summary"])
            else:
                diagnostics = diagnose_groups(groups["posterior"], groups["sample_stats"])
        timings["diagnostics"] = time.monotonic() - started
        console.print(summary_table(diagnostics, rows, width=console.width))
        run = made_by(next(iter(groups.values())).attrs)
        console.print(str(judge(diagnostics, run)), highlight=False, markup=False, soft_wrap=True)
    seconds = draws.timings.get("warmup", 0.0) + draws.timings.get("sampling", 0.0)
    speed = f"{short(draws.useful_gradients / seconds)} useful gradients/s in warmup and sampling, " if seconds else ""
    served = f"; {draws.arrangement}" if draws.arrangement is not None else ""
    if draws.chains_reason:
        console.print(f"Chains: {draws.chains_reason}", highlight=False, markup=False, soft_wrap=True)
    console.print(_warmup(draws), highlight=False, markup=False, soft_wrap=True)
    if draws.ended:
        console.print(f"Sampling ended: {draws.ended}", highlight=False, markup=False, soft_wrap=True)
    backend, engines = draws.execution.backend, engine_infos()
    if draws.backend_reason:  # which names the library of gradients besides
        family = engines[backend].family if backend in engines else ""
        backend = f"{family or backend} {draws.backend_reason}"
    console.print(f"Backend: {backend}", highlight=False, soft_wrap=True)
    console.print(f"Speed: {speed}utilization {draws.utilization:.2f}{served}", highlight=False, soft_wrap=True)
    console.print(f"Metric: {draws.metric}", highlight=False, soft_wrap=True)
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in timings.items())
    console.print(f"Time: {spent}", highlight=False, soft_wrap=True)
    label = "Draws" if kept else "Summary (draws were not kept)"
    console.print(f"{label}: {location}", highlight=False, markup=False, soft_wrap=True)
    return diagnostics


def _warmup(draws: Draws) -> str:
    """How warmup went, in one line, or two where chains were left out."""
    report = draws.warmup
    text = f"Warmup: {warmup_in_words(report.transitions, report.burn_in)} ({report.reason})"
    if report.agreed is False:
        text += "\nWARNING: warmup had not settled when it ended: raise sampler.warmup.maximum, or reparametrize."
    if report.outliers:
        text += (
            f"\nWARNING: {len(report.outliers)} of {len(draws.done)} chains stayed far from all others, and did not "
            f"count for the step size and metric: {some_numbers(report.outliers)}. "
            f"{'Its' if len(report.outliers) == 1 else 'Their'} draws are in the file; sampler.warmup.restart=true "
            "restarts such chains near others."
        )
    if report.late:
        text += (
            f"\nWARNING: {len(report.late)} of {len(draws.done)} chains had not reached the others when "
            f"warmup ended: {some_numbers(report.late)}. Make warmup longer."
        )
    if not draws.complete and report.restarted:  # else the verdict says so
        text += f"\n{restarted_in_words(report.restarted, draws.settings.warmup.restart)}"
    return text


def summary_table(diagnostics: Diagnostics, rows: int = 12, *, width: int = _PLAIN_WIDTH) -> Table:
    """A table of at most `rows` coefficients: all in order, or the worst R-hat first where some are left out.

    The caption gives the number left out. Columns that do not fit `width` characters are left out, the least important
    first; numbers are never cut, and long names take several lines.
    Raises DiagnosticsError for rows < 1.
    """
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    if rows < 1:
        raise DiagnosticsError(f"A summary of {rows} rows was asked for; expected at least 1.")
    count = len(diagnostics.names)
    left_out = max(count - rows, 0)
    order: Sequence[int] = (
        list(range(count)) if not left_out else [int(i) for i in diagnostics.most_suspect_first()[:rows]]
    )
    order_of = "R-hat" if diagnostics.nested is None else NESTED_RHAT
    more = f"{in_words(left_out, 'more coefficient')} {'is' if left_out == 1 else 'are'} not shown"
    by = f"where stuck chains are furthest, then worst {order_of}" if diagnostics.furthest else f"worst {order_of}"
    caption = f"{by} first; {more}" if left_out else None
    names = [diagnostics.names[index] for index in order]
    values = {name: diagnostics.columns[name] for name in (RUNNING_COLUMNS if diagnostics.running else COLUMNS)}
    if diagnostics.nested is not None:  # what the rows are in the order of, and the verdict is about
        del values["r_hat"]
        values[order_of] = diagnostics.nested
    cells = {name: [shown(name, column[index]) for index in order] for name, column in values.items()}
    columns = _those_that_fit(cells, width - min(max(map(len, names)), max(width // 4, _NAME)) - _EDGES)
    size = f"{in_words(diagnostics.chains, 'chain')} x {in_words(diagnostics.draws, 'draw')}"
    title = f"{in_words(count, 'coefficient')}, {size}"
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
    table.add_column("", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for name, *numbers in zip(names, *(cells[column] for column in columns), strict=True):
        table.add_row(escape(name), *numbers)
    return table


def _those_that_fit(cells: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Names of the columns that fit so many characters beside the names of coefficients; at least one."""
    widths = {name: _SPACE + max(map(len, (name, *column))) for name, column in cells.items()}
    for group in left_out_first():
        if sum(widths.values()) <= width:
            break
        widths = {name: size for name, size in widths.items() if name not in group}
    return [*widths]


def shown(column: str, value: float) -> str:
    """A number of the table as it is printed: `-` for NaN."""
    return "-" if np.isnan(value) else f"{value:{DIGITS[column]}}"
