"""Draws that may be on a disk: read some coefficients, or some chains, at a time.

A *block* holds draws [chains, draws, coefficients]: a NumPy array, or a variable of a group that xarray has opened
lazily, from netCDF or Zarr. Files hold many coefficients of a variable together, so reading one of them costs as much
as reading these: who needs whole coefficients takes as many at once as memory allows (`columns_of`), and who needs
sums, or some draws of all, goes over parts of a few megabytes (`parts_of`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from batchnuts.files.groups import Values
from batchnuts.mcmc.statistics.rank_normal import BLOCK

READ_AT_ONCE = 2**22
"""Values that are read from a file together; or what it holds together, if that is more."""


class DrawBlock(Protocol):
    """Draws [chains, draws, coefficients], of which parts are read when they are asked for.

    A NumPy array is one.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Chains, draws and coefficients."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""

    def __getitem__(self, key: tuple[slice, slice, slice | int], /) -> NDArray[Any]:
        """Slices of chains, draws and coefficients, or one coefficient: then the last axis is dropped."""


class VariableBlock:
    """An array of axes (chain, draw, ...) as a block: the elements after these are its coefficients.

    selected: which of them, by number; None: all. Nothing is read before it is asked for, and nothing stays in memory.
    """

    def __init__(self, variable: Values, selected: NDArray[np.intp] | None = None) -> None:
        self.variable = variable
        self.selected = np.arange(int(np.prod(variable.shape[2:], dtype=np.int64))) if selected is None else selected
        self.shape: tuple[int, ...] = (*variable.shape[:2], len(self.selected))
        self.dtype: np.dtype[Any] = variable.dtype

    def __getitem__(self, key: tuple[slice, slice, slice | int], /) -> NDArray[Any]:
        chains, draws, columns = key
        indices = np.atleast_1d(self.selected[columns])
        first, last = (int(indices.min()), int(indices.max()) + 1) if len(indices) else (0, 0)
        trailing = self.variable.shape[2:]
        if trailing:
            # whole rows of the first axis after draws, which is as little as can be cut out without a copy
            per_row = int(np.prod(trailing[1:], dtype=np.int64))
            rows = slice(first // per_row, -(-last // per_row))
            values = np.asarray(self.variable[chains, draws, rows])
            values = values.reshape(*values.shape[:2], -1)
            indices = indices - rows.start * per_row
        else:
            values = np.asarray(self.variable[chains, draws])[:, :, None]
        if not isinstance(columns, slice):
            return values[:, :, int(indices[0])]
        together = len(indices) == last - first
        return values[:, :, indices[0] : indices[-1] + 1] if together and len(indices) else values[:, :, indices]

    @property
    def held_together(self) -> tuple[int, int, int]:
        """Chains, draws and coefficients that a file holds together; one draw of all coefficients where it does not
        say."""
        encoding = getattr(self.variable, "encoding", {})
        chunks: Sequence[int] = encoding.get("chunks") or encoding.get("chunksizes") or ()
        if len(chunks) != self.variable.ndim:  # those of the files of which this variable was put together
            chunks = (1, 1)
        (chains, draws, *trailing), shape = chunks, self.variable.shape[2:]
        per_row = int(np.prod(shape[1:], dtype=np.int64))
        return (
            int(chains),
            int(draws),
            int(trailing[0]) * per_row if trailing else max(1, int(np.prod(shape, dtype=np.int64))),
        )

    def column_parts(self, columns: slice) -> list[slice]:
        """Parts of these coefficients, each of those that a file holds together."""
        start, stop, _ = columns.indices(len(self.selected))
        chunk = self.selected[start:stop] // self.held_together[2]
        edges = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(chunk)]
        return [slice(start + low, start + high) for low, high in itertools.pairwise(edges)]


def as_block(array: NDArray[Any] | DrawBlock) -> DrawBlock:
    """An array [chains, draws] as a block of one coefficient; a block as it is."""
    return array[:, :, None] if isinstance(array, np.ndarray) and array.ndim == 2 else array


