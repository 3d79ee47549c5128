"""The draws of a group of chains on their way to the one Zarr store of a run: written by the worker that makes them.

A group's chains have chunks of their own in every array, so no two workers write to the same file. A block of the same
draws of all its chains is written once each of them has made these. What is written twice, because a worker has died
since its state was saved, is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch.machine import map_leaves
from batchnuts.cluster.messages import TOKEN, Rows, SavedRegion
from batchnuts.cluster.recent import PassedOn, new_rows
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.statistics.chain_means import ChainMeans
from batchnuts.mcmc.storage.contract import LaneRows
from batchnuts.mcmc.storage.divergent import divergences_of_block, put_divergences
from batchnuts.mcmc.storage.place import Place

if TYPE_CHECKING:
    from batchnuts.cluster.open_store import OpenStore


class RegionStorage(PassedOn):
    """The records of the group whose first chain has the number `first`. saved: what another worker has left of it.

    sends: whether records are also kept for `take`.
    """

    def __init__(
        self, store: OpenStore, like: Record, first: int, chains: int, sends: bool, saved: SavedRegion | None = None
    ) -> None:
        self.store = store
        self.like = like
        self.numbers = np.arange(first, first + chains)
        self.sends = sends
        self.earlier = store.plan.earlier
        self.recorded = np.full(chains, self.earlier)
        self.means = ChainMeans(chains, like.position.shape[2], like.position.dtype, like.step_size.dtype)
        self.rows: list[Rows] = []
        """Rows that are not written yet."""
        self.fresh: list[Rows] = []
        """Rows that are not taken yet."""
        self.written = 0
        self.reported = 0
        """The value of `written` when `means` were reported last."""
        self.previous: NDArray[Any] | None = None
        if saved is not None:
            self.written, self.previous = saved.written, saved.previous
            self.rows = list(saved.rows)
            self.means.restore(saved.means)

    @override
    def record(self, rows: LaneRows) -> None:
        """Take transitions as a Storage does. Raises OSError where a block cannot be written."""
        new = new_rows(rows, self.recorded)
        if new is None:
            return
        self.means.add(new.chains, new.records.position, new.records.step_size, new.last - new.first)
        self.rows.append(new)
        if self.sends:
            self.fresh.append(new)
        self.recorded[new.chains] = new.last
        while (length := self._complete_block()) is not None:
            self._write(length)

    def _complete_block(self) -> int | None:
        """How many rows the next block has, if all chains have made them."""
        plan = self.store.plan
        length = min(plan.rows, plan.transitions - self.written)
        complete = int(self.recorded.min()) - self.earlier
        return length if length > 0 and complete >= self.written + length else None

    def _write(self, rows: int) -> None:
        start = self.written + self.earlier
        block = assembled(self.like, len(self.numbers), self.rows, start, rows)
        self.store.write(block, self.numbers, self.written)
        self._gather(block)
        self.previous = block.position[:, -1].copy()
        self.written += rows
        self.rows = [entry for entry in self.rows if int(entry.last.max()) > start + rows]

    def _gather(self, block: Record) -> None:
        divergences = divergences_of_block(block, self.written, self.previous)
        if divergences is not None:
            divergences["chain"] = self.numbers[divergences["chain"]]
            put_divergences(self.store.place, f"{self.written}-{self.numbers[0]}", divergences)

    def take(self) -> tuple[Rows, ...]:
        """Give the rows that were recorded since the last time, where they are to be sent."""
        fresh, self.fresh = tuple(self.fresh), []
        return fresh

    def saved(self) -> SavedRegion:
        """The state for another worker, with all that is written made durable."""
        self.store.sync()
        means = {name: array.copy() for name, array in self.means.saved().items()}
        return SavedRegion(self.written, tuple(self.rows), means, self.previous)


def assembled(like: Record, chains: int, rows: list[Rows], start: int, count: int) -> Record:
    """Transitions [start, start + count) of all chains of a group: arrays [chains, count, ...]."""
    block: Record = map_leaves(lambda a: np.zeros((chains, count, *a.shape[2:]), a.dtype), like)
    for entry in rows:
        low, high = np.maximum(entry.first, start), np.minimum(entry.last, start + count)
        size = np.maximum(high - low, 0)
        if not size.any():
            continue
        offset = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        source = np.repeat(np.arange(len(size)), size), np.repeat(low - entry.first, size) + offset
        target = np.repeat(entry.chains, size), np.repeat(low - start, size) + offset

        def write_rows(to: NDArray[Any], array: NDArray[Any], s: Any = source, t: Any = target) -> None:
            to[t] = array[s]

        map_leaves(write_rows, block, entry.records)
    return block


def make_token(place: Place, token: str) -> None:
    """Make a file by which workers know the store."""
    place.put(TOKEN, token.encode())
