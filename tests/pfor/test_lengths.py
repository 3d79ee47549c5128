"""Rows of different lengths: what `tf.where`, masks, `tf.unique` and slices up to a place of the row's own give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch.pfor import PforError, pfor, vectorized_map

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 6))
Y = RNG.normal(size=(7, 6, 2))
MASK = RNG.random((7, 6)) < 0.5
MASK[3] = True
MASK[4, 1:] = False
MASK[4, 0] = True
N = np.array([1, 6, 3, 2, 5, 4, 6], np.int32)
WORDS = RNG.integers(0, 4, (7, 6)).astype(np.int32)


def gradient(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    return tape.gradient(value, x)


def ragged(x: Any, n: Any) -> Any:
    """Six entries, cut before the n-th, from 1 on."""
    return tf.RaggedTensor.from_row_lengths(x, [n - 1, 7 - n], validate=False)


BODIES: dict[str, Callable[..., Any]] = {
    "sum of a mask": lambda x, y, m, n, w: tf.reduce_sum(tf.boolean_mask(x, m)),
    "mean of a mask": lambda x, y, m, n, w: tf.reduce_mean(tf.boolean_mask(x, m)),
    "largest": lambda x, y, m, n, w: tf.reduce_max(tf.boolean_mask(x, m)),
    "smallest": lambda x, y, m, n, w: tf.reduce_min(tf.exp(tf.boolean_mask(x, m))),
    "product": lambda x, y, m, n, w: tf.reduce_prod(1.0 + tf.boolean_mask(x, m) ** 2),
    "all and any": lambda x, y, m, n, w: (
        tf.reduce_all(tf.boolean_mask(x, m) > 0), tf.reduce_any(tf.boolean_mask(x, m) > 0)),
    "how many": lambda x, y, m, n, w: tf.size(tf.boolean_mask(x, m)),
    "shape": lambda x, y, m, n, w: tf.shape(tf.boolean_mask(y, m)),
    "integers": lambda x, y, m, n, w: tf.reduce_max(tf.boolean_mask(w, m)),
    "along the last axis": lambda x, y, m, n, w: tf.reduce_sum(tf.reduce_max(tf.boolean_mask(y, m), axis=1)),
    "over the first axis": lambda x, y, m, n, w: tf.reduce_sum(tf.boolean_mask(y, m), axis=0),
    "over both": lambda x, y, m, n, w: tf.reduce_mean(tf.boolean_mask(y, m)),
    "keeping the axis": lambda x, y, m, n, w: tf.reduce_mean(tf.boolean_mask(y, m), axis=0, keepdims=True),
    "with one number": lambda x, y, m, n, w: tf.reduce_sum(tf.boolean_mask(x, m) * x[0] + 1.0),
    "with one of the same mask": lambda x, y, m, n, w: tf.reduce_sum(
        tf.boolean_mask(x, m) * tf.boolean_mask(tf.sin(x), m)),
    "a select": lambda x, y, m, n, w: tf.reduce_sum(tf.where(tf.boolean_mask(x, m) > 0, tf.boolean_mask(x, m), 1.0)),
    "places": lambda x, y, m, n, w: tf.reduce_sum(tf.where(x > 0), axis=0),
    "places in a matrix": lambda x, y, m, n, w: tf.reduce_sum(tf.where(y > 0), axis=0),
    "what an index takes from a common table": lambda x, y, m, n, w: tf.reduce_sum(
        tf.gather(tf.range(6.0), tf.squeeze(tf.where(m), 1))),
    "different numbers": lambda x, y, m, n, w: (tf.reduce_sum(tf.unique(w)[0]), tf.unique(w)[1]),
    "how many different": lambda x, y, m, n, w: tf.size(tf.unique(w)[0]),
    "counts": lambda x, y, m, n, w: tf.reduce_max(tf.unique_with_counts(w)[2]),
    "the first n": lambda x, y, m, n, w: tf.reduce_sum(x[:n]),
    "all but the last n": lambda x, y, m, n, w: tf.reduce_sum(x[: -(n - 1) - 1]),
    "from the second on": lambda x, y, m, n, w: tf.reduce_sum(y[1 : n + 1], axis=0),
    "past the end": lambda x, y, m, n, w: tf.size(x[: n + 100]),
    "a product of two slices": lambda x, y, m, n, w: tf.reduce_sum(x[:n] * tf.exp(-x)[:n]),
    "a slice with a column": lambda x, y, m, n, w: tf.reduce_sum(y[:n, 1]),
    "a slice of what is the same": lambda x, y, m, n, w: tf.reduce_sum(tf.range(6.0)[:n]),
    "lists of different lengths": lambda x, y, m, n, w: ragged(y, n).to_tensor(shape=[3, 4, None], default_value=x[0]),
    "lists, the last alone": lambda x, y, m, n, w: tf.RaggedTensor.from_row_lengths(x[:n], [n]).to_tensor(shape=[1, 5]),
    "lists of common lengths": lambda x, y, m, n, w: ragged(x, 3).to_tensor(),
    "gradient of lists": lambda x, y, m, n, w: gradient(
        lambda x: tf.reduce_sum(ragged(1.0 * x, n).to_tensor(shape=[None, 6]) ** 2), x),
    "gradient of lists of common lengths": lambda x, y, m, n, w: gradient(
        lambda x: tf.reduce_sum(ragged(1.0 * x, 2).to_tensor() ** 2), x),
    "in a loop": lambda x, y, m, n, w: tf.while_loop(
        lambda k, s: k < 3, lambda k, s: (k + 1, s + tf.reduce_sum(tf.boolean_mask(x, x > s))),
        (0, tf.constant(0.1, x.dtype)))[1],
    "how often depends on a length": lambda x, y, m, n, w: tf.while_loop(
        lambda k, s: k < tf.size(tf.where(m)), lambda k, s: (k + 1, s + 1.5), (0, 0.0))[1],
    "in a branch": lambda x, y, m, n, w: tf.cond(
        x[0] > 0, lambda: tf.reduce_sum(tf.boolean_mask(x, m)), lambda: tf.reduce_max(x[:n])),
    "gradient of a mask": lambda x, y, m, n, w: gradient(lambda x: tf.reduce_sum(tf.boolean_mask(x, m) ** 2), x),
    "gradient of a mean": lambda x, y, m, n, w: gradient(lambda x: tf.reduce_mean(tf.sin(tf.boolean_mask(x, m))), x),
    "gradient of a matrix": lambda x, y, m, n, w: gradient(lambda y: tf.reduce_sum(tf.boolean_mask(y, m) ** 2), y),
    "gradient of a slice": lambda x, y, m, n, w: gradient(lambda x: tf.reduce_sum(x[:n] ** 2 * x[1]), x),
    "gradient of a slice further on": lambda x, y, m, n, w: gradient(lambda y: tf.reduce_sum(y[1 : n + 1] ** 2), y),
    "gradient where others are not defined": lambda x, y, m, n, w: gradient(
        lambda x: tf.reduce_sum(tf.math.log(tf.boolean_mask(x, x > 0))), x),
}  # fmt: skip


def arguments() -> tuple[Any, ...]:
    return tuple(tf.constant(a) for a in (X, Y, MASK, N, WORDS))


def assert_rows(found: Any, body: Callable[..., Any]) -> None:
    rows = [tf.nest.flatten(body(*(a[k] for a in arguments()))) for k in range(len(X))]
    for part, expected in zip(tf.nest.flatten(found), zip(*rows, strict=True), strict=True):
        np.testing.assert_allclose(part, np.stack([np.asarray(row) for row in expected]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", list(BODIES))
def test_as_the_sequential_loop(name: str) -> None:
    body = BODIES[name]
    found = vectorized_map(lambda row: body(*row), arguments(), fallback=False)
    assert_rows(found, body)


@pytest.mark.parametrize(
    "name", ["sum of a mask", "mean of a mask", "different numbers", "the first n", "places", "gradient of a mask",
             "gradient of a slice", "lists of different lengths", "gradient of lists", "in a loop"]
)  # fmt: skip
def test_under_xla(name: str) -> None:
    body = BODIES[name]

    @tf.function(jit_compile=True)
    def run(*given: Any) -> Any:
        return vectorized_map(lambda row: body(*row), given, fallback=False)

    assert_rows(run(*arguments()), body)


def test_gradients_from_outside() -> None:
    x, _, mask, n, _ = arguments()

    def body(row: Any) -> Any:
        x, mask, n = row
        logarithm = tf.reduce_sum(tf.math.log(tf.boolean_mask(x, x > 0)))  # of the others it is not defined
        none_after = tf.abs(x) * tf.cast(tf.range(6) < n, x.dtype)
        logarithm += tf.reduce_sum(tf.math.log(none_after[:n]))
        return logarithm + tf.reduce_mean(tf.boolean_mask(x, mask) ** 2) + tf.reduce_sum(x[:n] ** 3)

    def by_rows(x: Any) -> Any:
        return tf.add_n([body((x[k], mask[k], n[k])) for k in range(len(X))])

    found = gradient(lambda x: tf.reduce_sum(vectorized_map(body, (x, mask, n))), x)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, gradient(by_rows, x), rtol=1e-12)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "longest list": (lambda x, m, n: ragged(x, n).to_tensor(), "by how long its longest list is. Give it one for all"),
    "how many lists": (
        lambda x, m, n: tf.raw_ops.RaggedTensorToTensor(
            shape=[-1, 6], values=x, default_value=tf.zeros([], x.dtype),
            row_partition_tensors=[n, tf.zeros(6, tf.int32)],
            row_partition_types=["FIRST_DIM_SIZE", "VALUE_ROWIDS"]), "by how many lists it has. Give it one for all"),
    "returned": (lambda x, m, n: tf.boolean_mask(x, m), "whose length depends on the iteration, so it cannot be"),
    "of two masks": (lambda x, m, n: tf.reduce_sum(tf.boolean_mask(x, m) * x[:n]), "each in its own way"),
    "with a whole row": (
        lambda x, m, n: tf.reduce_sum(tf.cumsum(tf.boolean_mask(x, m))), "the length of its input .* there is no rule"),
    "taken from": (lambda x, m, n: tf.boolean_mask(x, m)[0], "the length of its input .* there is no rule for that"),
    "gathered from": (lambda x, m, n: tf.gather(tf.boolean_mask(x, m), 0), "takes by index from a tensor whose length"),
    "from a branch": (
        lambda x, m, n: tf.reduce_sum(tf.cond(n > 2, lambda: x[:n], lambda: x[: n + 1])), "which a branch or the body"),
    "cut across": (lambda x, m, n: tf.reshape(x[:n], [2, -1]), "cut across the axis whose length|is not known"),
    "of the second axis": (
        lambda x, m, n: tf.reduce_sum(tf.reshape(x, [2, 3])[:, :n]), "only for the first axis, with stride 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_has_no_rule_is_refused_at_its_line(name: str) -> None:
    body, said = REFUSED[name]
    x, _, mask, n, _ = arguments()
    with pytest.raises(PforError, match=said) as error:
        pfor(lambda i: body(x[i], mask[i], n[i]), 7)
    assert "test_lengths.py" in str(error.value)


def test_one_function_called_with_two_masks_gives_two_lengths() -> None:
    x, _, mask, _, _ = arguments()
    taken = tf.function(lambda x, mask: tf.boolean_mask(x, mask))

    def joined(row: Any) -> Any:
        x, mask = row
        return tf.reduce_sum(taken(x, mask) * taken(x, x > 0))

    with pytest.raises(PforError, match="each in its own way"):
        vectorized_map(joined, (x, mask))
    same = vectorized_map(lambda row: tf.reduce_sum(taken(row[0], row[1]) * taken(row[0] + 1, row[1])), (x, mask))
    expected = [(x[k][MASK[k]] * (x[k][MASK[k]] + 1)).numpy().sum() for k in range(len(X))]
    np.testing.assert_allclose(same, expected)
