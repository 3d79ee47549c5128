"""Records in memory, of which what is new is appended to files: so a checkpoint costs what was drawn since the last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch.machine import map_leaves
from batchnuts.files.sealed_file import CheckpointError, read_arrays, write_arrays
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.storage.memory import MemoryStorage

PART = "expected a part of a checkpoint of batchnuts"


class LoggedStorage(MemoryStorage):
    """A MemoryStorage whose `flush` writes the records that are in no file yet to a new one in `folder`.

    parts: the names of files of the same stretch, in order, that `resume` reads.
    """

    def __init__(
        self,
        like: Record,
        chains: int,
        transitions: int,
        room: int | None = None,
        *,
        folder: Path,
        parts: Sequence[str] = (),
    ) -> None:
        super().__init__(like, chains, transitions, room)
        self.folder = folder
        self.parts = list(parts)
        self.logged: NDArray[np.int64] = np.zeros(chains, np.int64)
        """[chains]: transitions of each that are in files."""

    @override
    def flush(self) -> None:
        """Raises OSError where the file cannot be written; then none has been."""
        first, last = self.logged, self.recorded.copy()
        if (last == first).all():
            return
        rows = self.rows_of(first, last)
        number = 1 + max((int(path.stem) for path in self.folder.glob("*.npz") if path.stem.isdigit()), default=0)
        name = f"{number:06d}.npz"
        arrays = {field: array for field, array in rows._asdict().items() if not isinstance(array, tuple)}
        write_arrays(self.folder / name, {**arrays, "first": first, "last": last})
        self.parts.append(name)
        self.logged = last

    @override
    def resume(self, recorded: NDArray[np.int64]) -> None:
        """Raises CheckpointError for files that are missing, damaged, or not of this stretch."""
        for name in self.parts:
            path = self.folder / name
            arrays = read_arrays(path, PART)
            first, last = arrays.pop("first", None), arrays.pop("last", None)
            if first is None or last is None or not self._follows(first, last) or not self._put(arrays, first, last):
                raise CheckpointError(f"{path} does not belong to this run; {PART}.")
            self.logged = last
        if (self.logged != recorded).any():
            raise CheckpointError(f"The files in {self.folder} do not have the draws that the checkpoint names.")
        self.recorded = self.logged.copy()

    def _follows(self, first: NDArray[Any], last: NDArray[Any]) -> bool:
        """Whether transitions [first, last) of each chain follow what there is."""
        return (
            first.shape == last.shape == (self.chains,)
            and bool((first == self.logged).all() and (last >= first).all())
            and last.max(initial=0) <= self.transitions
        )

    def _put(self, arrays: dict[str, NDArray[np.generic]], first: NDArray[np.int64], last: NDArray[np.int64]) -> bool:
        """Place the transitions [first, last) of each chain, whose rows follow one another; whether they fit."""
        expected = {name: array for name, array in self.like._asdict().items() if not isinstance(array, tuple)}
        rows = int((last - first).sum())
        fits = arrays.keys() == expected.keys() and all(
            arrays[name].dtype == like.dtype and arrays[name].shape == (rows, *like.shape[2:])
            for name, like in expected.items()
        )
        if not fits:
            return False
        self.make_room(int(last.max(initial=0)))
        ends = np.cumsum(last - first)
        for start, block in self.blocks:
            size = block.lp.shape[1]
            low, high = np.maximum(first, start), np.minimum(last, start + size)
            for chain in np.flatnonzero(low < high):
                at = ends[chain] - last[chain]  # the row of transition 0, were it there
                for name, array in arrays.items():
                    place = getattr(block, name)
                    place[chain, low[chain] - start : high[chain] - start] = array[at + low[chain] : at + high[chain]]
        return True

    def rows_of(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> Record:
        """The transitions [first, last) of each chain, one after the other: arrays [all of them, ...]."""
        pieces = []
        for chain in range(self.chains):
            for start, block in self.blocks:
                size = block.lp.shape[1]
                low, high = max(int(first[chain]), start), min(int(last[chain]), start + size)
                if low < high:
                    pieces.append((block, chain, low - start, high - start))
        parts = [map_leaves(lambda a, c=c, i=i, j=j: a[c, i:j], block) for block, c, i, j in pieces]
        joined: Record = map_leaves(lambda *arrays: np.concatenate(arrays), *parts)
        return joined
