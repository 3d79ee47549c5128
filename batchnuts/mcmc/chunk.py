"""One chunk: which chain each of a machine's lanes runs, and what is kept of chains that leave it.

Chains of a chunk end at different times, and a sweep costs as much for few lanes as for many. So two chunks in which at
most half of the lanes are left become one (`merge`): the lanes of one go on in free lanes of the other. Everything of a
lane moves except the rows that it has recorded: those are kept on the host, and the chain goes on with the next row of
the buffer that it finds. The machine is the same, so a chain computes what it would have computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.compiler.tree import flatten, map_leaves
from batchnuts.autobatch.runtime.backend import State
from batchnuts.mcmc.chain_program import ChainResult, Record
from batchnuts.mcmc.runner import Counts, MachineRunner
from batchnuts.mcmc.serving import buffers

NO_CHAIN = -1
NOTHING = Counts()


class Kept:
    """What is known of all chains, on the host: a ChainResult of arrays [chains, ...]."""

    def __init__(self, like: ChainResult, chains: int) -> None:
        self.result: ChainResult = map_leaves(lambda array: np.zeros((chains, *array.shape[1:]), array.dtype), like)

    def count(self, chunk: Chunk) -> None:
        """Note how many transitions its chains have made."""
        lanes, chains = chunk.occupied()
        for name in ("done", "divergences"):
            getattr(self.result, name)[chains] = chunk.runner.working(chunk.state, name)[lanes]

    def take(self, chunk: Chunk) -> None:
        """Copy what its chains have come to, and the rows that they have recorded since they came into this chunk."""
        lanes, chains = chunk.occupied()
        found = chunk.runner.so_far(chunk.state)
        first, last = chunk.first_row[lanes], found.done[lanes]
        whole = first == 0
        for to, there in zip(self.result.records, found.records):
            to[chains[whole]] = there[lanes[whole]]  # with rows behind the last, which nobody reads
            for place in np.flatnonzero(~whole):
                rows = slice(first[place], last[place])
                to[chains[place], rows] = there[lanes[place], rows]
        for to, there in zip(_ends(self.result), _ends(found)):
            to[chains] = there[lanes]


def _ends(result: ChainResult) -> list[Any]:
    """All arrays but the records."""
    return flatten(tuple(array for array in result if not isinstance(array, Record)))[0]


@dataclass
class Chunk:
    """A machine's lanes under way."""

    runner: MachineRunner
    chains: NDArray[np.int64]
    """[lanes]: the chain that each runs, or NO_CHAIN."""
    state: State
    first_row: NDArray[np.int64] = field(init=False)
    """[lanes]: the first of the chain's records that is in this chunk's buffers."""
    counts: Counts = NOTHING
    """Gradients so far, those of chunks that were merged into this one too."""
    merged: Counts = NOTHING
    """Of the latter."""

    def __post_init__(self) -> None:
        self.first_row = np.zeros(len(self.chains), "int64")

    def occupied(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lanes that run a chain, and the chains."""
        lanes = np.flatnonzero(self.chains != NO_CHAIN)
        return lanes, self.chains[lanes]

    def live(self) -> int:
        """Lanes that have not halted."""
        return self.runner.machine.count_live(self.state)

    def slice(self, leave_at: int) -> bool:
        """See MachineRunner.slice."""
        self.state, finished = self.runner.slice(self.state, leave_at)
        self.counts = self.merged + self.runner.gradients(self.state)
        return finished


def merge(one: Chunk, other: Chunk, kept: Kept) -> Chunk:
    """A chunk with the live lanes of both, which must fit, in place of the two: those of `one` stay where they are.

    What the others have come to goes to `kept`.
    """
    kept.take(one)
    kept.take(other)
    machine = one.runner.machine
    stay, move = machine.live(one.state), np.flatnonzero(machine.live(other.state))
    to = np.flatnonzero(~stay)[: len(move)]
    chains = np.where(stay, one.chains, NO_CHAIN)
    chains[to] = other.chains[move]
    state = machine.with_lanes(one.state, to, other.state, move, without=buffers(machine.program))
    merged = Chunk(one.runner, chains, state, one.counts + other.counts, one.merged + other.counts)
    merged.first_row = one.runner.working(state, "done").astype("int64")
    return merged
