"""Many chains in chunks: each a batch of its own on one compiled machine, one host thread for each processor core.

The machine's arrays of a chunk fit into a core's cache, and its many small kernels are not worth dividing among cores;
whole chunks are. So chains are divided into chunks of one width, and threads ("shards") work on them in turn
(`attempt.py`).

What a chain draws does not depend on its chunk, except for rounding: its key is its own. The width is the same for all,
so that one machine serves them all; the last chunk is padded with copies of its last chain that make no transitions.
These lanes count as wasted (`Counts.executed_gradients`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from typing_extensions import override

from batchnuts.autobatch import BatchedFunction, StackOverflowError
from batchnuts.autobatch.machine import LaneProgram, processors
from batchnuts.mcmc.execution.attempt import Attempt, MergePosition, first_chunks, part
from batchnuts.mcmc.execution.call_runner import CallRunner
from batchnuts.mcmc.execution.chain_machine import ChainMachine
from batchnuts.mcmc.execution.chunk import Chunk
from batchnuts.mcmc.execution.chunk_plan import Chunking, chains_alone, divide, is_compiled, maximum_width
from batchnuts.mcmc.execution.lane_program import lane_program
from batchnuts.mcmc.execution.runner import Interrupted, Report, Runner, RunningStretch, SavedState
from batchnuts.mcmc.execution.saved_stretch import SavedStretch, restored_attempt, saved_attempt
from batchnuts.mcmc.execution.window_reduction import Reduction
from batchnuts.mcmc.execution.workers import Workers
from batchnuts.mcmc.kernel.chain_program import ChainInputs
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.mcmc.storage.contract import MakeStorage
from batchnuts.mcmc.storage.draws import Arrangement
from batchnuts.mcmc.storage.memory import MemoryStorage


def make_runner(
    program: BatchedFunction,
    example: ChainInputs,
    execution: ExecutionSettings,
    max_tree_depth: int,
    lanes: int | None = None,
) -> Runner:
    """The runner for the executor asked for, compiled for inputs like the example.

    lanes: chains of a chunk, where a run goes on that had so many; else they are chosen.
    """
    if execution.expert.executor != "virtual_machine":
        return CallRunner(program, example, execution)
    chains = len(example.key)
    compiled = lane_program(program, example, execution)
    max_width, alone = (maximum_width(compiled), chains_alone(compiled)) if is_compiled(execution) else (chains, 1)
    asked = execution if lanes is None else execution.model_copy(update={"chunk_lanes": lanes})
    chunking = divide(chains, asked, max_width, processors(), alone)
    depth = max_tree_depth + 1  # a tree of depth d is built by at most d + 1 calls, one within the other
    return ChunkRunner(compiled, example, execution, depth, chunking)


class ChunkRunner(Runner):
    """Runs chunks of chains on threads: a machine and persistent workers, which serve one stretch after another."""

    def __init__(
        self,
        program: LaneProgram,
        example: ChainInputs,
        execution: ExecutionSettings,
        first_depth: int,
        chunking: Chunking,
    ) -> None:
        self.chunking = chunking
        self.machine = ChainMachine(program, part(example, chunking, 0), execution, first_depth)
        self.workers = Workers(chunking.shards)
        self.under_way: ChunkedStretch | None = None
        """The stretch on which the workers may be working."""

    @property
    @override
    def arrangement(self) -> Arrangement:
        policy = self.machine.machine.policy
        return Arrangement(self.chunking.lanes, policy, self.chunking.chunks, self.chunking.shards)

    @override
    def wait_until_compiled(self) -> None:
        self.machine.compiled.result()

    @override
    def run(
        self,
        inputs: ChainInputs,
        transitions: int,
        leave: float = 0.0,
        make_storage: MakeStorage = MemoryStorage,
        resumed: SavedStretch | None = None,
        reduction: Reduction | None = None,
        wanted: int = 0,
    ) -> ChunkedStretch:
        self.wait_until_compiled()
        if self.under_way is not None:
            self.under_way.pause()
        return ChunkedStretch(self, inputs, transitions, leave, make_storage, resumed, wanted)


class ChunkedStretch(RunningStretch):
    """A stretch in chunks: one attempt after another, until the machine's stacks are deep enough."""

    def __init__(
        self,
        runner: ChunkRunner,
        inputs: ChainInputs,
        transitions: int,
        leave: float,
        make_storage: MakeStorage,
        resumed: SavedStretch | None,
        wanted: int,
    ) -> None:
        self.runner = runner
        self.inputs = inputs
        self.transitions = transitions
        self.leave = leave
        self.make_storage = make_storage
        self.resumed = resumed
        self.wanted = wanted
        """How many transitions of every chain `records` asked for."""
        self.attempt: Attempt | None = None
        """The last one; None where none has begun, or its stacks were too shallow."""

    @property
    def chunks(self) -> Mapping[MergePosition, Chunk]:
        """The chunks that are not merged into others."""
        return {} if self.attempt is None else self.attempt.chunks

    @override
    def __iter__(self) -> Iterator[Report]:
        self.runner.under_way = self
        try:
            while True:
                self.attempt = self._next_attempt()
                try:
                    yield from self.attempt.reports(self.runner.workers)
                    return
                except StackOverflowError as error:
                    self.pause()
                    self.runner.machine.grow(error)
                    self.attempt = None  # before another one is made: both may be large
        finally:  # however it ends, no thread works on it afterwards
            if self.runner.under_way is self:
                self.pause()
                self.runner.under_way = None

    def _next_attempt(self) -> Attempt:
        """From what was saved, or from the start."""
        machine, chunking, chains = self.runner.machine, self.runner.chunking, len(self.inputs.key)
        limits = self.transitions, self.leave, self.wanted, self.make_storage
        saved, self.resumed = self.resumed, None
        if saved is not None:
            return restored_attempt(saved, machine, chunking, chains, *limits)
        return Attempt(machine, chunking, first_chunks(machine, chunking, self.inputs, self.wanted), chains, *limits)

    @override
    def pause(self) -> None:
        if self.attempt is not None:
            self.attempt.pause(self.runner.workers)

    @override
    def save(self) -> SavedState | None:
        if self.attempt is None or self.attempt.failures:
            return None
        return SavedState(saved_attempt(self.attempt), self.attempt.host_state.storage)

    @override
    def records(self, transitions: int) -> Record | None:
        self.wanted = transitions
        if self.attempt is None:
            return None
        host_state = self.attempt.host_state
        host_state.wanted = transitions
        return None if host_state.recorded.min() < transitions else host_state.storage.first(transitions)

    @override
    def close(self) -> Interrupted | None:
        self.pause()
        return None if self.attempt is None else self.attempt.interrupted()
