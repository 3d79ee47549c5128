"""summary.md: each claim beside what was seen, all figures as tables, and what could not be measured."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from batchnuts.experiments.harness.config import Claim, Measure
from batchnuts.experiments.harness.provenance import read_environments
from batchnuts.experiments.harness.results import QUANTITIES, Quantity, Results, Value, judge


def write_summary(title: str, question: str, tables: str, results: Results, folder: Path) -> None:
    """Write `folder`/summary.md from the results and environment.json."""
    parts = [f"# {title}", question, claims_table(results), tables, gaps(results), made_with(results, folder)]
    (folder / "summary.md").write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def claims_table(results: Results) -> str:
    """Every claim with its verdict."""
    if not results.config.claims:
        return ""
    rows = []
    for claim in results.config.claims.values():
        verdict = judge(results, claim)
        digits = ".3g" if claim.over_curve else QUANTITIES[claim.measure].digits
        seen = "-" if verdict.seen is None else shown(verdict.seen, digits, (claim.at_least, claim.at_most))
        rows.append((claim.says, claim.source, _figure(results, claim), _bound(claim), seen, f"**{verdict.word}**"))
    head = ("claim", "source", "figure", "holds from", "seen here (range)", "verdict")
    return "## Claims\n\n" + table(head, rows)


def _figure(results: Results, claim: Claim) -> str:
    """What is looked up, in words."""
    config = results.config

    def at(chains: int | None) -> str:
        return "its largest" if chains is None else f"{chains:,} chains"

    words = f"{QUANTITIES[claim.measure].axis} of {config.curves[claim.curve].label} ({at(claim.chains)})"
    if claim.over_curve is not None:
        chains = claim.over_chains or claim.chains
        words += f" / {config.curves[claim.over_curve].label} ({at(chains)})"
    return words if claim.problem is None else f"{words}, {config.problems[claim.problem].label}"


def _bound(claim: Claim) -> str:
    low = "" if claim.at_least is None else f"≥ {claim.at_least:g}"
    high = "" if claim.at_most is None else f"≤ {claim.at_most:g}"
    return " and ".join(bound for bound in (low, high) if bound)


def size_table(results: Results, measure: Measure, problem: str, curves: Sequence[str] | None = None) -> str:
    """Curves by numbers of chains, one problem; a point without the measure is `-`."""
    config = results.config
    names = [curve for curve in (config.curves if curves is None else curves) if problem in config.problems_of(curve)]
    sizes = sorted({size for curve in names for size in config.chains_of(curve)})
    rows = []
    for curve in names:
        values = {value.size: value for value in results.values(measure, curve, problem)}
        cells = [_cell(values.get(size), QUANTITIES[measure]) for size in sizes]
        rows.append((config.curves[curve].label, *cells))
    return table(("chains", *(f"{size:,}" for size in sizes)), rows)


def measure_tables(results: Results, measures: Sequence[Measure]) -> str:
    """A section for each problem, with a table for each measure that some curve has there."""
    parts = []
    for problem, settings in results.config.problems.items():
        parts.append(f"## {settings.label}")
        for measure in measures:
            quantity = QUANTITIES[measure]
            if any(results.values(measure, curve, problem) for curve in results.config.curves):
                parts.append(f"{quantity.axis[0].upper()}{quantity.axis[1:]}, {quantity.how} of the repetitions:")
                parts.append(size_table(results, measure, problem))
    return "\n\n".join(parts)


def _cell(value: Value | None, quantity: Quantity) -> str:
    return "-" if value is None else format_figure(value.value, quantity.digits)


def format_figure(figure: float, digits: str) -> str:
    """With the digits given; large ones with thousands separated, and no exponent."""
    return f"{float(f'{figure:.3g}'):,.0f}" if digits.endswith("g") and abs(figure) >= 1000 else f"{figure:{digits}}"


def shown(value: Value, digits: str, bounds: Sequence[float | None] = ()) -> str:
    """A figure with the range of its repetitions; where rounding would bring it to a bound, or over it, in full."""
    rounded = format_figure(value.value, digits)
    for bound in bounds:
        if bound is not None and _order(float(rounded.replace(",", "")), bound) != _order(value.value, bound):
            rounded = repr(value.value)
    return f"{rounded} ({format_figure(value.low, digits)} to {format_figure(value.high, digits)})"


def _order(figure: float, bound: float) -> int:
    return (figure > bound) - (figure < bound)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"

    return "\n".join((line(head), "|" + "|".join("---" for _ in head) + "|", *(line(row) for row in rows)))


def gaps(results: Results) -> str:
    """Every point without a run, and why; points of a curve with the same reason together."""
    grouped: dict[tuple[str, str, str], list[int]] = {}
    for curve, problem, chains, reason in results.absent():
        grouped.setdefault((curve, problem, reason), []).append(chains)
    if not grouped:
        return ""
    config = results.config
    rows = [
        (
            config.curves[curve].label,
            config.problems[problem].label,
            ", ".join(f"{size:,}" for size in chains),
            reason,
        )
        for (curve, problem, reason), chains in grouped.items()
    ]
    return "## Not measured\n\n" + table(("curve", "problem", "chains", "why"), rows)


def made_with(results: Results, folder: Path) -> str:
    """The environments that the rows name, how long it all took, and how the figures were summed up."""
    used = results.runs()
    lines = ["## How it was made", "", *machines(used, folder)]
    if used:
        minutes = sum(row.seconds or 0.0 for row in used) / 60
        lines.append(f"- {minutes:.1f} minutes of timed runs, {when(used)}.")
    lines += differences(results)
    repetitions = results.config.measurement.repetitions
    lines.append(
        f"- Every point that was measured has {repetitions} warm runs with different seeds{fewer(results)}, all in "
        "measurements.csv. Where a table does not say otherwise, rates are the best of them, utilizations their mean, "
        "effective samples per minute their median; ranges are over all of them."
    )
    lines.append(written())
    return "\n".join(lines)


class Made(Protocol):
    """What is looked at of a row, of any kind."""

    @property
    def environment(self) -> str:
        """A name of environment.json."""

    @property
    def started(self) -> str:
        """Date and time, UTC."""

    @property
    def load(self) -> float | None:
        """The machine's load average before the run."""


