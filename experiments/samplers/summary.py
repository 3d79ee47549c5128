"""What the summary of an experiment with samplers says: tables of measures, and how it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from batchnuts.experiments.harness.experiment import Subject
from batchnuts.experiments.harness.results import Value
from batchnuts.experiments.harness.row_by_row import RowByRow
from batchnuts.experiments.harness.summary import claims_table, format_figure, table
from batchnuts.experiments.samplers.config import ExperimentConfig, Measure, load_experiment
from batchnuts.experiments.samplers.results import QUANTITIES, Quantity, Results
from batchnuts.experiments.samplers.task import Measurement


def size_table(results: Results, measure: Measure, problem: str, curves: Sequence[str] | None = None) -> str:
    """Curves by numbers of chains, one problem; a point without the measure is `-`."""
    config = results.config
    names = [curve for curve in config.curves_of(problem) if curves is None or curve in curves]
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


def how_made(results: Results) -> list[str]:
    """How long it all took, what differs between curves, and how the figures were summed up."""
    repetitions = results.config.measurement.repetitions
    return [
        f"- {sum(row.seconds or 0.0 for row in results.runs()) / 60:.1f} minutes of timed runs.",
        *differences(results),
        f"- Every point that was measured has {repetitions} warm runs with different seeds{fewer(results)}, all in "
        "measurements.csv. Where a table does not say otherwise, rates are the best of them, utilizations their mean, "
        "effective samples per minute their median; ranges are over all of them.",
    ]


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
    repetitions = results.config.measurement.repetitions
    short = []
    for curve, problem, chains in results.config.points():
        rows = results.rows_of(curve, problem, chains)
        runs = sum(row.ok for row in rows)
        if 0 < runs < repetitions:
            labels = results.config.curves[curve].label, results.config.problems[problem].label
            reason = "".join(f", {row.status}: {row.note}" for row in rows if not row.ok)
            short.append(f"{labels[0]}, {chains:,} chains on {labels[1]}: {runs}{reason}")
    return f" (fewer: {'; '.join(short)})" if short else ""


SAMPLERS: Subject[ExperimentConfig, Measurement, Results] = Subject(
    load=load_experiment,
    measuring=RowByRow,
    rows=Measurement,
    results=Results,
    target="problem",
    sizes="chains",
    claims=claims_table,
    how_made=how_made,
)
