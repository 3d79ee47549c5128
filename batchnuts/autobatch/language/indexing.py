"""`x[index]` where the index is a lane's own value: Python's meaning, negative indices included, on every backend.

An index outside the array is noted in `Checks`, and the nearest element is the result. Indices known at compile time
stay Python's own subscripts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from batchnuts.autobatch.language import operators, ops
from batchnuts.autobatch.language.arrays import (
    convert,
    dtype_of,
    is_array,
    library_of,
    static_shape,
    tensor_library_of,
)
from batchnuts.autobatch.language.operators import Checks
from batchnuts.autobatch.language.pytree import flatten


def item(x: Any, index: Any, checks: Checks, check: int) -> Any:
    """`x[index]`. index: an integer scalar, one integer vector, static slices, None, ..., or a tuple of these.

    Raises TypeError for an index whose result has no static shape: a slice with bounds of the lane, a boolean mask, a
    tuple or list indexed by a lane's value. IndexError for too many indices.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if not is_array(x):
        if any(is_array(part) for part in parts):
            kind = type(x).__name__
            raise TypeError(f"the index of a {kind} must be known at compile time, {_instead_of_index(x)}")
        return x[index]
    parts = tuple(convert(p, dtype_of(p), library_of(p)) if isinstance(p, list) else p for p in parts)
    shape = static_shape(x)
    if shape is None:
        raise ValueError("indexing an array of unknown rank")
    parts = _full(parts, len(shape))
    _require_indices(parts)
    safe: list[Any] = []
    axis = 0
    for part in parts:
        if part is None or isinstance(part, slice):
            safe.append(part)
        else:
            safe.append(_inside(part, shape[axis], checks, check))
        axis += part is not None
    library = tensor_library_of(x, *safe)
    if library is None:
        return x[tuple(safe)]
    return library.item(convert(x, dtype_of(x), library), tuple(safe))


def _instead_of_index(x: Any) -> str:
    """What to do in place of indexing a structure by a value of the lane: what it holds decides."""
    leaves, _ = flatten(x)
    if any(callable(leaf) and not is_array(leaf) for leaf in leaves):
        return (
            "and this one is a lane's value. Functions must be known when the program is compiled: write `if` and "
            "`else`, with a call in each"
        )
    if any(isinstance(leaf, (str, bytes)) for leaf in leaves):
        return (
            "and this one is a lane's value. Strings must be known when the program is compiled: write `if` and "
            "`else` around what the string selects"
        )
    values = "tuple(values.values())" if isinstance(x, dict) else "values"
    return (
        f"and this one is a lane's value. Make it an array first: ops.stack({values})[i], or numpy.array for constants"
    )


def item_of_constants(x: Any, index: Any) -> Any:
    """`x[index]` of an index known at compile time; a list or array of integers takes elements on every backend.

    A vector of booleans takes those where it is true. Raises IndexError for an index outside, TypeError as `item`.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if not is_array(x) or not any(isinstance(part, (list, np.ndarray)) and np.ndim(part) for part in parts):
        return x[index]
    shape = static_shape(x)
    if shape is None:
        raise ValueError("indexing an array of unknown rank")
    parts = _full(tuple(np.asarray(part) if isinstance(part, list) else part for part in parts), len(shape))
    axes = iter(shape)
    normalized = [part if part is None else _constant_from_the_front(part, next(axes)) for part in parts]
    _require_indices(tuple(normalized))
    library = tensor_library_of(x)
    return x[tuple(normalized)] if library is None else library.item(x, tuple(normalized))


def _constant_from_the_front(part: Any, extent: int | None) -> Any:
    """An index of constants: integers counted from the front, in place of booleans too; slices as they are."""
    if isinstance(part, slice):
        return part
    if extent is None:
        raise ValueError("indexing an axis of unknown extent")
    if isinstance(part, np.ndarray) and part.dtype == bool and part.shape == (extent,):
        return np.flatnonzero(part)
    part = part.astype("int64") if isinstance(part, np.ndarray) and not part.size else part
    if dtype_of(part).kind in "iu":
        outside = (np.less(part, -extent) | np.greater_equal(part, extent)).any()
        if outside:
            raise IndexError(f"the index {part} is outside an axis of {extent} elements")
        return np.where(np.less(part, 0), part + extent, part)[()] if np.ndim(part) else int(part) % extent
    return part


def _full(parts: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """The indices with `...` written out, one for each axis (and None for each new one)."""
    used = sum(part is not None and part is not Ellipsis for part in parts)
    if used > rank:
        raise IndexError(f"too many indices: the array has {rank} axes, but {used} were indexed")
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    at = dots[0] if dots else len(parts)
    return (*parts[:at], *[slice(None)] * (rank - used), *parts[at + bool(dots) :])


def _require_indices(parts: tuple[Any, ...]) -> None:
    vectors = others = 0
    for part in parts:
        if isinstance(part, slice):
            if any(is_array(bound) for bound in (part.start, part.stop, part.step)):
                raise TypeError(
                    "the bounds of a slice must be known at compile time, since they decide the result's shape. Take "
                    "elements by an array of indices, as x[i + numpy.arange(n)], or mask with ops.where"
                )
        elif part is not None:
            if dtype_of(part).kind not in "iu":
                raise TypeError(f"an index must be an integer, not {dtype_of(part)}; for a boolean mask, use ops.where")
            vectors += bool(static_shape(part))
            others += not static_shape(part)
    if vectors > 1 or (vectors and others):
        raise TypeError("only one array of indices at a time, with no other index: index twice")


def _inside(index: Any, extent: int | None, checks: Checks, check: int) -> Any:
    """The index, counted from the front and moved to the nearest element if it lies outside; that is noted."""
    if extent is None:
        raise ValueError("indexing an axis of unknown extent")
    if not extent:
        raise IndexError("the array is empty")
    if not is_array(index):
        checks.note(check, -extent <= index < extent)
        return min(max(index + extent if index < 0 else index, 0), extent - 1)
    index = ops.cast(index, "int64")
    inside = ops.logical_and(operators.greater_equal(index, -extent), operators.less(index, extent))
    checks.note(check, ops.all(inside))
    return ops.clip(_from_the_front(index, extent), 0, extent - 1)


def _from_the_front(index: Any, extent: int) -> Any:
    """An int64 index as it is, a negative one counted from the end."""
    return ops.where(operators.less(index, 0), operators.add(index, extent), index)


def row(x: Any, index: Any) -> Any:
    """The index of `x[index] = value` counted from the front. Raises TypeError for what is not an array's element."""
    if not is_array(x):
        kind = type(x).__name__
        raise TypeError(
            f"an element of an array can be assigned, not one of a {kind}; make it an array, or build a new {kind}"
        )
    shape = static_shape(x)
    if not shape:
        raise TypeError("a number has no elements to assign; assign the variable itself")
    extent = shape[0]
    if extent is None:
        raise ValueError("indexing an axis of unknown extent")
    if dtype_of(index).kind not in "iu" or static_shape(index):
        raise TypeError(
            "the index of an assigned element is an integer; assign one element at a time, or use ops.where(mask, ...)"
        )
    if not is_array(index):
        return index + extent if index < 0 else index
    return _from_the_front(ops.cast(index, "int64"), extent)


def row_of_plain_array(x: Any, index: Any) -> Any:
    """`row` in plain Python, where the values are known: ValueError for an index outside, as it is written."""
    normalized = row(x, index)
    if not 0 <= int(normalized) < len(x):
        raise ValueError(f"write: index {int(index)} is outside the buffer's {len(x)} rows")
    return normalized
