"""The interface to which a chunk of chains passes its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings


@dataclass(frozen=True, eq=False)
class LaneRows:
    """Transitions [first, last) of some chains, in the buffers of a machine's lanes, which change after a call."""

    chains: NDArray[np.int64]
    """[n]."""
    lanes: NDArray[np.int64]
    """[n]: the lane that ran each of the chains."""
    first: NDArray[np.int64]
    """[n]: the transition of row 0."""
    last: NDArray[np.int64]
    """[n]: rows from `last - first` on are undefined."""
    records: Record
    """Arrays [all lanes, rows, ...]."""

    @classmethod
    def of_all(cls, first: NDArray[np.int64], last: NDArray[np.int64], records: Record) -> LaneRows:
        """Make them of arrays with one lane for each chain, in their order."""
        chains = np.arange(len(first))
        return cls(chains, chains, first, last, records)

    def where(self, chosen: NDArray[np.bool_]) -> LaneRows:
        """Those of some of the chains [n]."""
        chains, lanes = self.chains[chosen], self.lanes[chosen]
        return LaneRows(chains, lanes, self.first[chosen], self.last[chosen], self.records)


class Storage(Protocol):
    """The records of all chains of one stretch.

    Chunks record from threads of their own, each chain from one thread at a time. What was recorded may be in memory
    until `flush`.
    """

    def record(self, rows: LaneRows) -> None:
        """Take transitions of some chains, which follow those that they have recorded before."""

    def flush(self) -> None:
        """Make everything recorded so far durable, where records are on a disk."""

    def resume(self, recorded: NDArray[np.int64]) -> None:
        """Go on, in another process, from what `flush` made durable, when each chain has recorded so many [chains].

        What is there beyond that is recorded again. Called before anything is recorded.
        """

    def first(self, transitions: int) -> Record:
        """The first `transitions` of every chain, which all have recorded: arrays [chains, transitions, ...].

        While others record; the arrays may be the storage's own, and do not change.
        """

    def finalize(self) -> Record:
        """All records, arrays [chains, rows, ...] with at least as many rows as any chain has recorded transitions.

        What a chain has not recorded is undefined.
        """


class MakeStorage(Protocol):
    """Makes the storage of a stretch; called again where the stretch begins again with deeper stacks."""

    def __call__(self, like: Record, chains: int, transitions: int, room: int | None = None) -> Storage:
        """Make it for records like these [lanes, rows, ...] of `chains` chains, which make at most so many transitions.

        room: of how many it is likely at first (None: of all).
        """


class Stream(Protocol):
    """Where the draws of a run go while they are made."""

    def begin(self, sampler: SamplerSettings, execution: ExecutionSettings) -> MakeStorage:
        """What makes storages for a run with these settings, the numbers of chains and the backend decided."""
