"""Profiles as text, as JSON and as a picture."""

from __future__ import annotations

import ast
import json
import linecache
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from batchnuts.autobatch.errors import BatchnutsError
from batchnuts.autobatch.parsing import parse
from batchnuts.autobatch.profiling.counts import Count, Line, RunProfile, Runs

JSON_VERSION = 1

COLOURS = {
    "costly": "#cc3311",
    "gated": "#ee7733",
    "call": "#0077bb",
    "return": "#33bbee",
    "branch": "#009988",
    "plain": "#999999",
}
"""By kind of block (`counts.BlockProfile.kind`)."""


# ---- text -----------------------------------------------------------------------------------------------------------


def as_text(profile: Runs) -> str:
    """The runs one by one; then, summed over them, source lines, costly primitives, stacks and blocks."""
    if not profile.runs:
        return "no run was profiled"
    header: tuple[str, ...]
    parts = [[_headline(run) for run in profile.runs], *_source_tables(profile.lines())]
    if costly := profile.costly():
        header = ("costly primitive", "evaluations", "active lanes", "utilization")
        parts.append(_table(header, [(name, *_cells(count)) for name, count in costly.items()]))
    stacks, blocks = profile.stacks(), profile.blocks()
    for function in dict.fromkeys(name for name, _ in stacks):
        rows = [(v, s.pushes, s.pops, s.peak) for (name, v), s in stacks.items() if name == function]
        parts.append(_table((f"stack of {function}", "pushes", "pops", "highest"), rows))
    kinds = {(run.function, run.executor, block.label): block.kind for run in profile.runs for block in run.blocks}
    for function, executor in dict.fromkeys((name, executor) for name, executor, _ in blocks):
        header = (f"block of {function}, {executor}", "executions", "active lanes", "utilization", "kind")
        mine = [(key, count) for key, count in blocks.items() if key[:2] == (function, executor)]
        parts.append(_table(header, [(key[2], *_cells(count), kinds[key]) for key, count in mine]))
    return "\n\n".join("\n".join(part) for part in parts)


def _headline(run: RunProfile) -> str:
    where = f"{run.executor} on {run.backend}" + (f"/{run.mode}" if run.mode != "eager" else "")
    schedule = f", {run.schedule}" if run.schedule else ""
    sweeps = "" if run.sweeps is None else f" in {run.sweeps} sweeps"
    restarts = f", {run.restarts} restarts for deeper stacks" if run.restarts else ""
    sampling = f"; the timeline keeps one dispatch in {run.timeline.stride}" if run.timeline.stride > 1 else ""
    return (
        f"{run.function}: {run.lanes} lanes, {where}{schedule}: {run.total.executions} dispatches{sweeps}, "
        f"{_percent(run.total)} of lanes active, calls {run.call_depth} deep; "
        f"{run.compile_seconds:.2f} s to compile, {run.run_seconds:.2f} s to run{restarts}{sampling}"
    )


def _percent(count: Count) -> str:
    return "" if count.utilization is None else f"{100 * count.utilization:.1f} %"


def _cells(count: Count) -> tuple[int, int, str]:
    return count.executions, count.active, _percent(count)


