"""Our vectorizer in the backend against TensorFlow's: the same draws, to rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch import random
from batchnuts.autobatch.backends.tensorflow.backend import TensorFlowBackend
from batchnuts.mcmc.kernel.chain_program import ChainInputs, make_chain
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts
from batchnuts.mcmc.kernel.step_size import DualAveragingAdaptation, start_adaptation
from batchnuts.mcmc.model.model import Model

CHAINS, TRANSITIONS = 6, 5
PRECISION = tf.constant([[2.0, 0.6, 0.0], [0.6, 1.0, 0.1], [0.0, 0.1, 0.5]], tf.float64)
MEASURED = tf.constant([0.3, -0.1, 0.7, 1.2], tf.float64)
GROUPS = tf.constant([0, 1, 2, 1])


def single(q: Any) -> Any:
    """Of one chain, with products, a gather and special functions: TensorFlow's cannot do branches here."""
    prior = -0.5 * tf.reduce_sum(q * tf.linalg.matvec(PRECISION, q))
    residual = MEASURED - tf.gather(q, GROUPS)
    tail = tf.where(q[0] > 0, tf.math.log1p(tf.abs(q[0])), 0.5 * q[0])
    return prior - tf.reduce_sum(tf.math.softplus(residual)) - 0.1 * tail**2


def draws(vectorizer: str, mode: str) -> Any:
    model = Model(name="small", dimension=3, log_density=single, dtype="float64")
    program = make_chain(
        make_nuts(value_and_gradient(model), NutsOptions(6, dtype="float64")),
        DualAveragingAdaptation(0.8),
        TRANSITIONS,
        3,
        "float64",
    )
    position = np.random.default_rng(0).normal(size=(CHAINS, 3))
    with tf.GradientTape() as tape:
        starts = tf.constant(position)
        tape.watch(starts)
        values = tf.map_fn(single, starts)
    arguments = ChainInputs.begin(
        random.lane_keys(4, CHAINS), position, np.asarray(values), np.asarray(tape.gradient(values, starts)),
        np.ones((CHAINS, 3)), start_adaptation(np.full(CHAINS, np.log(0.3)), settled=False), np.full(CHAINS, False),
        first=np.zeros(CHAINS, "int64"), transitions=np.full(CHAINS, TRANSITIONS, "int64"),
        max_tree_depth=6,
    )  # fmt: skip
    return program.run(*arguments, backend=TensorFlowBackend(mode, vectorizer=vectorizer))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["xla", "graph"])
def test_the_vectorizer_changes_no_draw_beyond_rounding(mode: str) -> None:
    ours, theirs = draws("pfor", mode), draws("tensorflow", mode)
    np.testing.assert_array_equal(ours.records.n_steps, theirs.records.n_steps)
    np.testing.assert_allclose(ours.records.position, theirs.records.position, rtol=1e-9, atol=1e-9)
    assert np.asarray(ours.records.n_steps).sum() > 50


def test_an_unknown_vectorizer_is_refused() -> None:
    with pytest.raises(ValueError, match="vectorizer must be one of pfor, tensorflow; found 'jax'"):
        TensorFlowBackend(vectorizer="jax")
