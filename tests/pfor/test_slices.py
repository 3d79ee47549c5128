"""Slices whose ends depend on the iteration and whose length does not, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch.pfor import PforError, pfor

ROWS = 5
X = tf.constant(np.random.default_rng(2).normal(size=(ROWS, 4)))
K = tf.constant([0, 1, 2, 0, 1])
"""A place of each row."""


def slope(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = tf.reduce_sum(function(x) ** 3)
    return tape.gradient(value, x)


CUTS: dict[str, Callable[[Any], Any]] = {
    "x[i:i+1]": lambda i: X[i : i + 1],
    "x[2*i:2+2*i]": lambda i: tf.tile(X, [2, 1])[2 * i : 2 + i * 2],
    "x[i-4:5-(4-i)-2], from the end": lambda i: tf.tile(X, [2, 1])[i - 7 : 5 - (4 - i) - 6],
    "a place of the row's": lambda i: X[i][K[i] : K[i] + 2],
    "computed twice": lambda i: X[i][2 * K[i] - K[i] : 3 + K[i] - 1],
    "of another dtype": lambda i: X[i][tf.cast(K[i], tf.int64) : 2 + tf.cast(K[i], tf.int64)],
    "of the second axis": lambda i: X[:2, K[i] : K[i] + 2],
    "by twos": lambda i: X[i][K[i] : K[i] + 2 : 2] + tf.tile(X, [3, 1])[i : i + 5 : 2, :1],
    "by twos, of both": lambda i: tf.tile(X, [3, 2])[2 * i : 2 * i + 4 : 3, K[i] : K[i] + 4 : 2],
    "by twos to beyond the end": lambda i: X[i][K[i] : K[i] + 1 : 7],
    "of both": lambda i: X[K[i] : K[i] + 2, K[i] : K[i] + 1],
    "from the end": lambda i: X[i][-K[i] - 2 : -K[i] - 1],
    "nothing": lambda i: X[i][K[i] : K[i]],
    "end before start": lambda i: X[i][K[i] + 1 : K[i]],
    "integers": lambda i: K[i : i + 1],
    "in a loop": lambda i: tf.while_loop(
        lambda j, _: j < K[i], lambda j, s: (j + 1, s + tf.reduce_sum(X[i][j : j + 2])), (0, X[i, 0]),
        maximum_iterations=3)[1],
    "gradient": lambda i: slope(lambda x: x[K[i] : K[i] + 2], X[i]),
    "gradient by what is the same": lambda i: slope(lambda x: x[i : i + 1, 1:], X),
    "gradient of an index": lambda i: slope(lambda x: x[K[i]], X[i]),
    "gradient of the loop's index": lambda i: slope(lambda x: x[i, None, 1:], X),
    "gradient of tf.slice": lambda i: slope(lambda x: tf.slice(x, [1, 0], [2, 3]), X) * X[i, 0],
}  # fmt: skip


def one_by_one(body: Callable[[Any], Any]) -> np.ndarray:
    one = tf.function(body, autograph=False)
    return np.stack([one(tf.constant(i)) for i in range(ROWS)])


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("name", CUTS)
def test_as_the_sequential_loop(name: str) -> None:
    body = CUTS[name]
    wanted = one_by_one(body)
    np.testing.assert_allclose(pfor(body, ROWS), wanted, rtol=1e-12)
    np.testing.assert_allclose(pfor(body, ROWS, masked=True), wanted, rtol=1e-12)


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
def test_as_the_sequential_loop_under_xla() -> None:
    only_xla = {  # with another op in the gradient
        "gradient of tf.slice by a row": lambda i: slope(lambda x: tf.slice(x, [1], [2]), X[i]),
        "gradient of tf.slice at a place of the row's": lambda i: slope(lambda x: tf.slice(x, [K[i], 1], [2, 2]), X),
    }
    bodies = CUTS | only_xla
    run = tf.function(
        lambda: {name: pfor(body, ROWS) for name, body in bodies.items()}, autograph=False, jit_compile=True
    )
    for name, found in run().items():
        np.testing.assert_allclose(found, one_by_one(bodies[name]), rtol=1e-12, err_msg=name)


def test_what_leaves_the_axis_is_refused() -> None:
    with pytest.raises(PforError, match=r"iteration 4 takes entries 4 to 5 of an axis that has only 5"):
        pfor(lambda i: X[i : i + 2], ROWS)
    with pytest.raises(PforError, match=r"iteration 0 takes entries -1 to 0 of an axis"):
        pfor(lambda i: X[i - 1 : i + 1], ROWS)
    with pytest.raises(PforError, match=r"tf.gather\(x, i - tf.range\(n\)\)"):
        pfor(lambda i: X[i][K[i] + 1 : K[i] : -1], ROWS)
    with pytest.raises(PforError, match=r"Write `x.shape\[0\]`") as caught:
        pfor(lambda i: X[0, 0] * len(X[i]), ROWS)
    assert caught.value.source is not None
    assert "len(X[i])" in caught.value.source.text
    with pytest.raises(PforError, match="write its end as its start plus a number"):
        pfor(lambda i: X[i][K[i] :], ROWS)


@pytest.mark.parametrize("start", [lambda i: K[i] + 1, lambda i: K[i] - 1])
def test_what_leaves_the_axis_when_it_runs(start: Callable[[Any], Any]) -> None:
    """An error; under XLA, which has none, NaN in these rows."""

    def body(i: Any) -> Any:
        return X[i][start(i) : start(i) + 2]

    for masked in (None, True):
        with pytest.raises(tf.errors.InvalidArgumentError, match="goes past an end of its axis"):
            pfor(body, ROWS, masked=masked)
    found = tf.function(lambda: pfor(body, ROWS), autograph=False, jit_compile=True)().numpy()
    starts = np.array([int(start(i)) for i in range(ROWS)])
    bad = (starts < 0) | (starts > 2)
    assert bad.any()
    assert not bad.all()
    np.testing.assert_array_equal(np.isnan(found), np.stack([bad, bad], 1))
