"""Constrained variables of unconstrained numbers, with the logarithms of their Jacobians, in JAX.

Stan's Reference Manual, "Constraint Transforms". x holds one variable's numbers, in Stan's order; a value has the
declared shape, [arrays..., rows, columns].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import nn

from batchnuts.bridges.stan.functions.numerics import Array

Shape = tuple[int, ...]
Constrained = tuple[Array, Array]
"""A value, and the logarithm of the Jacobian's determinant, a sum over all elements."""


def free_size(kind: str, shape: Shape) -> int:
    """Unconstrained numbers of one element of an array: a number, a vector or a matrix of that shape."""
    n = shape[-1] if shape else 1
    match kind:
        case "Simplex" | "SumToZero":
            return n - 1 if len(shape) == 1 else (shape[0] - 1) * (shape[1] - 1)
        case "CholeskyCorr" | "Correlation":
            return n * (n - 1) // 2
        case "Covariance":
            return n * (n + 1) // 2
        case "CholeskyCov":
            rows, columns = shape
            return columns * (columns + 1) // 2 + (rows - columns) * columns
    return math.prod(shape)


def elementwise(kind: str, x: Array, bounds: Sequence[Array]) -> Constrained:
    """Of each number by itself; bounds broadcast."""
    match kind:
        case "Identity":
            return x, 0.0
        case "Lower":
            (low,) = bounds
            finite = low > -math.inf
            return jnp.where(finite, jnp.exp(x) + jnp.where(finite, low, 0.0), x), jnp.where(finite, x, 0.0)
        case "Upper":
            (high,) = bounds
            finite = high < math.inf
            return jnp.where(finite, jnp.where(finite, high, 0.0) - jnp.exp(x), x), jnp.where(finite, x, 0.0)
        case "LowerUpper":
            return _between(x, *bounds)
        case "Offset":
            return x + bounds[0], 0.0
        case "Multiplier":
            return x * bounds[0], jnp.log(bounds[0]) + 0.0 * x
        case "OffsetMultiplier":
            return bounds[0] + x * bounds[1], jnp.log(bounds[1]) + 0.0 * x
    raise NotImplementedError(kind)


def _between(x: Array, low: Array, high: Array) -> Constrained:
    if np.ndim(low) == 0 and np.ndim(high) == 0 and _known(low) and _known(high):
        if low == -math.inf:
            return elementwise("Upper", x, [high])
        if high == math.inf:
            return elementwise("Lower", x, [low])
    width = high - low
    size = jnp.abs(x)
    return low + width * nn.sigmoid(x), jnp.log(width) - size - 2.0 * jnp.log1p(jnp.exp(-size))


def _known(x: Array) -> bool:
    return isinstance(x, (int, float, np.ndarray, np.generic))


# ---- vectors and matrices --------------------------------------------------------------------------------------------


def simplex(x: Array, shape: Shape) -> Constrained:
    """The softmax of numbers that sum to 0."""
    (n,) = shape
    log_value = nn.log_softmax(_isometric(n) @ x)
    return jnp.exp(log_value), jnp.sum(log_value) + 0.5 * math.log(n)


def ordered(x: Array, shape: Shape) -> Constrained:
    """The first, and then steps."""
    return jnp.cumsum(jnp.concatenate([x[:1], jnp.exp(x[1:])])), jnp.sum(x[1:])


def positive_ordered(x: Array, shape: Shape) -> Constrained:
    """Steps from 0 on."""
    return jnp.cumsum(jnp.exp(x)), jnp.sum(x)


def unit_vector(x: Array, shape: Shape) -> Constrained:
    """Its direction; its length has a normal density, whose term that is."""
    squared = jnp.sum(jnp.square(x))
    return x / jnp.sqrt(squared), -0.5 * squared


def sum_to_zero(x: Array, shape: Shape) -> Constrained:
    """An isometric map onto what sums to 0."""
    (n,) = shape
    return _isometric(n) @ x, 0.0


