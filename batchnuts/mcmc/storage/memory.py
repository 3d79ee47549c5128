"""Records in memory: arrays with room for some transitions, and further ones when these are full."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch.machine import map_leaves
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.storage.contract import LaneRows, Storage


class MemoryStorage(Storage):
    """A Storage in memory. `like`: a chunk's records [lanes, rows, ...], which gives dtypes and shapes.

    room: for how many of the stretch's `transitions` there is room at first (None: all). Later room is as large as all
    before it together: no record is copied while others are written, and not much more is reserved than is used.
    """

    def __init__(self, like: Record, chains: int, transitions: int, room: int | None = None) -> None:
        self.like = like
        self.chains = chains
        self.transitions = transitions
        self.lock = threading.Lock()
        """Held while room is made."""
        self.blocks: list[tuple[int, Record]] = []
        """Arrays [chains, rows, ...] with the transition of their first row; only the last one may be empty."""
        self.rows = 0
        """The rows of all blocks together."""
        self.recorded: NDArray[np.int64] = np.zeros(chains, np.int64)
        """[chains]: transitions of each."""
        self._add(min(room or transitions, transitions))

    def _add(self, rows: int) -> None:
        empty: Record = map_leaves(lambda a: np.zeros((self.chains, rows, *a.shape[2:]), a.dtype), self.like)
        self.blocks.append((self.rows, empty))
        self.rows += rows

    @override
    def record(self, rows: LaneRows) -> None:
        chains, lanes, first, last = rows.chains, rows.lanes, rows.first, rows.last
        self.make_room(int(last.max(initial=0)))
        for start, block in self.blocks:
            # the first block takes what was recorded from the start on in one go, with rows after the last, which are
            # not read
            from_start = (first == 0) if start == 0 else np.zeros(len(first), bool)
            size = block.lp.shape[1]
            low, high = np.maximum(first, start), np.minimum(last, start + size)
            singly = np.flatnonzero(~from_start & (low < high))
            for target, source in zip(block, rows.records):
                if isinstance(target, tuple):  # not asked for
                    continue
                length = min(size, source.shape[1])
                target[chains[from_start], :length] = source[lanes[from_start], :length]
                for i in singly:
                    part = source[lanes[i], low[i] - first[i] : high[i] - first[i]]
                    target[chains[i], low[i] - start : high[i] - start] = part
        self.recorded[chains] = last

    def make_room(self, transitions: int) -> None:
        """Make room for the first `transitions` of every chain."""
        with self.lock:
            while self.rows < transitions:
                self._add(min(self.rows, self.transitions - self.rows))

    @override
    def flush(self) -> None:
        """Do nothing: there is no disk."""

    @override
    def resume(self, recorded: NDArray[np.int64]) -> None:
        """Raises ValueError unless nothing had been recorded: records do not outlive their process."""
        if recorded.any():
            raise ValueError("records in memory do not outlive their process")

    @override
    def first(self, transitions: int) -> Record:
        return self._joined([(start, block) for start, block in self.blocks if start < transitions], transitions)

    @override
    def finalize(self) -> Record:
        return self._joined(self.blocks, self.rows)

    def _joined(self, blocks: list[tuple[int, Record]], rows: int) -> Record:
        if len(blocks) == 1:
            only: Record = map_leaves(lambda array: array[:, :rows], blocks[0][1])
            return only
        parts = [map_leaves(lambda a, n=rows - start: a[:, :n], block) for start, block in blocks]
        joined: Record = map_leaves(lambda *arrays: np.concatenate(arrays, axis=1), *parts)
        return joined
