"""Models of small densities in TensorFlow, a short run of one, and the starts that a run would find."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from batchnuts.mcmc.execution.evaluation import ProgramGradients, make_evaluate
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.model.library_choice import choose_density_library
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings, WarmupSettings
from batchnuts.mcmc.starts.find_starts import check_at_starts, find_starts
from batchnuts.mcmc.starts.methods import make_proposals

NUMPY = ExecutionSettings(backend="numpy")


def run(model: Model) -> Any:
    return run_chains(
        model, SamplerSettings(chains=4, warmup=WarmupSettings(transitions=0), draws=2, step_size=0.1), NUMPY
    )


def good(q: Any) -> Any:
    return -0.5 * tf.reduce_sum(q * q)


def solving(limit: float, dtype: str = "float32") -> Model:
    """With a matrix that is singular beyond a limit: TensorFlow raises an error there."""

    def log_density(q: Any) -> Any:
        matrix = tf.where(q[0] > limit, tf.ones([2, 2], dtype), tf.eye(2, dtype=dtype))
        return -0.5 * tf.reduce_sum(q * tf.linalg.solve(matrix, q[:, None])[:, 0])

    return Model.from_function(log_density, dimension=2, name="solving", dtype=dtype)  # type: ignore[arg-type]


def starts_of(model: Model, chains: int, seed: int = 0, execution: ExecutionSettings = NUMPY) -> np.ndarray:
    sampler = SamplerSettings(chains=chains, seed=seed)
    proposals = make_proposals(model, sampler, execution)
    density_library, execution = choose_density_library(model, execution, proposals(0)[0])
    check_at_starts(model, density_library, proposals, proposals(0))
    program = make_evaluate(value_and_gradient(model, density_library))
    return find_starts(model, ProgramGradients(model, program, execution), proposals)[0]
