"""BlackJAX's NUTS, sharded by hand: chunks of chains, and a process for each processor core.

Each process is pinned to a core before it imports JAX, which then has one thread; it compiles the chunk and takes the
next one when it is done with one. What a run's time has: positions go to the processes, draws come back.
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
from batchnuts.experiments.samplers.task import MissingSampler, Outcome, Prepared, Task


def prepare(task: Task, problem: Problem) -> Prepared:
    """See task.Sampler. Without processes it is all chains in lockstep, in this one."""
    options = BlackjaxOptions.model_validate(task.options)
    if options.processes is None:
        return blackjax_vmap.prepare(task, problem)
    assert options.chunk_lanes is not None
    use_jax("blackjax", task.device, problem.dtype)  # in this process only to say that it is missing
    if task.device != "cpu":
        raise MissingSampler("blackjax with processes shares out processor cores; set device: cpu, or leave them out.")
    width = min(options.chunk_lanes, task.chains)
    if task.chains % width:
        raise MissingSampler(
            f"blackjax: {task.chains} chains do not divide into chunks of {width}; set chunk_lanes to a divisor."
        )
    chunks = range(0, task.chains, width)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if options.processes > len(cores):
        raise MissingSampler(f"blackjax: found {options.processes} processes, but {len(cores)} cores may be used.")
    spawn = multiprocessing.get_context("spawn")
    free = spawn.Queue()
    for core in cores[: options.processes]:
        free.put(core)
    pool = ProcessPoolExecutor(min(options.processes, len(chunks)), spawn, _start, (free, task, problem, width))

    def lay_out(seed: int) -> Callable[[], Outcome]:
        starts = problem.starts(task.start, task.chains, seed)
        seeds = np.random.SeedSequence(seed).generate_state(len(chunks)) % 2**31
        return partial(run, [(int(key), starts[first : first + width]) for key, first in zip(seeds, chunks)])

    def run(parts: list[tuple[int, Any]]) -> Outcome:
        outcomes = list(pool.map(_sample, parts))
        draws = [outcome.draws for outcome in outcomes if outcome.draws is not None]
        return Outcome(
            leapfrogs=np.concatenate([outcome.leapfrogs for outcome in outcomes]),
            executed_gradients=None,
            draws=np.concatenate(draws) if draws else None,
        )

    return lay_out


_ready: list[Any] = []
"""In a process of the pool: what it has compiled."""


def _start(free: Any, task: Task, problem: Problem, width: int) -> None:
    """One process, once."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {free.get()})
    _ready.append(blackjax_vmap.make_vmapped(task, problem, width))


def _sample(part: tuple[int, Any]) -> Outcome:
    """One chunk."""
    (vmapped,) = _ready
    outcome: Outcome = vmapped.run(vmapped.arguments(*part))
    return outcome
