"""Draws that may be on a disk: read some coefficients, or some chains, at a time.

A *block* holds draws [chains, draws, coefficients]: a NumPy array, or a variable of a group that xarray has opened
lazily, from netCDF or Zarr. Files hold all coefficients of a variable together, so reading one of them costs as much as
reading all: who needs whole coefficients takes as many at once as memory allows (`columns_of`), and who needs sums, or
some draws of all, goes over chains (`chain_parts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.rank_normal import BLOCK

if TYPE_CHECKING:
    import xarray

READ_AT_ONCE = 2**22
"""Values that are read from a file together; or all draws of the chains that it holds together, if these are more."""


class DrawBlock(Protocol):
    """Draws [chains, draws, coefficients], of which parts are read when they are asked for.

    A NumPy array is one.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Chains, draws and coefficients."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""

    def __getitem__(self, key: tuple[slice, slice, slice | int], /) -> NDArray[Any]:
        """Slices of chains, draws and coefficients, or one coefficient: then the last axis is dropped."""


class VariableBlock:
    """A variable of dimensions (chain, draw, ...) as a block: the elements after these are its coefficients.

    kept: which of them, by number; None: all. Nothing is read before it is asked for, and nothing is kept.
    """

    def __init__(self, variable: xarray.Variable, kept: NDArray[np.intp] | None = None) -> None:
        self.variable = variable
        self.kept = np.arange(int(np.prod(variable.shape[2:], dtype=np.int64))) if kept is None else kept
        self.shape: tuple[int, ...] = (*variable.shape[:2], len(self.kept))
        self.dtype: np.dtype[Any] = variable.dtype

    def __getitem__(self, key: tuple[slice, slice, slice | int], /) -> NDArray[Any]:
        chains, draws, columns = key
        wanted = np.atleast_1d(self.kept[columns])
        first, last = (int(wanted.min()), int(wanted.max()) + 1) if len(wanted) else (0, 0)
        rest = self.variable.shape[2:]
        if rest:
            # whole rows of the first axis after draws, which is as little as can be cut out without a copy
            each = int(np.prod(rest[1:], dtype=np.int64))
            rows = slice(first // each, -(-last // each))
            values = np.asarray(self.variable[chains, draws, rows].values)
            values = values.reshape(*values.shape[:2], -1)
            wanted = wanted - rows.start * each
        else:
            values = np.asarray(self.variable[chains, draws].values)[:, :, None]
        if not isinstance(columns, slice):
            return values[:, :, int(wanted[0])]
        together = len(wanted) == last - first
        return values[:, :, wanted[0] : wanted[-1] + 1] if together and len(wanted) else values[:, :, wanted]

    @property
    def chains_of_chunk(self) -> int:
        """Chains that a file holds together; 1 where it does not say."""
        encoding = self.variable.encoding
        chunks = encoding.get("chunks") or encoding.get("chunksizes") or (1,)
        return int(chunks[0])


def as_block(array: NDArray[Any] | DrawBlock) -> DrawBlock:
    """An array [chains, draws] as a block of one coefficient; a block as it is."""
    return array[:, :, None] if isinstance(array, np.ndarray) and array.ndim == 2 else array


def chain_parts(block: DrawBlock, columns: slice = slice(None)) -> Iterator[tuple[slice, NDArray[Any]]]:
    """All draws of some chains after others, as (chains, [chains, draws, columns]), few enough for memory."""
    chains, draws, count = block.shape
    count = len(range(*columns.indices(count)))
    chunk = block.chains_of_chunk if isinstance(block, VariableBlock) else 1
    at_once = BLOCK if isinstance(block, np.ndarray) else READ_AT_ONCE
    step = chunk * max(1, at_once // max(1, chunk * draws * count))
    for start in range(0, chains, step):
        part = slice(start, min(start + step, chains))
        yield part, block[part, :, columns]


def rows_of(block: DrawBlock, numbers: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Some draws [draws, coefficients] by ascending numbers, counted through all chains one after another."""
    draws = block.shape[1]
    found = []
    for part, values in chain_parts(block):
        low, high = np.searchsorted(numbers, (part.start * draws, part.stop * draws))
        found.append(values.reshape(-1, block.shape[2])[numbers[low:high] - part.start * draws])
    return np.concatenate(found)


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
    found = np.empty((columns.stop - columns.start, chains, draws), dtype)
    at = 0
    for block, part in parts:
        width = part.stop - part.start
        for some, values in chain_parts(block, part):
            found[at : at + width, some] = values.transpose(2, 0, 1)
        at += width
    return found


def some_columns(blocks: Sequence[DrawBlock], indices: Sequence[int]) -> list[NDArray[Any]]:
    """The draws [chains, draws] of coefficients by number over all blocks, in the order asked for.

    Each block is read once, and those not that have none of them.
    """
    found: dict[int, NDArray[Any]] = {}
    start = 0
    for block in blocks:
        width = block.shape[2]
        inside = sorted({index - start for index in indices if start <= index < start + width})
        if inside:
            own = [np.empty(block.shape[:2], block.dtype) for _ in inside]
            for part, values in chain_parts(block, slice(inside[0], inside[-1] + 1)):
                for column, place in zip(own, inside, strict=True):
                    column[part] = values[:, :, place - inside[0]]
            found |= {start + place: column for place, column in zip(inside, own, strict=True)}
        start += width
    return [found[index] for index in indices]
