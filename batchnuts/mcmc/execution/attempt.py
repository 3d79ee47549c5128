"""One attempt at a stretch: all chains in chunks, from the first block on, and the threads that work on them in turn.

A thread ("shard") takes the chunk with the least progress, advances it for about half a second, and puts it back. So
all chunks end at about the same time, and an interrupted run has about as many draws of each chain. Towards the end,
chunks with few remaining chains are merged (`Bracket`, chunk.py), or, where the stretch may leave slow chains behind,
the chunk ends.

One chunk for one thread, whose chains run at their own pace, is run by the thread that asks for reports. Between two
interim analyses it makes the draws that the next one looks at and no more: no processor is free to make them meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from batchnuts.autobatch.machine import map_leaves
from batchnuts.mcmc.execution.chain_machine import ChainMachine
from batchnuts.mcmc.execution.chunk import NO_CHAIN, Chunk, HostState, merge
from batchnuts.mcmc.execution.chunk_plan import Chunking
from batchnuts.mcmc.execution.runner import Counts, Interrupted, Report
from batchnuts.mcmc.execution.workers import Workers
from batchnuts.mcmc.kernel.chain_program import ChainInputs, counted
from batchnuts.mcmc.storage.contract import MakeStorage
from batchnuts.mcmc.storage.memory import MemoryStorage

ROOM = 64
"""Transitions for which a stretch that may end at any interim analysis has room in memory at first."""


@dataclass(frozen=True, order=True)
class MergePosition:
    """The position of a chunk in the tree of merges: all chunks in round 0, pairs of neighbours in the next."""

    round: int
    number: int


@dataclass(frozen=True)
class Bracket:
    """Which chunks merge, and when: this depends on the chains alone, not on the speed of threads.

    Neighbours merge once both have at most half of their lanes left; the results of two such pairs merge again, and so
    on until one chunk is left, which runs to its end.
    """

    chunks: int
    lanes: int
    merges: bool = True
    """False: chunks wait until all of their lanes have ended."""

    def is_last(self, place: MergePosition) -> bool:
        """Whether nothing is left to merge with."""
        return self._entrants(place.round) == 1

    def leave_at(self, place: MergePosition) -> int:
        """The number of live lanes at which a chunk waits for its partner."""
        return 0 if self.is_last(place) or not self.merges else self.lanes // 2

    def partner(self, place: MergePosition) -> MergePosition | None:
        """The chunk that it merges with; None for the last of an odd number."""
        number = place.number ^ 1
        return MergePosition(place.round, number) if number < self._entrants(place.round) else None

    def next(self, place: MergePosition) -> MergePosition:
        """The position of the merged chunk in the next round."""
        return MergePosition(place.round + 1, place.number // 2)

    def _entrants(self, number: int) -> int:
        return -(-self.chunks >> number)


class Attempt:
    """The state of one stretch; it is dropped for another attempt if stacks overflow.

    chunks: as they begin (`first_chunks`), or were saved. chains: how many in all. transitions, leave, make_storage:
    see Runner.run. wanted: see RunningStretch.records; if positive, no chunk waits for its partner while it has
    chains that others may have to wait for.
    """

    def __init__(
        self,
        machine: ChainMachine,
        chunking: Chunking,
        chunks: dict[MergePosition, Chunk],
        chains: int,
        transitions: int,
        leave: float = 0.0,
        wanted: int = 0,
        make_storage: MakeStorage = MemoryStorage,
    ) -> None:
        self.machine = machine
        self.chunking = chunking
        self.leave = leave
        self.bracket = Bracket(chunking.chunks, chunking.lanes, merges=not wanted)
        self.chunks = chunks
        """The chunks that are not merged into others."""
        self.in_turn = runs_in_turn(machine, chunking)
        like = machine.partial_result(next(iter(chunks.values())).state)
        storage = make_storage(like.records, chains, transitions, ROOM if wanted else None)
        self.host_state = HostState(like, chains, storage, wanted, stops_at_wanted=self.in_turn)
        self.waiting = set(self.chunks)
        """Chunks that no thread works on."""
        self.ready: set[MergePosition] = set()
        """Chunks that wait for their partners."""
        self.ended: set[MergePosition] = set()
        """Chunks that ended without merging."""
        self.finished = False
        """Whether all chains have ended, or all that must."""
        self.failures: list[BaseException] = []
        """Errors of threads."""
        self.lock = threading.Condition()
        """Guards the above; notified when the attempt is over."""
        self.stopping = threading.Event()
        """If set, every thread ends after its current slice."""
        self.working = False
        """Whether threads were started, and not stopped since."""

    def reports(self, workers: Workers) -> Iterator[Report]:
        """Start the workers, and report their progress a few times a second.

        They continue when this generator is left early, until `pause`; with the next report they start again.
        """
        while True:
            if self.in_turn:
                self.work()
            elif not self.working:
                self._start_threads(workers)
            with self.lock:
                if self.working and not self.failures and not self.finished:
                    self.lock.wait(self.host_state.slice_seconds())
                if self.failures:
                    raise self.failures[0]
                gradients = sum((chunk.counts for chunk in self.chunks.values()), Counts())
                over = self.finished
            so_far = counted(self.host_state.ends)  # threads go on
            yield gradients + Counts.of_transitions(**so_far), self.host_state.result if over else None
            if over:
                return

    def _start_threads(self, workers: Workers) -> None:
        """Let each work on one chunk after another."""
        self.stopping.clear()
        self.working = True
        for _ in range(self.chunking.shards):
            workers.start(self.serve)

    def pause(self, workers: Workers) -> None:
        """Let the workers finish their current slices, and wait for them."""
        self.stopping.set()
        workers.wait()
        self.working = False

    def serve(self) -> None:
        """Run slices of one chunk after another in one thread, until none is waiting."""
        while not self.stopping.is_set():
            try:
                if not self.work():
                    return
            except BaseException as error:
                with self.lock:
                    self.failures.append(error)
                    self.stopping.set()
                    self.lock.notify_all()
                return

    def work(self) -> bool:
        """A slice of the chunk whose turn it is; False if none is waiting."""
        with self.lock:
            if not self.waiting:
                return False
            place = min(self.waiting, key=self.turn)
            self.waiting.discard(place)
        if self.host_state.owes(self.chunks[place]):
            self.deliver(place)
        else:
            self.step(place)
        return True

    def turn(self, place: MergePosition) -> tuple[float, MergePosition]:
        """What chunks are ordered by: those that owe records first, then by the average progress of their chains."""
        chunk = self.chunks[place]
        _, chains = chunk.occupied()
        if self.host_state.owes(chunk):
            return -1.0, place
        return float(self.host_state.ends.done[chains].mean()) if len(chains) else 0.0, place

    def deliver(self, place: MergePosition) -> None:
        """Bring all records of a chunk to the host."""
        chunk = self.chunks[place]
        if self.in_turn:  # its chains wait until more is wanted
            chunk.taken = self.host_state.take(chunk)
        else:
            chunk.go_on(self.host_state)
        with self.lock:
            self.waiting.add(place)
            if self.host_state.recorded.min() >= self.host_state.wanted:
                self.lock.notify_all()

    def step(self, place: MergePosition) -> None:
        """One slice of a chunk. After its last slice in a round it goes to the next round, merged with its partner if
        any."""
        if self.leave:
            self.step_alone(place)
            return
        bracket, chunk = self.bracket, self.chunks[place]
        waits = chunk.slice(bracket.leave_at(place), self.host_state)
        while waits:
            if bracket.is_last(place):
                assert not chunk.is_short(), "a lane has halted with transitions still to make"
                self.host_state.take(chunk)
                with self.lock:
                    self.finished = True
                    self.lock.notify_all()
                return
            partner = bracket.partner(place)
            if partner is not None:
                with self.lock:
                    if partner not in self.ready:
                        self.ready.add(place)
                        return
                    self.ready.discard(partner)
                first, second = (self.chunks[p] for p in sorted((place, partner)))
                chunk = merge(first, second, self.host_state)
            with self.lock:
                for merged_place in (place, partner):
                    if merged_place is not None:
                        del self.chunks[merged_place]
                place = bracket.next(place)
                self.chunks[place] = chunk
            waits = chunk.live() <= bracket.leave_at(place)
        with self.lock:
            self.waiting.add(place)

    def step_alone(self, place: MergePosition) -> None:
        """Run one slice of a chunk that ends as soon as no more of its chains are left than may be."""
        chunk = self.chunks[place]
        ends = chunk.slice(int(self.leave * len(chunk.occupied()[1])), self.host_state)
        if ends:
            self.host_state.take(chunk)
        with self.lock:
            if not ends:
                self.waiting.add(place)
                return
            self.ended.add(place)
            if len(self.ended) == len(self.chunks):
                self.finished = True
                self.lock.notify_all()

    def interrupted(self) -> Interrupted:
        """The results of every chunk at the end of its last slice; call it when no thread is working."""
        begun = np.zeros(len(self.host_state.ends.done), bool)
        for chunk in self.chunks.values():
            if chunk.counts.executed_gradients:
                self.host_state.take(chunk)
                begun[chunk.occupied()[1]] = True
        # chains that have halted leave a chunk when it merges
        begun[self.host_state.ends.done > 0] = True
        return Interrupted(self.host_state.ends, begun, self.host_state.storage)


def runs_in_turn(machine: ChainMachine, chunking: Chunking) -> bool:
    """Whether sampling and interim analyses take turns in one thread. Chains that are in step would wait for the
    slowest at each analysis."""
    return chunking.chunks == chunking.shards == 1 and machine.program.engine.info.own_pace


def first_chunks(
    machine: ChainMachine, chunking: Chunking, inputs: ChainInputs, wanted: int = 0
) -> dict[MergePosition, Chunk]:
    """All chunks of a stretch, each before its first block: so each has a state when the run is interrupted."""
    chains, chunks = len(inputs.key), {}
    stop = wanted if wanted and runs_in_turn(machine, chunking) else sys.maxsize
    for number in range(chunking.chunks):
        rows = _rows(chunking, number)
        chunk = Chunk.begin(machine, np.where(rows < chains, rows, NO_CHAIN), part(inputs, chunking, number), stop)
        chunks[MergePosition(0, number)] = chunk
    return chunks


def part(inputs: ChainInputs, chunking: Chunking, number: int) -> ChainInputs:
    """The inputs of one chunk, padded after the last chain with copies of it that make no transitions."""
    chains = len(inputs.key)
    rows = _rows(chunking, number)
    source = np.minimum(rows, chains - 1)
    selected: ChainInputs = map_leaves(lambda array: np.asarray(array)[source], inputs)
    return selected._replace(until=np.where(rows < chains, selected.until, 0))


def _rows(chunking: Chunking, number: int) -> np.ndarray:
    """[lanes]: the chains of a chunk, beyond the last one too."""
    return np.arange(number * chunking.lanes, (number + 1) * chunking.lanes)
