"""One chunk: which chain each of a machine's lanes runs, and their records on the host.

Rows that chains record are in buffers of the machine, which may be smaller than the whole stretch needs. When one lane
has filled its buffer it halts, and the machine returns: all rows go to the host (`HostState`), running lanes get room
for more, and lanes that have halted before their end resume where they stopped.

Chains of a chunk end at different times, and a sweep costs as much for few lanes as for many. So two chunks with at
most half of their lanes running become one (`merge`): the lanes of one continue in free lanes of the other. A lane
moves with all its state except its rows, which have gone to the host. The machine is the same, so a chain computes what
it would have computed.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import State, map_leaves
from batchnuts.mcmc.execution.chain_machine import ChainMachine
from batchnuts.mcmc.execution.runner import Counts, UnboundedDensity
from batchnuts.mcmc.kernel.chain_program import CARRIED, COUNTED, ChainInputs, ChainResult
from batchnuts.mcmc.storage.contract import LaneRows, Storage

SLICE_SECONDS = 0.5
"""How long the machine runs between two returns to the host; two returns per second cost nothing measurable."""

FIRST_SLICE_SECONDS, SHARE_OF_TIME = 0.05, 0.1
"""How long it runs at the beginning of a stretch that may end at any interim analysis: a share of the time since it
began, but at least so long. Else a run that needs a third of a second would take half a second."""

MIN_SWEEPS = 5
"""How many sweeps it makes at least, where these take longer."""

NO_CHAIN = -1
NOTHING = Counts()


class HostState:
    """The state of all chains on the host: arrays [chains, ...], and their records.

    like: a ChainResult of a machine's lanes, which gives dtypes and shapes. wanted: see `RunningStretch.records`.
    stops_at_wanted: chains make no more transitions than are wanted, until more are.
    """

    def __init__(
        self, like: ChainResult, chains: int, storage: Storage, wanted: int = 0, stops_at_wanted: bool = False
    ) -> None:
        self.ends: ChainResult = map_leaves(
            lambda array: np.zeros((chains, *array.shape[1:]), array.dtype), _without_records(like)
        )
        self.storage = storage
        self.recorded = np.zeros(chains, np.int64)
        """Transitions of each chain that are in `storage`."""
        self.wanted = wanted
        self.stops_at_wanted = stops_at_wanted
        self.frequent = wanted > 0
        """Whether machines are left often at the beginning."""
        self.began = time.perf_counter()
        self.longest_slice = math.inf
        """Seconds, where the chunk's owner wants to know of it more often."""

    def slice_seconds(self) -> float:
        """How long a machine runs, and how long reports wait, at this time of the stretch."""
        longest = min(SLICE_SECONDS, self.longest_slice)
        if not self.frequent:
            return longest
        return min(longest, max(FIRST_SLICE_SECONDS, SHARE_OF_TIME * (time.perf_counter() - self.began)))

    @property
    def stop(self) -> int:
        """The number of transitions at which chains wait until more are wanted."""
        return self.wanted if self.stops_at_wanted and self.wanted else sys.maxsize

    def owes(self, chunk: Chunk) -> bool:
        """Whether wanted rows are in a chunk's buffers, of all of its chains, and are not in `storage` yet."""
        _, chains = chunk.occupied()
        if not self.wanted or not len(chains):
            return False
        return bool(self.ends.done[chains].min() >= self.wanted > self.recorded[chains].min())

    @property
    def result(self) -> ChainResult:
        """The result with the records, arrays [chains, transitions, ...]."""
        return self.ends._replace(records=self.storage.finalize())

    def count(self, chunk: Chunk) -> None:
        """Note how many transitions its chains have made."""
        lanes, chains = chunk.occupied()
        for name in COUNTED:
            getattr(self.ends, name)[chains] = chunk.machine.working(chunk.state, name)[lanes]

    def take(self, chunk: Chunk) -> ChainResult:
        """Copy the state of its chains, and the rows in its buffers. Returns what was copied."""
        if chunk.taken is not None:  # it has not gone on since
            return chunk.taken
        lanes, chains = chunk.occupied()
        result = chunk.machine.partial_result(chunk.state)
        first, last = chunk.machine.working(chunk.state, "first_row")[lanes], result.done[lanes]
        self.storage.record(LaneRows(chains, lanes, first, last, result.records))
        self.recorded[chains] = last

        def put(target: NDArray[Any], source: NDArray[Any]) -> None:
            target[chains] = source[lanes]

        map_leaves(put, self.ends, _without_records(result))
        return result


def _without_records(result: ChainResult) -> Any:
    return result._replace(records=())  # type: ignore[arg-type]


