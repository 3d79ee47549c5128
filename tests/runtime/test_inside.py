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
from jax import export
from programs import CASES, Case, ackermann, fibonacci, with_defaults

from batchnuts import autobatch
from batchnuts.autobatch import LaneAssertionError, LaneInputError, StackOverflowError, SweepLimitError, batch, ops
from batchnuts.autobatch.language.pytree import flatten, unflatten

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


def test_reverse_derivatives_need_a_bound() -> None:
    unbounded = autobatch.jax(power, max_stack_depth=8, check=False)
    x, n = np.array([2.0], "float32"), np.array([2])
    with pytest.raises(TypeError, match=r"no reverse-mode derivative .* autobatch.jax\(..., max_sweeps=1000\)"):
        jax.grad(lambda x: unbounded(x, n)[0].sum())(x)
    in_tensorflow = autobatch.tensorflow(power, max_stack_depth=8, check=False)
    with tf.GradientTape() as tape:
        tape.watch(tensor := tf.constant(x))
        value, _ = in_tensorflow(tensor, n)
    with pytest.raises(TypeError, match="no gradient in TensorFlow"):
        tape.gradient(value, tensor)


def test_reverse_derivatives() -> None:
    x, n = np.array([1.5, 2.0, 0.5], "float32"), np.array([0, 3, 5])
    bounded = autobatch.jax(power, max_stack_depth=8, max_sweeps=40, check=False)

    def total(x: Any) -> Any:
        return bounded(x, n)[0].sum()

    np.testing.assert_allclose(jax.jit(jax.grad(total))(x), n * x ** (n - 1.0), rtol=1e-6)
    both = np.stack([x, x + 1])
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(total)))(both), n * both ** (n - 1.0), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.hessian(total))(x), np.diag(n * (n - 1) * x ** (n - 2.0)), rtol=1e-6)


@batch
def infinite_elsewhere(x: Any, n: Any) -> Any:
    """The derivative of every operation that a lane at 1 does not need for its result is infinite there."""
    unused = ops.sqrt(x - 1.0)
    if n == 0:
        return unused
    if x > 1.5:
        y = ops.log(x - 1.0)
    else:
        y = x * 2.0
    if n < 0:
        y = y + infinite_elsewhere(x, 0)
    return y + 1.0 / x


@batch
def squared_residuals(x: Any, n: Any) -> Any:
    """All derivatives of first order are zero at its minimum, the steps' among them."""
    if n == 0:
        return 0.0 * x
    residual = ops.exp(x) - 1.0
    return residual * residual + squared_residuals(x, n - 1)


@batch
def arms_with_more_after_the_root(x: Any, n: Any) -> Any:
    if n > 0:
        y = ops.sqrt(x - 1.0)
        z = y * x
    else:
        z = x * x
    return z


@batch
def converted_arms(x: Any, n: Any) -> Any:
    y = ops.sqrt(x - 1.0) * x
    z = x * x
    if n > 0:
        z = y
    return z * z


@batch
def residual_of_a_power(x: Any, p: Any) -> Any:
    """Of negative x and p, which is data: the derivative with respect to p is NaN, and that of x zero at the mode."""
    r = x**p - 2.25
    return r * r


@batch
def rows(x: Any, n: Any) -> Any:
    """A root that is written into a buffer, and read on the lanes at which it is smooth."""
    buffer = np.zeros(3, "float32")
    for i in range(3):
        buffer[i] = x * i
    other = buffer
    other[0] = ops.sqrt(x - 1.0)
    if n > 0:
        buffer = other
    return buffer[0] * buffer[0] * buffer[2] + buffer[1] ** 3


def without_buffers(x: Any, n: Any) -> Any:
    """The same: rows of NumPy's arrays hold no traced values."""
    root = ops.sqrt(x - 1.0) if n > 0 else 0.0 * x
    return root * root * 2.0 * x + x**3


@batch
def roots_of_vector(x: Any, n: Any) -> Any:
    """Of lanes that are vectors, at the minimum: with a root of zero among them it is NaN there, as in plain JAX."""
    r = ops.sqrt(x) - n
    return ops.sum(r * r)


OF_HIGHER_ORDER: dict[str, tuple[Any, Any, Any]] = {
    "unused": (infinite_elsewhere, [1.0, 3.0, 2.0, 1.25], [1, 1, -1, 0]),
    "zero slopes": (squared_residuals, [0.0, 0.0, 0.0], [1, 2, 3]),
    "arms": (arms_with_more_after_the_root, [1.0, 2.0], [0, 1]),
    "converted arms": (converted_arms, [1.0, 2.0], [0, 1]),
    "data": (residual_of_a_power, [-1.5, 2.0, 1.5], np.array([2.0, 3.0, 2.0], "float32")),
    "rows": (rows, [1.0, 2.0], [0, 1]),
    "vectors": (roots_of_vector, [[0.0, 1.0, 4.0], [2.0, 1.0, 1.0]], [[0.0, 1.0, 2.0], [1.0, 1.0, 3.0]]),
}


