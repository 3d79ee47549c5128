"""What summary.md and comparisons.csv say of posteriors."""

from __future__ import annotations

import csv
import io

from batchnuts.experiments.harness.experiment import Subject
from batchnuts.experiments.harness.row_by_row import RowByRow
from batchnuts.experiments.harness.summary import format_figure, table
from batchnuts.experiments.posterior_checks.config import KNOWN, PosteriorsConfig, load_posteriors
from batchnuts.experiments.posterior_checks.results import Compared, PosteriorResults, shown_rhat
from batchnuts.experiments.posterior_checks.task import AUTOMATIC, Measurement


def verdicts_table(results: PosteriorResults) -> str:
    """Every run of ours with its verdict, the explanations of failures, and the bound."""
    config, count = results.config, sum(len(compared.comparisons) for compared in results.judged)
    absent = sum(bool(verdict.compared.trouble) for verdict in results.failures)
    wrong, total = len(results.failures) - absent, len(results.verdicts)
    skipped = sum(verdict.compared.skipped for verdict in results.verdicts)
    parts = [f"{wrong} of {total} posteriors are **not right**"] * bool(wrong)
    parts += [f"{absent} of {total} are **not compared**"] * bool(absent)
    counts = ", ".join(parts) or "All posteriors are right"
    counts += f" ({skipped} of {total} are skipped)" if skipped else ""
    head = (
        f"{counts}. A posterior is right if no |z| is above {results.bound:.2f} (Bonferroni over all {count:,} "
        f"comparisons: a chance of {config.verdict.alpha:g} that any is, were all right), all R-hat are below "
        f"{config.verdict.rhat:g}, and at most {100 * config.verdict.divergences:g}% of the draws diverged."
    )
    rows = []
    for verdict in results.verdicts:
        compared = verdict.compared
        reference = config.problems[compared.problem].reference
        against = "known" if reference == KNOWN else config.curves[reference].label
        words = "**not compared**" if compared.trouble else "**not right**"
        words = "skipped" if compared.skipped else words
        words = "right" if verdict.right else f"{words}: {'; '.join(verdict.reasons)}"
        rows.append(
            (
                config.problems[compared.problem].label,
                config.curves[compared.curve].label,
                against,
                *_z_cells(compared),
                words,
            )
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


def _z_cells(compared: Compared) -> tuple[str, str, str, str]:
    worst = compared.worst
    if worst is None:
        return "0", "-", "-", "-"
    return (
        f"{len(compared.comparisons):,}",
        f"{worst.z:.2f}",
        f"{worst.statistic} of {worst.element}",
        f"{compared.rms:.2f}",
    )


def runs_table(results: PosteriorResults) -> str:
    """Every run of every sampler: what it cost, and its diagnostics."""
    config, rows = results.config, []
    beside = {
        (compared.curve, compared.problem): compared
        for compared in results.compared
        if not config.curves[compared.curve].ours
    }
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
    for compared in results.compared:
        reference = results.config.problems[compared.problem].reference
        for comparison in compared.comparisons:
            figures = (f"{comparison.found:.7g}", f"{comparison.expected:.7g}", f"{comparison.z:.3f}")
            writer.writerow(
                (compared.problem, compared.curve, reference, comparison.element, comparison.statistic, *figures)
            )
    return stream.getvalue()


def how_made(results: PosteriorResults) -> list[str]:
    """How the figures were made."""
    return [
        "- z is the difference of two means, or of two standard deviations, over the root of the sum of their squared "
        "Monte Carlo standard errors (`mcse` of ArviZ; 0 where the truth is known). All are in comparisons.csv.",
        "- Each sampler runs in a process of its own, with nothing compiled before.",
    ]


POSTERIORS: Subject[PosteriorsConfig, Measurement, PosteriorResults] = Subject(
    load=load_posteriors,
    measuring=RowByRow,
    rows=Measurement,
    results=PosteriorResults,
    target="posterior",
    sizes="chains",
    claims=verdicts_table,
    how_made=how_made,
)
