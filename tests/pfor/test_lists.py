"""TensorArrays and Optionals: lists that grow, gradients of what loops read of them, and what is known of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ways import one_in

from batchnuts.autobatch.pfor import PforError, hessian, pfor

X = tf.constant(np.random.default_rng(0).normal(size=(4, 3)))
TRIPS = tf.constant([3, 0, 5, 1])


def growing(size: int, **options: Any) -> tf.TensorArray:
    return tf.TensorArray(tf.float64, size, dynamic_size=True, element_shape=(), **options)


def _read_by_own_index(i: Any) -> Any:
    array = growing(0)
    for k in range(3):
        array = array.write(k, X[i, k])  # here
    return array.read(i % 3)


def _read_at_the_end(i: Any) -> Any:
    array = growing(1)
    for k in range(3):
        array = array.write(k, X[i, k])  # here
    return array.read(2)


def _size(i: Any) -> Any:
    array = growing(0).write(0, X[i, 0])  # here
    return array.size()


def _stacked(i: Any) -> Any:
    return growing(0).write(0, X[i, 0]).stack()  # here


def _the_same_for_all(i: Any) -> Any:
    array = growing(0)
    for k in range(3):
        array = array.write(k, tf.constant(k + 1.0, tf.float64))  # here
    return array.read(i % 3)


def _in_a_loop(i: Any) -> Any:
    def trip(k: Any, array: Any) -> Any:
        return k + 1, array.write(k, X[i, k])  # here

    return tf.while_loop(lambda k, _: k < 3, trip, (0, growing(0)))[1].stack()


def _in_a_branch(i: Any) -> Any:
    array = growing(0)
    return tf.cond(X[0, 0] < 9.0, lambda: array.write(0, X[i, 0]).read(0), lambda: X[i, 0])  # here


GROWING = (_read_by_own_index, _read_at_the_end, _size, _stacked, _the_same_for_all, _in_a_loop, _in_a_branch)


def name_of(body: Callable[..., Any]) -> str:
    return body.__name__.strip("_")


@pytest.mark.parametrize("body", GROWING, ids=name_of)
def test_a_list_that_grows_is_refused_under_xla_only(body: Any) -> None:
    """XLA drops what is written past a list's first size, and raises nothing."""
    compare(body, pfor(body, 4), pfor(body, 4, masked=True))
    lines, first = inspect.getsourcelines(body)
    (line,) = [first + k for k, text in enumerate(lines) if "# here" in text]
    with pytest.raises(PforError, match=r"XLA has no lists that grow.*Give it its largest size") as caught:
        tf.function(lambda: pfor(body, 4), jit_compile=True, autograph=False)()
    assert caught.value.source is not None
    assert (caught.value.source.filename, caught.value.source.line) == (__file__, line)


def _within_its_size(i: Any) -> Any:
    array = growing(3)
    for k in range(3):
        array = array.write(k, X[i, k])
    return array.stack()


def _gradient_of_reads(i: Any, own: bool, at_most: int | None) -> Any:
    row = X[i]
    with tf.GradientTape() as tape:
        tape.watch(row)
        array = tf.TensorArray(tf.float64, 3, element_shape=()).unstack(row)

        def trip(k: Any, s: Any) -> Any:
            return k + 1, s * 0.5 + tf.sin(array.read((k + i if own else k) % 3)) * s

        last = tf.while_loop(
            lambda k, _: k < TRIPS[i], trip, (0, tf.constant(1.0, tf.float64)), maximum_iterations=at_most
        )
    return tape.gradient(last[1], row)


def _gradient_by_trip(i: Any) -> Any:
    return _gradient_of_reads(i, False, 6)


def _gradient_by_own_index(i: Any) -> Any:
    return _gradient_of_reads(i, True, 6)


def _gradient_without_bound(i: Any) -> Any:
    return _gradient_of_reads(i, True, None)


def _optional_with_a_list(i: Any) -> Any:
    held = tf.experimental.Optional.from_value(tf.TensorArray(tf.float64, 3).unstack(X[i]))
    return summed(i, lambda k: held.get_value().read((i + k) % 3))


def _optional_with_a_list_of_all(i: Any) -> Any:
    held = tf.experimental.Optional.from_value(tf.TensorArray(tf.float64, 3).unstack(X[0]))
    return summed(i, lambda k: held.get_value().read((i + k) % 3))


def _optional_with_an_optional(i: Any) -> Any:
    held = tf.experimental.Optional.from_value(tf.experimental.Optional.from_value(X[i]))
    return summed(i, lambda k: held.get_value().get_value()[k % 3])


