"""The reference: TensorFlow Probability's autobatched NUTS, `tfp.experimental.mcmc.NoUTurnSampler`, on either executor.

Its own counts:

- `leapfrogs_taken` [chains] adds up over steps and counts leapfrogs, not leaves. A step is `trajectories_per_step`
  transitions, so only their total is known: `Outcome.leapfrogs` then is [chains, steps].
- `leapfrogs_computed` adds up, over steps, the leapfrogs of the chain that needed most. That is a floor of what was
  executed: chains may wait at the gradient at different times. So the density counts its own evaluations here, in a
  variable; one addition to an integer for each gradient of all chains.

Under XLA its random numbers follow from how often the compiled program has run, not from the seed, which then sets the
start alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.registry import AutobatchedOptions
from batchnuts.experiments.samplers.task import MissingSampler, Outcome, Prepared, Task
from batchnuts.experiments.samplers.tf_densities import log_density, place


def prepare(task: Task, problem: Problem) -> Prepared:
    """Prepare TensorFlow Probability's autobatched NUTS. Raises MissingSampler for what the reference cannot do."""
    import tensorflow as tf
    import tensorflow_probability as tfp

    options = AutobatchedOptions.model_validate(task.options)
    per_step = _trajectories_per_step(task, options)
    device = partial(place, task.device)
    with device():
        density = log_density(problem)
        evaluations = tf.Variable(0, dtype="int64", trainable=False)
    backend = _backend_that_knows_dummies()

    def counted(position: Any) -> Any:
        if not backend.on_dummies:
            evaluations.assign_add(1)
        return density(position)

    kernel = tfp.experimental.mcmc.NoUTurnSampler(
        counted,
        step_size=[np.asarray(task.step_size, problem.dtype)],
        max_tree_depth=task.max_tree_depth,
        unrolled_leapfrog_steps=task.leapfrogs_per_leaf,
        num_trajectories_per_step=per_step,
        stackless=options.executor == "stackless",
        backend=backend,
        seed=0,
    )
    step = kernel.one_step if options.mode == "eager" else tf.function(kernel.one_step, jit_compile=True)

    def lay_out(seed: int) -> Callable[[], Outcome]:
        tf.random.set_seed(seed)
        with device():
            position = tf.constant(problem.starts(task.start, task.chains, seed))
            results = kernel.bootstrap_results(position)
            return partial(run, position, results)

    def run(position: Any, results: Any) -> Outcome:
        evaluations_before = int(evaluations.numpy())
        draws, cumulative = [], [results.leapfrogs_taken.numpy()]
        with device():
            for _ in range(task.transitions // per_step):
                position, results = step(position, results)
                draws.append(position.numpy())
                cumulative.append(results.leapfrogs_taken.numpy())
        return Outcome(
            leapfrogs=np.diff(np.stack(cumulative, axis=1), axis=1),
            executed_gradients=(int(evaluations.numpy()) - evaluations_before) * task.chains,
            draws=np.stack(draws, axis=1) if task.measure_ess else None,
        )

    return lay_out


def _trajectories_per_step(task: Task, options: AutobatchedOptions) -> int:
    """The option, resolved. Raises MissingSampler where options and task do not go together."""
    if options.executor == "stackless" and options.mode == "xla":
        raise MissingSampler(
            "tfp_autobatched: its stackless executor runs on Python's own stack, so it cannot be compiled by XLA; "
            "set mode: eager."
        )
    if task.measure_ess and options.trajectories_per_step != 1:
        raise MissingSampler(
            f"tfp_autobatched keeps only the last draw of each step, and trajectories_per_step is "
            f"{options.trajectories_per_step}; to measure the effective sample size set it to 1."
        )
    per_step = options.trajectories_per_step or task.transitions
    if task.transitions % per_step:
        raise MissingSampler(
            f"tfp_autobatched: trajectories_per_step is {per_step}; expected a divisor of transitions, which is "
            f"{task.transitions}."
        )
    return per_step


def _backend_that_knows_dummies() -> Any:
    """The default backend of a seeded kernel, which also notes when the density is run only to find its types."""
    from tensorflow_probability.python.experimental import auto_batching

    class Backend(auto_batching.TensorFlowBackend):  # type: ignore[misc]
        on_dummies = False

        def run_on_dummies(self, primitive: Any, types: Any) -> Any:
            self.on_dummies = True
            try:
                return super().run_on_dummies(primitive, types)
            finally:
                self.on_dummies = False

    return Backend(while_parallel_iterations=1)
