"""The workload `nuts`: batchnuts' own sampler, on a density written for one chain or on the one batched by hand."""

from __future__ import annotations

from typing import Any

from batchnuts.experiments.samplers import ours
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.task import Task as SamplerTask
from batchnuts.experiments.vectorizers.registry import NutsOptions
from batchnuts.experiments.vectorizers.task import Computation, Task
from batchnuts.models.logistic_regression import LogisticRegressionOptions


def nuts(options: NutsOptions, task: Task) -> Computation:
    """A run of `size` chains. Its units are the useful gradients of the first call: every call makes the same draws.

    The two densities differ by rounding, which a trajectory amplifies: their draws are not compared.
    """
    model = LogisticRegressionOptions.model_validate(
        {"rows": options.rows, "columns": options.columns, "data_seed": task.seed}
    )
    sampler = SamplerTask(
        sampler="batchnuts",
        options={"density": "single" if task.method == "pfor" else "batched"},
        problem=model.model_dump(mode="json", exclude=model.without_effect()),
        chains=task.size,
        transitions=options.transitions,
        step_size=options.step_size,
        max_tree_depth=options.max_tree_depth,
        leapfrogs_per_leaf=options.leapfrogs_per_leaf,
        start="typical",
        device=task.device,
        measure_ess=False,
    )
    run = ours.prepare(sampler, Problem(model))(task.seed)
    units = float(run().leapfrogs.sum())

    def call() -> Any:
        return run()

    return Computation(call, units, lambda _: [])
