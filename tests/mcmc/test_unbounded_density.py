"""A chain that meets an infinite density must not ruin the others."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch import BatchnutsError, random
from batchnuts.mcmc.adaptation import pooled_step_size
from batchnuts.mcmc.chain_program import make_first_step_size
from batchnuts.mcmc.chains import run_chains
from batchnuts.mcmc.hamiltonian import value_and_gradient
from batchnuts.mcmc.model import Model
from batchnuts.mcmc.settings import ExecutionSettings, SamplerSettings


def test_an_infinite_density_is_a_divergence_and_never_drawn() -> None:
    def log_density(q: tf.Tensor) -> tf.Tensor:
        inside = -0.5 * tf.reduce_sum(q * q)
        return tf.where(q[0] > 1.5, tf.constant(np.inf, tf.float32), inside)

    model = Model.from_function(log_density, dimension=2, name="unbounded")
    start = np.random.default_rng(0).uniform(-1, 1, size=(8, 2)).astype("float32")
    object.__setattr__(model, "initializer", lambda rng, chains: start[:chains])
    draws = run_chains(model, SamplerSettings(chains=8, warmup=40, draws=40), ExecutionSettings())
    assert np.isfinite(draws.stats["step_size"]).all()
    assert np.isfinite(draws.stats["lp"]).all()
    assert draws.position[..., 0].max() <= 1.5
    assert draws.stats["diverging"].any()
    assert not draws.stats["diverging"].all()


def test_no_first_step_size_aims_at_an_infinite_density() -> None:
    def log_density(q: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.abs(q[0]) > 2.0, tf.constant(np.inf, tf.float32), -0.5 * tf.reduce_sum(q * q))

    search = make_first_step_size(value_and_gradient(Model.from_function(log_density, dimension=2)), "float32")
    chains, start = 16, np.zeros((16, 2), "float32")
    one = np.ones_like(start)
    keys = random.lane_keys(0, chains)
    found = search.run(keys, start, np.zeros(chains, "float32"), -start, one, one[:, 0], mode="eager")
    assert (found > 0.01).all()
    assert (found < 100).all()


def test_pooling_leaves_out_what_is_not_finite() -> None:
    assert pooled_step_size(np.array([np.nan, np.log(0.5), np.inf, np.log(0.5)])) == pytest.approx(0.5)
    with pytest.raises(BatchnutsError, match="No chain has a finite step size"):
        pooled_step_size(np.array([np.nan, -np.inf]))
