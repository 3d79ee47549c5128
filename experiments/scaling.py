"""What a gradient of NUTS costs against chains, dimension, length of trajectories and draws; and what memory it takes.

    python -m batchnuts.experiments.scaling --config scaling.yaml

A curve's `panel` names what it is drawn against (`AXES`): its numbers of chains, or something of its problems.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.experiment import Experiment, main
from batchnuts.experiments.harness.results import Value
from batchnuts.experiments.harness.summary import format_figure, shown, table
from batchnuts.experiments.samplers.config import Curve, ExperimentConfig
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.results import QUANTITIES, Results
from batchnuts.experiments.samplers.summary import SAMPLERS
from batchnuts.settings.yaml import ConfigError

QUESTION = """\
How does the cost of a gradient change as one thing grows and the rest stays? A gradient is *useful* if NUTS of one
chain evaluates it too. Step sizes are fixed, the metric is the identity, chains start in the typical set, and every
sampler is compiled and run once before it is timed."""

Place = tuple[str, str, int]
"""(curve, problem, chains) of one point."""


@dataclass(frozen=True)
class Axis:
    """The axis against which a panel is drawn."""

    label: str
    at: Callable[[Results, Place], float | None]
    """The place of a point on the axis; None where it is not known."""


def _dimension(results: Results, place: Place) -> float:
    return Problem(results.config.models[place[1]]).dimension


def _trajectory(results: Results, place: Place) -> float | None:
    """Useful gradients of a transition, those of the first curve of the panel: the same for all but for their seeds."""
    curves = results.config.curves
    first = next(name for name, curve in curves.items() if curve.panel == curves[place[0]].panel)
    runs = [row for row in results.rows_of(first, *place[1:]) if row.ok]
    per_transition = [(run.useful_gradients or 0) / (run.chains * run.transitions) for run in runs]
    return statistics.fmean(per_transition) if per_transition else None


AXES: Mapping[str, Axis] = {
    "chains": Axis("chains", lambda results, place: place[2]),
    "dimension": Axis("dimension", _dimension),
    "trajectory": Axis("gradients per transition", _trajectory),
    "draws": Axis("transitions", lambda results, place: results.config.task(*place).transitions),
}


@dataclass(frozen=True)
class Line:
    """One curve in its panel: what is measured, at the points that have runs."""

    curve: Curve
    points: tuple[tuple[Value, Value, float], ...]
    """(useful gradients per second, peak memory in MB, MB of draws) by where the point stands on its axis."""


def lines(results: Results, panel: str) -> list[Line]:
    """The curves of a panel."""
    config, axis = results.config, AXES[panel]
    result = []
    for name, curve in config.curves.items():
        if curve.panel != panel:
            continue
        points = []
        for place in (
            (name, problem, chains) for problem in config.problems_of(name) for chains in config.chains_of(name)
        ):
            at = axis.at(results, place)
            rate = results.value("typical_rate", *place)
            memory = results.value("peak_memory", *place)
            if at is not None and rate is not None and memory is not None:
                draws = megabytes_of_draws(config, place)
                points.append((replace(rate, size=round(at)), replace(memory, size=round(at)), draws))
        result.append(Line(curve, tuple(sorted(points, key=lambda point: point[0].size))))
    return result


def megabytes_of_draws(config: ExperimentConfig, place: Place) -> float:
    """Megabytes that all positions of a point take."""
    task, problem = config.task(*place), Problem(config.models[place[1]])
    width = 4 if problem.dtype == "float32" else 8
    return float(task.chains * task.transitions * problem.dimension * width / 1e6)


def check(config: ExperimentConfig) -> None:
    """Raise ConfigError for a curve in no panel, or in an unknown one."""
    for name, curve in config.curves.items():
        if curve.panel not in AXES:
            raise ConfigError(
                f"curves.{name}.panel: found {curve.panel!r}; expected what it is drawn against, one of "
                f"{', '.join(AXES)}."
            )


def panels(config: ExperimentConfig) -> list[str]:
    """The panels that some curve is drawn in, in the order of AXES."""
    return [panel for panel in AXES if any(curve.panel == panel for curve in config.curves.values())]


def pictures(results: Results) -> Mapping[str, Any]:
    """Useful gradients per second, a picture for each axis; and memory against the size of the draws."""
    names = panels(results.config)
    if not names:
        return {}
    figures = {}
    for panel in names:
        label = AXES[panel].label
        figures[f"scaling_{panel}"], (place,) = plots.new_figure(1, f"What a gradient of NUTS costs, against {label}")
        drawn = [(line.curve.label, [rate for rate, *_ in line.points]) for line in lines(results, panel)]
        _draw(place, drawn, label, QUANTITIES["typical_rate"].axis)
    memory, (place,) = plots.new_figure(1, "What memory NUTS takes")
    drawn = []
    for line in (line for panel in names for line in lines(results, panel) if line.curve.sampler == "batchnuts"):
        values = [replace(peak, size=max(round(1000 * draws), 1)) for _, peak, draws in line.points]
        values.sort(key=lambda value: value.size)
        drawn.append((f"growing {AXES[line.curve.panel].label}", values))
    _draw(place, drawn, "all positions drawn, kB", "peak memory of the process, MB")
    return {**figures, "scaling_memory": memory}


def _draw(axes: Any, drawn: Sequence[tuple[str, Sequence[Value]]], x: str, y: str) -> None:
    """A panel of curves: (label, values)."""
    sizes = {value.size for _, values in drawn for value in values}
    curves = ((label, values, False) for label, values in drawn)
    plots.draw_panel(axes, curves, x=x, y=y, title="", sizes=sizes, log_y=True)


def tables(results: Results) -> str:
    """For each axis, the rate of each curve, and the memory of ours."""
    parts = []
    for panel in panels(results.config):
        drawn = lines(results, panel)
        parts.append(f"## Against {AXES[panel].label}")
        parts.append("Useful gradients per second, median of the repetitions (their range):")
        parts.append(rates_table(AXES[panel].label, drawn))
        rows = [
            (f"{peak.size:,}", format_figure(draws, ".3g"), format_figure(peak.value, ".4g"))
            for line in drawn
            if line.curve.sampler == "batchnuts"
            for _, peak, draws in line.points
        ]
        parts.append("Memory of batchnuts, in MB:")
        parts.append(table((AXES[panel].label, "all positions drawn", "peak of the process"), rows))
    return "\n\n".join(parts)


def rates_table(axis: str, drawn: Sequence[Line]) -> str:
    """A row for each place on the axis, a column for each curve."""
    sizes = sorted({point[0].size for line in drawn for point in line.points})
    rows = []
    for size in sizes:
        cells = []
        for line in drawn:
            rates = {rate.size: rate for rate, _, _ in line.points}
            cells.append(shown(rates[size], ",.3g") if size in rates else "-")
        rows.append((f"{size:,}", *cells))
    return table((axis, *(line.curve.label for line in drawn)), rows)


EXPERIMENT = Experiment(SAMPLERS, "scaling", "What NUTS costs as things grow", QUESTION, pictures, tables, check=check)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
