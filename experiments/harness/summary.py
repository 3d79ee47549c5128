"""summary.md: each claim beside what was seen, all figures as tables, and what could not be measured."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batchnuts.experiments.harness.provenance import read_environments
from batchnuts.experiments.harness.results import ClaimResults, PointResults, Value
from batchnuts.experiments.harness.rows import Row


def claims_table(results: ClaimResults[Any, Any]) -> str:
    """Every claim with its verdict; columns that say something of some claim."""
    head = ("claim", "source", "figure", "holds from", "seen here (range)", "where", "verdict")
    rows = [
        (v.claim.says, v.claim.source, v.figure, v.claim.bounds, v.words, v.where, f"**{v.word}**")
        for v in results.verdicts()
    ]
    if not rows:
        return ""
    told = [number for number in range(len(head)) if any(row[number] for row in rows)]
    return "## Claims\n\n" + table([head[k] for k in told], [[row[k] for k in told] for row in rows])


def gaps(results: PointResults[Any, Any], target: str, sizes: str) -> str:
    """Every point without a run, and why; points of a curve with the same reason together.

    target, sizes: the columns' names.
    """
    grouped: dict[tuple[str, str, str], list[int]] = {}
    for curve, target_name, size, reason in results.absent():
        grouped.setdefault((curve, target_name, reason), []).append(size)
    if not grouped:
        return ""
    config = results.config
    rows = [
        (
            config.curves[curve].label,
            config.targets[target_name].label,
            ", ".join(f"{size:,}" for size in absent),
            reason,
        )
        for (curve, target_name, reason), absent in grouped.items()
    ]
    return "## Not measured\n\n" + table(("curve", target, sizes, "why"), rows)


def made_with(results: PointResults[Any, Any], lines: Sequence[str], folder: Path) -> str:
    """The environments that the rows name, when they were made, and then what else there is to say of that."""
    rows = results.runs()
    days = [f"- {len(rows):,} runs, {when(rows)}."] if rows else []
    date_line = f"- Written {datetime.now(UTC).date().isoformat()}."
    return "\n".join(["## How it was made", "", *machines(rows, folder), *days, *lines, date_line])


def machines(rows: Sequence[Row], folder: Path) -> list[str]:
    """A line for each environment that the rows name."""
    environments = read_environments(folder / "environment.json")
    lines = []
    names = {row.environment for row in rows}
    for name in [name for name in environments if name in names] + sorted(names - set(environments)):
        runs = sum(row.environment == name for row in rows)
        if name not in environments:
            lines.append(f"- {runs} runs in the environment {name}, which environment.json does not have.")
            continue
        environment = environments[name]
        packages = ", ".join(f"{p} {v}" for p, v in environment["packages"].items() if v)
        machine = (
            f"{environment['processors_usable']} of {environment['processors']} processors ({environment['processor']})"
        )
        lines.append(
            f"- {runs} runs on {machine}, {environment['memory_gib']} GiB, GPU: {environment['gpu'] or 'none'}; Python "
            f"{environment['python']}, {packages}, commit {environment['commit'] or 'unknown'}."
        )
    return lines


def when(rows: Sequence[Row]) -> str:
    """The days of some runs, and how busy the machine was."""
    days = sorted({row.started[:10] for row in rows})
    loads = sorted(row.load or 0.0 for row in rows)
    span = " to ".join(dict.fromkeys((days[0], days[-1])))
    return f"{span}. Load of the machine before a run: median {loads[len(loads) // 2]:.1f}, highest {loads[-1]:.1f}"


def format_figure(figure: float, digits: str) -> str:
    """With the digits given; large ones with thousands separated, and no exponent."""
    return f"{float(f'{figure:.3g}'):,.0f}" if digits.endswith("g") and abs(figure) >= 1000 else f"{figure:{digits}}"


def shown(value: Value, digits: str, bounds: Sequence[float | None] = ()) -> str:
    """A figure with the range of its repetitions; where rounding would bring it to a bound, or over it, with as many
    more digits as keep it where it is."""

    def keeps_side(text: str) -> bool:
        near = float(text.replace(",", ""))
        return all(bound is None or _order(near, bound) == _order(value.value, bound) for bound in bounds)

    longer = (f"{value.value:.{places}g}" for places in range(4, 18))
    rounded = next(filter(keeps_side, itertools.chain([format_figure(value.value, digits)], longer)))
    return f"{rounded} ({format_figure(value.low, digits)} to {format_figure(value.high, digits)})"


def _order(figure: float, bound: float) -> int:
    return (figure > bound) - (figure < bound)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"

    return "\n".join((line(head), "|" + "|".join("---" for _ in head) + "|", *(line(row) for row in rows)))
