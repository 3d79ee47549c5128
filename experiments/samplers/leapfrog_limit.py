"""The limit: leapfrogs of all chains at once under TensorFlow's XLA, a fixed number, with no tree and no decisions.

No sampler whose gradients come from the same density can be faster on the same lanes and threads. All chains are one
batch, or batches of `chunk_lanes` that threads process in turn, which suits a processor's caches and cores better. Each
leapfrog's log-density and gradient are both used: the log-densities are summed and returned. Were they not, XLA would
delete them, and the limit would promise what no NUTS, which needs both, can reach.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.registry import LimitOptions
from batchnuts.experiments.samplers.sharding import chunks
from batchnuts.experiments.samplers.task import MissingSampler, Outcome, Prepared, Task
from batchnuts.experiments.samplers.tf_densities import place
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient


def prepare(task: Task, problem: Problem) -> Prepared:
    """Prepare a loop of leapfrogs alone. Momenta are drawn once a run, outside the timed part, and never again."""
    import tensorflow as tf

    options = LimitOptions.model_validate(task.options)
    per_transition = options.leapfrogs_per_transition
    if per_transition % task.leapfrogs_per_leaf:
        raise MissingSampler(
            f"leapfrog_limit: leapfrogs_per_transition is {per_transition}; expected a multiple of "
            f"leapfrogs_per_leaf, which is {task.leapfrogs_per_leaf}."
        )
    if task.measure_ess:
        raise MissingSampler(
            "leapfrog_limit draws nothing, so it has no effective sample size; set measure_ess: false."
        )
    device = partial(place, task.device)
    device()
    compiled = make_leapfrogs(problem, task)
    bootstrap = tf.function(batched_density(problem), jit_compile=True)
    leapfrogs = np.full((task.chains, task.transitions), per_transition)

    batches = chunks("leapfrog_limit", task.chains, options.chunk_lanes, options.shards)

    def lay_out(seed: int) -> Callable[[], Outcome]:
        rng = np.random.default_rng([seed, 1])
        position = problem.starts(task.start, task.chains, seed)
        momentum = rng.standard_normal((task.chains, problem.dimension)).astype(problem.dtype)
        with device():
            parts = [(tf.constant(position[batch]), tf.constant(momentum[batch])) for batch in batches]
            return partial(run, [(q, p, bootstrap(q)[1]) for q, p in parts])

    def leap(arguments: tuple[Any, ...]) -> None:
        with device():  # of this thread
            for array in compiled(*arguments):
                array.numpy()

    def run(parts: list[tuple[Any, ...]]) -> Outcome:
        with ThreadPoolExecutor(options.shards) as pool:
            for _ in pool.map(leap, parts):
                pass
        return Outcome(leapfrogs=leapfrogs, executed_gradients=int(leapfrogs.sum()), draws=None)

    return lay_out


def batched_density(problem: Problem) -> Callable[[Any], tuple[Any, Any]]:
    """Positions [lanes, dimension] to log-densities [lanes] and gradients: the model's twin, or its density by pfor."""
    from batchnuts.autobatch import pfor

    model = problem.model
    single = value_and_gradient(model)
    return model.batched_value_and_gradient or (lambda positions: pfor.vectorized_map(single, positions))


def make_leapfrogs(problem: Problem, task: Task) -> Any:
    """The compiled loop: position, momentum, gradient, all [lanes, dimension], to where they end, and the sum of all
    log-densities on the way [lanes]."""
    import tensorflow as tf

    options = LimitOptions.model_validate(task.options)
    density = batched_density(problem)
    step_size = np.asarray(task.step_size, problem.dtype)
    leaves = task.transitions * options.leapfrogs_per_transition // task.leapfrogs_per_leaf

    def leaf(position: Any, momentum: Any, gradient: Any, total: Any) -> tuple[Any, ...]:
        for _ in range(task.leapfrogs_per_leaf):
            momentum = momentum + 0.5 * step_size * gradient
            position = position + step_size * momentum
            value, gradient = density(position)
            momentum = momentum + 0.5 * step_size * gradient
            total = total + value
        return position, momentum, gradient, total

    def leapfrogs(position: Any, momentum: Any, gradient: Any) -> tuple[Any, ...]:
        total = tf.zeros_like(position[:, 0])
        _, *arrays = tf.while_loop(
            lambda done, *_: done < leaves,
            lambda done, *arrays: (done + 1, *leaf(*arrays)),
            (0, position, momentum, gradient, total),
        )
        return tuple(arrays)

    return tf.function(leapfrogs, jit_compile=True)
