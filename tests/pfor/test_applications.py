"""vectorized_map, jacobian, hessian, per_example_gradient: against TensorFlow's own and against closed forms."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch.pfor import PforError, hessian, jacobian, per_example_gradient, pfor, vectorized_map

_rng = np.random.default_rng(1)
A = tf.constant(_rng.normal(size=(3, 4)))
X = tf.constant(_rng.normal(size=(6, 4)))


def test_vectorized_map_is_map_fn() -> None:
    def function(row: dict[str, Any]) -> Any:
        return tf.linalg.matvec(A, row["x"]) * row["s"], row["s"]

    elems = {"x": X, "s": tf.cast(tf.range(6), tf.float64)}
    wanted = tf.map_fn(function, elems, fn_output_signature=(tf.float64, tf.float64))
    for found, one in zip(vectorized_map(function, elems), wanted):
        np.testing.assert_allclose(found, one, rtol=1e-14)


@pytest.mark.parametrize(
    ("elems", "message"),
    [
        ((), "has no tensors"),
        (tf.constant(1.0), "found a scalar"),
        ((tf.ones(2), tf.ones(3)), r"found \[2, 3\]"),
        (tf.ragged.constant([[1.0, 2.0], [3.0]]), r"found a RaggedTensor: x.to_tensor\(\).*row\[:length\]"),
        ({"a": X, "b": tf.sparse.from_dense([[1.0, 0.0]])}, "found a SparseTensor: tf.sparse.to_dense"),
    ],
)
def test_vectorized_map_refuses(elems: Any, message: str) -> None:
    with pytest.raises(PforError, match=message):
        vectorized_map(lambda row: row, elems)


def test_vectorized_map_of_rows_known_only_when_it_runs() -> None:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 4], tf.float64)])
    def function(x: Any) -> Any:
        return vectorized_map(lambda row: tf.reduce_sum(row * row), x)

    for rows in (1, 6):
        np.testing.assert_allclose(function(X[:rows]), np.sum(np.square(X[:rows]), axis=1))


@pytest.mark.parametrize("xla", [False, True])
def test_jacobian(xla: bool) -> None:
    v = X[0]
    found = tf.function(
        lambda: jacobian(lambda x: tf.linalg.matvec(A, tf.sin(x)), v), autograph=False, jit_compile=xla
    )()
    np.testing.assert_allclose(found, A * tf.cos(v), rtol=1e-12)
    both = jacobian(lambda p: tf.einsum("ij,j->i", p["a"], p["v"]), {"a": A, "v": v})
    np.testing.assert_allclose(both["v"], A, rtol=1e-12)
    np.testing.assert_allclose(both["a"], np.einsum("ik,j->ikj", np.eye(3), v), rtol=1e-12)
    weights = tf.Variable(A)
    np.testing.assert_allclose(jacobian(lambda w: tf.linalg.matvec(w, v), weights), both["a"], rtol=1e-12)
    assert not np.any(jacobian(lambda p: 2 * p[0], (v, A))[1])


@pytest.mark.parametrize("xla", [False, True])
def test_hessian(xla: bool) -> None:
    quadratic = tf.linalg.matmul(A, A, transpose_a=True)

    def function(x: Any) -> Any:
        return 0.5 * tf.tensordot(x, tf.linalg.matvec(quadratic, x), 1) + tf.reduce_sum(tf.exp(x))

    found = tf.function(lambda: hessian(function, X[1]), autograph=False, jit_compile=xla)()
    np.testing.assert_allclose(found, quadratic + tf.linalg.diag(tf.exp(X[1])), rtol=1e-12)
    with pytest.raises(PforError, match="must give a scalar"):
        hessian(tf.exp, X[1])


GROUP = tf.constant([0, 2, 0, 1, 0, 2])
PER_GROUP = tf.constant([0.3, -0.1, 0.5, 0.2])


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.filterwarnings("error")  # TensorFlow's of IndexedSlices, too
def test_by_what_is_gathered(xla: bool) -> None:
    """Of a group's entry that several rows take, all of them count; an entry that none takes has 0."""
    a, scale = tf.cast(PER_GROUP, tf.float64), X[:, 0]
    variable = tf.Variable(a)

    def rows(a: Any) -> Any:
        return tf.gather(a, GROUP) ** 2 * scale

    def slopes(i: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(a)
            value = tf.reduce_sum(rows(a)) * scale[i]
        return tape.gradient(value, a)

    def run() -> Any:
        by_two = jacobian(lambda both: rows(both["a"]) + both["b"][0], {"a": a, "b": X[1]})
        return (
            jacobian(rows, a), jacobian(rows, variable), by_two["a"],
            hessian(lambda a: tf.reduce_sum(rows(a)), a),
            vectorized_map(lambda s: hessian(lambda a: tf.reduce_sum(rows(a)) * s, a), scale),
            pfor(slopes, 6),
            per_example_gradient(lambda s: tf.reduce_sum(rows(a)) * s, [a], scale)[0],
        )  # fmt: skip

    chosen = np.eye(4)[GROUP.numpy()]
    slope = 2 * chosen * (a.numpy()[GROUP.numpy()] * scale.numpy())[:, None]
    second = np.diag(2 * chosen.T @ np.asarray(scale))
    outer = np.multiply.outer(np.asarray(scale), slope.sum(0))
    wanted = (slope, slope, slope, second, np.multiply.outer(np.asarray(scale), second), outer, outer)
    found = tf.function(run, autograph=False, jit_compile=xla)()
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    if not xla:
        for one, other in zip(run(), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_derivatives_of_nothing_are_empty(shape: tuple[int, ...]) -> None:
    x = tf.zeros(shape)
    assert jacobian(tf.sin, x).shape == (*shape, *shape)
    assert jacobian(tf.reduce_sum, x).shape == shape
    assert jacobian(lambda y: y[:, :0], tf.ones((2, 3))).shape == (2, 0, 2, 3)
    assert hessian(lambda y: tf.reduce_sum(y**2), x).shape == (*shape, *shape)


def test_indexed_slices_without_a_dense_shape_are_refused() -> None:
    with pytest.raises(PforError, match="without the dense_shape"):
        pfor(lambda i: tf.IndexedSlices(X[i], tf.range(4)), 6)


PARTS: dict[str, Any] = {
    "z[0]": lambda z: z[0] ** 3 * z[1],
    "z[None]": lambda z: tf.reduce_sum(z[None] ** 3) * z[1],
    "z[..., :1]": lambda z: tf.reduce_sum(z[..., :1] ** 3) * z[2],
    "z[1:] and z[:-1]": lambda z: tf.reduce_sum(z[1:] ** 3 * z[:-1]),
    "z[::-1]": lambda z: tf.reduce_sum(z[::-1] ** 3 * z),
    "tf.gather": lambda z: tf.reduce_sum(tf.gather(z, [0, 1, 1]) ** 3),
    "tf.split": lambda z: tf.reduce_sum(tf.split(z, [1, 3])[1] ** 3) * z[0],
    "tf.concat": lambda z: tf.reduce_sum(tf.concat([z, z[:2]], 0) ** 3),
    "tf.tile": lambda z: tf.reduce_sum(tf.tile(z, [2]) ** 3 * tf.range(8.0)),
    "tf.reshape": lambda z: tf.reduce_sum(tf.reshape(z, [2, 2])[1] ** 3),
    "tf.pad": lambda z: tf.reduce_sum(tf.pad(z, [[1, 2]]) ** 3),
}


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
def test_second_derivatives_of_parts_inside_of_the_loop(xla: bool) -> None:
    """Shapes that follow from numbers of the body stay known in the gradients, which are traced inside of it."""
    x = tf.cast(X, tf.float32)

    def run(x: Any) -> Any:
        return {name: vectorized_map(partial(hessian, part), x) for name, part in PARTS.items()}

    found = tf.function(run, autograph=False, jit_compile=xla)(x)
    for name, part in PARTS.items():
        wanted = np.stack([hessian(part, row) for row in tf.unstack(x)])
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("xla", [False, True])
def test_per_example_gradient_of_a_network(xla: bool) -> None:
    filters = tf.Variable(_rng.normal(size=(3, 3, 1, 2)).astype("f4"))
    weights, bias = tf.Variable(_rng.normal(size=(32, 3)).astype("f4")), tf.Variable(np.zeros(3, "f4"))
    images = tf.constant(_rng.normal(size=(5, 8, 8, 1)).astype("f4"))
    labels = tf.constant([0, 2, 1, 1, 0])

    def loss(image: Any, label: Any) -> Any:
        hidden = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(image[None], filters, 1, "SAME")), 2, 2, "VALID")
        logits = tf.reshape(hidden, [1, 32]) @ weights + bias
        return tf.nn.sparse_softmax_cross_entropy_with_logits(label[None], logits)[0]

    parameters = [filters, weights, bias]
    found = tf.function(
        lambda: per_example_gradient(loss, parameters, images, labels), autograph=False, jit_compile=xla
    )()
    for k in range(5):
        with tf.GradientTape() as tape:
            value = loss(images[k], labels[k])
        for one, other in zip(found, tape.gradient(value, parameters)):
            np.testing.assert_allclose(one[k], other, rtol=2e-4, atol=1e-5)


