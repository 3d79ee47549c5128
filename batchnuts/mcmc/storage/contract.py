"""What a chunk of chains hands its records to."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.chain_program import Record


class Storage(Protocol):
    """The records of all chains of one stretch.

    Chunks record from threads of their own, each chain from one thread at a time. What was recorded may be in memory
    until `flush`.
    """

    def record(
        self,
        chains: NDArray[np.int64],
        lanes: NDArray[np.int64],
        first: NDArray[np.int64],
        last: NDArray[np.int64],
        records: Record,
    ) -> None:
        """Take the transitions [first, last) of some chains, which follow those that they have recorded before.

        chains, lanes, first, last [n]: lane `lanes[i]` ran chain `chains[i]`. records: arrays [all lanes, rows, ...],
        row 0 is transition `first[i]`; rows from `last[i] - first[i]` on mean nothing, and the arrays are the
        machine's own: they change after the call.
        """

    def flush(self) -> None:
        """Put everything that was recorded where it survives."""

    def finalize(self) -> Record:
        """All records, arrays [chains, transitions, ...]; what a chain has not recorded is undefined."""
