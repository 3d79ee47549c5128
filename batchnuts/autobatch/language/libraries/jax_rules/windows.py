"""Which elements XLA's gather reads, and its scatter writes, at known indices.

An index is where a window of the operand begins; XLA's documentation of gather and scatter defines what follows. The
axes of a result are those of the indices, `batch`, and between them those of the windows, `offset_dims`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def gathered(shape: tuple[int, ...], indices: np.ndarray, params: Any, rank: int, clips: bool) -> np.ndarray:
    """The number of each element that a gather of an array of that shape gives; -1 for one outside.

    rank: of the result.
    """
    dims = params["dimension_numbers"]
    removed = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
    batching = zip(dims.operand_batching_dims, dims.start_indices_batching_dims)
    sizes = tuple(map(int, params["slice_sizes"]))
    return _numbers(shape, indices, rank, dims.offset_dims, removed, dims.start_index_map, dict(batching), sizes, clips)


def scattered(
    shape: tuple[int, ...], indices: np.ndarray, params: Any, updates: tuple[int, ...], clips: bool
) -> np.ndarray:
    """The number of the element of an array of that shape to which each update of a scatter goes; -1 for none.

    updates: their shape.
    """
    dims = params["dimension_numbers"]
    removed = (*dims.inserted_window_dims, *dims.operand_batching_dims)
    batching = zip(dims.operand_batching_dims, dims.scatter_indices_batching_dims)
    extents = iter(updates[a] for a in dims.update_window_dims)
    sizes = tuple(1 if axis in removed else next(extents) for axis in range(len(shape)))
    to_operand = dims.scatter_dims_to_operand_dims
    return _numbers(
        shape, indices, len(updates), dims.update_window_dims, removed, to_operand, dict(batching), sizes, clips
    )


def _numbers(
    shape: tuple[int, ...],
    indices: np.ndarray,
    rank: int,
    window_axes: Sequence[int],
    removed: Sequence[int],
    of_index: Sequence[int],
    batching: dict[int, int],
    sizes: tuple[int, ...],
    clips: bool,
) -> np.ndarray:
    """The numbers of elements in windows of these sizes, in the shape of the result.

    window_axes: the result's axes that go through windows. removed: the operand's axes, of size 1, that do not.
    of_index: the operand's axis for each number of an index. batching: operand's axes that go with one of the indices.
    """
    batch_axes = [a for a in range(rank) if a not in window_axes]
    batch = indices.shape[:-1]

    def along(values: np.ndarray, axes: Sequence[int]) -> np.ndarray:
        """Values whose axes are these of the result."""
        place = [1] * rank
        for axis, extent in zip(axes, values.shape, strict=True):
            place[axis] = extent
        return values.reshape(place)

    number: Any = np.zeros((1,) * rank, np.int64)
    inside: Any = np.ones((1,) * rank, bool)
    window = iter(window_axes)
    for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        start = np.zeros(batch, np.int64)
        if axis in of_index:
            start = indices[..., list(of_index).index(axis)].astype(np.int64)
        elif axis in batching:
            place = [-1 if a == batching[axis] else 1 for a in range(len(batch))]
            start = np.broadcast_to(np.arange(batch[batching[axis]]).reshape(place), batch)
        if clips:
            start = np.clip(start, 0, extent - size)
        inside = inside & along((start >= 0) & (start <= extent - size), batch_axes)
        number = number + along(start, batch_axes) * math.prod(shape[axis + 1 :])
        if axis not in removed:
            number = number + along(np.arange(size), [next(window)]) * math.prod(shape[axis + 1 :])
    return np.where(inside, number, -1)