def test_gradient_through_the_loop() -> None:
    with tf.GradientTape() as tape:
        tape.watch(A)
        value = tf.reduce_sum(vectorized_map(lambda row: tf.linalg.matvec(A, row) ** 2, X))
    wanted = 2 * tf.linalg.matmul(tf.linalg.matmul(A, X, transpose_b=True), X)
    np.testing.assert_allclose(tape.gradient(value, A), wanted, rtol=1e-12)


@tf.custom_gradient
def product_with_a_gradient_of_its_own(x: Any, y: Any) -> Any:
    """x y, whose gradient says ten times as much by x, and nothing by y where y is above 0."""

    def gradient(upstream: Any) -> Any:
        return 10.0 * upstream * y, tf.where(y > 0.0, tf.zeros_like(y), upstream * x)

    return x * y, gradient


@tf.custom_gradient
def product_with_a_penalty(x: Any, y: Any) -> Any:
    """x y, whose gradient by y has that of y**2 / 2 added, whatever comes from above."""
    return x * y, lambda upstream: (upstream * y, upstream * x + y)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        lambda row, same: tf.reduce_sum(product_with_a_gradient_of_its_own(row, row + 0.5)),
        lambda row, same: tf.reduce_sum(product_with_a_gradient_of_its_own(row, same)),
        lambda row, same: tf.reduce_sum(product_with_a_gradient_of_its_own(same, tf.sin(same))) * row[0],
        lambda row, same: tf.cond(
            row[0] > 0.0, lambda: tf.reduce_sum(product_with_a_gradient_of_its_own(row, same)), lambda: row[1]
        ),
        lambda row, same: tf.cond(
            row[0] > 0.0, lambda: tf.reduce_sum(product_with_a_penalty(row, same)), lambda: row[1]
        ),
        lambda row, same: tf.reduce_sum(tf.function(product_with_a_gradient_of_its_own)(row, same)),
    ],
    ids=["of rows", "of what is the same", "of that alone", "in a branch", "a penalty in a branch", "in a function"],
)
def test_a_gradient_of_its_own_holds_for_a_tape_around_the_loop(body: Any, xla: bool) -> None:
    rng = np.random.default_rng(0)
    rows, same = tf.constant(rng.normal(size=(5, 3))), tf.constant(rng.normal(size=3))

    def gradients(run: Any, rows: Any, same: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([rows, same])
            value = tf.reduce_sum(run(rows, same))
        return tape.gradient(value, [rows, same], unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def vectorized(rows: Any, same: Any) -> Any:
        return vectorized_map(lambda row: body(row, same), rows)

    def one_by_one(rows: Any, same: Any) -> Any:
        return tf.stack([body(row, same) for row in tf.unstack(rows)])

    found = tf.function(gradients, jit_compile=xla, autograph=False)(vectorized, rows, same)
    expected = gradients(one_by_one, rows, same)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(ours), tf.convert_to_tensor(theirs), rtol=1e-12)
