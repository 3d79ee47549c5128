"""Records as they come, in blocks of a fixed number of draws of all chains: few of them in memory, the others in files.

A block is complete once every chain has recorded its rows. Chains are out of step, so several blocks are incomplete at
a time, and many where one chain is far slower than the others. Those that were used least recently go to files, and are
read back when late chains come to them.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import map_leaves
from batchnuts.files.sealed_file import read_arrays, write_arrays
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.storage.logged import PART


@dataclass
class RowBlock:
    """Some transitions of all chains."""

    first: int
    """The transition of row 0."""
    records: Record
    """Arrays [chains, rows, ...]; what chains have not recorded is undefined."""
    filled: int = 0
    """Rows that were recorded, over all chains."""

    @property
    def rows(self) -> int:
        """The rows of each chain."""
        return int(self.records.lp.shape[1])

    @property
    def complete(self) -> bool:
        """Whether every chain has recorded its rows."""
        return bool(self.filled == self.records.lp.size)


class RowBlocks:
    """The incomplete blocks of a stretch, by number. like: records [lanes, rows, ...], which give dtypes and shapes.

    rows: of a block. in_memory: so many blocks at most. Others are in files in `folder`. Not for several threads.
    """

    def __init__(self, like: Record, chains: int, transitions: int, rows: int, in_memory: int, folder: Path) -> None:
        self.like = like
        self.chains = chains
        self.transitions = transitions
        self.rows = rows
        self.most = in_memory
        self.folder = folder
        self.in_memory: OrderedDict[int, RowBlock] = OrderedDict()
        """Least recently used first."""
        self.filed: dict[int, int] = {}
        """How many rows of a block in a file are filled, by the block's number."""
        self.last: tuple[int, RowBlock] | None = None
        """The last block of the stretch once it is complete, if it is shorter: a run that goes on after it has this
        block again, and so does a stretch of more transitions."""

    def get(self, number: int) -> RowBlock:
        """A block, to be written to; empty where no chain has come to it yet."""
        block = self.in_memory.get(number)
        if block is None:
            while len(self.in_memory) >= self.most:
                self._put_away(*self.in_memory.popitem(last=False))
            block = self.in_memory[number] = self._read(number) if number in self.filed else self._empty(number)
        self.in_memory.move_to_end(number)
        return block

    def take(self, number: int) -> RowBlock:
        """A block that is complete, to be written."""
        block = self.in_memory.pop(number)
        if block.rows < self.rows:
            self.last = number, block
        return block

    def numbers(self) -> list[int]:
        """The numbers of all blocks that some chain has come to, in order."""
        return sorted({*self.in_memory, *self.filed})

    def save(self, folder: Path) -> list[Path]:
        """Write all blocks into a folder; gives the files, which are not synchronized to the disk yet."""
        files = []
        for number, block in (*self.in_memory.items(), *([self.last] if self.last else [])):
            files.append(_write(folder / _name(number), block))
        for number in self.filed:
            target = folder / _name(number)
            try:
                os.link(self.folder / _name(number), target)  # a file is replaced, never written to again
            except OSError:  # a file system without links
                target.write_bytes((self.folder / _name(number)).read_bytes())
            files.append(target)
        return files

    def load(self, folder: Path, recorded: NDArray[np.int64]) -> None:
        """Take over the blocks that were saved when each chain had recorded so many transitions [chains].

        Raises CheckpointError for a file that is missing or damaged.
        """
        self.in_memory.clear()
        self.filed.clear()
        for number in range(int(recorded.min()) // self.rows, -(-int(recorded.max()) // self.rows)):
            filled = np.clip(recorded - number * self.rows, 0, self._length(number)).sum()
            read_arrays(folder / _name(number), PART)  # refused here if it is damaged, and not in the middle of the run
            target = self.folder / _name(number)
            target.unlink(missing_ok=True)
            try:
                os.link(folder / _name(number), target)
            except OSError:
                target.write_bytes((folder / _name(number)).read_bytes())
            self.filed[number] = int(filled)

    def _length(self, number: int) -> int:
        return min(self.rows, self.transitions - number * self.rows)

    def _empty(self, number: int) -> RowBlock:
        shape = (self.chains, self._length(number))
        return RowBlock(number * self.rows, map_leaves(lambda a: np.zeros((*shape, *a.shape[2:]), a.dtype), self.like))

    def _put_away(self, number: int, block: RowBlock) -> None:
        _write(self.folder / _name(number), block)
        self.filed[number] = block.filled

    def _read(self, number: int) -> RowBlock:
        path = self.folder / _name(number)
        block = self._empty(number)
        for name, saved in read_arrays(path, PART).items():
            getattr(block.records, name)[:, : saved.shape[1]] = (
                saved  # fewer rows where an earlier stretch was to end there
            )
        block.filled = self.filed.pop(number)
        path.unlink()
        return block


def _name(number: int) -> str:
    return f"{number}.npz"


def _write(path: Path, block: RowBlock) -> Path:
    """Replaces what is there in one instant."""
    arrays = {name: array for name, array in block.records._asdict().items() if not isinstance(array, tuple)}
    write_arrays(path, arrays, durable=False)
    return path
