"""Derivatives of batched functions inside of JAX programs: of any order, those of each lane's plain program."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from inside_programs import power
from programs import CASES, Case

from batchnuts import autobatch
from batchnuts.autobatch import SweepLimitError, batch, ops, primitive
from batchnuts.autobatch.language import operators
from batchnuts.autobatch.language.pytree import flatten, unflatten


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


def test_lanes_with_a_fault_are_nan() -> None:
    """Their values, derivatives of each mode and order; those of others, and of what masks them, are what they were."""
    x, n = np.array([1.5, 2.0, 0.5], "float32"), np.array([1, 3, 9])
    options: dict[str, Any] = {"max_stack_depth": 6, "check": False}
    forward, bounded = autobatch.jax(power, **options), autobatch.jax(power, max_sweeps=40, **options)
    faulty = np.array([False, False, True])
    for function in (forward, bounded):
        np.testing.assert_array_equal(np.isnan(jax.jit(function)(x, n)[0]), faulty)
    np.testing.assert_array_equal(np.isnan(jax.jvp(lambda x: forward(x, n)[0], (x,), (x,))[1]), faulty)

    def total(x: Any) -> Any:
        return bounded(x, n)[0].sum()

    def masked(x: Any) -> Any:
        result, faults = bounded(x, n)
        return jnp.where(faults == 0, result, 0.0).sum()

    np.testing.assert_allclose(jax.jit(jax.grad(total))(x), [1.0, 12.0, np.nan])
    np.testing.assert_allclose(jax.grad(masked)(x), [1.0, 12.0, 0.0])
    np.testing.assert_allclose(np.diag(jax.hessian(total)(x)), [0.0, 12.0, np.nan])
    assert np.isnan(jax.grad(lambda c: total(c * x))(1.0))
    assert jax.grad(lambda c: masked(c * x))(1.0) == pytest.approx(1.5 + 24.0)
    few = autobatch.jax(power, max_stack_depth=16, max_sweeps=2, check=False)
    assert np.isnan(jax.grad(lambda x: few(x, n)[0].sum())(x)).all()


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
def infinite_in_the_other_arm(x: Any, n: Any) -> Any:
    """The least of the kind: no call, and of each lane one arm."""
    root = ops.sqrt(x - 1.0)
    if n > 0:
        return 2.0 * root
    return x * x


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
    "unused arm": (infinite_in_the_other_arm, [1.0, 3.0], [0, 1]),
    "zero slopes": (squared_residuals, [0.0, 0.0, 0.0], [1, 2, 3]),
    "arms": (arms_with_more_after_the_root, [1.0, 2.0], [0, 1]),
    "converted arms": (converted_arms, [1.0, 2.0], [0, 1]),
    "data": (residual_of_a_power, [-1.5, 2.0, 1.5], np.array([2.0, 3.0, 2.0], "float32")),
    "rows": (rows, [1.0, 2.0], [0, 1]),
    "vectors": (roots_of_vector, [[0.0, 1.0, 4.0], [2.0, 1.0, 1.0]], [[0.0, 1.0, 2.0], [1.0, 1.0, 3.0]]),
}


def of_orders(f: Any, x: Any) -> dict[str, Any]:
    def slope_twice(x: Any) -> Any:
        slope = jax.grad(f)(x)
        return slope, slope

    second, first = jax.jacfwd(slope_twice, has_aux=True)(x)
    return {"first": first, "second": second}


def of_second_order_in_reverse(f: Any, x: Any) -> dict[str, Any]:
    return {"second": jax.jacrev(jax.grad(f))(x)}


def of_third_order(f: Any, x: Any) -> dict[str, Any]:
    return {"third": jax.jacfwd(jax.jacfwd(jax.grad(lambda t: f(x + t))))(0.0)}


TWICE_IN_REVERSE = ("unused", "unused arm", "zero slopes", "data", "vectors")


@pytest.mark.parametrize(
    ("name", "orders"),
    [
        *(pytest.param(name, of_orders, id=name) for name in OF_HIGHER_ORDER),
        *(pytest.param(name, of_second_order_in_reverse, id=f"{name}, in reverse") for name in TWICE_IN_REVERSE),
        *(pytest.param(name, of_third_order, id=f"{name}, third") for name in ("zero slopes", "arms")),
    ],
)
def test_derivatives_of_higher_order(name: str, orders: Any) -> None:
    """They are those of the plain program of each lane, whatever is infinite on other lanes, in other branches, or of
    values that nothing reads. Reverse over reverse is NaN where such values have had further ones computed of them."""
    function, x, n = OF_HIGHER_ORDER[name]
    lanes, data = jnp.asarray(x, "float32"), np.asarray(n)
    bounded = autobatch.jax(function, max_stack_depth=4, max_sweeps=20, check=False)

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


@pytest.mark.parametrize("n", [0, 1, 2, 3.0])
def test_powers_have_all_derivatives_at_zero(n: float) -> None:
    """JAX takes x ** 2 for a power of floats where the exponent is an array, whose third derivative is NaN."""
    for order in range(5):
        derivative: Any = lambda x: operators.power(x, n)  # noqa: E731
        for _ in range(order):
            derivative = jax.grad(derivative)
        assert derivative(0.0) == (math.factorial(order) if order == n else 0)


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


@primitive
def indexed(v: Any, i: Any) -> Any:
    """By each of JAX's ways to index, also within its control flow."""

    def step(total: Any, _: Any) -> tuple[Any, None]:
        return total + jnp.take(v, i, mode="clip") * v.at[i].mul(2.0, mode="clip")[i], None

    in_scan, _ = jax.lax.scan(step, jnp.zeros((), v.dtype), length=1)
    first = jax.lax.dynamic_update_slice(jax.lax.dynamic_slice(v, (i,), (1,)), v[:1], (i - i,))[0]
    return in_scan + v[i] * first + jnp.take(v, i + 7, mode="fill", fill_value=0.0)


