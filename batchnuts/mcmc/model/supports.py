"""Where a parameter's values lie, and how real numbers without constraints become such values.

A sampler moves through R^n. A support is a smooth map from there onto the values, together with the logarithm of the
determinant of its Jacobian, which makes a density of the values one of the real numbers:

    log p(x) = log p(value(x)) + log |d value / d x|

    value      -> values lie in -> Support -> x [n], real
    tau        positive            Lower       log(tau)
    theta [8]  simplex             Simplex     isometric log-ratio, [7]

The maps are written with `ops`, so they are the same on every library. Arrays may have leading axes: lanes, or draws.
They are those of the Stan Reference Manual, "Constraint Transforms", if nothing else is said.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import override

from batchnuts.autobatch import ops
from batchnuts.autobatch.machine import library_of, tensor_library_of

Shape = tuple[int, ...]
Array = Any
"""An array of NumPy, TensorFlow or JAX."""


class SupportError(ValueError):
    """A shape that a support cannot have, or a value outside of it. The message is the end of a sentence."""


class Support(ABC):
    """The values that a variable may take, of a given shape in one chain."""

    kind: ClassVar[str]
    """The name of the support in configs and in files of draws."""
    proper: ClassVar[bool] = True
    """Whether a constant density of the values can be sampled: its integral is finite."""

    @property
    def library(self) -> str | None:
        """The backend without which it cannot be computed; None if there is no such."""
        return None

    @abstractmethod
    def free(self, shape: Shape) -> int:
        """How many real numbers make such a value; raises SupportError for a shape that it cannot have."""

    @abstractmethod
    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        """The value [..., *shape] at real numbers [..., free], and the log-Jacobian [...]; None if that is 0."""

    @abstractmethod
    def unconstrain(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        """The real numbers [..., free] of a value [..., *shape]; raises SupportError for one that is outside."""

    def varies(self, shape: Shape) -> NDArray[np.bool_]:
        """[*shape]: which of the value's numbers are not the same for all values."""
        return np.ones(shape, bool)

    def coordinates(self, shape: Shape) -> NDArray[np.bool_]:
        """[*shape]: elements that determine the others, as many as `free`; the density is that of these."""
        return self.varies(shape)