@pytest.mark.parametrize("name", OF_HIGHER_ORDER)
def test_derivatives_of_higher_order(name: str) -> None:
    """They are those of the plain program of each lane, whatever is infinite on other lanes, in other branches, or of
    values that nothing reads. Reverse over reverse is NaN where such values have had further ones computed of them."""
    function, x, n = OF_HIGHER_ORDER[name]
    lanes, data = jnp.asarray(x, "float32"), np.asarray(n)
    bounded = autobatch.jax(function, max_stack_depth=4, max_sweeps=20, check=False)

    twice_in_reverse = name in ("unused", "zero slopes", "data", "vectors")

    def orders(f: Any, x: Any) -> Any:
        def third(t: Any) -> Any:
            return f(x + t)

        slope = jax.grad(f)
        found = {"first": slope(x), "second": jax.jacfwd(slope)(x)}
        if twice_in_reverse:
            found["second, in reverse"] = jax.jacrev(slope)(x)
        if name in ("zero slopes", "arms"):
            found["third"] = jax.jacfwd(jax.jacfwd(jax.grad(third)))(0.0)
        return found

    def of_lane(i: int) -> Any:
        plain = without_buffers if name == "rows" else function.function
        return orders(lambda x: plain(x, data[i]), lanes[i])

    def blocks(second: Any) -> Any:
        """What lanes have of themselves, [lanes, ..., ...], the derivatives of others being zero."""
        own = np.moveaxis(np.asarray(second), lanes.ndim, 1)
        others = own[~np.eye(len(lanes), dtype=bool)]
        assert name == "vectors" or not others.any()  # zero times NaN there
        return own[np.diag_indices(len(lanes))]

    ours = jax.jit(lambda x: orders(lambda x: bounded(x, data)[0].sum(), x))(lanes)
    expected = [of_lane(i) for i in range(len(lanes))]
    for order, found in ours.items():
        of_lanes = np.stack([each[order] for each in expected])
        if order == "third":  # of all lanes together
            np.testing.assert_allclose(found, of_lanes.sum(0), rtol=1e-4)
        else:
            np.testing.assert_allclose(found if order == "first" else blocks(found), of_lanes, rtol=1e-5)


@batch
def pair(x: Any) -> Any:
    root = ops.sqrt(x)
    return root, x * x


def test_results_that_the_caller_does_not_use_have_no_derivative() -> None:
    bounded = autobatch.jax(pair, max_stack_depth=1, max_sweeps=5, check=False)
    x = np.array([0.0, 1.0], "float32")
    slope = jax.grad(lambda x: bounded(x)[0][1].sum())
    for found in (slope(x), jax.jit(slope)(x), jax.vmap(slope)(x[None])[0]):
        np.testing.assert_array_equal(found, [0.0, 2.0])


@batch
def harmonic(x: Any, n: Any) -> Any:
    """Of float32 and int32; a division of integers is float64."""
    s = 0.0
    for i in range(3):
        s = s + x / (i + 1) + n * x * x
    return s


