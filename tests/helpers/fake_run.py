"""A stand-in for `run_chains`, for tests of what surrounds a run: independent N(0, 1) draws of the right form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from batchnuts.mcmc.kernel.metric_estimates import unit_metric
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.storage.draws import Arrangement, Draws, WarmupReport
from batchnuts.mcmc.storage.history import History
from batchnuts.mcmc.storage.progress import Progress


def make_draws(
    model: Model,
    sampler: SamplerSettings,
    execution: ExecutionSettings | None = None,
    done: Sequence[int] | None = None,
) -> Draws:
    """Draws of `model`'s shape; `done` makes it an interrupted run."""
    rng = np.random.default_rng(sampler.seed)
    shape = (sampler.chains, sampler.draws)
    stats = {
        "lp": rng.normal(size=shape),
        "acceptance_rate": rng.uniform(size=shape),
        "step_size": np.full(shape, 0.5),
        "tree_depth": np.full(shape, 3),
        "n_steps": np.full(shape, 7),
        "diverging": np.zeros(shape, dtype=bool),
        "energy": rng.normal(size=shape),
        "energy_error": rng.normal(size=shape),
        "max_energy_error": rng.normal(size=shape),
        "index_in_trajectory": np.ones(shape, "int32"),
        "reached_max_treedepth": np.zeros(shape, dtype=bool),
    }
    return Draws(
        position=rng.normal(size=(*shape, model.dimension)).astype(model.dtype),
        stats=stats,
        done=np.full(sampler.chains, sampler.draws) if done is None else np.asarray(done),
        interrupted=done is not None,
        metric=unit_metric(model.dimension),
        warmup=WarmupReport(300, "as requested: 300 transitions"),
        timings={"compile": 1.0, "warmup": 2.0, "sampling": 3.0},
        useful_gradients=1000,
        utilization=0.75,
        settings=sampler,
        execution=execution or ExecutionSettings(),
        arrangement=Arrangement(10, "sweep", 2, 2),
    )


def make_history(seconds: int = 100) -> History:
    """Of a run with a compilation, a warmup and draws of as many seconds, in which utilization falls from 1 to 1/2."""
    time = np.arange(seconds + 1)
    parts = {
        "phase": [["compile"] * 2, ["warmup"] * len(time), ["sampling"] * len(time)],
        "seconds": [np.array([0.0, 2.0]), 2.0 + time, 3.0 + seconds + time],
        "transitions": [np.zeros(2, int), time, 2 * time],
        "useful_gradients": [np.zeros(2, int), 10 * time, 20 * time],
        "executed_gradients": [np.zeros(2, int), 10 * time, 40 * time],
        "divergences": [np.zeros(2, int), time // 10, 0 * time],
    }
    return History({name: np.concatenate(arrays) for name, arrays in parts.items()})


def report(progress, sampler: SamplerSettings) -> None:
    """Report the progress that a run would."""
    total = sampler.chains * sampler.draws
    for phase, size in (("compile", 1), ("warmup", total), ("sampling", total)):
        for share in (0, size):
            each = share // sampler.chains
            progress(Progress(phase, share, size, 1.0, 7 * share, 0.75, 0, sampler.chains, each, each))