@batch
def by_indices(v: Any, i: Any) -> Any:
    total = v[i]
    for k in range(2):
        total = total + v[k] * indexed(v, k)
    return total


@pytest.mark.parametrize("max_sweeps", [None, 40])
def test_derivatives_of_arrays_that_variables_index(max_sweeps: int | None) -> None:
    """JAX traces by its setting of 64 bits, which is off here, when it lowers some that are indexed by 64."""
    v, i = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), np.array([0, 2], "int32")
    inside = autobatch.jax(by_indices, max_stack_depth=4, max_sweeps=max_sweeps, check=False)

    def plain(v: Any, i: Any) -> Any:
        return v[i] + sum(v[k] * (2 * v[k] ** 2 + v[k] * v[0]) for k in range(2))

    derivative = jax.grad if max_sweeps else jax.jacfwd
    np.testing.assert_allclose(inside(v, i)[0], jax.vmap(plain)(v, i), rtol=1e-6)
    found = jax.jit(derivative(lambda v: inside(v, i)[0].sum()))(v)
    np.testing.assert_allclose(found, jax.vmap(jax.grad(plain))(v, i), rtol=1e-6)


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
    with pytest.raises(SweepLimitError, match=r"lane 1 had not finished after 3 sweeps .*larger max_sweeps"):
        bounded(x, np.array([0, 5]))


def test_derivatives_that_there_are_not_with_a_bound_are_named() -> None:
    bounded = autobatch.jax(power, max_stack_depth=8, max_sweeps=40, check=False)
    x, n = np.array([1.5], "float32"), np.array([2])
    with pytest.raises(TypeError, match=r"power: with max_sweeps there is .* no forward-mode one"):
        jax.jvp(lambda x: bounded(x, n)[0], (x,), (x,))

    def of_the_scope(a: Any) -> Any:
        @batch
        def scaled(x: Any) -> Any:
            return x * a

        return autobatch.jax(scaled, max_stack_depth=1, max_sweeps=5, check=False)(x)[0].sum()

    with pytest.raises(TypeError, match=r"reads a variable of the scope .* Make that an argument"):
        jax.grad(of_the_scope)(2.0)
