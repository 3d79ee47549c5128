"""NumPyro's NUTS with `chain_method="vectorized"`: its kernel for one chain under `vmap`, all chains in lockstep.

Its tree has one leapfrog per leaf. The number of gradients executed is not among its results, as with BlackJAX: under
`vmap` what chains compute after they have finished their trajectory is wasted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from batchnuts.experiments.samplers.jax_densities import log_density, use_jax
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.registry import NoOptions
from batchnuts.experiments.samplers.task import Outcome, Prepared, Task, require_one_leapfrog


def prepare(task: Task, problem: Problem) -> Prepared:
    """Prepare NumPyro with vectorized chains.

    `MCMC.run` called bare compiles its loop again each time, 2 to 3 s (NumPyro 0.22 with JAX 0.10; its cache of
    compiled loops never hits). So the whole run is one function under `jax.jit`, compiled once. A state made beforehand
    and handed over as `post_warmup_state` saves the run from making one. Draws are recorded and come to the host, asked
    for or not.
    """
    NoOptions.model_validate(task.options)
    require_one_leapfrog("numpyro", task)
    placed = use_jax("numpyro", task.device, problem.dtype)
    import jax
    import numpyro

    with placed:
        density = log_density(problem)

    def make_kernel() -> Any:
        return numpyro.infer.NUTS(
            potential_fn=lambda position: -density(position),
            step_size=task.step_size,
            adapt_step_size=False,
            adapt_mass_matrix=False,
            max_tree_depth=task.max_tree_depth,
        )

    kernel = make_kernel()
    sampler = numpyro.infer.MCMC(
        kernel,
        num_warmup=0,
        num_samples=task.transitions,
        num_chains=task.chains,
        chain_method="vectorized",
        progress_bar=False,
    )

    def inputs(kernel: Any, seed: int) -> tuple[Any, Any]:
        """The run's key and the state to start from, which NumPyro wants without an axis of chains for one chain."""
        key = jax.random.key(seed)
        position = jax.numpy.asarray(problem.starts(task.start, task.chains, seed))
        if task.chains == 1:
            return key, kernel.init(key, 0, position[0])
        return key, kernel.init(jax.random.split(key, task.chains), 0, position)

    def run_all(key: Any, state: Any) -> tuple[Any, Any]:
        sampler.post_warmup_state = state
        sampler.run(key, extra_fields=("num_steps",))
        return sampler.get_samples(group_by_chain=True), sampler.get_extra_fields(group_by_chain=True)["num_steps"]

    with placed:
        # This kernel must have made a state itself once, and once only: each time it wraps itself in one more vmap.
        compiled = jax.jit(run_all).lower(*inputs(kernel, 0)).compile()

    def lay_out(seed: int) -> Callable[[], Outcome]:
        with placed:
            arguments = jax.block_until_ready(inputs(make_kernel(), seed))
        return lambda: run(arguments)

    def run(arguments: tuple[Any, Any]) -> Outcome:
        draws, leapfrogs = (np.asarray(array) for array in compiled(*arguments))  # [chains, transitions, ...]
        return Outcome(leapfrogs=leapfrogs, executed_gradients=None, draws=draws if task.measure_ess else None)

    return lay_out
