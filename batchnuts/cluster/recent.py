"""Records of a group of chains until they are taken: what a worker has made since it last gave some away."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch.machine import map_leaves
from batchnuts.cluster.messages import Rows
from batchnuts.mcmc.kernel.chain_program import Record
from batchnuts.mcmc.storage.contract import Storage
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
    def record(
        self,
        chains: NDArray[np.int64],
        lanes: NDArray[np.int64],
        first: NDArray[np.int64],
        last: NDArray[np.int64],
        records: Record,
    ) -> None:
        if (rows := new_rows(chains, lanes, first, last, records, self.recorded[chains])) is not None:
            self.rows.append(rows)
            self.recorded[rows.chains] = rows.last

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


def new_rows(
    chains: NDArray[np.int64],
    lanes: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    records: Record,
    recorded: NDArray[np.int64],
) -> Rows | None:
    """Copies of the rows of some lanes that come after the first `recorded` [n] transitions, if any; else as for
    Storage.record. The numbers of chains are kept."""
    low = np.maximum(first, recorded)
    has_new = low < last
    if not has_new.any():
        return None
    chains, lanes, first, last, low = (array[has_new] for array in (chains, lanes, first, last, low))
    rows = (low - first)[:, None] + np.arange(int((last - low).max()))
    rows = np.minimum(rows, records.lp.shape[1] - 1)
    copies: Record = map_leaves(lambda array: array[lanes[:, None], rows], records)
    return Rows(chains.copy(), low, last.copy(), copies)
