"""BlackJAX's NUTS, one chain's, under `jax.jit(jax.vmap(scan))`: all chains in lockstep.

The number of gradients executed is not among its results. Under `vmap` a chain that has finished its
trajectory goes on building subtrees, and discards them, until the last chain has finished; the inner loop runs for
the longest subtree of any chain, finished ones included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.experiments.samplers.jax_densities import log_density, use_jax
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.task import Outcome, Prepared, Task


def prepare(task: Task, problem: Problem) -> Prepared:
    """Prepare BlackJAX under `vmap`. It counts leaves; draws are recorded and come to the host, asked for or not."""
    vmapped = make_vmapped(task, problem, task.chains)

    def lay_out(seed: int) -> Callable[[], Outcome]:
        arguments = vmapped.arguments(seed, problem.starts(task.start, task.chains, seed))
        return lambda: vmapped.run(arguments)

    return lay_out


@dataclass(frozen=True)
class Vmapped:
    """A number of chains compiled together."""

    arguments: Callable[[int, Any], Any]
    """Makes the arguments of `run` from a seed and first positions [chains, dimension]."""
    run: Callable[[Any], Outcome]


def make_vmapped(task: Task, problem: Problem, chains: int) -> Vmapped:
    """Compile. Raises MissingSampler."""
    placed = use_jax("blackjax", task.device, problem.dtype)
    import blackjax
    import jax

    def leapfrogs_of_a_leaf(*made_of: Any) -> Callable[[Any, Any], Any]:
        leapfrog = blackjax.mcmc.integrators.velocity_verlet(*made_of)

        def leaf(state: Any, step_size: Any) -> Any:
            for _ in range(task.leapfrogs_per_leaf):
                state = leapfrog(state, step_size)
            return state

        return leaf

    with placed:
        algorithm = blackjax.nuts(
            log_density(problem),
            step_size=np.asarray(task.step_size, problem.dtype),
            inverse_mass_matrix=np.ones(problem.dimension, problem.dtype),
            max_num_doublings=task.max_tree_depth,
            integrator=leapfrogs_of_a_leaf,
        )

    def chain(key: Any, state: Any) -> Any:
        def transition(state: Any, key: Any) -> tuple[Any, tuple[Any, Any]]:
            state, info = algorithm.step(key, state)
            return state, (state.position, info.num_integration_steps)

        _, records = jax.lax.scan(transition, state, jax.random.split(key, task.transitions))
        return records

    bootstrap = jax.jit(jax.vmap(algorithm.init))

    def arguments(seed: int, starts: Any) -> Any:
        with placed:
            keys = jax.random.split(jax.random.key(seed), chains)
            return jax.block_until_ready((keys, bootstrap(starts)))

    example = arguments(0, problem.starts(task.start, chains, 0))
    with placed:
        compiled = jax.jit(jax.vmap(chain)).lower(*example).compile()

    def run(arguments: Any) -> Outcome:
        draws, leaves = (np.asarray(array) for array in compiled(*arguments))  # [chains, transitions, ...]
        return Outcome(
            leapfrogs=leaves * task.leapfrogs_per_leaf,
            executed_gradients=None,
            draws=draws if task.measure_ess else None,
        )

    return Vmapped(arguments, run)