@dataclass(frozen=True)
class Real(Support):
    """Every number."""

    kind: ClassVar[str] = "real"
    proper: ClassVar[bool] = False

    @override
    def free(self, shape: Shape) -> int:
        return math.prod(shape)

    @override
    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        return _split(x, shape), None

    @override
    def unconstrain(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        return _joined(value, shape)


REAL = Real()


@dataclass(frozen=True, eq=False)
class Lower(Support):
    """Above `bound`: bound + exp(x). A bound may be an array that broadcasts to the shape."""

    kind: ClassVar[str] = "lower"
    proper: ClassVar[bool] = False

    bound: ArrayLike = 0.0

    @override
    def free(self, shape: Shape) -> int:
        _require_bound(self.bound, shape)
        return math.prod(shape)

    @override
    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        above = ops.exp(x)
        value = above if _is_zero(self.bound) else above + _flat(self.bound, shape, x)
        return _split(value, shape), ops.sum(x, axis=-1)

    @override
    def unconstrain(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        above = value - np.asarray(self.bound)
        _require(above > 0, value, f"expected values above {_describe(self.bound)}")
        return _joined(np.log(above), shape)


@dataclass(frozen=True, eq=False)
class Upper(Support):
    """Below `bound`: bound - exp(x). A bound may be an array that broadcasts to the shape."""

    kind: ClassVar[str] = "upper"
    proper: ClassVar[bool] = False

    bound: ArrayLike

    @override
    def free(self, shape: Shape) -> int:
        _require_bound(self.bound, shape)
        return math.prod(shape)

    @override
    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        return _split(_flat(self.bound, shape, x) - ops.exp(x), shape), ops.sum(x, axis=-1)

    @override
    def unconstrain(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        below = np.asarray(self.bound) - value
        _require(below > 0, value, f"expected values below {_describe(self.bound)}")
        return _joined(np.log(below), shape)


@dataclass(frozen=True, eq=False)
class Interval(Support):
    """Between `low` and `high`: low + (high - low) sigmoid(x). Bounds may be arrays that broadcast to the shape."""

    kind: ClassVar[str] = "interval"

    low: ArrayLike = 0.0
    high: ArrayLike = 1.0

    @override
    def free(self, shape: Shape) -> int:
        _require_bound(self.low, shape)
        _require_bound(self.high, shape)
        if not np.all(np.asarray(self.low) < np.asarray(self.high)):
            raise SupportError(
                f"lies between {_describe(self.low)} and {_describe(self.high)}; expected the lower bound to be below "
                "the upper one"
            )
        return math.prod(shape)

    @override
    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        low = _flat(self.low, shape, x)
        width = _flat(np.asarray(self.high, "float64") - np.asarray(self.low, "float64"), shape, x)
        # the logarithm of sigmoid'(x) = sigmoid(x) sigmoid(-x)
        log_slope = np.log(width) - ops.softplus(x) - ops.softplus(-x)
        return _split(low + width * ops.sigmoid(x), shape), ops.sum(log_slope, axis=-1)

    @override
    def unconstrain(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        above, below = value - np.asarray(self.low), np.asarray(self.high) - value
        _require(
            (above > 0) & (below > 0),
            value,
            f"expected values between {_describe(self.low)} and {_describe(self.high)}",
        )
        return _joined(np.log(above) - np.log(below), shape)


@dataclass(frozen=True)
class Ordered(Support):
    """Ascending along the last axis: the first one as it is, and the logarithms of the differences."""

    kind: ClassVar[str] = "ordered"
    proper: ClassVar[bool] = False

    positive: bool = False
    """Whether all are above 0: then the first one is exp(x) too."""

    @override
    def free(self, shape: Shape) -> int:
        _require_axis(shape, 1, "expected a last axis, along which its values ascend")
        return math.prod(shape)

    @override
    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        rows = _split(x, shape)
        if self.positive:
            return _cumulated(ops.exp(rows), shape[-1]), ops.sum(x, axis=-1)
        first = np.arange(shape[-1]) == 0
        logs = ops.where(first, ops.zeros_like(rows), rows)  # before exp, so that no gradient is 0 times infinity
        return _cumulated(ops.where(first, rows, ops.exp(logs)), shape[-1]), _sum(logs, len(shape))

    @override
    def unconstrain(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        first, steps = value[..., :1], np.diff(value, axis=-1)
        _require(steps > 0, value, "expected values that ascend along the last axis")
        if self.positive:
            _require(first > 0, value, "expected values above 0")
            first = np.log(first)
        return _joined(np.concatenate([first, np.log(steps)], axis=-1), shape)


@dataclass(frozen=True)
class Simplex(Support):
    """Positive with sum 1 along the last axis of length K: softmax(V x), the isometric log-ratio of Egozcue and others
    (2003), V an orthonormal basis [K, K - 1] of the vectors with sum 0. The density is that of any K - 1 of them."""

    kind: ClassVar[str] = "simplex"

    @override
    def free(self, shape: Shape) -> int:
        _require_axis(shape, 2, "expected a last axis of at least 2, whose values add up to 1")
        return math.prod(shape[:-1]) * (shape[-1] - 1)

    @override
    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        *batch, k = shape
        rows = _split(x, (*batch, k - 1))
        logits = _times(rows, _sum_zero_basis(k).T)
        logits = logits - ops.max(logits, axis=-1, keepdims=True)
        logs = logits - ops.log(ops.sum(ops.exp(logits), axis=-1, keepdims=True))
        # |d value_{1..K-1} / d x| = sqrt(K) prod value
        return ops.exp(logs), _sum(logs, len(shape)) + 0.5 * math.log(k) * math.prod(batch)

    @override
    def unconstrain(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        tolerance = 1e-3 if value.dtype == np.float32 else 1e-6
        _require(value > 0, value, "expected values above 0")
        _require(np.abs(value.sum(axis=-1) - 1) < tolerance, value.sum(axis=-1), "expected sums of 1")
        return _joined(np.log(value) @ _sum_zero_basis(shape[-1]), (*shape[:-1], shape[-1] - 1))

    @override
    def coordinates(self, shape: Shape) -> NDArray[np.bool_]:
        """All elements but the last determine it."""
        return np.broadcast_to(np.arange(shape[-1]) < shape[-1] - 1, shape)


@dataclass(frozen=True)
class UnitVector(Support):
    """Vectors of length 1 along the last axis: x / |x|.

    The log-density is taken with respect to the uniform measure on the unit sphere. The length of x, on which the value
    does not depend, gets the distribution that it has for a standard normal x: -|x|^2 / 2 takes the Jacobian's place.
    """

    kind: ClassVar[str] = "unit_vector"

    @override
    def free(self, shape: Shape) -> int:
        _require_axis(shape, 2, "expected a last axis of at least 2, along which its length is 1")
        return math.prod(shape)

    @override
    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        rows = _split(x, shape)
        return rows / ops.norm(rows, axis=-1, keepdims=True), -0.5 * ops.sum(x * x, axis=-1)

    @override
    def unconstrain(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        lengths = np.linalg.norm(value, axis=-1)
        _require(np.abs(lengths - 1) < 1e-3, lengths, "expected vectors of length 1")
        return _joined(value * math.sqrt(shape[-1]), shape)


@dataclass(frozen=True)
class CorrelationCholesky(Support):
    """Lower triangular [n, n] with positive diagonal and rows of length 1: the Cholesky factor of a correlation matrix.

    z = tanh(x) are canonical partial correlations, row by row: L[i, j] = z[i, j] prod_{k < j} sqrt(1 - z[i, k]^2), with
    z[i, i] = 1. The density is that of the factor's numbers below the diagonal. (Lewandowski, Kurowicka, Joe, 2009.)
    """

    kind: ClassVar[str] = "correlation_cholesky"

    @override
    def free(self, shape: Shape) -> int:
        n = _require_square(shape, 2)
        return math.prod(shape[:-2]) * n * (n - 1) // 2

    @override
    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        *batch, n, _ = shape
        rows = _split(x, (*batch, n * (n - 1) // 2))
        below = np.tri(n, k=-1, dtype=bool)
        wide = _placed(rows, below)
        # log(1 - tanh(x)^2), without cancellation
        logs = ops.where(below, 2 * (math.log(2) - wide - ops.softplus(-2 * wide)), ops.zeros_like(wide))
        cumulative = _times(logs, np.triu(np.ones((n, n)), k=1))  # the sum over k < j in each row
        partial = ops.where(below, ops.tanh(wide), np.eye(n, dtype=_dtype(x)))
        value = ops.where(np.tri(n, dtype=bool), partial * ops.exp(0.5 * cumulative), ops.zeros_like(wide))
        inside = ops.where(below, 0.5 * cumulative, ops.zeros_like(wide))
        return value, _sum(logs + inside, len(shape))

    @override
    def unconstrain(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        _require_triangle(value)
        lengths = np.linalg.norm(value, axis=-1)
        _require(np.abs(lengths - 1) < 1e-3, lengths, "expected rows of length 1")
        rows = shape[-1]
        remaining = np.ones_like(value[..., 0])
        partial = np.zeros_like(value)
        for j in range(rows):
            partial[..., j] = value[..., j] / np.sqrt(remaining)
            remaining = np.maximum(remaining - value[..., j] ** 2, np.finfo(value.dtype).tiny)
        return _joined(np.arctanh(partial[..., np.tri(rows, k=-1, dtype=bool)]), (*shape[:-2], rows * (rows - 1) // 2))

    @override
    def varies(self, shape: Shape) -> NDArray[np.bool_]:
        """The lower triangle varies, but for its first row."""
        lower = np.tri(shape[-1], dtype=bool)
        lower[0] = False
        return np.broadcast_to(lower, shape)

    @override
    def coordinates(self, shape: Shape) -> NDArray[np.bool_]:
        """The elements below the diagonal determine the others."""
        return np.broadcast_to(np.tri(shape[-1], k=-1, dtype=bool), shape)


@dataclass(frozen=True)
class CovarianceCholesky(Support):
    """Lower triangular [n, n] with positive diagonal, which is exp(x): the Cholesky factor of a covariance matrix.

    The density is that of the factor's numbers, not of the covariances.
    """

    kind: ClassVar[str] = "covariance_cholesky"
    proper: ClassVar[bool] = False

    @override
    def free(self, shape: Shape) -> int:
        n = _require_square(shape, 1)
        return math.prod(shape[:-2]) * n * (n + 1) // 2

    @override
    def constrain(self, x: Array, shape: Shape) -> tuple[Array, Array | None]:
        *batch, n, _ = shape
        wide = _placed(_split(x, (*batch, n * (n + 1) // 2)), np.tri(n, dtype=bool))
        logs = ops.where(np.eye(n, dtype=bool), wide, ops.zeros_like(wide))
        return ops.where(np.eye(n, dtype=bool), ops.exp(logs), wide), _sum(logs, len(shape))

    @override
    def unconstrain(self, value: NDArray[Any], shape: Shape) -> NDArray[Any]:
        _require_triangle(value)
        n = shape[-1]
        diagonal = np.eye(n, dtype=bool)
        logs = np.where(diagonal, np.log(np.where(diagonal, value, 1)), value)
        return _joined(logs[..., np.tri(n, dtype=bool)], (*shape[:-2], n * (n + 1) // 2))

    @override
    def varies(self, shape: Shape) -> NDArray[np.bool_]:
        """The lower triangle varies."""
        return np.broadcast_to(np.tri(shape[-1], dtype=bool), shape)


_TRIANGLES = {support.kind: support for support in (CorrelationCholesky(), CovarianceCholesky())}


def elements_that_vary(kind: str, shape: Shape) -> NDArray[np.bool_]:
    """`Support.varies` [*shape] by a support's name; all of them for one that is not known."""
    support = _TRIANGLES.get(kind)
    return np.ones(shape, bool) if support is None else support.varies(shape)


# Arrays with leading axes


def _split(x: Array, shape: Shape) -> Array:
    """[..., size of shape] as [..., *shape]."""
    return library_of(x).split_last_axis(x, shape)


def _joined(value: NDArray[Any], shape: Shape) -> NDArray[Any]:
    """[..., *shape] as [..., size of shape]."""
    return value.reshape(*value.shape[: value.ndim - len(shape)], math.prod(shape))


def _sum(x: Array, axes: int) -> Array:
    """Sums over the last axes."""
    return ops.sum(x, axis=tuple(range(-axes, 0)))


def _times(rows: Array, matrix: NDArray[Any]) -> Array:
    """Multiplies rows [..., i] by a constant matrix [i, j], in the dtype of the rows."""
    return ops.matmul(rows, matrix.astype(_dtype(rows)))


def _cumulated(rows: Array, n: int) -> Array:
    """Sums along the last axis, of length n, up to each element."""
    return _times(rows, np.triu(np.ones((n, n))))


def _placed(rows: Array, mask: NDArray[np.bool_]) -> Array:
    """The square matrices [..., n, n] that have numbers [..., k] at the k true places of a mask [n, n], row by row, and
    zeros elsewhere."""
    index = np.where(mask.reshape(-1), np.cumsum(mask) - 1, 0)
    library = tensor_library_of(rows)
    values = _split(rows[..., index] if library is None else library.gather(rows, index, axis=-1), mask.shape)
    return ops.where(mask, values, ops.zeros_like(values))


def _flat(bound: ArrayLike, shape: Shape, x: Array) -> NDArray[Any]:
    """A bound as [size of shape], in the dtype of x; a scalar as it is."""
    array = np.asarray(bound, _dtype(x))
    return array if array.ndim == 0 else np.broadcast_to(array, shape).reshape(-1)


def _dtype(x: Array) -> np.dtype[Any]:
    dtype: np.dtype[Any] = ops.dtype_of(x)
    return dtype


def _sum_zero_basis(k: int) -> NDArray[np.float64]:
    """Helmert's: orthonormal columns [k, k - 1], each with sum 0."""
    basis = np.zeros((k, k - 1))
    for j in range(1, k):
        basis[:j, j - 1] = 1.0
        basis[j, j - 1] = -j
        basis[:, j - 1] /= math.sqrt(j * (j + 1))
    return basis


# Checks


def _is_zero(bound: ArrayLike) -> bool:
    return np.ndim(bound) == 0 and float(np.asarray(bound)) == 0.0


def _describe(bound: ArrayLike) -> str:
    return str(bound) if np.ndim(bound) == 0 else f"bounds of shape {np.shape(bound)}"


def _require(holds: NDArray[np.bool_] | np.bool_, values: NDArray[Any], expected: str) -> None:
    """Raise SupportError, with the first value for which it does not hold."""
    holds = np.asarray(holds)
    if not holds.all():
        place = tuple(int(i) for i in np.argwhere(~holds)[0])
        value = values[place] if holds.shape == values.shape else values[place[: values.ndim - 1]]
        raise SupportError(f"has the value {value}; {expected}")


def _require_bound(bound: ArrayLike, shape: Shape) -> None:
    array = np.asarray(bound)
    if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise SupportError(f"has the bound {bound!r}; expected finite numbers")
    try:
        fits = np.broadcast_shapes(array.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise SupportError(
            f"has bounds of shape {array.shape}; expected a number, or an array that broadcasts to {shape}"
        )


def _require_axis(shape: Shape, minimum: int, expected: str) -> None:
    if not shape or shape[-1] < minimum:
        raise SupportError(f"has shape {shape}; {expected}")


def _require_square(shape: Shape, minimum: int) -> int:
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] < minimum:
        raise SupportError(
            f"has shape {shape}; expected a square matrix of at least {minimum} rows as the last two axes"
        )
    return shape[-1]


def _require_triangle(value: NDArray[Any]) -> None:
    n = value.shape[-1]
    _require(np.abs(np.where(np.tri(n, dtype=bool), 0, value)) == 0, value, "expected zeros above the diagonal")
    diagonal = np.diagonal(value, axis1=-2, axis2=-1)
    _require(diagonal > 0, diagonal, "expected a positive diagonal")