def _asked_for_a_value(i: Any) -> Any:
    held = tf.experimental.Optional.from_value(X[i])
    none = tf.experimental.Optional.empty(tf.TensorSpec((), tf.float64))
    return summed(i, lambda k: tf.where(held.has_value() & ~none.has_value(), held.get_value()[k % 3], -1.0))


def summed(i: Any, term: Callable[[Any], Any]) -> Any:
    """Of as many terms as the iteration has trips."""
    return tf.while_loop(
        lambda k, _: k < TRIPS[i], lambda k, s: (k + 1, s + term(k)), (0, tf.constant(0.0, tf.float64))
    )[1]


EVERYWHERE = (
    _within_its_size,
    _gradient_by_trip,
    _gradient_by_own_index,
    _optional_with_a_list,
    _optional_with_a_list_of_all,
    _optional_with_an_optional,
    _asked_for_a_value,
)
OUTSIDE_OF_XLA = (_gradient_without_bound,)


def compare(body: Callable[[Any], Any], *found: Any) -> None:
    """With the sequential loop."""
    one = tf.function(body, autograph=False)
    wanted = np.stack([one(tf.constant(i)) for i in range(4)])
    for results in found:
        np.testing.assert_allclose(results, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("body", [*EVERYWHERE, *OUTSIDE_OF_XLA], ids=name_of)
def test_as_the_sequential_loop(body: Any) -> None:
    compare(body, pfor(body, 4), pfor(body, 4, masked=True))


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("body", one_in(2, EVERYWHERE), ids=name_of)
def test_as_the_sequential_loop_under_xla(body: Any) -> None:
    compare(body, tf.function(lambda: pfor(body, 4), jit_compile=True, autograph=False)())


def test_an_optional_that_a_loop_changes() -> None:
    """In a loop of as many trips for all it is changed; in another one rows that are done would go on changing it."""

    def body(i: Any, trips: Any) -> Any:
        def trip(k: Any, held: Any) -> Any:
            return k + 1, tf.experimental.Optional.from_value(held.get_value() * X[i])

        first = tf.experimental.Optional.from_value(X[i])
        return tf.while_loop(lambda k, _: k < trips, trip, (0, first))[1].get_value()

    np.testing.assert_allclose(pfor(lambda i: body(i, 2), 4), X**3)
    for masked in (False, True):
        with pytest.raises(PforError, match=r"puts another value into an Optional. Let the loop carry the value"):
            pfor(lambda i: body(i, TRIPS[i]), 4, masked=masked)


def test_whether_a_branch_left_a_value() -> None:
    def body(i: Any) -> Any:
        some = lambda: tf.experimental.Optional.from_value(X[i, 0])  # noqa: E731
        none = lambda: tf.experimental.Optional.empty(tf.TensorSpec((), tf.float64))  # noqa: E731
        return tf.where(tf.cond(X[i, 0] > 0, some, none).has_value(), X[i, 0], 0.0)

    with pytest.raises(PforError, match="whether an Optional has a value depends on the iteration"):
        pfor(body, 4)


def _of_while(row: Any) -> Any:
    start = (0, tf.constant(1.0, tf.float64))
    return tf.while_loop(lambda k, _: k < 3, lambda k, s: (k + 1, s + tf.sin(row[k] * s)), start, maximum_iterations=5)[
        1
    ]


def _of_map(row: Any) -> Any:
    return tf.reduce_sum(tf.map_fn(lambda x: tf.sin(x) * x, row)) * row[0]


def _of_scan(row: Any) -> Any:
    return tf.reduce_sum(tf.scan(lambda a, x: tf.sin(x) * a, row))


@pytest.mark.parametrize("function", one_in(3, [_of_scan, _of_while, _of_map]), ids=name_of)
def test_second_derivatives_of_a_loop_in_the_body(function: Any) -> None:
    """Under XLA, which does not tell how much of a list is in use, they are refused, and never wrong."""

    def body(i: Any) -> Any:
        return hessian(function, X[i])

    wanted = [_second_derivative(function, X[i]) for i in range(4)]
    for masked in (False, True):
        np.testing.assert_allclose(pfor(body, 4, masked=masked), wanted, atol=1e-9)
    with pytest.raises(PforError, match=r"XLA does not tell which elements this list has.*Leave out jit_compile"):
        tf.function(lambda: pfor(body, 4), jit_compile=True, autograph=False)()


def _second_derivative(function: Any, row: Any) -> Any:
    """By tapes alone, a row of the matrix after the other."""
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(row)
        with tf.GradientTape() as inner:
            inner.watch(row)
            value = function(row)
        entries = tf.unstack(inner.gradient(value, row))
    return np.stack([outer.gradient(entry, row) for entry in entries])
