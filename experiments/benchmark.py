"""The benchmark: batchnuts on both engines and the alternatives to it, on four targets of different shape.

Throughput (useful gradients per second), what it is worth (effective samples per second, also as a ratio to the best
other sampler), and what it costs (seconds to compile, memory), beside the leapfrog limit. Also writes results.json,
every figure of the tables by target, curve and number of chains.

    python -m batchnuts.experiments.benchmark --config benchmark.yaml
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.experiment import Experiment, main
from batchnuts.experiments.harness.results import Value
from batchnuts.experiments.samplers.comparison import compared, comparison_table
from batchnuts.experiments.samplers.config import Measure
from batchnuts.experiments.samplers.pictures import draw_measure
from batchnuts.experiments.samplers.results import QUANTITIES, Results
from batchnuts.experiments.samplers.summary import SAMPLERS, measure_tables

QUESTION = """\
How fast is NUTS on a machine's processor, over all chains together, and compared with the maximum possible speed? A
gradient is *useful* if NUTS of one chain evaluates it too. The *limit* is a loop of leapfrogs without any sampler
around it, whose log-densities and gradients are both used. Effective samples are the minimum bulk ESS over all
coordinates, as ArviZ defines it, over all chains. Every sampler has the same starting points, step size, metric (the
identity) and maximum tree depth, runs in a process of its own, and is compiled and run once before it is timed; they
take turns, run by run. Differences between curves are listed at the end."""

MEASURES: tuple[Measure, ...] = (
    "typical_rate", "ess_per_second", "utilization", "compile_seconds", "peak_memory",
)  # fmt: skip


def pictures(results: Results) -> Mapping[str, Any]:
    """For each target, useful gradients and effective samples per second against the number of chains."""
    config = results.config
    drawn = {}
    for problem, settings in config.problems.items():
        measures: list[Measure] = [
            measure
            for measure in ("typical_rate", "ess_per_second")
            if any(results.values(measure, curve, problem) for curve in config.curves)
        ]
        figure, axes = plots.new_figure(len(measures), f"NUTS on {settings.label}, {config.run.device.upper()}", 5.0)
        for measure, place in zip(measures, axes, strict=True):
            axis = QUANTITIES[measure].axis
            draw_measure(place, results, measure, problem, title=f"{axis[0].upper()}{axis[1:]}")
        if measures:
            drawn[f"benchmark_{problem}"] = figure
    return drawn


def tables(results: Results) -> str:
    """Ours beside the best peer, then every measure on every target."""
    parts = []
    for problem, settings in results.config.problems.items():
        if text := comparison_table(results, "ess_per_second", problem):
            parts += [f"{settings.label}:", text]
    if parts:
        parts.insert(0, COMPARED)
    return "\n\n".join([*parts, measure_tables(results, MEASURES)])


COMPARED = """\
## Ours over the best peer

Effective samples per second of ours, divided by those of the other sampler that makes most with as many chains: the
ratio of the medians (from our lowest over its highest to our highest over its lowest)."""


def as_json(results: Results) -> str:
    """{target: {curve: {chains: {measure: {value, low, high, repetitions}}}}}, and for ours "over_best_peer", which
    also names the peer's curve."""
    config = results.config
    content: dict[str, Any] = {}

    def note(problem: str, curve: str, chains: int, key: str, value: Value, **extra: str) -> None:
        figures = {"value": value.value, "low": value.low, "high": value.high, "repetitions": value.repetitions}
        point = content.setdefault(problem, {}).setdefault(curve, {}).setdefault(str(chains), {})
        point[key] = {**figures, **extra}

    for problem in config.problems:
        for curve in config.curves:
            for measure in MEASURES:
                for value in results.values(measure, curve, problem):
                    note(problem, curve, value.size, measure, value)
        for point in compared(results, "ess_per_second", problem):
            note(problem, point.curve, point.chains, "over_best_peer", point.ratio, peer=point.best.curve)
    return json.dumps(content, indent=1) + "\n"


EXPERIMENT = Experiment(
    SAMPLERS, "benchmark", "NUTS beside its peers and the limit", QUESTION, pictures, tables, {"results.json": as_json}
)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
