"""Values while a jaxpr is recorded: recorded arrays and NumPy's, which may still be to be broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from batchnuts.autobatch.language.libraries.recording import FUNCTIONS as F
from batchnuts.autobatch.language.libraries.recording import LIBRARY

Array = Any
Equation = Any
Rule = Callable[..., Any]


def shape_of(x: Array) -> tuple[int, ...]:
    """The shape that a value has now."""
    return tuple(LIBRARY.static_shape(x))


def whole(x: Array, aval: Any) -> Array:
    """A value in the shape of its type."""
    if shape_of(x) == aval.shape:
        return x
    return F.full_like(np.broadcast_to(np.zeros((), aval.dtype), aval.shape), x)


def wholes(equation: Equation, arguments: Sequence[Array]) -> list[Array]:
    """Arguments in the shapes of their types."""
    return [whole(x, atom.aval) for x, atom in zip(arguments, equation.invars, strict=True)]


def one_axis(parts: Any, axis: int, rank: int) -> tuple[Any, ...]:
    """An index of one axis; of the others all."""
    return tuple(parts if a == axis else slice(None) for a in range(rank))


def rearranged(x: Array, source: np.ndarray) -> Array:
    """Elements of x by their numbers in it, in the shape of `source`."""
    if isinstance(x, np.ndarray):
        return x.reshape(-1)[source]
    return F.gather(F.reshape(x, (math.prod(shape_of(x)),)), source, 0)


def permuted(x: Array, permutation: Sequence[int]) -> Array:
    """The array with other orders of axes."""
    shape, permutation = shape_of(x), tuple(permutation)
    rank = len(shape)
    if [a for a in permutation if shape[a] != 1] == [a for a in range(rank) if shape[a] != 1]:
        return F.reshape(x, tuple(shape[a] for a in permutation))
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x.transpose(permutation))
    if permutation == (*range(rank - 2), rank - 1, rank - 2):
        return F.transpose(x)
    return rearranged(x, np.arange(math.prod(shape)).reshape(shape).transpose(permutation))


def number(value: float, like: Array) -> np.ndarray:
    """A number in the dtype of an array."""
    return np.asarray(value, LIBRARY.dtype_of(like))
