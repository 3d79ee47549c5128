"""NumPy and SciPy: what Python's own values and NumPy's arrays are computed with."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from contextvars import ContextVar
from itertools import accumulate
from typing import Any

import numpy as np
from typing_extensions import override

from batchnuts.autobatch.language.c_functions import c_function
from batchnuts.autobatch.language.libraries.library import Array, Function, Library

only_types: ContextVar[bool] = ContextVar("only_types", default=False)
"""Whether nothing but the types of results is of interest now."""


def _special(name: str) -> Function:
    """A function of scipy.special, which is imported when a value is first computed: that takes a quarter of a
    second."""

    def function(x: Array) -> Array:
        if only_types.get() and np.asarray(x).dtype in (np.float32, np.float64):
            return np.positive(x)  # of the same type
        import scipy.special

        return getattr(scipy.special, name)(x)

    return function


def _reduction(function: Function) -> Any:
    return staticmethod(lambda x, axis, keepdims: function(x, axis=axis, keepdims=keepdims))


class NumPyLibrary(Library):
    """The `Library` of NumPy. Functions give scalars, not arrays of rank 0, where NumPy's own do."""

    name = "NumPy"

    @override
    def dtype_of(self, x: Array) -> np.dtype[Any]:
        """The dtype; of a number or list, that of the array that NumPy makes of it."""
        return np.asarray(x).dtype

    @override
    def static_shape(self, x: Array) -> tuple[int | None, ...] | None:
        return tuple(np.shape(x))

    @override
    def convert(self, x: Any, dtype: Any) -> Array:
        return np.asarray(x, dtype=dtype)

    @override
    def cast(self, x: Array, dtype: Any) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(x).astype(dtype)[()]

    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)
    expm1 = staticmethod(np.expm1)
    sqrt = staticmethod(np.sqrt)
    sin = staticmethod(np.sin)
    cos = staticmethod(np.cos)
    tan = staticmethod(np.tan)
    tanh = staticmethod(np.tanh)
    sigmoid = staticmethod(_special("expit"))
    softplus = staticmethod(functools.partial(np.logaddexp, 0))
    erf = staticmethod(_special("erf"))
    erfinv = staticmethod(_special("erfinv"))
    gammaln = staticmethod(_special("gammaln"))
    digamma = staticmethod(_special("digamma"))
    isfinite = staticmethod(np.isfinite)
    isnan = staticmethod(np.isnan)
    positive = staticmethod(np.positive)
    square = staticmethod(np.square)
    abs = staticmethod(np.abs)
    sign = staticmethod(np.sign)
    floor = staticmethod(np.floor)
    ceil = staticmethod(np.ceil)
    round = staticmethod(np.rint)

    negative = staticmethod(np.negative)

    add = staticmethod(np.add)
    subtract = staticmethod(np.subtract)
    divide = staticmethod(np.true_divide)
    floor_divide = staticmethod(np.floor_divide)
    remainder = staticmethod(np.remainder)

    @override
    def power(self, x: Array, y: Array) -> Array:
        """As Python's operator, for which a constant is a number of Python's: NumPy has its own ways with these."""
        return x ** (y.item() if isinstance(y, np.ndarray) and not y.ndim else y)

    equal = staticmethod(np.equal)
    less = staticmethod(np.less)
    less_equal = staticmethod(np.less_equal)
    greater = staticmethod(np.greater)
    greater_equal = staticmethod(np.greater_equal)

    minimum = staticmethod(np.minimum)
    maximum = staticmethod(np.maximum)
    logaddexp = staticmethod(np.logaddexp)
    multiply = staticmethod(np.multiply)
    not_equal = staticmethod(np.not_equal)
    bitwise_and = staticmethod(np.bitwise_and)
    bitwise_or = staticmethod(np.bitwise_or)
    bitwise_xor = staticmethod(np.bitwise_xor)
    left_shift = staticmethod(np.left_shift)
    right_shift = staticmethod(np.right_shift)
    logical_not = staticmethod(np.logical_not)
    logical_and = staticmethod(np.logical_and)
    logical_or = staticmethod(np.logical_or)

    any = _reduction(np.any)
    all = _reduction(np.all)
    mean = _reduction(np.mean)
    min = _reduction(np.min)
    max = _reduction(np.max)

    @override
    def sum(self, x: Array, axis: Any, keepdims: bool) -> Array:
        """The sum in the dtype of `x`: NumPy alone would widen small integers."""
        return np.sum(x, axis=axis, dtype=x.dtype, keepdims=keepdims)

    cumsum = staticmethod(np.cumsum)
    transpose = staticmethod(lambda x: np.swapaxes(x, -1, -2))

    @override
    def cholesky(self, x: Array) -> Array:
        try:
            return np.linalg.cholesky(x)
        except np.linalg.LinAlgError:  # of one of several matrices, say
            factors = np.full(x.shape, np.nan, x.dtype)
            for place in np.ndindex(x.shape[:-2]):
                with contextlib.suppress(np.linalg.LinAlgError):
                    factors[place] = np.linalg.cholesky(x[place])
            return factors

    @override
    def solve_triangular(self, matrix: Array, b: Array, lower: bool, transposed: bool) -> Array:
        triangle = np.tril(matrix) if lower else np.triu(matrix)
        return np.linalg.solve(np.swapaxes(triangle, -1, -2) if transposed else triangle, b)

    @override
    def scan(
        self, step: Function, carry: list[Array], rows: list[Array], length: int
    ) -> tuple[list[Array], list[Array]]:
        """The contract's scan, as a loop of Python's."""
        stacked = []
        for trip in range(length):
            carry, outputs = step(carry, [row[trip] for row in rows])
            stacked.append(outputs)
        return carry, [np.stack(parts) for parts in zip(*stacked, strict=True)]

    matmul = staticmethod(np.matmul)
    stack = staticmethod(np.stack)
    concatenate = staticmethod(np.concatenate)
    reshape = staticmethod(np.reshape)

    @override
    def where(self, condition: Array, x: Array, y: Array) -> Array:
        chosen: Array = np.where(condition, x, y)
        return chosen[()]

    @override
    def full_like(self, x: Array, value: Array) -> Array:
        return np.full_like(x, value, value.dtype)[()]

    @override
    def item(self, x: Array, parts: tuple[Any, ...]) -> Array:
        return x[parts]

    @override
    def gather(self, x: Array, index: Array, axis: int) -> Array:
        return np.take(x, index, axis=axis)

    @override
    def scatter_add(self, x: Array, index: Array, axis: int, extent: int) -> Array:
        shape = list(x.shape)
        shape[axis] = extent
        sums = np.zeros(shape, x.dtype)
        np.add.at(np.moveaxis(sums, axis, 0), index, np.moveaxis(x, axis, 0))
        return sums

    @override
    def parts_of_last_axis(self, x: Array, sizes: Sequence[int]) -> list[Array]:
        return [x[..., end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]

    @override
    def split_last_axis(self, x: Array, shape: tuple[int, ...]) -> Array:
        return x.reshape(x.shape[:-1] + shape)[()]

    @override
    def bitcast(self, x: Array, dtype: np.dtype[Any]) -> Array:
        return x.view(dtype)[()]

    @override
    def call_c(self, arrays: tuple[Array, ...], key: str) -> list[Array]:
        return c_function(key).evaluate(arrays)

    @override
    def with_gradient(self, value: Array, x: Array, gradient: Array) -> Array:
        return value

    @override
    def kernel(self, function: Function) -> Function:
        """The function itself: NumPy runs it as it stands."""
        return function


NUMPY = NumPyLibrary()
