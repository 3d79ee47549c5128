"""JAX's functions as expressions: their values and gradients are those that JAX computes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch.ir.evaluate import as_function
from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.language.arrays import tensor_library
from batchnuts.autobatch.language.libraries.recording import Recording
from batchnuts.autobatch.language.libraries.type_rules import NotTyped
from batchnuts.autobatch.passes.differentiate import expression_of_library

jax = pytest.importorskip("jax")
jnp, lax, stats = jax.numpy, jax.lax, pytest.importorskip("jax.scipy.stats")
LIBRARY = tensor_library("jax")

X = np.random.default_rng(1).normal(size=(20, 6))
GROUP = np.arange(20) % 4
COUNTS = np.arange(20) % 5
ROWS = np.random.default_rng(2).normal(size=(5, 3))


def factor(q: Any) -> Any:
    """A triangular matrix [3, 3] with a positive diagonal."""
    matrix = jnp.zeros((3, 3)).at[jnp.tril_indices(3)].set(q[:6])
    return jnp.tril(matrix, -1) + jnp.diag(jnp.exp(jnp.diag(matrix)))


def spd(q: Any, n: int = 4) -> Any:
    places = jnp.arange(float(n))
    return jnp.exp(-0.5 * ((places[:, None] - places) / jnp.exp(q[0])) ** 2) + 0.1 * jnp.eye(n)


def quadratic(matrix: Any, x: Any) -> Any:
    return x @ jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(matrix), True), x)


def walk(q: Any, reverse: bool = False) -> Any:
    def step(carried: Any, row: Any) -> Any:
        carried = 0.9 * carried + jnp.tanh(row)
        return carried, carried * row

    last, rows = lax.scan(step, q[0], q, reverse=reverse)
    return last + jnp.sum(rows**2)


SCALARS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(lax, name) for name in ("exp", "log1p", "expm1", "sin", "cos", "tan", "tanh", "logistic", "erf")},
    **{
        name: getattr(lax, name) for name in ("square", "exp2", "abs", "sign", "erfc", "sinh", "cosh", "asinh", "rsqrt")
    },
    **{name: getattr(lax, name) for name in ("log", "sqrt", "lgamma")},
    "atanh": lambda x: lax.atanh(0.9 * jnp.tanh(x)),
    "erf_inv": lambda x: lax.erf_inv(0.9 * jnp.tanh(x)),
    "floor and ceil": lambda x: x * jnp.floor(x) + jnp.ceil(2 * x) * x,
    "round": lambda x: x * jnp.round(x),
    "powers": lambda x: x**2 + x**3 + x**4 + x**-1 + jnp.abs(x) ** 1.5 + x**5,
    "power of two values": lambda x: jnp.abs(x) ** x,
    "minimum and maximum": lambda x: jnp.minimum(x, 0.3) * jnp.maximum(x, -0.2),
    "clip": lambda x: jnp.clip(x, -0.5, 0.5) * x,
    "where": lambda x: jnp.where(x > 0.1, x, jnp.where(x < -0.4, x**2, jnp.exp(x))),
    "truths": lambda x: jnp.where((x > 0) & ~(x > 1) | (x < -1) ^ (x == 2), x, 2 * x),
    "is finite": lambda x: jnp.where(jnp.isfinite(x) & (x != 3), x, 0.0),
    "logaddexp": lambda x: jnp.logaddexp(x, 0.3),
    "softplus and others": lambda x: jax.nn.softplus(x) + jax.nn.gelu(x) + jax.nn.log_sigmoid(x),
    "normal cdf": lambda x: stats.norm.logcdf(4 * x) + stats.norm.cdf(x),
    "integers": lambda x: x * jnp.asarray(COUNTS[:6] // 2 + COUNTS[:6] % 2, jnp.int32),
    "casts": lambda x: x.astype("float32").astype(x.dtype) * (x > 0).astype(x.dtype),
    "without a gradient": lambda x: x * lax.stop_gradient(x),
}

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{f"{name} of each": lambda q, f=f: jnp.sum(f(q)) for name, f in SCALARS.items()},
    "constant indices": lambda q: jnp.sum(q[jnp.array([0, 1, 1, -1])] ** 2) + q[2] * q[-2],
    "indices outside are dropped": lambda q: jnp.sum(
        jnp.take(q, np.array([0, 9, 1]), mode="fill", fill_value=2.0) ** 2
    ),
    "indices outside are clipped": lambda q: jnp.sum(jnp.take(q, np.array([0, 9, 1]), mode="clip") ** 2),
    "rows and columns": lambda q: jnp.sum(
        q.reshape(2, 3)[:, jnp.array([0, 2, 2])] * q.reshape(3, 2)[jnp.array([0, 1])].T[:, :1]
    ),
    "repeated and tiled": lambda q: jnp.sum(jnp.tile(q[:3], (2, 2)) ** 2 * jnp.repeat(q, 2).reshape(2, 6)),
    "two arrays of indices": lambda q: jnp.sum(q.reshape(2, 3)[jnp.array([[0], [1]]), jnp.array([2, 0])] ** 3),
    "windows in the middle": lambda q: jnp.sum(q.reshape(1, 6, 1)[:, jnp.array([[5, 0], [2, 2]])] ** 3),
    "slices under vmap": lambda q: jnp.sum(
        jax.vmap(lambda i: lax.dynamic_slice(q * X[0], (i,), (3,)))(jnp.array([0, 2, 5, -4])) ** 3
    ),
    "rows by index under vmap": lambda q: jnp.sum(
        jax.vmap(lambda row, i: row[i] * row[i - 1])(X[:4] * q, jnp.array([0, 5, 2, 2])) ** 2
    ),
    "added under vmap": lambda q: jnp.sum(
        jax.vmap(lambda row, i: row.at[i].add(q[0] * row[0]))(X[:4] * q, jnp.array([0, 5, 2, 2])) ** 2
    ),
    "added beyond the end": lambda q: jnp.sum(q.at[jnp.array([1, 9, 1])].add(q[:3], mode="drop") ** 3),
    "set at rows and columns": lambda q: jnp.sum(
        jnp.zeros((4, 3)).at[jnp.array([3, 0]), 1:].set(q[:4].reshape(2, 2)) ** 3
    ),
    "set and add": lambda q: jnp.sum(q.at[2].set(q[0] * 3).at[jnp.array([1, 1])].add(q[:2]) ** 2),
    "reshape and transpose": lambda q: jnp.sum(q.reshape(1, 2, 3).transpose(2, 0, 1)[::2] ** 3),
    "concatenate, stack and split": lambda q: (
        jnp.sum(jnp.concatenate([q[:2], q[::2]]) ** 2) + jnp.sum(jnp.stack(jnp.split(q, 3)) ** 3)
    ),
    "pad": lambda q: (
        jnp.sum(jnp.cumsum(lax.pad(q, 0.5, [(1, 2, 0)])) ** 2) + jnp.sum(lax.pad(q, 1.0, [(-1, 1, 1)]) ** 3)
    ),
    "reverse and cumulative": lambda q: jnp.sum(jnp.cumsum(q[::-1]) ** 2) + jnp.sum(lax.cumsum(q, reverse=True) ** 3),
    "reductions": lambda q: jnp.max(q) + jnp.min(q.reshape(2, 3), axis=0).sum() + jnp.prod(q) + jnp.mean(q**2),
    "any and all": lambda q: jnp.where(jnp.any(q > 0) & jnp.all(q > -9), q.sum(), 0.0),
    "logsumexp and softmax": lambda q: jax.nn.logsumexp(q) + jax.nn.log_softmax(q)[1] + jnp.sum(jax.nn.softmax(q) ** 2),
    "products": lambda q: jnp.sum((X @ q) ** 2) + jnp.sum(q.reshape(2, 3) @ q.reshape(3, 2)) + q @ q,
    "products of matrices with data": lambda q: jnp.sum((X.reshape(20, 2, 3) @ q.reshape(3, 2)) ** 2),
    "outer products": lambda q: jnp.sum(jnp.outer(q[:2], q) ** 2) + jnp.einsum("i,ij,j", q, X[:6], q),
    "batched products": lambda q: jnp.sum(jnp.einsum("bij,bjk->bik", q.reshape(3, 1, 2), X[:3].reshape(3, 2, 3)) ** 2),
    "of rows": lambda q: jnp.sum(jnp.einsum("ni,ni->n", X, jnp.broadcast_to(q, X.shape)) ** 2),
    "scan": walk,
    "scan backwards": functools.partial(walk, reverse=True),
    "loop": lambda q: lax.fori_loop(0, 6, lambda i, total: total + q[i] ** 2 * total, 1.0),
    "branches": lambda q: lax.cond(q[0] > 0, lambda q: jnp.sum(q**2), lambda q: jnp.sum(jnp.cosh(q)), q),
    "switch": lambda q: lax.switch(jnp.int32(1), [jnp.sum, lambda q: jnp.sum(q**2), jnp.prod], q),
    "jit and checkpoint": lambda q: jax.jit(jnp.sum)(q) * jax.checkpoint(lambda q: jnp.sum(jnp.sin(q)))(q),
    "vmap": lambda q: jnp.sum(jax.vmap(lambda row: jax.nn.logsumexp(row * q))(X)),
    "triangular matrices": lambda q: jnp.sum(
        lax.linalg.triangular_solve(factor(q), ROWS.T, left_side=True, lower=True) ** 2
    ),
    "solved from the right": lambda q: jnp.sum(lax.linalg.triangular_solve(factor(q).T, ROWS, transpose_a=True) ** 2),
    "cholesky": lambda q: quadratic(spd(q), q[:4]) + jnp.sum(jnp.log(jnp.diag(jnp.linalg.cholesky(spd(q))))),
    "regression": lambda q: jnp.sum(stats.bernoulli.logpmf(COUNTS > 2, jax.nn.sigmoid(X @ q))),
    "groups": lambda q: jnp.sum(stats.t.logpdf(COUNTS, 4.0, q[:4][GROUP], jnp.exp(q[4]))),
    "counts": lambda q: jnp.sum(stats.nbinom.logpmf(COUNTS, jnp.exp(q[0]), jax.nn.sigmoid(q[1]))),
    "mixture": lambda q: jnp.sum(
        jax.nn.logsumexp(jax.nn.log_softmax(q[:3]) + stats.norm.logpdf(X[:, :1], q[3:]), axis=1)
    ),
}
"""Of six real numbers."""


def recorded(function: Callable[[Any], Any], dtype: str = "float64", size: int = 6) -> Expression:
    expression = expression_of_library(LIBRARY, function, TensorType(dtype, (size,)))
    assert expression is not None, reason(function, dtype, size)
    return expression


def reason(function: Callable[[Any], Any], dtype: str = "float64", size: int = 6) -> str:
    """What is said where a function is not recorded."""
    recording = Recording()
    with pytest.raises(NotTyped) as refused:
        LIBRARY.recorded_gradient(function, recording.input(dtype, (size,)))
    return str(refused.value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_jax(name: str) -> None:
    function = FUNCTIONS[name]
    positive = name.split()[0] in ("log", "sqrt", "rsqrt", "lgamma")
    for dtype, tolerance in (("float64", 1e-11), ("float32", 3e-4)):
        compute, of_jax = as_function(recorded(function, dtype)), LIBRARY.differentiated(function)
        for seed in range(3):
            q = np.random.default_rng(seed).normal(size=6).astype(dtype)
            q = np.exp(q) if positive else q
            value, gradient = of_jax(LIBRARY.tensor(q))
            with np.errstate(all="ignore"):
                found, slope = compute(q)
            scale = max(1.0, float(np.abs(gradient).max()))
            np.testing.assert_allclose(found, value, rtol=tolerance, atol=tolerance * max(1.0, abs(float(value))))
            np.testing.assert_allclose(slope, gradient, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda q: jnp.sort(q)[0], "JAX's sort"),
        (lambda q: quadratic(spd(q, 12), jnp.ones(12)), "a matrix of 12 rows"),
        (lambda q: q[jnp.int32(q[0])], "indices that depend on parameters"),
        (
            lambda q: lax.while_loop(lambda x: x[0] < 3, lambda x: 2 * x + 1, lax.stop_gradient(q))[1] + q[0],
            "number of trips depends on parameters",
        ),
        (lambda q: lax.fori_loop(0, 9_000, lambda i, x: x + q[0], 0.0), "a loop of many trips|calls of functions"),
        (lambda q: jnp.sum(lax.bessel_i0e(q)), "JAX's bessel_i0e"),
    ],
)
def test_what_is_not_recorded_says_why(function: Callable[[Any], Any], said: str) -> None:
    assert re.search(said, reason(function))


def test_far_tails_of_erfc_keep_their_digits() -> None:
    for dtype, end, tolerance in (("float64", 26.0, 2e-14), ("float32", 9.0, 2e-6)):
        compute = as_function(recorded(lambda q: jnp.sum(lax.erfc(q)), dtype, 1))
        mpmath = pytest.importorskip("mpmath")
        for x in np.linspace(-5.0, end, 60).astype(dtype):
            found, _ = compute(np.array([x]))
            assert float(found) == pytest.approx(float(mpmath.erfc(float(x))), rel=tolerance)
