"""Stan's NUTS in stanli, which needs no C++ compiler: a thread for each chain, float64, one leapfrog per leaf.

`adapt_engaged=False`, no warmup and `metric="unit_e"` leave step size and metric as they are given. `stepsize__` of
every run is compared with what was asked.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from batchnuts.experiments.samplers.jax_densities import missing
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.registry import StanliOptions
from batchnuts.experiments.samplers.stan_programs import program
from batchnuts.experiments.samplers.task import Outcome, Prepared, Task, require_plain


def prepare(task: Task, problem: Problem) -> Prepared:
    """Prepare stanli: compiles the program, which takes milliseconds. Draws are recorded, asked for or not."""
    options = StanliOptions.model_validate(task.options)
    require_plain("stanli", task)
    try:
        import stanli
    except ImportError as error:
        raise missing("stanli", "stanli") from error
    source = program(problem)
    model = stanli.Model(stan_code=source.code, data=source.data)
    leapfrogs, step_sizes = (stanli.SAMPLER_COLUMNS.index(name) for name in ("n_leapfrog__", "stepsize__"))

    def lay_out(seed: int) -> Callable[[], Outcome]:
        starts = problem.starts(task.start, task.chains, seed).astype("float64")
        return lambda: run(starts, seed)

    def run(starts: np.ndarray, seed: int) -> Outcome:
        fit = model.sample(
            chains=task.chains,
            seed=seed,
            warmup=0,
            samples=task.transitions,
            max_depth=task.max_tree_depth,
            inits=starts,
            parallel_chains=options.cores,
            refresh=0,
            metric="unit_e",
            step_size=task.step_size,
            adapt_engaged=False,
        )
        taken = fit.sampler_stats[..., step_sizes]
        if not np.allclose(taken, task.step_size, rtol=1e-12, atol=0):
            raise AssertionError(f"stanli's step size was {taken.min()} to {taken.max()}, asked {task.step_size}")
        return Outcome(
            leapfrogs=fit.sampler_stats[..., leapfrogs].astype("int64"),
            executed_gradients=None,
            draws=fit.draws("position") if task.measure_ess else None,
        )

    return lay_out
