"""TensorFlow Probability's NUTS for users, `tfp.mcmc.NoUTurnSampler`: the recursion unrolled by hand into two loops.

All chains run in lockstep. Draws are recorded and come to the host, asked for or not, as a user's would.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.registry import UnrolledOptions
from batchnuts.experiments.samplers.task import Outcome, Prepared, Task
from batchnuts.experiments.samplers.tf_densities import log_density, place


def prepare(task: Task, problem: Problem) -> Prepared:
    """Prepare TensorFlow Probability's unrolled NUTS. `leapfrogs_taken` is of one transition and counts leapfrogs,
    not leaves."""
    import tensorflow as tf
    import tensorflow_probability as tfp

    options = UnrolledOptions.model_validate(task.options)
    device = partial(place, task.device)
    with device():
        kernel = tfp.mcmc.NoUTurnSampler(
            log_density(problem),
            step_size=np.asarray(task.step_size, problem.dtype),
            max_tree_depth=task.max_tree_depth,
            unrolled_leapfrog_steps=task.leapfrogs_per_leaf,
        )

    @tf.function(jit_compile=options.mode == "xla")  # type: ignore[untyped-decorator]
    def sample(position: Any, results: Any, seed: Any) -> Any:
        return tfp.mcmc.sample_chain(
            task.transitions,
            position,
            previous_kernel_results=results,
            kernel=kernel,
            trace_fn=lambda _, kernel_results: kernel_results.leapfrogs_taken,
            seed=seed,
        )

    bootstrap = tf.function(kernel.bootstrap_results, jit_compile=options.mode == "xla")

    def lay_out(seed: int) -> Callable[[], Outcome]:
        with device():
            position = tf.constant(problem.starts(task.start, task.chains, seed))
            key = tf.constant(np.random.SeedSequence(seed).generate_state(2).view("int32"))
            return partial(run, (position, bootstrap(position), key))

    def run(arguments: tuple[Any, ...]) -> Outcome:
        with device():
            draws, counts = (array.numpy() for array in sample(*arguments))  # [transitions, chains, ...]
        leapfrogs = counts.T
        return Outcome(
            leapfrogs=leapfrogs,
            executed_gradients=lockstep_gradients(leapfrogs),
            draws=np.swapaxes(draws, 0, 1) if task.measure_ess else None,
        )

    return lay_out


def lockstep_gradients(leapfrogs: NDArray[np.integer]) -> int:
    """Gradients times chains that the sampler computed, from the leapfrogs [chains, transitions] that chains needed.

    Chains double their trajectories together, and a doubling goes on until no chain is left in it. A chain comes to
    its next doubling only with the last one full, so the longest trajectory of a transition is also what was run.
    """
    return int(leapfrogs.max(axis=0).sum()) * len(leapfrogs)