def _isometric(n: int) -> np.ndarray:
    """[n, n - 1]: orthonormal columns that sum to 0; number i falls on the first i + 1 and, opposed, on the next."""
    basis = np.zeros((n, n - 1))
    for i in range(1, n):
        basis[:i, i - 1] = 1.0 / math.sqrt(i * (i + 1))
        basis[i, i - 1] = -i / math.sqrt(i * (i + 1))
    return basis


def cholesky_corr(x: Array, shape: Shape) -> Constrained:
    """By canonical partial correlations (Lewandowski, Kurowicka and Joe 2009), row by row."""
    n = shape[-1]
    z = jnp.tanh(x)
    log_jacobian = jnp.sum(2.0 * (math.log(2.0) - x - jnp.logaddexp(0.0, -2.0 * x)))  # of tanh
    rows, place = [jnp.zeros(n).at[0].set(1.0)], 0
    for i in range(1, n):
        left: list[Array] = []
        squares: Array = 1.0
        for _ in range(i):
            if left:
                log_jacobian = log_jacobian + 0.5 * jnp.log(squares)
            entry = z[place] * jnp.sqrt(squares)
            left.append(entry)
            squares = squares - jnp.square(entry)
            place += 1
        rows.append(jnp.stack([*left, jnp.sqrt(squares), *[jnp.zeros(())] * (n - i - 1)]))
    return jnp.stack(rows), log_jacobian


def correlation(x: Array, shape: Shape) -> Constrained:
    """The product of a factor with its transpose."""
    factor, log_jacobian = cholesky_corr(x, shape)
    n = shape[-1]
    powers = n - 1.0 - np.arange(n)
    return factor @ factor.T, log_jacobian + jnp.sum(powers * jnp.log(jnp.diagonal(factor)))


def covariance(x: Array, shape: Shape) -> Constrained:
    """The product of a factor with a positive diagonal with its transpose; the factor's numbers are row by row."""
    n = shape[-1]
    factor, place = jnp.zeros((n, n)), 0
    log_jacobian = jnp.asarray(n * math.log(2.0))
    for i in range(n):
        for j in range(i + 1):
            entry = jnp.exp(x[place]) if i == j else x[place]
            if i == j:
                log_jacobian = log_jacobian + (n - i + 1.0) * x[place]
            factor = factor.at[i, j].set(entry)
            place += 1
    return factor @ factor.T, log_jacobian


def cholesky_cov(x: Array, shape: Shape) -> Constrained:
    """A lower triangle with a positive diagonal, row by row."""
    rows, columns = shape
    factor, place, log_jacobian = jnp.zeros((rows, columns)), 0, jnp.asarray(0.0)
    for i in range(rows):
        for j in range(min(i + 1, columns)):
            if i == j:
                log_jacobian = log_jacobian + x[place]
            factor = factor.at[i, j].set(jnp.exp(x[place]) if i == j else x[place])
            place += 1
    return factor, log_jacobian


WHOLE: dict[str, Callable[[Array, Shape], Constrained]] = {
    "Simplex": simplex,
    "Ordered": ordered,
    "PositiveOrdered": positive_ordered,
    "UnitVector": unit_vector,
    "SumToZero": sum_to_zero,
    "CholeskyCorr": cholesky_corr,
    "Correlation": correlation,
    "Covariance": covariance,
    "CholeskyCov": cholesky_cov,
}


def constrained(kind: str, x: Array, arrays: Shape, element: Shape, bounds: Sequence[Array]) -> Constrained:
    """The value of a variable [arrays..., element...] and its log-Jacobian."""
    count = math.prod(arrays)
    if kind not in WHOLE:
        rows = x.reshape(*arrays, *reversed(element))  # a matrix is column by column
        value, log_jacobian = elementwise(kind, rows.swapaxes(-1, -2) if len(element) == 2 else rows, bounds)
        return value, jnp.sum(jnp.asarray(log_jacobian))
    parts = x.reshape(count, free_size(kind, element))
    results = [WHOLE[kind](part, element) for part in parts]
    value = jnp.stack([value for value, _ in results]).reshape(*arrays, *element)
    return value, sum((log_jacobian for _, log_jacobian in results), jnp.asarray(0.0))
