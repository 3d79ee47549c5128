"""BlackJAX's NUTS, sharded by hand: chunks of chains, and a process for each processor core.

Each process is pinned to a core before it imports JAX, which then has one thread; it compiles the chunk and takes the
next one when it is done with one. What a run's time has: positions go to the processes, draws come back.

The chains are divided as batchnuts divides its own. Threads of one process in place of processes, which batchnuts has,
made BlackJAX no faster: with 1,024 chains on two cores, 0.63M useful gradients a second on the Gaussian with 100
coordinates either way, 1.31M in place of 1.51M on eight schools, and 0.73M in place of 1.04M on the funnel.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from batchnuts.experiments.samplers import blackjax_vmap
from batchnuts.experiments.samplers.jax_densities import use_jax
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.registry import BlackjaxOptions
from batchnuts.experiments.samplers.sharding import chunks
from batchnuts.experiments.samplers.task import MissingSampler, Outcome, Prepared, Task


def prepare(task: Task, problem: Problem) -> Prepared:
    """Prepare BlackJAX on several processes; without any, all chains run in lockstep in this one."""
    options = BlackjaxOptions.model_validate(task.options)
    if options.processes is None:
        return blackjax_vmap.prepare(task, problem)
    assert options.chunk_lanes is not None
    use_jax("blackjax", task.device, problem.dtype)  # in this process only to say that it is missing
    if task.device != "cpu":
        raise MissingSampler("blackjax with processes shares out processor cores; set device: cpu, or leave them out.")
    parts = chunks("blackjax", task.chains, options.chunk_lanes, options.processes)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if options.processes > len(cores):
        raise MissingSampler(f"blackjax: found {options.processes} processes, but {len(cores)} cores may be used.")
    spawn = multiprocessing.get_context("spawn")
    free = spawn.Queue()
    for core in cores[: options.processes]:
        free.put(core)
    width = len(range(task.chains)[parts[0]])
    pool = ProcessPoolExecutor(min(options.processes, len(parts)), spawn, _start, (free, task, problem, width))

    def lay_out(seed: int) -> Callable[[], Outcome]:
        starts = problem.starts(task.start, task.chains, seed)
        seeds = np.random.SeedSequence(seed).generate_state(len(parts)) % 2**31
        return partial(run, [(int(key), starts[part]) for key, part in zip(seeds, parts)])

    def run(arguments: list[tuple[int, Any]]) -> Outcome:
        outcomes = list(pool.map(_sample, arguments))
        draws = [outcome.draws for outcome in outcomes if outcome.draws is not None]
        return Outcome(
            leapfrogs=np.concatenate([outcome.leapfrogs for outcome in outcomes]),
            executed_gradients=None,
            draws=np.concatenate(draws) if draws else None,
        )

    return lay_out


_ready: list[Any] = []
"""The sampler that a process of the pool has compiled."""


def _start(free: Any, task: Task, problem: Problem, width: int) -> None:
    """Start a process: compile, once."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {free.get()})
    _ready.append(blackjax_vmap.make_vmapped(task, problem, width))


def _sample(part: tuple[int, Any]) -> Outcome:
    """Sample one chunk."""
    (vmapped,) = _ready
    outcome: Outcome = vmapped.run(vmapped.arguments(*part))
    return outcome
