"""One sampler in a process of its own (`python -m batchnuts.experiments.samplers.worker`): its own threads and memory.

What the asker sends, and what comes back (`harness.processes`):

    {"task": {...}}   ->  {"ready": SECONDS}       built, compiled, and run once
    {"run": SEED}     ->  {"seconds": ..., ...}    a Timing: one warm run
                      or  {"missing": REASON} / {"failed": REASON}, and it ends
"""

from __future__ import annotations

import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from batchnuts.experiments.harness.processes import serve
from batchnuts.experiments.samplers import REGISTRY
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.task import MissingSampler, Outcome, Prepared, Task
from batchnuts.models import REGISTRY as MODELS


@dataclass(frozen=True)
class Timing:
    """One warm run, and what it did."""

    seconds: float
    useful_gradients: int
    """Those that single-chain NUTS evaluates too; waste is left out."""
    executed_gradients: int | None
    """Gradient evaluations times lanes; None where the library does not tell."""
    lockstep_gradients: int | None
    """What the same trajectories would execute if all chains met after each: chains times the sum of the longest. None
    where the library tells only how many gradients several trajectories took together."""
    asynchronous_gradients: int
    """What they would execute if no chain ever waited before its end: chains times the chain that needs most."""
    ess_min: float | None
    """Least bulk ESS of all coordinates, over all chains; None if not asked for."""
    ess_mean: float | None
    peak_memory_mb: float
    """Of the process so far."""
    load: float
    """The machine's load average over the last minute, just before the run."""


def main() -> int:
    """Answer the parent, until it closes the pipe."""
    prepared: Prepared | None = None
    task: Task | None = None

    def reply(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal prepared, task
        if "task" in request:
            task = Task(**request["task"])
            began = time.perf_counter()
            prepared = prepare(task)
            return {"ready": time.perf_counter() - began}
        assert prepared is not None
        assert task is not None
        return asdict(timed(prepared, int(request["run"]), task))

    return serve(reply)


def prepare(task: Task) -> Prepared:
    """Build, compile and run once (with a seed that no measurement uses, so that nothing it draws is kept)."""
    _check_device(task)
    problem = Problem(MODELS[task.problem["name"]].options.model_validate(task.problem))
    prepared = REGISTRY[task.sampler].load().prepare(task, problem)
    prepared(2**31 - 1)()
    return prepared


def _check_device(task: Task) -> None:
    """Raise MissingSampler where a sampler on TensorFlow, batchnuts too, would quietly run somewhere else."""
    if REGISTRY[task.sampler].library is not None:  # these look for themselves
        return
    if task.device == "gpu" and task.options.get("backend") == "numpy":
        raise MissingSampler(
            f"Sampler {task.sampler} with backend numpy runs on the CPU only; device is gpu. Set the curve's "
            "options.backend to tensorflow, or run.device to cpu."
        )
    if task.device == "gpu":
        from batchnuts.experiments.samplers.tf_densities import place

        place(task.device)


def timed(prepared: Prepared, seed: int, task: Task) -> Timing:
    """One run; laying out its inputs and judging its draws are not in the time."""
    run = prepared(seed)
    load = os.getloadavg()[0]
    began = time.perf_counter()
    outcome = run()
    seconds = time.perf_counter() - began
    told_each = outcome.leapfrogs.shape[1] == task.transitions
    least, mean = effective_sample_sizes(outcome) if task.measure_ess else (None, None)
    return Timing(
        seconds=seconds,
        useful_gradients=int(outcome.leapfrogs.sum()),
        executed_gradients=outcome.executed_gradients,
        lockstep_gradients=int(outcome.leapfrogs.max(axis=0).sum()) * len(outcome.leapfrogs) if told_each else None,
        asynchronous_gradients=int(outcome.leapfrogs.sum(axis=1).max()) * len(outcome.leapfrogs),
        ess_min=least,
        ess_mean=mean,
        peak_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        load=load,
    )


def effective_sample_sizes(outcome: Outcome) -> tuple[float, float]:
    """Least and mean bulk ESS over the coordinates, as ArviZ defines it."""
    from batchnuts.mcmc.diagnostics import bulk_ess

    assert outcome.draws is not None
    bulk = bulk_ess(outcome.draws)
    return float(bulk.min()), float(bulk.mean())


if __name__ == "__main__":
    sys.exit(main())
