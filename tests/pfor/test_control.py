"""Branches, loops and calls inside of the loop, in every combination of what varies, with their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ways import one_in

from batchnuts.autobatch.pfor import PforError, hessian, pfor, vectorized_map
from batchnuts.autobatch.pfor.graphs import loop_parts

N = 5
_rng = np.random.default_rng(0)
X = tf.constant(_rng.normal(size=(N, 4)), tf.float64)
V = tf.constant(_rng.normal(size=4), tf.float64)
TRIPS = tf.constant([1, 4, 2, 0, 3])

BODIES: dict[str, Callable[[Any], Any]] = {}


def body(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    BODIES[function.__name__] = function
    return function


def with_gradient(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """(value, gradient by the row, gradient by what all share), inside of the iteration."""

    def both(i: Any) -> Any:
        row, shared = X[i], tf.identity(V)
        with tf.GradientTape() as tape:
            tape.watch((row, shared))
            value = tf.reduce_sum(function(i, row, shared))
        return value, *tape.gradient(value, (row, shared), unconnected_gradients=tf.UnconnectedGradients.ZERO)

    BODIES[function.__name__] = both
    return both


@body
def calls(i: Any) -> Any:
    inner = tf.function(lambda x, k: x * tf.cast(k, tf.float64), autograph=False)
    return inner(X[i], i), inner(V, 3)


@body
def shared_condition(i: Any) -> Any:
    return tf.cond(V[0] > 0, lambda: X[i], lambda: V), tf.cond(V[0] > 0, lambda: V, lambda: X[i])


@body
def switch(i: Any) -> Any:
    return tf.switch_case(i - 1, [lambda: X[i], lambda: 2 * V, lambda: tf.zeros(4, tf.float64)])


@body
def shared_switch(i: Any) -> Any:
    return tf.switch_case(tf.constant(1), [lambda: V, lambda: X[i] + V])


@body
def case(i: Any) -> Any:
    x = X[i]
    return tf.case([(x[0] > 0.5, lambda: x), (x[1] > 0, lambda: -x)], default=lambda: V)


@body
def branch_of_a_branch(i: Any) -> Any:
    x = X[i]
    return tf.cond(
        x[0] > 0, lambda: tf.cond(x[1] > 0, lambda: x, lambda: V), lambda: tf.cond(V[0] > 0, lambda: -x, lambda: V)
    )


@body
def branch_none_takes(i: Any) -> Any:
    return tf.cond(X[i, 0] > 1e9, lambda: tf.linalg.inv(tf.reshape(X[i], (2, 2))), lambda: tf.zeros((2, 2), tf.float64))


@body
def loop_of_shared_length(i: Any) -> Any:
    return tf.while_loop(lambda k, x: k < 4, lambda k, x: (k + 1, x * 1.5 + V * tf.cast(k, tf.float64)), (0, X[i]))


@body
def loop_of_own_length(i: Any) -> Any:
    return tf.while_loop(lambda k, x, y: k < TRIPS[i], lambda k, x, y: (k + 1, x * 1.5 + V, y), (0, X[i], V))


@body
def loop_until_large(i: Any) -> Any:
    return tf.while_loop(lambda k, x: tf.reduce_sum(x * x) < 50.0, lambda k, x: (k + 1, x * 1.7), (0, X[i]))


@body
def loop_in_a_loop(i: Any) -> Any:
    def outer(k: Any, x: Any) -> Any:
        _, x = tf.while_loop(lambda j, x: j < k + TRIPS[i], lambda j, x: (j + 1, x + 0.1 * V), (0, x))
        return k + 1, x

    return tf.while_loop(lambda k, x: k < TRIPS[i], outer, (0, X[i]))


@body
def trips_of_own_loops_in_a_shared_loop(i: Any) -> Any:
    def outer(k: Any, total: Any) -> Any:
        trips, _ = tf.while_loop(lambda j, x: j < TRIPS[i], lambda j, x: (j + 1, x + V), (0, V))
        return k + 1, total + trips

    return tf.while_loop(lambda k, total: k < 3, outer, (0, 0))


@body
def branch_in_a_loop(i: Any) -> Any:
    def trip(k: Any, x: Any) -> Any:
        return k + 1, tf.cond(x[0] > 0, lambda: x - 1.0, lambda: x * 0.5 + V)

    return tf.while_loop(lambda k, x: k < TRIPS[i], trip, (0, X[i]))


@body
def loop_in_a_branch(i: Any) -> Any:
    def loop() -> Any:
        return tf.while_loop(lambda k, x: k < TRIPS[i], lambda k, x: (k + 1, x * 2.0), (0, X[i]))[1]

    return tf.cond(X[i, 0] > 0, loop, lambda: V)


@body
def scan(i: Any) -> Any:
    return tf.scan(lambda carry, x: carry * 0.5 + x, X[i])


@body
def map_in_a_loop(i: Any) -> Any:
    return tf.map_fn(lambda x: x * x + tf.cast(i, tf.float64), X[i])


@body
def arrays_written_and_read(i: Any) -> Any:
    array = tf.TensorArray(tf.float64, 4, element_shape=())
    _, array = tf.while_loop(lambda k, a: k < TRIPS[i], lambda k, a: (k + 1, a.write(k, X[i, k])), (0, array))
    array = array.write(3, V[0])
    return array.stack(), array.read(1), array.gather([0, 3])


@body
def arrays_only_read_in_a_loop_of_own_length(i: Any) -> Any:
    array = tf.TensorArray(tf.float64, 4, clear_after_read=False).unstack(X[i])

    def trip(k: Any, s: Any) -> Any:
        inner = tf.while_loop(lambda n, t: n < k, lambda n, t: (n + 1, t * array.read((n + i) % 4)), (0, s))[1]
        taken = tf.cond(s > 0.0, lambda: array.read((k + i) % 4), lambda: -array.read(k % 4))
        return k + 1, s + inner + taken + tf.reduce_sum(array.gather([0, 2]))

    return tf.while_loop(lambda k, s: k < TRIPS[i], trip, (0, V[1]), maximum_iterations=4)[1]


@body
def arrays_by_own_index(i: Any) -> Any:
    array = tf.TensorArray(tf.float64, N, element_shape=(4,), clear_after_read=False).unstack(X)
    array = array.write(TRIPS[i], V + tf.cast(i, tf.float64))
    return array.read((i + 1) % N), array.stack(), array.size()


@body
def pfor_in_pfor(i: Any) -> Any:
    return pfor(lambda j: pfor(lambda k: X[i, j] * V[k] + tf.cast(i * j + k, tf.float64), 3), 4)


@body
def lstm_of_own_length(i: Any) -> Any:
    inputs, weights = tf.tensordot(X[i], X, 0)[:, :, :2], tf.reshape(tf.range(24, dtype=tf.float64) / 20 - 0.5, (4, 6))

    def step(k: Any, h: Any, c: Any) -> Any:
        gates = tf.linalg.matvec(weights, tf.concat([inputs[k, 0], h], 0), transpose_a=True)
        forget, enter, new = tf.split(gates, 3)
        c = tf.sigmoid(forget) * c + tf.sigmoid(enter) * tf.tanh(new)
        return k + 1, tf.tanh(c), c

    zero = tf.zeros(2, tf.float64)
    return tf.while_loop(lambda k, h, c: k < TRIPS[i], step, (0, zero, zero))[1]


@body
def map_in_own_loop(i: Any) -> Any:
    def trip(k: Any, y: Any) -> Any:
        sines, rows = tf.map_fn(
            lambda v: (tf.sin(v) * y[0], v * y), X[i], fn_output_signature=(tf.float64, tf.TensorSpec([4], tf.float64))
        )
        return k + 1, y + sines + tf.reduce_sum(rows, 0)

    return tf.while_loop(lambda k, _: k < TRIPS[i], trip, (0, X[i]), maximum_iterations=4)[1]


@body
def scan_in_a_loop(i: Any) -> Any:
    return tf.while_loop(
        lambda k, _: k < TRIPS[i], lambda k, y: (k + 1, tf.scan(lambda a, v: tf.sin(a) + v, y)), (0, X[i]),
        maximum_iterations=4,
    )[1]  # fmt: skip


@body
def map_in_a_branch(i: Any) -> Any:
    return tf.cond(X[i, 0] > 0, lambda: tf.map_fn(lambda v: v * 2, X[i]), lambda: X[i])


@body
def scatter_in_a_loop(i: Any) -> Any:
    held = tf.TensorArray(tf.float64, 4).unstack(X[i])

    def trip(k: Any, held: Any) -> Any:
        return k + 1, held.scatter([2, 0], tf.stack([tf.cast(k, tf.float64), X[i, 1]]))

    return tf.while_loop(lambda k, _: k < TRIPS[i], trip, (0, held), maximum_iterations=4)[1].stack()


@body
def scatter_in_a_branch(i: Any) -> Any:
    def scattered() -> Any:
        return tf.TensorArray(tf.float64, 4).unstack(X[i]).scatter([2, 0], V[:2]).stack()

    return tf.cond(X[i, 0] > 0, scattered, lambda: X[i])


@with_gradient
def gradient_of_a_branch(i: Any, x: Any, v: Any) -> Any:
    return tf.cond(x[0] > 0, lambda: tf.sqrt(x[0]) * x * v, lambda: tf.math.log(-x[0]) * v)


@with_gradient
def gradient_of_shared_branch(i: Any, x: Any, v: Any) -> Any:
    return tf.cond(V[0] > 0, lambda: tf.sin(x) * v, lambda: tf.exp(x))


@with_gradient
def gradient_of_shared_loop(i: Any, x: Any, v: Any) -> Any:
    return tf.while_loop(lambda k, y: k < 3, lambda k, y: (k + 1, tf.sin(y) * v + x), (0, x), maximum_iterations=3)[1]


@with_gradient
def gradient_of_own_loop(i: Any, x: Any, v: Any) -> Any:
    trips = TRIPS[i]
    return tf.while_loop(lambda k, y: k < trips, lambda k, y: (k + 1, tf.sin(y) * v + x), (0, x), maximum_iterations=4)[
        1
    ]


@with_gradient
def gradient_of_scan(i: Any, x: Any, v: Any) -> Any:
    return tf.scan(lambda carry, one: tf.sin(carry) + one, x * v)


@functools.cache
def sequential(function: Callable[[Any], Any], xla: bool) -> list[Any]:
    one = tf.function(function, autograph=False, jit_compile=xla)
    rows = [tf.nest.flatten(one(tf.constant(i))) for i in range(N)]
    return [np.stack(column) for column in zip(*rows)]


def compare(found: Any, wanted: list[Any]) -> None:
    found = tf.nest.flatten(found)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        assert np.asarray(one).dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", BODIES)
def test_as_the_sequential_loop(name: str, masked: bool) -> None:
    compare(pfor(BODIES[name], N, masked=masked), sequential(BODIES[name], xla=False))


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("name", one_in(3, (name for name in BODIES if name not in ("loop_until_large",))))
def test_as_the_sequential_loop_under_xla(name: str) -> None:
    at_once = tf.function(lambda: pfor(BODIES[name], N), autograph=False, jit_compile=True)
    # of one iteration alone XLA cannot compile a scatter into a list
    compare(at_once(), sequential(BODIES[name], xla=not name.startswith("scatter_in")))


@pytest.mark.parametrize("name", ["loop_of_own_length", "branch_in_a_loop", "case", "scan", "loop_in_a_branch"])
def test_the_number_of_iterations_may_be_known_only_when_it_runs(name: str) -> None:
    function = tf.function(
        lambda n: pfor(BODIES[name], n), autograph=False, input_signature=[tf.TensorSpec([], tf.int32)]
    )
    whole = sequential(BODIES[name], xla=False)
    for n in (1, 3, 5):
        compare(function(tf.constant(n)), [column[:n] for column in whole])


ROOTS = tf.constant([4.0, -1.0, 9.0, -2.0, 0.0])


def _root(x: Any) -> Callable[[Any], Any]:
    return lambda i: tf.cond(x[i] > 0, lambda: tf.sqrt(x[i]), lambda: tf.constant(0.0))


def _repeated_root(x: Any) -> Callable[[Any], Any]:
    """Stops before a root of what is negative is taken."""

    def trip(k: Any, y: Any) -> Any:
        return k + 1, tf.sqrt(y) - 1.5

    return lambda i: tf.while_loop(lambda k, y: y > 0, trip, (0, x[i]), maximum_iterations=5)[1]


@pytest.mark.parametrize("make", [_root, _repeated_root])
@pytest.mark.parametrize("masked", [False, True])
def test_a_branch_not_taken_gives_neither_value_nor_gradient(make: Any, masked: bool) -> None:
    def both() -> Any:
        x = tf.identity(ROOTS)
        with tf.GradientTape() as tape:
            tape.watch(x)
            rows = pfor(make(x), N, masked=masked)
        return rows, tf.convert_to_tensor(tape.gradient(rows, x))

    def one(i: int) -> Any:
        x = tf.identity(ROOTS)
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = make(x)(tf.constant(i))
        gradient = tape.gradient(value, x, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return value, tf.convert_to_tensor(gradient)

    values, gradients = zip(*(one(i) for i in range(N)))
    for xla in (False, True) if masked else (False,):
        rows, gradient = tf.function(both, autograph=False, jit_compile=xla)()
        assert np.isfinite(gradient).all()
        np.testing.assert_allclose(rows, values, rtol=1e-6)
        np.testing.assert_allclose(gradient, np.sum(gradients, axis=0), rtol=1e-6)


def test_a_branch_that_no_iteration_takes_gives_no_gradient_either() -> None:
    shared = tf.constant(-1.0)

    def both() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(shared)
            rows = pfor(lambda i: tf.cond(i > 9, lambda: tf.sqrt(shared), lambda: shared * 2.0), 3)
        return rows, tape.gradient(rows, shared)

    rows, gradient = tf.function(both, autograph=False, jit_compile=True)()
    np.testing.assert_array_equal(rows, [-2.0] * 3)
    assert gradient == 6.0


def test_nor_by_the_row_that_it_computes_with() -> None:
    x = tf.constant([0.0, 1.0, -1.0, 3.0])

    def body(row: Any) -> Any:
        return tf.cond(row > 99.0, lambda: tf.math.log(row), lambda: row * 2.0)

    with tf.GradientTape() as tape:
        tape.watch(x)
        rows = vectorized_map(body, x, masked=True)
    np.testing.assert_array_equal(tape.gradient(rows, x), [2.0] * 4)


@pytest.mark.parametrize("masked", [None, True])
@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_second_derivatives_of_branches(xla: bool, masked: bool | None) -> None:
    points = tf.constant(np.random.default_rng(0).normal(size=(5, 3)))

    def function(x: Any) -> Any:
        return tf.cond(x[0] > 0.0, lambda: tf.reduce_sum(x**3), lambda: tf.reduce_sum(tf.sin(x) * x[1]))

    def gradient(g: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = g(x)
        return tape.gradient(value, x)

    def twice(x: Any) -> Any:
        return gradient(lambda y: tf.reduce_sum(gradient(function, y) ** 2), x)

    def second(x: Any) -> Any:
        return hessian(function, x)

    for body in (twice, second) if xla else (twice,):
        run = tf.function(lambda body=body: vectorized_map(body, points, masked=masked), jit_compile=xla)
        np.testing.assert_allclose(run(), [body(x) for x in tf.unstack(points)], rtol=1e-10, atol=1e-12)
    if not xla:  # where TensorFlow keeps what branches leave in Optionals: those of one have rows, of the other not
        with pytest.raises(PforError, match=r"one branch (returns|stores) a .* that differs per iteration"):
            vectorized_map(second, points, masked=masked)


@pytest.mark.parametrize("masked", [False, True])
def test_a_loop_does_not_copy_what_it_only_reads(masked: bool) -> None:
    """Of a sequence that is read element by element, no op of the loop gives all elements of rows."""
    lengths, sequences = tf.constant([3, 9, 1, 7]), tf.random.stateless_normal([4, 9, 6], [0, 1])

    def last_sum(i: Any) -> Any:
        sequence, length = sequences[i], lengths[i]
        return tf.while_loop(lambda t, _: t < length, lambda t, total: (t + 1, total + sequence[t]), (0, tf.zeros(6)))[
            1
        ]

    traced = tf.function(lambda: pfor(last_sum, 4, masked=masked), autograph=False).get_concrete_function()
    (loop,) = [op for op in traced.graph.get_operations() if op.type in ("While", "StatelessWhile")]
    _, body = loop_parts(loop)
    passed_through = {tensor.op.name for tensor in body.outputs}
    large = [tensor.op for op in body.get_operations() for tensor in op.outputs if tensor.shape.rank == 3]
    assert large
    assert not [op for op in large if op.type != "Placeholder" and op.name not in passed_through]
    expected = [sequences[i, : int(lengths[i])].numpy().sum(0) for i in range(4)]
    np.testing.assert_allclose(traced(), expected, rtol=1e-5)


def test_a_gradient_that_a_loop_adds_up_is_chosen_before_it_is_large() -> None:
    """Of the outer products that are added to the gradient of a matrix, only the factors are chosen."""
    lengths, sequences, matrix = (
        tf.constant([3, 5, 1, 4]),
        X[:4],
        tf.random.stateless_normal([4, 4], [0, 1], dtype=tf.float64),
    )

    def gradient(i: Any) -> Any:
        row, length, weights = sequences[i], lengths[i], tf.identity(matrix)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            step = lambda t, x: (t + 1, tf.tanh(tf.linalg.matvec(weights, x)))  # noqa: E731
            value = tf.reduce_sum(tf.while_loop(lambda t, _: t < length, step, (0, row))[1])
        return tape.gradient(value, weights)

    traced = tf.function(lambda: pfor(gradient, 4), autograph=False).get_concrete_function()
    loops = [loop_parts(op)[1] for op in traced.graph.get_operations() if op.type in ("While", "StatelessWhile")]
    ops = [op for graph in loops for op in graph.get_operations()]
    assert [op for op in ops if op.type in ("AddV2", "AddN") and op.outputs[0].shape == (4, 4, 4)]
    assert not [op for op in ops if op.type == "SelectV2" and op.outputs[0].shape == (4, 4, 4)]
    expected = [pfor(gradient, 4, sequential=True)]
    np.testing.assert_allclose(traced(), expected[0], rtol=1e-12)


def test_a_single_iteration_needs_no_masks() -> None:
    sequence = tf.random.stateless_normal([9, 6], [0, 1])

    def total(i: Any) -> Any:
        length = tf.gather([7], i)
        return tf.while_loop(lambda t, _: t < length, lambda t, x: (t + 1, x + sequence[t]), (0, tf.zeros(6)))[1]

    traced = tf.function(lambda: pfor(total, 1), autograph=False).get_concrete_function()
    (loop,) = [op for op in traced.graph.get_operations() if op.type in ("While", "StatelessWhile")]
    _, body = loop_parts(loop)
    assert not {"SelectV2", "Where", "GatherV2"} & {op.type for op in body.get_operations()}
    np.testing.assert_allclose(traced(), sequence[None, :7].numpy().sum(1), rtol=1e-6)
