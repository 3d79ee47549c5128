"""What TensorFlow and JAX have in common: formulas where no single operation of theirs does what NumPy's does.

Both compile with XLA, so its habits are theirs.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from batchnuts.autobatch.language.libraries.library import Array, Function, TensorLibrary

_LONGEST_PLAIN_SUM = 32
"""The maximum length of a row that XLA's compiler for processors sums in one plain loop."""


class Formulas(TensorLibrary):
    """The part of a `TensorLibrary` that is made of its other functions and of Python's operators on its arrays."""

    truncated_remainder: Function
    """C's fmod, of floats of 32 bits or more."""

    @abstractmethod
    def _floor_divide_integers(self, x: Array, y: Array) -> Array: ...

    @abstractmethod
    def _remainder_of_integers(self, x: Array, y: Array) -> Array: ...

    @abstractmethod
    def _matrix_product(self, x: Array, y: Array) -> Array:
        """`matmul` of arrays with axes, not both vectors."""

    @abstractmethod
    def _total(self, arrays: Sequence[Array]) -> Array:
        """The sum of arrays of one shape, in order."""

    # Choices

    @override
    def minimum(self, x: Array, y: Array) -> Array:
        return self.logical_and(x, y) if self._is_bool(x) else self._first_or_second(operator.le, x, y)

    @override
    def maximum(self, x: Array, y: Array) -> Array:
        return self.logical_or(x, y) if self._is_bool(x) else self._first_or_second(operator.ge, x, y)

    def _is_bool(self, x: Array) -> bool:
        return bool(x.dtype == bool)

    def _first_or_second(self, is_first: Function, x: Array, y: Array) -> Array:
        # The minimum of XLA on processors can lose a NaN, as in min(1, NaN) = 1. Comparison and select do not, and the
        # gradient at a tie is the same everywhere: all of it goes to x.
        return self.where(is_first(x, y) | (x != x), x, y)

    @override
    def logaddexp(self, x: Array, y: Array) -> Array:
        # Ordered by comparison, not by maximum(), so that the gradient at a tie is (1/2, 1/2). An infinite larger
        # argument is the result itself; no gap is taken then, as infinity minus infinity puts NaN into value and
        # gradient.
        ordered = x >= y
        larger, smaller, zero = self.where(ordered, x, y), self.where(ordered, y, x), np.zeros((), self.dtype_of(x))
        finite = self.isfinite(larger)
        gap = self.where(finite, smaller, zero) - self.where(finite, larger, zero)
        rest = self.where(finite, self.log1p(self.exp(gap)), zero)
        either_nan = self.isnan(x) | self.isnan(y)
        return self.where(either_nan, x + y, larger + rest)

    # Products

    @override
    def matmul(self, x: Array, y: Array) -> Array:
        shapes = self.static_shape(x), self.static_shape(y)
        if () in shapes:
            raise ValueError(f"matmul takes vectors and matrices, not shapes {shapes[0]} and {shapes[1]}")
        if all(shape is not None and len(shape) == 1 for shape in shapes):
            return self._sum_of_vector(self.multiply(x, y))
        return self._matrix_product(x, y)

    def _sum_of_vector(self, x: Array) -> Array:
        # On processors XLA sums rows of more than 32 by windows, without vector instructions. Halves are added until
        # the rest is short; on 64 rows of 100 that takes a fifth of the time.
        length = x.shape[0]
        if length is None:
            return self.sum(x, None, False)
        over = []
        while length > _LONGEST_PLAIN_SUM:
            half = length // 2
            if length % 2:
                over.append(x[2 * half])
            x, length = x[:half] + x[half : 2 * half], half
        return self._total([self.sum(x, None, False), *over])

    # Indexing

    @override
    def item(self, x: Array, parts: tuple[Any, ...]) -> Array:
        """Static parts by slicing, then one gather for each array of indices, last axis first."""
        static = [part is None or isinstance(part, (int, slice)) for part in parts]
        sliced = x[tuple(part if is_static else slice(None) for part, is_static in zip(parts, static))]
        axes = [None if is_static else part for part, is_static in zip(parts, static) if not isinstance(part, int)]
        for axis in reversed(range(len(axes))):
            if axes[axis] is not None:
                sliced = self.gather(sliced, axes[axis], axis)
        return sliced

    # Division

    @override
    def floor_divide(self, x: Array, y: Array) -> Array:
        if self.dtype_of(x).kind in "iu":
            return self._floor_divide_integers(x, y)
        return self._in_float32(self._floor_divide_floats, x, y)

    @override
    def remainder(self, x: Array, y: Array) -> Array:
        if self.dtype_of(x).kind in "iu":
            return self._remainder_of_integers(x, y)
        return self._in_float32(self._remainder_of_floats, x, y)

    def _in_float32(self, function: Function, x: Array, y: Array) -> Array:
        """The function of floats; those of 16 bits in float32 as NumPy has it: TensorFlow has no remainder of them."""
        dtype = self.dtype_of(x)
        if dtype.itemsize != 2:
            return function(x, y)
        return self.convert(function(self.convert(x, np.float32), self.convert(y, np.float32)), dtype)

    def _remainder_of_floats(self, x: Array, y: Array) -> Array:
        """C's fmod, moved to the divisor's sign as Python and NumPy do; a zero remainder has that sign too."""
        zero = np.zeros((), self.dtype_of(x))
        remainder = self.truncated_remainder(x, y)
        moved = self.where((y < zero) != (remainder < zero), remainder + y, remainder)
        return self.where(remainder == zero, self.where(y < zero, -zero, zero), moved)

    def _floor_divide_floats(self, x: Array, y: Array) -> Array:
        """(x - remainder) / y to the nearest integer: floor(x / y) would round 1.0 // 0.1 up to 10.

        With C's remainder, and one less where Python's has the other sign: x - (x % y) would be infinite for an
        infinite y.
        """
        zero, half, one = (np.array(number, self.dtype_of(x)) for number in (0, 0.5, 1))
        remainder = self.truncated_remainder(x, y)
        quotient = self.divide(x - remainder, y)
        quotient = self.where((remainder != zero) & ((y < zero) != (remainder < zero)), quotient - one, quotient)
        below = self.floor(quotient)
        nearest = self.where(quotient - below > half, below + one, below)
        plain = self.divide(x, y)
        signed_zero = plain * self.full_like(x, zero)
        return self.where(y == zero, plain, self.where(quotient == zero, signed_zero, nearest))
