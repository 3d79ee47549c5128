"""What summary.md says of times to an answer."""

from __future__ import annotations

from batchnuts.experiments.harness.experiment import Subject
from batchnuts.experiments.harness.row_by_row import RowByRow
from batchnuts.experiments.harness.summary import claims_table, format_figure, table
from batchnuts.experiments.time_to_answer.config import AnswerConfig, load_answer
from batchnuts.experiments.time_to_answer.results import AnswerResults
from batchnuts.experiments.time_to_answer.task import Measurement


def times_tables(results: AnswerResults) -> str:
    """For each goal: posteriors by samplers, seconds of second starts; then every run with all that is known of it."""
    config = results.config
    ours = [name for name, curve in config.curves.items() if curve.ours]
    parts = []
    for goal in config.run.goals:
        rows = []
        for problem, settings in config.problems.items():
            by_curve = {name: results.seconds(name, problem, goal) for name in config.curves}
            best = min((value.value for value in by_curve.values() if value is not None), default=None)
            cells = []
            for name, value in by_curve.items():
                if value is None:
                    cells.append(_why(results, name, problem, goal))
                else:
                    text = f"{value.value:.1f}"
                    cells.append(f"**{text}**" if value.value == best else text)
            ratios = [results.ratio(name, problem, goal) for name in ours]
            cells += ["-" if ratio is None else f"{ratio.value:.2f}" for ratio in ratios]
            rows.append((settings.label, *cells))
        head = ("posterior", *(curve.label for curve in config.curves.values()))
        head += tuple(f"{config.curves[name].label} / fastest peer" for name in ours)
        parts += [f"## Seconds to {goal:,} effective draws, second start", table(head, rows)]
    parts += ["## Every run", RUNS, _runs(results)]
    return "\n\n".join(parts)


RUNS = """\
Draws are those kept, per chain. A search that took several runs to find enough of them is counted in the column runs;
the seconds are those of one run that has enough. Gradients are those that trajectories took, in warmup and draws (≥:
the sampler does not say how many its warmup took); executed counts those too that were computed for nothing, where a
sampler says how many."""


def _why(results: AnswerResults, curve: str, problem: str, goal: int) -> str:
    """A cell without a figure."""
    if curve not in results.config.curves_of(problem):
        return ""
    rows = results.rows_of(curve, problem, goal)
    words = {"missing": "not written", "failed": "not reached", "stopped": "not reached"}
    return next((words[row.status] for row in rows if not row.ok), "-")


def _runs(results: AnswerResults) -> str:
    config, rows = results.config, []
    for curve, problem, goal in config.points():
        for row in results.runs_of(curve, problem, goal):
            assert row.seconds is not None
            rows.append(
                (config.problems[problem].label, config.curves[curve].label, f"{goal:,}", f"{row.seconds:.1f}",
                 "-" if row.first_seconds is None else f"{row.first_seconds:.1f}", *_cells(row))
            )  # fmt: skip
    columns = (
        "posterior", "sampler", "goal", "second start s", "first start s", "chains x (warmup + draws)", "runs",
        "min bulk ESS", "largest R-hat (limit)", "gradients", "executed",
    )  # fmt: skip
    return table(columns, rows)


def _cells(row: Measurement) -> tuple[str, ...]:
    gradients = "-" if row.gradients is None else format_figure(row.gradients, ".3g")
    return (
        f"{row.chains} x ({row.warmup:,} + {row.draws:,})",
        str(row.runs),
        "-" if row.ess is None else f"{row.ess:,.0f} ({row.ess_of})",
        "-" if row.rhat is None else f"{row.rhat:.4f} (< {row.rhat_limit:.4f})",
        gradients if row.warmup_counted or row.gradients is None else f"≥ {gradients}",
        "-" if row.executed is None else format_figure(row.executed, ".3g"),
    )


def how_made(results: AnswerResults) -> list[str]:
    """How the figures were made."""
    limit = results.config.measurement.limit
    return [
        "- A run is a process of its own. Its time is from its start to its end: imports, compiling, warmup, draws, "
        "the sampler's own diagnostics printed and the draws saved.",
        "- Then all saved draws are judged alike: the smallest bulk ESS (ArviZ) over all elements of all parameters, "
        "and R-hat below 1.01; rank-normalized R-hat, and for chains that form superchains nested R-hat, with "
        "the limit sqrt(1.01^2 + 1 / (M N)) for M chains with N draws in each: with few draws 1.01 is exceeded at "
        "stationarity.",
        "- Ours ends by itself (`sampler.until`). Draws of the others are doubled until a run has enough; only that "
        f"run counts. A run is ended after {limit:g} s, and a sampler that has no run by then is not asked for more.",
        "- First start: all caches empty. Second start: the same command once more. JAX keeps compiled programs only "
        "where a folder is set for that; it is set here, for all of them.",
    ]


ANSWERS: Subject[AnswerConfig, Measurement, AnswerResults] = Subject(
    load=load_answer,
    measuring=RowByRow,
    rows=Measurement,
    results=AnswerResults,
    target="posterior",
    sizes="effective draws",
    claims=claims_table,
    how_made=how_made,
)
