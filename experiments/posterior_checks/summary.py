"""What summary.md and comparisons.csv say of posteriors."""

from __future__ import annotations

import csv
import io

from batchnuts.experiments.harness.summary import format_figure, table, when
from batchnuts.experiments.posterior_checks.config import KNOWN
from batchnuts.experiments.posterior_checks.measurements import Measurement
from batchnuts.experiments.posterior_checks.results import Compared, PosteriorResults, shown_rhat
from batchnuts.experiments.posterior_checks.task import AUTOMATIC


def verdicts_table(results: PosteriorResults) -> str:
    """Every run of ours with its verdict, the explanations of failures, and the bound."""
    config, count = results.config, sum(len(one.comparisons) for one in results.judged)
    absent = sum(bool(verdict.compared.trouble) for verdict in results.failures)
    wrong, total = len(results.failures) - absent, len(results.verdicts)
    skipped = sum(verdict.compared.skipped for verdict in results.verdicts)
    parts = [f"{wrong} of {total} posteriors are **not right**"] * bool(wrong)
    parts += [f"{absent} of {total} are **not compared**"] * bool(absent)
    said = ", ".join(parts) or "All posteriors are right"
    said += f" ({skipped} of {total} are skipped)" if skipped else ""
    head = (
        f"{said}. A posterior is right if no |z| is above {results.bound:.2f} (Bonferroni over all {count:,} "
        f"comparisons: a chance of {config.verdict.alpha:g} that any is, were all right), all R-hat are below "
        f"{config.verdict.rhat:g}, and at most {100 * config.verdict.divergences:g}% of the draws diverged."
    )
    rows = []
    for verdict in results.verdicts:
        one = verdict.compared
        reference = config.problems[one.problem].reference
        against = "known" if reference == KNOWN else config.curves[reference].label
        words = "**not compared**" if one.trouble else "**not right**"
        words = "skipped" if one.skipped else words
        words = "right" if verdict.right else f"{words}: {'; '.join(verdict.reasons)}"
        rows.append(
            (config.problems[one.problem].label, config.curves[one.curve].label, against, *_z_cells(one), words)
        )
    columns = ("posterior", "sampler", "reference", "comparisons", "largest z", "of", "rms z", "verdict")
    parts = ["## Verdicts", head, table(columns, rows)]
    explained = [
        f"- {problem.label}: {problem.explanation}"
        for name, problem in config.problems.items()
        if problem.explanation and any(verdict.compared.problem == name for verdict in results.failures)
    ]
    if explained:
        parts.append("\n".join(["Failures that are known:", "", *explained]))
    return "\n\n".join(parts)


def _z_cells(one: Compared) -> tuple[str, str, str, str]:
    worst = one.worst
    if worst is None:
        return "0", "-", "-", "-"
    return f"{len(one.comparisons):,}", f"{worst.z:.2f}", f"{worst.statistic} of {worst.element}", f"{one.rms:.2f}"


def runs_table(results: PosteriorResults) -> str:
    """Every run of every sampler: what it cost, and its diagnostics."""
    config, rows = results.config, []
    beside = {(one.curve, one.problem): one for one in results.compared if not config.curves[one.curve].ours}
    for curve, problem, _ in config.points():
        row = results.run_of(curve, problem)
        if row is not None:
            cells = _run_cells(row)
            worst = beside[curve, problem].worst if (curve, problem) in beside else None
            note = f"largest z {worst.z:.2f} ({worst.statistic} of {worst.element})" if worst else ""
            rows.append((config.problems[problem].label, config.curves[curve].label, *cells, note))
    columns = (
        "posterior", "sampler", "lines", "chains x (warmup + draws)", "compile s", "run s", "divergences",
        "largest R-hat", "min bulk ESS", "min ESS per s", "",
    )  # fmt: skip
    return "## Runs\n\n" + RUNS + "\n\n" + table(columns, rows)


RUNS = """\
Lines are those of code that a user writes: density, declared parameters and reported quantities of ours, the model
function of NumPyro's. Seconds are of warmup and draws together, on a machine that did other work at the same time:
upper bounds, of no use to compare speeds. NumPyro runs in float64, as a reference should; ours as its config says, in
float32. Effective samples per second count warmup's seconds too."""


def _run_cells(row: Measurement) -> tuple[str, ...]:
    assert row.seconds is not None
    rate = format_figure(row.ess / row.seconds, ".3g") if row.ess is not None and row.seconds else "-"
    return (
        "-" if row.lines is None else str(row.lines),
        f"{row.chains} x ({'auto' if row.warmup == AUTOMATIC else f'{row.warmup:,}'} + {row.draws:,})",
        "-" if row.compile_seconds is None else f"{row.compile_seconds:.1f}",
        f"{row.seconds:.1f}",
        f"{row.divergences:,}",
        f"{shown_rhat(row)} ({row.rhat_of})",
        "-" if row.ess is None else f"{row.ess:,.0f} ({row.ess_of})",
        rate,
    )


def comparisons_csv(results: PosteriorResults) -> str:
    """Every comparison of every run, as CSV."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("problem", "curve", "reference", "element", "statistic", "found", "expected", "z"))
    for one in results.compared:
        reference = results.config.problems[one.problem].reference
        for each in one.comparisons:
            figures = (f"{each.found:.7g}", f"{each.expected:.7g}", f"{each.z:.3f}")
            writer.writerow((one.problem, one.curve, reference, each.element, each.statistic, *figures))
    return stream.getvalue()


def how_made(results: PosteriorResults) -> list[str]:
    """The days, and how the figures were made."""
    used = results.runs()
    lines = [f"- {len(used)} runs, {when(used)}."] if used else []
    return [
        *lines,
        "- z is the difference of two means, or of two standard deviations, over the root of the sum of their squared "
        "Monte Carlo standard errors (`mcse` of ArviZ; 0 where the truth is known). All are in comparisons.csv.",
        "- Each sampler runs in a process of its own, with nothing compiled before.",
    ]
