"""NumPyro's NUTS on its own writing of a packaged model (`numpyro_models.py`)."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import numpy as np

from batchnuts.cli.config import RunConfig
from batchnuts.experiments.posterior_checks.lines import lines_of_function
from batchnuts.experiments.posterior_checks.model_inputs import inputs_of
from batchnuts.experiments.posterior_checks.registry import NumpyroOptions
from batchnuts.experiments.posterior_checks.task import MissingLibrary, MissingModel, Run, Sampling, Task
from batchnuts.mcmc.model.model import Model


def prepare(task: Task, config: RunConfig, model: Model) -> Sampling:
    """Lay out the model's data. Raises MissingLibrary, MissingModel."""
    options = NumpyroOptions.model_validate(task.options)
    if importlib.util.find_spec("numpyro") is None:
        raise MissingLibrary(
            "Sampler numpyro needs NumPyro, which is not installed. Install it with pip install 'batchnuts[peers]'."
        )
    import jax

    jax.config.update("jax_enable_x64", options.dtype == "float64")
    import numpyro

    from batchnuts.experiments.posterior_checks.numpyro_models import MODELS, arguments

    name = getattr(config.model, "name", None)
    if name not in MODELS:
        raise MissingModel(
            f"{task.config} has a model that is not written in NumPyro; written are {', '.join(MODELS)}. Name the "
            "other curves in the problem's `curves`, or write it (numpyro_models.py)."
        )
    function = MODELS[name]
    data = {
        name: value.astype(options.dtype) if getattr(value, "dtype", np.dtype(int)).kind == "f" else value
        for name, value in arguments(function, inputs_of(config.model, model)).items()
    }

    def run(seed: int) -> Run:
        mcmc = numpyro.infer.MCMC(
            numpyro.infer.NUTS(
                function, target_accept_prob=options.target_acceptance, max_tree_depth=options.max_tree_depth
            ),
            num_warmup=options.warmup,
            num_samples=options.draws,
            num_chains=options.chains,
            chain_method="vectorized",
            progress_bar=False,
        )

        def sample(key: Any, starts: Any) -> tuple[Any, Any]:
            mcmc.run(key, init_params=starts, extra_fields=("diverging",), **data)
            return mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True)["diverging"]

        # `MCMC.run` compiles within its run; as one function it can be compiled before
        arguments_of_run = jax.random.key(seed), starts_of(function, data, model, seed, options.chains)
        began = time.perf_counter()
        compiled = jax.jit(sample).lower(*arguments_of_run).compile()
        compile_seconds = time.perf_counter() - began
        began = time.perf_counter()
        draws, diverging = jax.block_until_ready(compiled(*arguments_of_run))
        seconds = time.perf_counter() - began
        arrays = {name: np.asarray(array) for name, array in draws.items()}
        return Run(arrays, int(np.sum(diverging)), seconds, compile_seconds)

    return Sampling(run, lines_of_function(function))


def starts_of(function: Any, data: dict[str, Any], model: Model, seed: int, chains: int) -> Any:
    """Where chains start: None (NumPyro chooses), or the model's own initializer's, which an equation may need."""
    if model.initializer is None:
        return None
    import jax
    from numpyro.infer.util import unconstrain_fn

    rng = np.random.default_rng(seed)
    values = {name: np.asarray(array, "float64") for name, array in model.initializer(rng, chains).items()}
    return jax.vmap(lambda chain: unconstrain_fn(function, (), data, chain))(values)