def parts_of(block: DrawBlock, columns: slice = slice(None)) -> Iterator[tuple[slice, slice, slice, NDArray[Any]]]:
    """These coefficients in parts that are few enough for memory, as (chains, draws, columns, values of these)."""
    chains, draws, count = block.shape
    if isinstance(block, VariableBlock):
        (of_chains, of_draws, _), at_once = block.held_together, READ_AT_ONCE
        column_parts = block.column_parts(columns)
    else:
        of_chains, of_draws, at_once = 1, 1, BLOCK
        start, stop, _ = columns.indices(count)
        column_parts = [slice(start, stop)]
    for column_part in column_parts:
        width = max(1, column_part.stop - column_part.start)
        # as many draws of as few chains as the file holds together; where that is all of them, of more chains
        long = min(of_draws * max(1, at_once // (of_chains * of_draws * width)), draws)
        wide = of_chains * max(1, at_once // max(1, of_chains * long * width)) if long == draws else of_chains
        for first in range(0, chains, wide):
            for begin in range(0, draws, max(1, long)):
                part = slice(first, min(first + wide, chains)), slice(begin, min(begin + long, draws))
                yield *part, column_part, block[*part, column_part]


def rows_of(block: DrawBlock, numbers: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Some draws [draws, coefficients] by ascending numbers, counted through all chains one after another."""
    of_chain, draw = np.divmod(numbers, max(1, block.shape[1]))
    rows = np.empty((len(numbers), block.shape[2]), block.dtype)
    for chains, draws, columns, values in parts_of(block):
        low, high = np.searchsorted(of_chain, (chains.start, chains.stop))
        inside = low + np.flatnonzero((draws.start <= draw[low:high]) & (draw[low:high] < draws.stop))
        rows[inside, columns] = values[of_chain[inside] - chains.start, draw[inside] - draws.start]
    return rows


def columns_of(blocks: Sequence[DrawBlock], columns: slice) -> NDArray[Any]:
    """Coefficients by number over all blocks, which follow each other: [coefficients, chains, draws], C-contiguous.

    float32 where all draws of these coefficients are, else float64.
    """
    chains, draws, _ = blocks[0].shape
    parts: list[tuple[DrawBlock, slice]] = []
    start = 0
    for block in blocks:
        width = block.shape[2]
        low, high = max(columns.start - start, 0), min(columns.stop - start, width)
        if low < high:
            parts.append((block, slice(low, high)))
        start += width
    dtype = np.float32 if all(block.dtype == np.float32 for block, _ in parts) else np.float64
    result = np.empty((columns.stop - columns.start, chains, draws), dtype)
    offset = 0
    for block, part in parts:
        for some_chains, some_draws, columns_read, values in parts_of(block, part):
            first = offset + columns_read.start - part.start
            result[first : first + values.shape[2], some_chains, some_draws] = values.transpose(2, 0, 1)
        offset += part.stop - part.start
    return result


def some_columns(blocks: Sequence[DrawBlock], indices: Sequence[int]) -> list[NDArray[Any]]:
    """The draws [chains, draws] of coefficients by number over all blocks, in the order asked for.

    Of a file's block no more is read than what it holds together with one of them, and that once.
    """
    by_index: dict[int, NDArray[Any]] = {}
    start = 0
    for block in blocks:
        width = block.shape[2]
        inside = sorted({index - start for index in indices if start <= index < start + width})
        if inside:
            column_of = {place: np.empty(block.shape[:2], block.dtype) for place in inside}
            for group in _together(block, inside):
                for some_chains, some_draws, part, values in parts_of(block, slice(group[0], group[-1] + 1)):
                    for place in group:
                        if part.start <= place < part.stop:
                            column_of[place][some_chains, some_draws] = values[:, :, place - part.start]
            by_index |= {start + place: column for place, column in column_of.items()}
        start += width
    return [by_index[index] for index in indices]


def _together(block: DrawBlock, places: Sequence[int]) -> Iterator[list[int]]:
    """Coefficients by ascending number, those that a file holds together in one list."""
    if not isinstance(block, VariableBlock):
        yield list(places)
        return
    width = block.held_together[2]
    for _, near in itertools.groupby(places, key=lambda place: block.selected[place] // width):
        yield list(near)
