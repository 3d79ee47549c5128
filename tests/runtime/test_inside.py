"""Batched functions inside a user's `jax.jit`, `vmap`, `scan`, `jvp` and export, and in a `tf.function`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from from_source import load
from inside_programs import power
from jax import export
from programs import ackermann, fibonacci, with_defaults

from batchnuts import autobatch
from batchnuts.autobatch import LaneAssertionError, LaneInputError, StackOverflowError, batch

N = np.array([3, 7, 4, 5], "int32")
FIB = np.array([3, 21, 5, 8])

inside = autobatch.jax(fibonacci, max_stack_depth=16, check=False)


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


def test_exported_and_read_back() -> None:
    exported = export.export(jax.jit(inside))(jax.ShapeDtypeStruct((4,), jnp.int32))
    np.testing.assert_array_equal(export.deserialize(exported.serialize()).call(N)[0], FIB)


def test_outside_of_a_trace_errors_are_raised() -> None:
    np.testing.assert_array_equal(autobatch.jax(fibonacci, max_stack_depth=16)(N), FIB)
    with pytest.raises(StackOverflowError, match=r"holds 2 frames .* Give a larger max_stack_depth\.$"):
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
    with pytest.raises(
        TypeError, match=r"errors of lanes cannot be raised inside a traced program. Create it with check=False"
    ):
        jax.jit(autobatch.jax(fibonacci, max_stack_depth=16))(N)


@batch
def positive_quotient(a: Any, b: Any) -> Any:
    quotient = a // b
    assert quotient >= 0, "the quotient must not be negative"
    return quotient


def test_a_fault_is_named_whatever_was_traced_after_it() -> None:
    """For integers the program also checks for a division by zero; for floats it does not."""
    function = autobatch.jax(positive_quotient, max_stack_depth=1, check=False)
    a, b = np.array([1, 2], "int32"), np.array([1, 0], "int32")
    _, faults = jax.jit(function)(a, b)
    _, negative = jax.jit(function)(a * np.float32(1), np.array([1.0, -1.0], "float32"))
    for object_ in (function, autobatch.jax(positive_quotient, max_stack_depth=1, check=False)):
        if object_ is not function:
            object_.raise_faults(np.zeros(2, "int32"))
            with pytest.raises(ValueError, match=r"positive_quotient: no fault .* Trace a call of this object first"):
                object_.raise_faults(faults)
            jax.eval_shape(object_, a, b)
        with pytest.raises(LaneAssertionError, match=r"lane 1: integer division by zero"):
            object_.raise_faults(faults)
        with pytest.raises(LaneAssertionError, match=r"lane 1: .*the quotient must not be negative"):
            object_.raise_faults(negative)


def test_faults_of_the_same_lines_in_two_files_are_two(tmp_path: Path) -> None:
    text = "@batch\ndef check(x):\n    assert x > 0, 'positive'\n    return x\n"
    modules = load(tmp_path, text), load(tmp_path, text)
    one, other = (module.check for module in modules)

    @batch
    def both(x: Any, y: Any) -> Any:
        return one(x) + other(y)

    function = autobatch.jax(both, max_stack_depth=2, check=False)
    good, bad = np.array([1.0], "float32"), np.array([-1.0], "float32")
    for x, y, module in ((bad, good, modules[0]), (good, bad, modules[1])):
        with pytest.raises(LaneAssertionError, match=re.escape(f"{module.__file__}:7")):
            function.raise_faults(function(x, y)[1])


def test_faults_of_vmap_and_of_a_trace() -> None:
    function = autobatch.jax(positive_only, max_stack_depth=1, check=False)
    x = np.array([1.0, -1.0, 2.0], "float32")
    _, faults = jax.vmap(lambda x: function(x[None]))(x)
    assert faults.shape == (3, 1)
    for shaped in (faults, faults[1, 0]):
        with pytest.raises(LaneAssertionError, match=r"lane \d: .*x must be positive"):
            function.raise_faults(shaped)
    with pytest.raises(TypeError, match="raise_faults was called inside of a traced program"):
        jax.jit(lambda x: function.raise_faults(function(x)[1]))(x)
    in_tensorflow = autobatch.tensorflow(positive_only, max_stack_depth=1, check=False)
    result, _ = tf.function(in_tensorflow)(x)
    np.testing.assert_array_equal(np.isnan(result), [False, True, False])
    with pytest.raises(TypeError, match="raise_faults was called inside of a traced program"):
        tf.function(lambda x: in_tensorflow.raise_faults(in_tensorflow(x)[1]), autograph=False)(x)


def test_a_batched_function_itself_is_refused_inside_of_a_trace() -> None:
    traces = (("jax", lambda: jax.jit(fibonacci)(N)), ("tensorflow", lambda: tf.function(fibonacci)(N)))
    for name, trace in traces:
        with pytest.raises(
            LaneInputError, match=rf"argument 'n' has no values yet, .* Create autobatch.{name}\(function"
        ):
            trace()


def test_numbers_defaults_and_single_lanes() -> None:
    function = autobatch.jax(with_defaults, max_stack_depth=4)
    x = np.array([1.0, 2.0], "float32")
    np.testing.assert_allclose(function(x), with_defaults.run(x, backend="numpy"), rtol=1e-6)
    np.testing.assert_allclose(function(jnp.asarray(x), 3), with_defaults.run(x, 3, backend="numpy"), rtol=1e-6)
    np.testing.assert_allclose(function(shift=2, x=x), x * 2 + 2, rtol=1e-6)
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
    for given in (lambda n: function(n + 0), function):
        traced = tf.function(given, jit_compile=jit_compile)
        result, faults = traced(tf.constant(N))
        assert traced.experimental_get_tracing_count() == 1
        np.testing.assert_array_equal(result, FIB)
        np.testing.assert_array_equal(faults, 0)


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match=r"is not a batched function; decorate it with @autobatch.batch"):
        autobatch.jax(lambda x: x, max_stack_depth=2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_stack_depth must be an integer of at least 1; found 0"):
        autobatch.jax(fibonacci, max_stack_depth=0)
    with pytest.raises(ValueError, match="max_sweeps must be an integer of at least 1; found 0"):
        autobatch.jax(fibonacci, max_stack_depth=1, max_sweeps=0)
    with pytest.raises(LaneInputError, match="without a lane axis"):
        inside(jnp.int32(3))
    function = autobatch.tensorflow(fibonacci, max_stack_depth=16, check=False)
    traced = tf.function(function, input_signature=[tf.TensorSpec([None], tf.int32)])
    with pytest.raises(LaneInputError, match="the number of lanes and all extents must be known"):
        traced.get_concrete_function()
    (lanes,) = export.symbolic_shape("lanes")
    with pytest.raises(LaneInputError, match=r"the shape \(lanes,\); .* jax.vmap of a call for one lane"):
        export.export(jax.jit(inside))(jax.ShapeDtypeStruct((lanes,), jnp.int32))
    with pytest.raises(LaneInputError, match=r"missing a required argument: 'n'"):
        inside()
    keys = jax.random.split(jax.random.key(0), 3)
    with pytest.raises(LaneInputError, match=r"argument 'n' is not an array: JAX array with PRNGKey dtype .*key_data"):
        inside(keys)
    with pytest.raises(TypeError, match=r"found an array of JAX keys, .* Pass jax.random.key_data\(keys\)"):
        jax.jit(inside)(keys)
    with tf.Graph().as_default():
        first = tf.compat.v1.placeholder(tf.int32, [4])
        for given in (function, tf.function(function, autograph=False)):
            with pytest.raises(TypeError, match=r"a graph of TensorFlow 1 was built .* in a tf.function that eager"):
                given(first)