def machines(used: Sequence[Made], folder: Path) -> list[str]:
    """A line for each environment that the rows name."""
    environments = read_environments(folder / "environment.json")
    lines = []
    named = {row.environment for row in used}
    for name in [name for name in environments if name in named] + sorted(named - set(environments)):
        runs = sum(row.environment == name for row in used)
        if name not in environments:
            lines.append(f"- {runs} runs in the environment {name}, which environment.json does not have.")
            continue
        found = environments[name]
        packages = ", ".join(f"{p} {v}" for p, v in found["packages"].items() if v)
        machine = f"{found['processors_usable']} of {found['processors']} processors ({found['processor']})"
        lines.append(
            f"- {runs} runs on {machine}, {found['memory_gib']} GiB, GPU: {found['gpu'] or 'none'}; Python "
            f"{found['python']}, {packages}, commit {found['commit'] or 'unknown'}."
        )
    return lines


def when(used: Sequence[Made]) -> str:
    """The days of some runs, and how busy the machine was."""
    days = sorted({row.started[:10] for row in used})
    loads = sorted(row.load or 0.0 for row in used)
    span = " to ".join(dict.fromkeys((days[0], days[-1])))
    return f"{span}. Load of the machine before a run: median {loads[len(loads) // 2]:.1f}, highest {loads[-1]:.1f}"


def written() -> str:
    """The line with today's date."""
    return f"- Written {datetime.now(UTC).date().isoformat()}."


def differences(results: Results) -> list[str]:
    """A line for each curve that is not run as `run` says."""
    config = results.config
    lines = []
    for curve in config.curves.values():
        own = [
            f"{value} {words}"
            for value, usual, words in (
                (curve.transitions, config.run.transitions, "transitions"),
                (curve.leapfrogs_per_leaf, config.run.leapfrogs_per_leaf, "leapfrogs per leaf"),
            )
            if value is not None and value != usual
        ]
        own += [f"{name}={value}" for name, value in curve.environment.items()]
        if own:
            lines.append(f"- {curve.label} is run with {', '.join(own)}.")
    return lines


def fewer(results: Results) -> str:
    """Points that have some of their repetitions, but not all, in words; empty if there is none."""
    wanted = results.config.measurement.repetitions
    short = []
    for curve, problem, chains in results.config.points():
        rows = results.rows_of(curve, problem, chains)
        runs = sum(row.ok for row in rows)
        if 0 < runs < wanted:
            labels = results.config.curves[curve].label, results.config.problems[problem].label
            reason = "".join(f", {row.status}: {row.note}" for row in rows if not row.ok)
            short.append(f"{labels[0]}, {chains:,} chains on {labels[1]}: {runs}{reason}")
    return f" (fewer: {'; '.join(short)})" if short else ""
