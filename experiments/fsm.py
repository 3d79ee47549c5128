"""The comparison of [D]: effective samples per minute beside BlackJAX under vmap, a Gaussian with correlation 0.99.

[D] writes NUTS as a finite state machine by hand, so that chains under `jax.vmap` need not wait for each other, and
reports how much faster that makes it than BlackJAX. We compile such a machine from the recursive program.

    python -m batchnuts.experiments.fsm --config fsm.yaml

[D]: Dance, Glaser, Orbanz, Adams, "Efficiently Vectorized MCMC on Modern Accelerators", ICML 2025.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from batchnuts.experiments.harness import plots
from batchnuts.experiments.harness.experiment import Experiment, main
from batchnuts.experiments.samplers.config import Measure
from batchnuts.experiments.samplers.pictures import draw_measure
from batchnuts.experiments.samplers.results import Results
from batchnuts.experiments.samplers.summary import SAMPLERS, measure_tables

QUESTION = """\
How many effective samples does a sampler make in a minute? The effective sample size is the minimum of the bulk ESS of
all coordinates, over all chains together, as ArviZ defines it. Both samplers have the same starting points, step size,
metric (the identity) and number of transitions, run in processes of their own and take turns, run by run. Compilation
is left out. "Correlation 0.99" is read in two ways: between any two coordinates (as in the code that [D] published) and
between neighbours, falling off with distance (where trajectories are long and of very different length)."""


def pictures(results: Results) -> Mapping[str, Any]:
    """A panel for each problem."""
    config = results.config
    figure, axes = plots.new_figure(len(config.problems), f"NUTS, {config.run.device.upper()}")
    for problem, place in zip(config.problems, axes, strict=True):
        draw_measure(place, results, "ess_per_minute", problem, title=config.problems[problem].label)
    return {"fsm": figure}


def tables(results: Results) -> str:
    """Every measure on every problem."""
    return measure_tables(results, MEASURES)


MEASURES: tuple[Measure, ...] = ("ess_per_minute", "rate", "utilization", "lockstep_utilization")

EXPERIMENT = Experiment(
    SAMPLERS, "fsm", "Effective samples per minute beside BlackJAX under vmap", QUESTION, pictures, tables
)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
