"""Records in memory: arrays with room for all transitions of the stretch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import map_leaves
from batchnuts.mcmc.chain_program import Record


class MemoryStorage:
    """See Storage. `like`: a chunk's records [lanes, rows, ...], which gives dtypes and shapes."""

    def __init__(self, like: Record, chains: int, transitions: int) -> None:
        self.records: Record = map_leaves(lambda a: np.zeros((chains, transitions, *a.shape[2:]), a.dtype), like)

    def record(
        self,
        chains: NDArray[np.int64],
        lanes: NDArray[np.int64],
        first: NDArray[np.int64],
        last: NDArray[np.int64],
        records: Record,
    ) -> None:
        """See Storage."""
        from_start = first == 0

        def put(to: NDArray[Any], there: NDArray[Any]) -> None:
            rows = min(to.shape[1], there.shape[1])
            # with rows after the last, which are not read
            to[chains[from_start], :rows] = there[lanes[from_start], :rows]
            for i in np.flatnonzero(~from_start & (last > first)):
                to[chains[i], first[i] : last[i]] = there[lanes[i], : last[i] - first[i]]

        map_leaves(put, self.records, records)

    def flush(self) -> None:
        """See Storage: there is no other place."""

    def finalize(self) -> Record:
        """See Storage."""
        return self.records
