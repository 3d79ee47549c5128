"""Figure 7 of [R]: utilization of the batched gradient against the number of chains, correlated Gaussian.

Local static autobatching synchronizes all chains after every trajectory, so each waits for the longest. The program
counter lets a chain start its next trajectory while others are still in theirs. The paper compares the two over ten
trajectories; here also over one to a thousand, under every schedule, and for Gaussians of different condition numbers,
because the paper does not say which Gaussian it took.

    python -m batchnuts.experiments.figure7 --config figure7.yaml

Utilization counts gradients and no seconds, so that the machine's load does not matter.
[R]: Radul, Patton, Maclaurin, Hoffman, Saurous, "Automatically Batching Control-Intensive Programs for Modern
Accelerators", MLSys 2020, section 4.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.experiment import Experiment, main
from batchnuts.experiments.harness.summary import format_figure, table
from batchnuts.experiments.samplers.pictures import draw_measure
from batchnuts.experiments.samplers.results import QUANTITIES, Results
from batchnuts.experiments.samplers.summary import SAMPLERS, size_table

QUESTION = """\
Of all gradients that a batch of chains computes, which share is useful for some chain? The rest are computed for
chains that wait. The target is a correlated Gaussian (config.yaml says which; `covariance: rotated` has variances from
1 to the condition number, evenly in their logarithm, along the axes of a random rotation); NUTS takes a fixed step size
and the identity metric. Useful gradients and executions are counted by the machine itself; the seeds of the repetitions
differ."""


def pictures(results: Results) -> Mapping[str, Any]:
    """One panel for each group of curves, on the first problem."""
    config = results.config
    problem = next(iter(config.problems))
    drawn = {name: config.curves[name] for name in config.curves_of(problem) if config.curves[name].panel}
    panels = list(dict.fromkeys(curve.panel for curve in drawn.values()))
    if not panels:
        return {}  # all curves are the table's alone
    figure, axes = plots.new_figure(len(panels), f"NUTS on {config.problems[problem].label}")
    for panel, place in zip(panels, axes, strict=True):
        chosen = [name for name, curve in drawn.items() if curve.panel == panel]
        if len({drawn[name].transitions for name in chosen}) == 1:
            bound = results.values("asynchronous_utilization", chosen[0], problem)
            plots.draw_bound(place, bound, "if no chain ever waited")
        sizes = {size for name in chosen for size in config.chains_of(name)}
        draw_measure(place, results, "utilization", problem, title=panel, curves=chosen, sizes=sizes, log_y=False)
    return {"figure7": figure}


def tables(results: Results) -> str:
    """Curves by sizes on the first problem, then curves by problems."""
    config = results.config
    problem = next(iter(config.problems))
    curves = [name for name in config.curves if config.problems_of(name) == [problem]]
    parts = [f"## Utilization, {config.problems[problem].label}", size_table(results, "utilization", problem, curves)]
    parts += [
        "The same trajectories, if all chains met after each of them:",
        size_table(results, "lockstep_utilization", problem, curves),
        "and if none ever waited before its end, which is the most that any schedule can reach:",
        size_table(results, "asynchronous_utilization", problem, curves),
    ]
    other_curves = [name for name in config.curves if set(config.problems_of(name)) - {problem}]
    if other_curves:
        problems = [p for p in config.problems if set(config.curves_of(p)) & set(other_curves)]
        rows = []
        for name in other_curves:
            for chains in config.chains_of(name):
                cells = []
                for target in problems:
                    measured = target in config.problems_of(name)
                    value = results.value("utilization", name, target, chains) if measured else None
                    digits = QUANTITIES["utilization"].digits
                    cells.append("-" if value is None else format_figure(value.value, digits))
                rows.append((f"{config.curves[name].label}, {chains:,} chains", *cells))
        head = ("", *(config.problems[target].label for target in problems))
        parts += ["## How it depends on the Gaussian", table(head, rows)]
    return "\n\n".join(parts)


EXPERIMENT = Experiment(
    SAMPLERS,
    "figure7",
    "Figure 7: utilization of the gradient against the number of chains",
    QUESTION,
    pictures,
    tables,
)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
