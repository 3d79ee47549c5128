"""Many chains in chunks: each a batch of its own on one compiled machine, one host thread for each processor core.

The machine's arrays of a chunk fit into a core's cache, and its many small kernels are not worth dividing among cores;
whole chunks are. So chains are divided into chunks of one width, and threads ("shards") take turns at them: a
thread takes the chunk that has come least far, advances it for about half a second, and puts it back. All chunks so
come to their end together, and a run that is interrupted has about as many draws of each chain. Towards the end, chunks
in which few chains are left are merged (`Bracket`, chunk.py).

What a chain draws does not depend on its chunk, except for rounding: its key is its own. The width is the same for all,
so that one machine serves them all; the last chunk is padded with copies of its last chain that have no transitions to
make. These lanes count as wasted (`Counts.executed_gradients`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from batchnuts.autobatch import BatchedFunction, StackOverflowError
from batchnuts.autobatch.machine import LaneProgram, map_leaves, processors
from batchnuts.mcmc.chain_program import ChainInputs, ChainResult
from batchnuts.mcmc.draws import Arrangement
from batchnuts.mcmc.execution.chain_machine import ChainMachine
from batchnuts.mcmc.execution.chunk import NO_CHAIN, SLICE_SECONDS, Chunk, Kept, merge
from batchnuts.mcmc.execution.chunk_plan import Chunking, divide, is_compiled, maximum_width
from batchnuts.mcmc.execution.runner import Counts, Runner, StretchRunner
from batchnuts.mcmc.execution.workers import Workers
from batchnuts.mcmc.settings import ExecutionSettings
from batchnuts.mcmc.storage.memory import MemoryStorage


def make_runner(
    program: BatchedFunction, example: ChainInputs, execution: ExecutionSettings, max_tree_depth: int
) -> Runner:
    """The runner for the executor asked for, compiled for inputs like the example."""
    if execution.executor != "virtual_machine":
        return StretchRunner(program, example, execution)
    chains = len(example.key)
    compiled = LaneProgram(program, example, execution.backend, execution.mode)
    most = maximum_width(compiled) if is_compiled(execution) else chains
    chunking = divide(chains, execution, most, processors())
    depth = max_tree_depth + 1  # a tree of depth d is built by at most d + 1 calls, one within the other
    return ChunkRunner(compiled, example, execution, depth, chunking)


@dataclass(frozen=True, order=True)
class Place:
    """Where a chunk stands among those that are merged: in round 0 all chunks, in the next the pairs of neighbours."""

    round: int
    number: int


@dataclass(frozen=True)
class Bracket:
    """Which chunks merge, and when: this depends on the chains alone, and not on which thread was faster.

    Neighbours merge once both have at most half of their lanes left; what comes of two such pairs merges again, and so
    on until one chunk is left, which runs to its end.
    """

    chunks: int
    lanes: int

    def is_last(self, place: Place) -> bool:
        """Whether nothing is left to merge with."""
        return self._entrants(place.round) == 1

    def leave_at(self, place: Place) -> int:
        """With how many live lanes a chunk waits for its partner."""
        return 0 if self.is_last(place) else self.lanes // 2

    def partner(self, place: Place) -> Place | None:
        """Whom it merges with; None for the last of an odd number."""
        number = place.number ^ 1
        return Place(place.round, number) if number < self._entrants(place.round) else None

    def next(self, place: Place) -> Place:
        """In the next round."""
        return Place(place.round + 1, place.number // 2)

    def _entrants(self, number: int) -> int:
        return -(-self.chunks >> number)


class ChunkRunner:
    """Chunks of chains on threads (see Runner)."""

    def __init__(
        self,
        program: LaneProgram,
        example: ChainInputs,
        execution: ExecutionSettings,
        first_depth: int,
        chunking: Chunking,
    ) -> None:
        self.chunking = chunking
        self.bracket = Bracket(chunking.chunks, chunking.lanes)
        self.machine = ChainMachine(program, self.part(example, 0), execution, first_depth)
        self.chunks: dict[Place, Chunk] = {}
        """Those that are not merged into others."""
        self.kept: Kept | None = None
        self.waiting: set[Place] = set()
        """Chunks that no thread is at."""
        self.ready: set[Place] = set()
        """Chunks that wait for their partners."""
        self.finished = False
        self.failures: list[BaseException] = []
        self.lock = threading.Condition()
        """Guards the above; notified when the run is over."""
        self.workers = Workers(chunking.shards)
        self.stopping = threading.Event()

    @property
    def arrangement(self) -> Arrangement:
        """See Runner."""
        policy = self.machine.machine.schedule.policy
        return Arrangement(self.chunking.lanes, policy, self.chunking.chunks, self.chunking.shards)

    def part(self, inputs: ChainInputs, number: int) -> ChainInputs:
        """The inputs of one chunk, padded after the last chain with copies of it that have no transitions to make."""
        chains = len(inputs.key)
        rows = self.rows(number)
        source = np.minimum(rows, chains - 1)
        taken: ChainInputs = map_leaves(lambda array: np.asarray(array)[source], inputs)
        return taken._replace(until=np.where(rows < chains, taken.until, 0))

    def rows(self, number: int) -> np.ndarray:
        """[lanes]: the chains of a chunk, beyond the last one too."""
        lanes = self.chunking.lanes
        return np.arange(number * lanes, (number + 1) * lanes)

    def wait_until_compiled(self) -> None:
        """See Runner."""
        self.machine.compiled.result()

    def run(self, inputs: ChainInputs, transitions: int) -> Iterator[tuple[Counts, ChainResult | None]]:
        """See Runner."""
        self.wait_until_compiled()
        self.stop()
        self.chunks, self.kept = {}, None
        return self.attempts(inputs, transitions)

    def attempts(self, inputs: ChainInputs, transitions: int) -> Iterator[tuple[Counts, ChainResult | None]]:
        """From the start, again until the stacks are deep enough."""
        while True:
            try:
                yield from self.attempt(inputs, transitions)
                return
            except StackOverflowError as error:
                self.machine.grow(error)

    def attempt(self, inputs: ChainInputs, transitions: int) -> Iterator[tuple[Counts, ChainResult | None]]:
        """Sets the threads to work, and tells what they have done a few times a second."""
        kept = self.begin(inputs, transitions)
        stopping = self.stopping
        try:
            for shard in range(self.chunking.shards):
                self.workers.start(partial(self.serve, shard))
            while True:
                with self.lock:
                    if not self.failures and not self.finished:
                        self.lock.wait(SLICE_SECONDS)
                    if self.failures:
                        raise self.failures[0]
                    gradients = sum((chunk.counts for chunk in self.chunks.values()), Counts())
                    over = self.finished
                done, divergences = (int(array.sum()) for array in (kept.ends.done, kept.ends.divergences))
                yield replace(gradients, transitions=done, divergences=divergences), kept.result if over else None
                if over:
                    return
        finally:
            if self.stopping is stopping:  # else another run has begun since
                self.stop()

    def begin(self, inputs: ChainInputs, transitions: int) -> Kept:
        """All chunks before their first block: so there is something of each when the run is interrupted."""
        chains = len(inputs.key)
        self.chunks, self.kept = {}, None
        for number in range(self.chunking.chunks):
            rows = self.rows(number)
            chunk = Chunk.begin(self.machine, np.where(rows < chains, rows, NO_CHAIN), self.part(inputs, number))
            self.chunks[Place(0, number)] = chunk
        like = self.machine.so_far(chunk.state)
        self.kept = Kept(like, chains, MemoryStorage(like.records, chains, transitions))
        self.waiting, self.ready = set(self.chunks), set()
        self.finished, self.failures = False, []
        self.stopping = threading.Event()
        return self.kept

    def serve(self, shard: int) -> None:
        """One thread: a slice of one chunk after another, until none is waiting."""
        while not self.stopping.is_set():
            try:
                with self.lock:
                    if not self.waiting:
                        return
                    place = min(self.waiting, key=self.progress)
                    self.waiting.discard(place)
                with self.machine.machine.on_shard(shard):
                    self.step(place)
            except BaseException as error:
                with self.lock:
                    self.failures.append(error)
                    self.stopping.set()
                    self.lock.notify_all()
                return

    def progress(self, place: Place) -> tuple[float, Place]:
        """How far the chains of a chunk have come on average: the last one is served first."""
        assert self.kept is not None
        _, chains = self.chunks[place].occupied()
        return float(self.kept.ends.done[chains].mean()) if len(chains) else 0.0, place

    def step(self, place: Place) -> None:
        """One slice of a chunk. After its last in a round it goes on to the next, merged with its partner if any."""
        assert self.kept is not None
        bracket, chunk = self.bracket, self.chunks[place]
        waits = chunk.slice(bracket.leave_at(place), self.kept)
        while waits:
            if bracket.is_last(place):
                assert not chunk.is_short(), "a lane has halted with transitions still to make"
                self.kept.take(chunk)
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
                one, other = (self.chunks[p] for p in sorted((place, partner)))
                chunk = merge(one, other, self.kept)
            with self.lock:
                for left in (place, partner):
                    if left is not None:
                        del self.chunks[left]
                place = bracket.next(place)
                self.chunks[place] = chunk
            waits = chunk.live() <= bracket.leave_at(place)
        with self.lock:
            self.waiting.add(place)

    def stop(self) -> None:
        """Let the threads finish the slices they are at, and wait for them."""
        self.stopping.set()
        self.workers.wait()

    def interrupted(self) -> ChainResult | None:
        """See Runner: what every chunk had at the end of its last slice."""
        self.stop()
        if self.kept is None:
            return None
        for chunk in self.chunks.values():
            if chunk.counts.executed_gradients:
                self.kept.take(chunk)
        self.kept.storage.flush()
        return self.kept.result

    def begun(self) -> np.ndarray:
        """See Runner: those whose chunk has run a slice."""
        assert self.kept is not None
        begun = np.zeros(len(self.kept.ends.done), bool)
        for chunk in self.chunks.values():
            if chunk.counts.executed_gradients:
                begun[chunk.occupied()[1]] = True
        # chains that have halted leave a chunk when it merges
        begun[self.kept.ends.done > 0] = True
        return begun

    def forget(self) -> None:
        """See Runner."""
        self.stop()
        self.chunks, self.kept, self.failures = {}, None, []
