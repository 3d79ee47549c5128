"""Figure 6 of [R]: useful gradients per second against the number of chains, Bayesian logistic regression.

The paper's curves: program-counter autobatching compiled by XLA, local static autobatching in TensorFlow's eager
mode, the hybrid of the two (control in Python, blocks compiled), the same program one chain at a time, and Stan.
Beyond the paper: our best configuration, its alternatives, and how fast leapfrogs of one wide batch are
with no sampler around them (a sampler that splits its chains over threads can pass that).

    python -m batchnuts.experiments.figure6 --config figure6.yaml

[R]: Radul, Patton, Maclaurin, Hoffman, Saurous, "Automatically Batching Control-Intensive Programs for Modern
Accelerators", MLSys 2020, section 4.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.experiment import Experiment, main
from batchnuts.experiments.samplers.pictures import draw_measure
from batchnuts.experiments.samplers.results import Results
from batchnuts.experiments.samplers.summary import SAMPLERS, size_table

QUESTION = """\
How many useful gradients of a Bayesian logistic regression can NUTS compute in a second, over all chains together, as
more chains run at once? A gradient is *useful* if NUTS of one chain evaluates it too; what a batch computes for
chains that wait is not counted. Every sampler has the same starting points, step size, metric (the identity) and
maximum tree depth, and, but for those named at the end, the same number of transitions and of leapfrogs per leaf. It
runs in a process of its own, and is compiled and run once before it is timed. The samplers take turns, run by run."""


def pictures(results: Results) -> Mapping[str, Any]:
    """Throughput (the paper's figure), and the share of gradients that was useful."""
    config = results.config
    problem = next(iter(config.problems))
    panels = list(dict.fromkeys(curve.panel for curve in config.curves.values()))
    run = f"{config.run.transitions} transitions, {config.run.device.upper()}"
    throughput, axes = plots.new_figure(len(panels), f"NUTS on {config.problems[problem].label}, {run}")
    for panel, place in zip(panels, axes, strict=True):
        chosen = [name for name, curve in config.curves.items() if curve.panel == panel]
        draw_measure(place, results, "rate", problem, title=panel, curves=chosen)
    drawn = {"figure6": throughput}
    batched = [name for name, curve in config.curves.items() if not curve.flat]
    if not any(results.values("utilization", name, problem) for name in batched):
        return drawn  # none of these libraries reports how many gradients it computed
    shares, (place,) = plots.new_figure(1, f"NUTS on {config.problems[problem].label}, {run}", height=5.0)
    title = "Share of useful gradients"
    draw_measure(place, results, "utilization", problem, title=title, curves=batched, log_y=False)
    return {**drawn, "figure6_utilization": shares}


def tables(results: Results) -> str:
    """Both measures, all curves, all sizes."""
    problem = next(iter(results.config.problems))
    return "\n\n".join(
        (
            "## Useful gradients per second\n\nBest of the repetitions.",
            size_table(results, "rate", problem),
            "## Utilization of the gradient\n\nWhere the library reports how many gradients it computed.",
            size_table(results, "utilization", problem),
        )
    )


EXPERIMENT = Experiment(
    SAMPLERS,
    "figure6",
    "Figure 6: useful gradients per second against the number of chains",
    QUESTION,
    pictures,
    tables,
)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