@dataclass
class Chunk:
    """A machine's running lanes."""

    machine: ChainMachine
    chains: NDArray[np.int64]
    """[lanes]: the chain that each runs, or NO_CHAIN."""
    inputs: ChainInputs
    """The inputs of its lanes; `until` is where chains end, though the machine may stop them before."""
    state: State
    sweeps_per_second: float
    counts: Counts = NOTHING
    """Gradients so far, including those of chunks that were merged into this one."""
    merged: Counts = NOTHING
    """The part of `counts` that is of merged chunks."""
    taken: ChainResult | None = None
    """What was copied of chains that wait until more transitions are wanted."""

    @classmethod
    def begin(
        cls, machine: ChainMachine, chains: NDArray[np.int64], inputs: ChainInputs, stop: int = sys.maxsize
    ) -> Chunk:
        """Make a chunk before the first block of its lanes. stop: see HostState."""
        until = np.minimum(np.minimum(inputs.until, stop), inputs.first_row + machine.capacity)
        first_stop = inputs._replace(until=until)
        return cls(machine, chains, inputs, machine.machine.start(first_stop), machine.sweeps_per_second)

    def occupied(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lanes that run a chain, and the chains."""
        lanes = np.flatnonzero(self.chains != NO_CHAIN)
        return lanes, self.chains[lanes]

    def live(self) -> int:
        """Lanes that have not halted."""
        return self.machine.machine.count_live(self.state)

    def slice(self, leave_at: int, host_state: HostState) -> bool:
        """Sweep for about `host_state.slice_seconds()`, and return whether at most `leave_at` lanes have not ended.

        Raises StackOverflowError, UnboundedDensity, and the errors of other faults.
        """
        if host_state.stops_at_wanted and self.is_short(host_state.stop):
            self.go_on(host_state)  # more is wanted by now
        vm = self.machine.machine
        sweeps = max(MIN_SWEEPS, int(self.sweeps_per_second * host_state.slice_seconds()))
        ends = np.minimum(self.inputs.until, host_state.stop)
        may_stop = bool((self.machine.working(self.state, "until") < ends).any())
        limit = self.live() - 1 if may_stop else leave_at  # as soon as one lane halts: its buffer may be full
        began = time.perf_counter()
        self.state = vm.advance(self.state, sweeps, limit)
        reached_limit = self.live() <= limit
        if not reached_limit:  # else it made fewer sweeps than allowed, and the next slice would be far too long
            self.sweeps_per_second = sweeps / max(time.perf_counter() - began, 1e-6)
            self.machine.sweeps_per_second = self.sweeps_per_second
        self.counts = self.merged + self.machine.gradients(self.state)
        vm.check_faults(self.state)
        self.check_bounded()
        if reached_limit and may_stop:
            self.go_on(host_state)
        host_state.count(self)
        return self.live() <= leave_at and not (host_state.stops_at_wanted and self.is_short())

    def check_bounded(self) -> None:
        """Raises UnboundedDensity where a chain has encountered a density of +inf, or of NaN, and ended there."""
        halted = ~self.machine.machine.live(self.state)  # on other lanes variables have intermediate values
        below = self.machine.working(self.state, "log_density") < np.inf
        met = halted & (self.chains != NO_CHAIN) & ~below
        if met.any():
            lane = int(np.argmax(met))
            raise UnboundedDensity(int(self.chains[lane]), self.machine.working(self.state, "position")[lane])

    def go_on(self, host_state: HostState) -> None:
        """Move all rows to `host_state`, and let lanes whose buffers are full resume where they stopped."""
        machine, state = self.machine, self.state
        result = host_state.take(self)
        self.taken = None
        stopped = ~machine.machine.live(state) & (result.done < np.minimum(self.inputs.until, host_state.stop))
        if stopped.any():
            inputs = self.inputs._replace(**{name: getattr(result, name) for name in CARRIED})
            state = machine.machine.restart(state, np.flatnonzero(stopped), inputs)
        self.state = self.with_room(state, result.done, host_state.stop)

    def with_room(self, state: State, done: NDArray[np.int64], stop: int = sys.maxsize) -> State:
        """The state with the buffers empty, when chains have made `done` transitions. stop: see HostState.

        Not for lanes that have reached their stop and are about to halt: these must be restarted first.
        """
        until = self.machine.working(state, "until")
        room = np.minimum(np.minimum(self.inputs.until, stop), done + self.machine.capacity)
        return self.machine.make_room(state, done, np.where(done < until, room, until))

    def is_short(self, stop: int = sys.maxsize) -> bool:
        """Whether some lane has halted before its chain's end, and before it has made `stop` transitions."""
        halted = ~self.machine.machine.live(self.state)
        ends = np.minimum(self.inputs.until, stop)
        return bool((halted & (self.machine.working(self.state, "done") < ends)).any())


def merge(first: Chunk, second: Chunk, host_state: HostState) -> Chunk:
    """A chunk with the live lanes of both, which must fit, in place of the two: those of `first` stay where they are.

    The records of both go to `host_state`.
    """
    machine, vm = first.machine, first.machine.machine
    done, done_second = host_state.take(first).done.copy(), host_state.take(second).done
    stay, move = vm.live(first.state), np.flatnonzero(vm.live(second.state))
    to = np.flatnonzero(~stay)[: len(move)]

    def moved(array: np.ndarray, source: np.ndarray) -> np.ndarray:
        rows = np.array(array)
        rows[to] = source[move]
        return rows

    chains = moved(np.where(stay, first.chains, NO_CHAIN), second.chains)
    inputs = map_leaves(moved, first.inputs, second.inputs)
    state = vm.move(first.state, to, second.state, move)
    rate, merged = first.sweeps_per_second, first.merged + second.counts
    union = Chunk(machine, chains, inputs, state, rate, first.counts + second.counts, merged)
    union.state = union.with_room(state, moved(done, done_second))
    return union
