"""What the densities have in common: dtypes, ranges, sums, and functions that the usual formulas lose digits of."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias

import numpy as np

from batchnuts.autobatch import ops

P = ParamSpec("P")
Array: TypeAlias = ops.Array

LOG_2, LOG_PI, HALF_LOG_2PI = math.log(2.0), math.log(math.pi), 0.5 * math.log(2.0 * math.pi)


def quiet(density: Callable[P, Array]) -> Callable[P, Array]:
    """A context without warnings of NumPy: what is infinite or NaN is meant to be."""

    @functools.wraps(density)
    def without_warnings(*arguments: P.args, **keywords: P.kwargs) -> Array:
        with np.errstate(all="ignore"):
            return density(*arguments, **keywords)

    return without_warnings


def floats(*values: Any) -> list[Array]:
    """The values in one floating dtype: that of their tensors, else NumPy's common one. TypeError for other kinds."""
    arrays = [ops.stack(value) if isinstance(value, (list, tuple)) else value for value in values]
    types = [array if ops.is_python_scalar(array) else ops.dtype_of(array) for array in arrays]
    of_tensors = [
        t for t, a in zip(types, arrays, strict=True) if not isinstance(a, (int, float, np.ndarray, np.generic))
    ]
    dtype = np.result_type(*([t for t in of_tensors if t.kind not in "biu"] or types))
    if dtype.kind not in "biufV":  # V: bfloat16
        raise TypeError(f"a density takes numbers, found {dtype}")
    dtype = np.dtype(np.float64) if dtype.kind in "biu" else dtype
    return [ops.cast(array, dtype) for array in arrays]


def total(value: Array, pointwise: bool, *outside: Array) -> Array:
    """The sum, or the elements, where -inf stands for elements of which one of `outside` is true."""
    for condition in outside:
        value = ops.where(condition, -math.inf, value)
    return value if pointwise else ops.sum(value)


def either(*conditions: Array) -> Array:
    """Where any of the conditions is true."""
    return functools.reduce(ops.logical_or, conditions)


def above(value: Array, bound: float = 0.0) -> tuple[Array, Array]:
    """The value, or a harmless one where it is not above the bound, and where that is; NaN counts as above."""
    outside = value <= bound
    return ops.where(outside, bound + 1.0, value), outside


def between(value: Array, low: float, high: float) -> tuple[Array, Array]:
    """The value, or a harmless one where it is outside of a closed interval, and where that is."""
    outside = either(value < low, value > high)
    return ops.where(outside, 0.5 * (low + high), value), outside


def not_count(x: Array) -> Array:
    """Where `x` is no count: negative, or not whole."""
    return either(x < 0, ops.floor(x) != x)


# Functions that are precise where the usual formulas are not


def x_log_y(x: Array, y: Array) -> Array:
    """x log(y), 0 where x is 0."""
    return x * ops.log(ops.where(x == 0, 1, y))


def log1p_square(z: Array) -> Array:
    """log(1 + z**2), where z**2 may overflow."""
    large = ops.abs(z) > 1e8
    far, near = ops.where(large, ops.abs(z), 1), ops.where(large, 0, z)
    return ops.where(large, 2.0 * ops.log(far), ops.log1p(ops.square(near)))


_STIRLING = (-3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
"""Coefficients of the remainder of Stirling's formula in odd powers of 1/x, the last first."""


def _remainder(x: Array) -> Array:
    """log Gamma(x) less Stirling's formula (x - 1/2) log x - x + log(2 pi) / 2, for x >= 8."""
    inverse = 1.0 / x
    return inverse * functools.reduce(lambda sum_, c: sum_ * inverse * inverse + c, _STIRLING)


def log_rising(x: Array, y: Array) -> Array:
    """log(Gamma(x + y) / Gamma(x)) for x > 0 and y >= 0, precise where x is much larger than y."""
    large = x >= 8
    a, b = ops.where(large, x, 8), ops.where(large, 1, x)
    series = (a - 0.5) * ops.log1p(y / a) + y * ops.log(a + y) - y + (_remainder(a + y) - _remainder(a))
    return ops.where(large, series, ops.gammaln(b + y) - ops.gammaln(b))


def log_beta(a: Array, b: Array) -> Array:
    """log of the beta function of a, b > 0."""
    more = a > b  # `ops.minimum` and `ops.maximum` would both give the gradient at a tie to one of them
    less = ops.where(more, b, a)
    return ops.gammaln(less) - log_rising(ops.where(more, a, b), less)


def log_choose(n: Array, k: Array) -> Array:
    """log of n over k, for 0 <= k <= n."""
    return -ops.log1p(n) - log_beta(n - k + 1.0, k + 1.0)


def log1m_exp(x: Array) -> Array:
    """log(1 - exp(-x)) for x > 0."""
    near = x < LOG_2
    return ops.where(near, ops.log(-ops.expm1(-ops.where(near, x, 1))), ops.log1p(-ops.exp(-ops.where(near, 1, x))))