def test_derivatives_of_64_bits_inside_of_32() -> None:
    bounded = autobatch.jax(harmonic, max_stack_depth=1, max_sweeps=30, check=False)
    x, n = jnp.array([1.5, 2.5]), np.array([1, 2], "int32")
    assert not jax.config.jax_enable_x64

    def total(x: Any) -> Any:
        return bounded(x, n)[0].sum()

    for at in (x, np.array([1.5, 2.5])):  # JAX takes NumPy's float64 for float32
        np.testing.assert_allclose(jax.jit(jax.grad(total))(at), 11 / 6 + 6 * n * x, rtol=1e-6)
        np.testing.assert_allclose(jax.hessian(total)(at), np.diag(6.0 * n), rtol=1e-6)
    unbounded = autobatch.jax(harmonic, max_stack_depth=1, check=False)
    slope = jax.jacfwd(lambda x: unbounded(x, n)[0])(np.array([1.5, 2.5]))
    np.testing.assert_allclose(np.diag(slope), 11 / 6 + 6 * n * x, rtol=1e-6)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name == "power_iteration" else pytest.mark.slow)
        for case in CASES
        if any(isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" for leaf in flatten(case.inputs)[0])
    ],
)
def test_both_modes_have_one_derivative(case: Case) -> None:
    """Lane by lane, c . (J t) = (J^T c) . t for random c and t: J t by forward mode without a bound on the sweeps."""
    leaves, tree = flatten(case.inputs)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f"]

    def floats_of(max_sweeps: int | None) -> Any:
        function = autobatch.jax(case.function, max_stack_depth=32, max_sweeps=max_sweeps, check=False)

        def results(*floats: Any) -> Any:
            given = list(leaves)
            for i, values in zip(places, floats):
                given[i] = values
            result, faults = function(*unflatten(tree, given))
            return [leaf for leaf in flatten(result)[0] if jnp.issubdtype(leaf.dtype, jnp.floating)], faults

        return results

    def of_lanes(x: Any, y: Any) -> Any:
        return sum((np.asarray(a) * np.asarray(b)).reshape(len(a), -1).sum(1) for a, b in zip(x, y))

    rng = np.random.default_rng(0)

    def random_like(arrays: Any) -> Any:
        return [rng.normal(size=array.shape).astype(array.dtype) for array in arrays]

    with jax.enable_x64(True):
        x = [leaves[i] for i in places]
        t = random_like(x)
        value, forward, _ = jax.jit(lambda x, t: jax.jvp(floats_of(None), x, t, has_aux=True))(x, t)
        c = random_like(value)
        pulled, pull_back, faults = jax.vjp(jax.jit(floats_of(400)), *x, has_aux=True)
        backward = pull_back(c)
    np.testing.assert_array_equal(faults, 0)
    for one, other in zip(value, pulled, strict=True):
        np.testing.assert_array_equal(one, other)
    rtol = 1e-4 if any(array.dtype == "float32" for array in value) else 1e-9
    np.testing.assert_allclose(of_lanes(c, forward), of_lanes(t, backward), rtol=rtol)


@pytest.mark.slow
def test_memory_of_a_derivative_grows_as_the_root_of_the_sweeps() -> None:
    def temporaries(max_sweeps: int) -> int:
        bounded = autobatch.jax(power, max_stack_depth=64, max_sweeps=max_sweeps, check=False)
        x, n = jnp.ones(64), np.arange(64)
        compiled = jax.jit(jax.grad(lambda x: bounded(x, n)[0].sum())).lower(x).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    assert temporaries(10_000) < 8 * temporaries(400)  # 5 times, and 25 if every state were kept


def test_a_lane_that_has_not_ended_is_an_error() -> None:
    bounded = autobatch.jax(power, max_stack_depth=8, max_sweeps=3)
    x = np.array([2.0, 2.0], "float32")
    np.testing.assert_array_equal(bounded(x, np.array([0, 0])), [1.0, 1.0])
    with pytest.raises(SweepLimitError, match=r"lane 1 had not ended after 3 sweeps .*larger max_sweeps"):
        bounded(x, np.array([0, 5]))


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
    with pytest.raises(TypeError, match=r"no lane's error can be raised. Make it with check=False"):
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
    with pytest.raises(TypeError, match="raise_faults was called inside of a traced program"):
        tf.function(lambda x: in_tensorflow.raise_faults(in_tensorflow(x)[1]), autograph=False)(x)


def test_a_batched_function_itself_is_refused_inside_of_a_trace() -> None:
    traces = (("jax", lambda: jax.jit(fibonacci)(N)), ("tensorflow", lambda: tf.function(fibonacci)(N)))
    for name, trace in traces:
        with pytest.raises(
            LaneInputError, match=rf"argument 'n' has no values yet, .* Make autobatch.{name}\(function"
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
    with pytest.raises(TypeError, match=r"is no batched function; decorate it with @autobatch.batch"):
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
    with pytest.raises(LaneInputError, match=r"argument 'n' is no array: JAX array with PRNGKey dtype .*key_data"):
        inside(keys)
    with pytest.raises(TypeError, match=r"found an array of JAX keys, .* Give jax.random.key_data\(keys\)"):
        jax.jit(inside)(keys)


def test_derivatives_that_there_are_not_with_a_bound_are_named() -> None:
    bounded = autobatch.jax(power, max_stack_depth=8, max_sweeps=40, check=False)
    x, n = np.array([1.5], "float32"), np.array([2])
    with pytest.raises(TypeError, match=r"power: with max_sweeps there is .* none in forward mode"):
        jax.jvp(lambda x: bounded(x, n)[0], (x,), (x,))

    def of_the_scope(a: Any) -> Any:
        @batch
        def scaled(x: Any) -> Any:
            return x * a

        return autobatch.jax(scaled, max_stack_depth=1, max_sweeps=5, check=False)(x)[0].sum()

    with pytest.raises(TypeError, match=r"reads a variable of the scope .* Make that an argument"):
        jax.grad(of_the_scope)(2.0)
