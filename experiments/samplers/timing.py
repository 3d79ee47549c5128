"""A sampler made ready and timed, in a process of its own: its own threads and memory."""

from __future__ import annotations

import os
import resource
import time
from functools import partial

from batchnuts.experiments.harness.task import Figures, Preparation, Runnable
from batchnuts.experiments.samplers.jax_densities import first_device
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.registry import REGISTRY
from batchnuts.experiments.samplers.task import MissingSampler, Outcome, Prepared, Task
from batchnuts.models import REGISTRY as MODELS


def prepare(task: Task) -> Runnable:
    """Build, compile and run once."""
    began = time.perf_counter()
    prepared = compiled(task)
    return Runnable(Preparation(time.perf_counter() - began), partial(timed, prepared, task))


def compiled(task: Task) -> Prepared:
    """Build, compile and run once (with a seed that no measurement uses, so that nothing it draws is kept)."""
    _check_device(task)
    problem = Problem(MODELS[task.problem["name"]].options.model_validate(task.problem))
    prepared = REGISTRY[task.sampler].load().prepare(task, problem)
    prepared(2**31 - 1)()
    return prepared


def _check_device(task: Task) -> None:
    """Raise MissingSampler where a sampler on TensorFlow, or ours, would quietly run somewhere else."""
    if REGISTRY[task.sampler].library is not None:  # these look for themselves
        return
    if task.device == "gpu" and task.options.get("backend") in ("numpy", "native"):
        raise MissingSampler(
            f"Sampler {task.sampler} with backend {task.options['backend']} runs on the CPU only; device is gpu. Set "
            "the curve's options.backend to tensorflow, or run.device to cpu."
        )
    if task.device == "gpu" and task.options.get("backend") == "jax":
        first_device(task.sampler, task.device)
    elif task.device == "gpu":
        from batchnuts.experiments.samplers.tf_densities import place

        place(task.device)


def timed(prepared: Prepared, task: Task, seed: int) -> Figures:
    """The figures of one run; laying out its inputs and judging its draws are not in the time."""
    run = prepared(seed)
    load = os.getloadavg()[0]
    began = time.perf_counter()
    outcome = run()
    seconds = time.perf_counter() - began
    counted_each = outcome.leapfrogs.shape[1] == task.transitions
    lowest, mean = effective_sample_sizes(outcome) if task.measure_ess else (None, None)
    longest = int(outcome.leapfrogs.max(axis=0).sum())
    return {
        "seconds": seconds,
        "useful_gradients": int(outcome.leapfrogs.sum()),
        "executed_gradients": outcome.executed_gradients,
        "lockstep_gradients": longest * len(outcome.leapfrogs) if counted_each else None,
        "asynchronous_gradients": int(outcome.leapfrogs.sum(axis=1).max()) * len(outcome.leapfrogs),
        "ess_min": lowest,
        "ess_mean": mean,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "load": load,
    }


def effective_sample_sizes(outcome: Outcome) -> tuple[float, float]:
    """Minimum and mean bulk ESS over the coordinates, as ArviZ defines it."""
    from batchnuts.mcmc.diagnostics.diagnose import bulk_ess

    assert outcome.draws is not None
    bulk = bulk_ess(outcome.draws)
    return float(bulk.min()), float(bulk.mean())
