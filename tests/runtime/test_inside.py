"""Batched functions inside a user's `jax.jit`, `vmap`, `scan`, `jvp` and export, and in a `tf.function`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export
from programs import ackermann, fibonacci, with_defaults

from batchnuts import autobatch
from batchnuts.autobatch import LaneAssertionError, LaneInputError, StackOverflowError, batch

N = np.array([3, 7, 4, 5], "int32")
FIB = np.array([3, 21, 5, 8])

inside = autobatch.jax(fibonacci, max_stack_depth=16, check=False)


@batch
def power(x: Any, n: Any) -> Any:
    if n <= 0:
        return x * 0.0 + 1.0
    return x * power(x, n - 1)


@batch
def positive_only(x: Any) -> Any:
    assert x > 0, "x must be positive"
    return x


@batch
def leaves_of(tree: Any, node: Any) -> Any:
    """The sum of the leaves of a binary tree: children of node i are 2i + 1 and 2i + 2, by recursion over the data."""
    if 2 * node + 1 >= 7:
        return tree[node]
    return leaves_of(tree, 2 * node + 1) + leaves_of(tree, 2 * node + 2)


def test_under_jit_with_more_around_it() -> None:
    result, faults = jax.jit(lambda n: jax.tree.map(lambda x: 2 * x, inside(n + 0)))(N)
    np.testing.assert_array_equal(result, 2 * FIB)
    np.testing.assert_array_equal(faults, 0)


def test_what_jax_users_have_asked_for() -> None:
    """Trees, Ackermann's function, and recursion by data (jax issues 517, 4858, 13796)."""
    trees = np.arange(21.0, dtype="float32").reshape(3, 7)
    of_trees = autobatch.jax(leaves_of, max_stack_depth=8, check=False)
    np.testing.assert_array_equal(jax.jit(lambda t: of_trees(t, 0)[0])(trees), trees[:, 3:].sum(1))
    of_ackermann = autobatch.jax(ackermann, max_stack_depth=64, check=False)
    m, n = np.array([1, 2, 2]), np.array([3, 3, 1])
    np.testing.assert_array_equal(
        jax.jit(lambda m, n: of_ackermann(m, n)[0])(m, n), ackermann.run(m, n, backend="numpy")
    )


def test_under_vmap() -> None:
    many = np.stack([N, N + 1])
    results, _ = jax.vmap(inside)(many)
    np.testing.assert_array_equal(results, fibonacci.run(many.ravel(), backend="numpy").reshape(many.shape))


def test_in_a_scan() -> None:
    def step(n: Any, _: Any) -> tuple[Any, Any]:
        return inside(n)[0] % 8, n

    last, _ = jax.jit(lambda n: jax.lax.scan(step, n, None, length=3))(N)
    expected = N
    for _ in range(3):
        expected = fibonacci.run(expected, backend="numpy") % 8
    np.testing.assert_array_equal(last, expected)


def test_forward_derivatives() -> None:
    x, n = np.array([1.5, 2.0, 0.5], "float32"), np.array([0, 3, 5])
    of_power = autobatch.jax(power, max_stack_depth=8, check=False)
    value, tangent = jax.jvp(lambda x: of_power(x, n)[0], (x,), (np.ones_like(x),))
    np.testing.assert_allclose(value, x**n, rtol=1e-6)
    np.testing.assert_allclose(tangent, n * x ** (n - 1.0), rtol=1e-6)


def test_reverse_derivatives_are_refused() -> None:
    of_power = autobatch.jax(power, max_stack_depth=8, check=False)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(lambda x: of_power(x, np.array([2]))[0].sum())(np.array([2.0], "float32"))


def test_exported_and_read_back() -> None:
    exported = export.export(jax.jit(inside))(jax.ShapeDtypeStruct((4,), jnp.int32))
    np.testing.assert_array_equal(export.deserialize(exported.serialize()).call(N)[0], FIB)


def test_outside_of_a_trace_errors_are_raised() -> None:
    np.testing.assert_array_equal(autobatch.jax(fibonacci, max_stack_depth=16)(N), FIB)
    with pytest.raises(StackOverflowError, match="holds 2 frames"):
        autobatch.jax(fibonacci, max_stack_depth=2)(N)
    x = np.array([1.0, -1.0], "float32")
    with pytest.raises(LaneAssertionError, match=r"lane 1: .*x must be positive"):
        autobatch.jax(positive_only, max_stack_depth=1)(x)
    unchecked = autobatch.jax(positive_only, max_stack_depth=1, check=False)
    _, faults = jax.jit(unchecked)(x)
    assert (np.asarray(faults) > 0).tolist() == [False, True]
    with pytest.raises(LaneAssertionError, match=r"lane 1: .*x must be positive"):
        unchecked.raise_faults(faults)


def test_inside_of_a_trace_errors_cannot_be_raised() -> None:
    with pytest.raises(TypeError, match=r"no lane's error can be raised. Make it with check=False"):
        jax.jit(autobatch.jax(fibonacci, max_stack_depth=16))(N)


def test_numbers_defaults_and_single_lanes() -> None:
    function = autobatch.jax(with_defaults, max_stack_depth=4)
    x = np.array([1.0, 2.0], "float32")
    np.testing.assert_allclose(function(x), with_defaults.run(x, backend="numpy"), rtol=1e-6)
    np.testing.assert_allclose(function(jnp.asarray(x), 3), with_defaults.run(x, 3, backend="numpy"), rtol=1e-6)
    of_power = autobatch.jax(power, max_stack_depth=8)
    np.testing.assert_array_equal(of_power(jnp.array([2.0]), np.array([1, 2, 3])), [2.0, 4.0, 8.0])


def test_64_bits_are_the_callers_choice() -> None:
    wide = np.array([40, 50])
    assert wide.dtype == "int64"
    assert autobatch.jax(positive_only, max_stack_depth=1)(wide).dtype == "int32"
    with jax.enable_x64(True):
        assert autobatch.jax(positive_only, max_stack_depth=1)(wide).dtype == "int64"


@pytest.mark.parametrize("jit_compile", [False, True])
def test_in_a_tensorflow_function(jit_compile: bool) -> None:
    function = autobatch.tensorflow(fibonacci, max_stack_depth=16, check=False)
    result, faults = tf.function(lambda n: function(n + 0), jit_compile=jit_compile)(tf.constant(N))
    np.testing.assert_array_equal(result, FIB)
    np.testing.assert_array_equal(faults, 0)


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match=r"is no batched function; decorate it with @autobatch.batch"):
        autobatch.jax(lambda x: x, max_stack_depth=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_stack_depth must be an integer of at least 1; found 0"):
        autobatch.jax(fibonacci, max_stack_depth=0)
    with pytest.raises(LaneInputError, match="without a lane axis"):
        inside(jnp.int32(3))
    function = autobatch.tensorflow(fibonacci, max_stack_depth=16, check=False)
    traced = tf.function(function, input_signature=[tf.TensorSpec([None], tf.int32)])
    with pytest.raises(LaneInputError, match="the number of lanes and all extents must be known"):
        traced.get_concrete_function()
