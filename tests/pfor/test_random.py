"""Random numbers in a loop: stateful ones differ between iterations and have the right moments, stateless ones follow
their seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch.pfor import pfor

STATEFUL = {
    "RandomUniform": (lambda: tf.random.uniform([40]), 0.5, 1 / 12),
    "RandomStandardNormal": (lambda: tf.random.normal([40]), 0.0, 1.0),
    "TruncatedNormal": (lambda: tf.random.truncated_normal([40]), 0.0, 0.7737),
    "RandomUniformInt": (lambda: tf.random.uniform([40], 0, 10, tf.int32), 4.5, 8.25),
    "RandomGamma": (lambda: tf.random.gamma([40], 4.0), 4.0, 4.0),
    "RandomPoissonV2": (lambda: tf.random.poisson([40], 4.0), 4.0, 4.0),
    "Multinomial": (lambda: tf.random.categorical(tf.math.log([[0.5, 0.5]]), 40)[0], 0.5, 0.25),
    "RandomShuffle": (lambda: tf.random.shuffle(tf.range(40)), 19.5, (40**2 - 1) / 12),
}
"""An op of each type, with mean and variance of what it draws."""
ITERATIONS = 200


def drawn(body: Any, *, xla: bool = False) -> np.ndarray:
    tf.random.set_seed(3)
    return np.asarray(tf.function(lambda: pfor(body, ITERATIONS), autograph=False, jit_compile=xla)())


@pytest.mark.parametrize("op", STATEFUL)
def test_every_iteration_draws_its_own(op: str) -> None:
    draw, mean, variance = STATEFUL[op]
    rows = drawn(lambda i: draw()).astype(float)
    assert rows.shape == (ITERATIONS, 40)
    assert len(np.unique(rows, axis=0)) == ITERATIONS
    # z-scores; a correlation between neighbouring iterations would show in the second
    assert abs(rows.mean() - mean) < 4 * np.sqrt(variance / rows.size)
    if op != "RandomShuffle":
        neighbours = ((rows[1:] - mean) * (rows[:-1] - mean)).mean() / variance
        assert abs(neighbours) < 4 / np.sqrt(rows[1:].size)
        assert abs(rows.var() / variance - 1) < 0.1


@pytest.mark.parametrize("op", ["RandomUniform", "RandomStandardNormal"])
def test_they_do_so_under_xla(op: str) -> None:
    draw, mean, variance = STATEFUL[op]
    rows = drawn(lambda i: draw(), xla=True)
    assert len(np.unique(rows, axis=0)) == ITERATIONS
    assert abs(rows.mean() - mean) < 4 * np.sqrt(variance / rows.size)


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda a: tf.random.gamma([30], a), (1.0, 2.0, 3.0)),
        (lambda a: tf.random.poisson([30], [a, 2 * a]), (1.0, 2.0, 3.0)),
    ],
)
def test_parameters_may_vary(draw: Any, mean: tuple[float, ...]) -> None:
    tf.random.set_seed(4)
    rates = tf.constant(np.repeat(mean, 100), tf.float32)
    rows = np.asarray(tf.function(lambda: pfor(lambda i: draw(rates[i]), 300), autograph=False)())
    for k, value in enumerate(mean):
        part = rows[100 * k : 100 * (k + 1)].reshape(100, 30, -1)
        for column in range(part.shape[2]):
            found = part[:, :, column]
            truth = value * (column + 1)
            assert abs(found.mean() - truth) < 4.5 * np.sqrt(truth / found.size)


def test_logits_may_vary_and_values_to_shuffle() -> None:
    tf.random.set_seed(5)
    logits = tf.constant([[[0.0, -50.0, -50.0]], [[-50.0, -50.0, 0.0]]])
    rows = pfor(lambda i: tf.random.categorical(logits[i], 6), 2)
    np.testing.assert_array_equal(rows, [[[0] * 6], [[2] * 6]])
    values = tf.reshape(tf.range(40), (2, 20))
    shuffled = np.asarray(pfor(lambda i: tf.random.shuffle(values[i]), 2))
    np.testing.assert_array_equal(np.sort(shuffled, axis=1), values)
    assert not np.array_equal(shuffled[0] + 20, shuffled[1])


def test_a_seed_that_is_the_same_for_all_gives_all_the_same() -> None:
    rows = np.asarray(pfor(lambda i: tf.random.stateless_normal([3], [1, 2]) + 0 * tf.cast(i, tf.float32), 4))
    np.testing.assert_array_equal(rows, np.broadcast_to(tf.random.stateless_normal([3], [1, 2]), (4, 3)))


@pytest.mark.parametrize("xla", [False, True])
def test_seeds_of_iterations_give_the_bits_of_the_sequential_loop(xla: bool) -> None:
    def body(i: Any) -> Any:
        seed = tf.stack([i, 7])
        return (
            tf.random.stateless_uniform([3], seed),
            tf.random.stateless_normal([3], seed),
            tf.random.stateless_uniform([3], seed, None, None, tf.uint32),
        )

    def sequential() -> Any:
        signature = tuple(tf.TensorSpec([3], dtype) for dtype in (tf.float32, tf.float32, tf.uint32))
        return tf.map_fn(body, tf.range(5), fn_output_signature=signature)

    one_by_one = tf.function(sequential, autograph=False, jit_compile=xla)()
    at_once = tf.function(lambda: pfor(body, 5), autograph=False, jit_compile=xla)()
    for found, wanted in zip(at_once, one_by_one):
        np.testing.assert_array_equal(found, wanted)
