"""Records of a group of chains until they are taken: what a worker has made since it last gave some away."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch.machine import map_leaves
from batchnuts.cluster.messages import Rows
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.storage.contract import LaneRows, Storage
from batchnuts.mcmc.storage.memory import MemoryStorage


class PassedOn(Storage):
    """What storages of a worker whose records are passed on have in common, wherever these go."""

    recorded: NDArray[np.int64]
    """[chains]: transitions of each, with those that were passed on."""

    @override
    def flush(self) -> None:
        """Do nothing: whoever gets the records makes them durable."""

    @override
    def resume(self, recorded: NDArray[np.int64]) -> None:
        # others have what was recorded, or it came with what was saved
        self.recorded = recorded.copy()

    @override
    def first(self, transitions: int) -> Record:
        """Raise an error: records are not read back here."""
        raise RuntimeError("records that were passed on are not read back")

    @override
    def finalize(self) -> Record:
        """Raise an error: records are not read back here."""
        raise RuntimeError("records that were passed on are not read back")


class RecentStorage(PassedOn):
    """Has what was recorded since `take` was called last. recorded [chains]: how many transitions went before."""

    def __init__(self, chains: int) -> None:
        self.recorded = np.zeros(chains, np.int64)
        self.rows: list[Rows] = []

    @override
    def record(self, rows: LaneRows) -> None:
        if (new := new_rows(rows, self.recorded)) is not None:
            self.rows.append(new)
            self.recorded[new.chains] = new.last

    def take(self) -> tuple[Rows, ...]:
        """Give all rows that there are, which are not kept."""
        rows, self.rows = tuple(self.rows), []
        return rows


class WindowStorage(MemoryStorage):
    """The records of a window that is reduced when it ends. What others have kept of it can be put back."""

    @override
    def resume(self, recorded: NDArray[np.int64]) -> None:
        # `put_back` follows
        self.recorded = recorded.copy()

    def snapshot(self) -> Record:
        """Copies of all records so far, arrays [chains, rows, ...], for `put_back`."""
        rows = int(self.recorded.max(initial=0))
        copies: Record = map_leaves(lambda array: array[:, :rows].copy(), self.finalize())
        return copies

    def put_back(self, records: Record) -> None:
        """Put back what `snapshot` gave, here or elsewhere."""
        rows = records.lp.shape[1]
        self.make_room(rows)
        (_, block), *_ = self.blocks

        def write_rows(to: NDArray[Any], array: NDArray[Any]) -> None:
            to[:, :rows] = array

        map_leaves(write_rows, block, records)


def new_rows(rows: LaneRows, recorded: NDArray[np.int64]) -> Rows | None:
    """Copies of the rows that come after those that each chain has `recorded` [chains] before, if any."""
    low = np.maximum(rows.first, recorded[rows.chains])
    has_new = low < rows.last
    if not has_new.any():
        return None
    new, low = rows.where(has_new), low[has_new]
    numbers = (low - new.first)[:, None] + np.arange(int((new.last - low).max()))
    numbers = np.minimum(numbers, rows.records.lp.shape[1] - 1)
    copies: Record = map_leaves(lambda array: array[new.lanes[:, None], numbers], rows.records)
    return Rows(new.chains, low, new.last, copies)