def _table(header: tuple[str, ...], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Rows under a header; the first column and those after the fourth are flush left."""
    cells = [tuple(header), *(tuple(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]

    def line(row: Sequence[str]) -> str:
        aligned = [c.rjust(w) if 0 < i < 4 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))]
        return "  ".join(aligned).rstrip()

    return [line(row) for row in cells]


def _source_tables(lines: dict[Line, Count]) -> Iterator[list[str]]:
    """For each file, the functions that have counted lines, each line with its counts."""
    for filename in dict.fromkeys(name for name, _ in lines):
        text = linecache.getlines(filename)
        table = [f"{filename}", f"{'line':>5}  {'executions':>10}  {'active lanes':>12}  {'utilization':>11}"]
        previous = 0
        for number in _lines_to_show(text, {n for name, n in lines if name == filename}):
            if previous and number > previous + 1:
                table.append(f"{'...':>5}")
            previous = number
            executions, active, share = _cells(lines[filename, number]) if (filename, number) in lines else ("", "", "")
            source = text[number - 1].rstrip("\n") if number <= len(text) else ""
            table.append(f"{number:>5}  {executions:>10}  {active:>12}  {share:>11}  {source}".rstrip())
        yield table


def _lines_to_show(text: list[str], counted: set[int]) -> list[int]:
    """The lines of the innermost functions around the counted ones, whole; where the source is not available, these
    alone."""
    try:
        tree: ast.AST = parse("".join(text))
    except SyntaxError:  # a notebook's cell magic, say
        return sorted(counted)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    shown = set(counted)
    for number in counted:
        around = [f for f in functions if f.lineno <= number <= (f.end_lineno or f.lineno)]
        if around:
            inner = max(around, key=lambda f: f.lineno)
            shown.update(range(inner.lineno, (inner.end_lineno or inner.lineno) + 1))
    return sorted(shown)


# ---- JSON -----------------------------------------------------------------------------------------------------------


def to_json(profile: Runs, path: str | None) -> str:
    """The schema of docs/profiler.md, version JSON_VERSION."""
    content = {
        "version": JSON_VERSION,
        "runs": [_run(run) for run in profile.runs],
        "total": {
            **_count(profile.total),
            "lines": [{"file": f, "line": n, **_count(c)} for (f, n), c in sorted(profile.lines().items())],
            "blocks": [
                {"function": f, "executor": e, "label": label, **_count(c)}
                for (f, e, label), c in profile.blocks().items()
            ],
            "costly": [{"primitive": name, **_count(c)} for name, c in profile.costly().items()],
        },
    }
    text = json.dumps(content, indent=1)
    if path is not None:
        Path(path).write_text(text + "\n", encoding="utf-8")
    return text


def _count(count: Count) -> dict[str, Any]:
    return {"executions": count.executions, "active": count.active, "utilization": count.utilization}


def _run(run: RunProfile) -> dict[str, Any]:
    return {
        "function": run.function,
        "executor": run.executor,
        "backend": run.backend,
        "mode": run.mode,
        "schedule": run.schedule,
        "lanes": run.lanes,
        "sweeps": run.sweeps,
        "stack_depth": run.stack_depth,
        "restarts": run.restarts,
        "call_depth": run.call_depth,
        "seconds": {"compile": run.compile_seconds, "run": run.run_seconds},
        **_count(run.total),
        "blocks": [
            {
                "label": block.label,
                "kind": block.kind,
                **_count(block.count),
                "lines": [{"file": file, "line": line} for file, line in block.lines],
                "costly": list(block.costly),
            }
            for block in run.blocks
        ],
        "stacks": [{"variable": s.variable, "pushes": s.pushes, "pops": s.pops, "peak": s.peak} for s in run.stacks],
        "timeline": {
            "stride": run.timeline.stride,
            "blocks": run.timeline.blocks.tolist(),
            "active": run.timeline.active.tolist(),
        },
    }


# ---- picture --------------------------------------------------------------------------------------------------------


def plot(profile: Runs, path: str) -> None:
    """For each run, active lanes over dispatches, and beneath it which kind of block each dispatch ran."""
    if not profile.runs:
        raise ValueError("no run was profiled, so there is nothing to plot")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BatchnutsError(
            "the picture of a profile is drawn by matplotlib, which is not installed. Install it with "
            "`pip install 'batchnuts[plot]'`; `print` and `to_json` work without."
        ) from None
    count = len(profile.runs)
    figure = Figure(figsize=(7.2, 2.8 * count), layout="constrained")
    grid = figure.subplots(2 * count, 1, squeeze=False, height_ratios=[3, 1] * count)[:, 0]
    for run, (lanes, kinds) in zip(profile.runs, grid.reshape(count, 2)):
        _plot_run(run, lanes, kinds)
    figure.savefig(path, dpi=150)


def _plot_run(run: RunProfile, lanes: Any, kinds: Any) -> None:
    time, dispatches = run.timeline, len(run.timeline.active)
    shown = [kind for kind in COLOURS if any(run.blocks[b].kind == kind for b in set(time.blocks.tolist()))]
    marker = {"s": 9 if dispatches < 500 else 2, "linewidths": 0}
    for row, kind in enumerate(shown):
        at = [i for i, b in enumerate(time.blocks.tolist()) if run.blocks[b].kind == kind]
        numbers = [i * time.stride for i in at]
        lanes.scatter(numbers, time.active[at], color=COLOURS[kind], label=kind, **marker)
        kinds.scatter(numbers, [row] * len(at), color=COLOURS[kind], **marker)
    lanes.set_ylim(0, 1.05 * max(run.lanes, 1))
    lanes.set_ylabel("active lanes")
    lanes.tick_params(labelbottom=False)
    lanes.sharex(kinds)
    title = f"{run.function}, {run.executor}: {run.lanes} lanes, {_percent(run.total)} active"
    lanes.set_title(title, loc="left", fontsize=9)
    kinds.set_yticks(range(len(shown)), shown, fontsize=7)
    kinds.set_ylim(-0.5, len(shown) - 0.5)
    kinds.set_xlabel("dispatch" if time.stride == 1 else f"dispatch (one in {time.stride} shown)")
