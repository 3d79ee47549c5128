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
from batchnuts.mcmc.execution.chain_machine import ChainMachine
from batchnuts.mcmc.execution.chunk import Chunk
from batchnuts.mcmc.execution.chunk_plan import Chunking, chains_alone, divide, is_compiled, maximum_width
from batchnuts.mcmc.execution.lane_program import lane_program
from batchnuts.mcmc.execution.runner import Counts, Interrupted, Runner, StretchRunner
from batchnuts.mcmc.execution.saved_stretch import SavedStretch, restored_attempt, saved_attempt
from batchnuts.mcmc.execution.window_reduction import ReducedWindow, Reduction
from batchnuts.mcmc.execution.workers import Workers
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult, Record
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.mcmc.storage.contract import MakeStorage, Storage
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
        return StretchRunner(program, example, execution)
    chains = len(example.key)
    compiled = lane_program(program, example, execution)
    max_width, alone = (maximum_width(compiled), chains_alone(compiled)) if is_compiled(execution) else (chains, 1)
    asked = execution if lanes is None else execution.model_copy(update={"chunk_lanes": lanes})
    chunking = divide(chains, asked, max_width, processors(), alone)
    depth = max_tree_depth + 1  # a tree of depth d is built by at most d + 1 calls, one within the other
    return ChunkRunner(compiled, example, execution, depth, chunking)


class ChunkRunner(Runner):
    """Runs chunks of chains on threads: a machine and persistent workers, and one attempt after another."""

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
        self.attempt: Attempt | None = None
        """The last one, at the stretch that runs or has ended; None if none has begun, or it was dropped."""
        self.wanted = 0
        """How many transitions of every chain `watch` asked for."""

    @property
    @override
    def arrangement(self) -> Arrangement:
        policy = self.machine.machine.policy
        return Arrangement(self.chunking.lanes, policy, self.chunking.chunks, self.chunking.shards)

    @property
    def chunks(self) -> Mapping[MergePosition, Chunk]:
        """The chunks of the last attempt that are not merged into others."""
        return {} if self.attempt is None else self.attempt.chunks

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
    ) -> Iterator[tuple[Counts, ChainResult | None]]:
        self.wait_until_compiled()
        self.forget()
        return self.attempts(inputs, transitions, leave, make_storage, resumed)

    @override
    def reduced(self) -> ReducedWindow | None:
        return None

    def attempts(
        self,
        inputs: ChainInputs,
        transitions: int,
        leave: float,
        make_storage: MakeStorage,
        resumed: SavedStretch | None,
    ) -> Iterator[tuple[Counts, ChainResult | None]]:
        """Run from the start, or from what was saved, and again from the start until the stacks are deep enough."""
        limits = transitions, leave, self.wanted, make_storage
        while True:
            try:
                if resumed is not None:
                    attempt, resumed = (
                        restored_attempt(resumed, self.machine, self.chunking, len(inputs.key), *limits),
                        None,
                    )
                else:
                    chunks = first_chunks(self.machine, self.chunking, inputs)
                    attempt = Attempt(self.machine, self.chunking, chunks, len(inputs.key), *limits)
                yield from self.to_end(attempt)
                return
            except StackOverflowError as error:
                self.machine.grow(error)
                self.attempt = None  # before another one is made: both may be large

    def to_end(self, attempt: Attempt) -> Iterator[tuple[Counts, ChainResult | None]]:
        """The attempt's reports; however it ends, no thread works on it afterwards."""
        self.attempt = attempt
        try:
            yield from attempt.reports(self.workers)
        finally:
            if self.attempt is attempt:  # otherwise another run has begun since
                self.stop()

    def stop(self) -> None:
        """Let the threads finish their current slices, and wait for them."""
        if self.attempt is not None:
            self.attempt.stopping.set()
        self.workers.wait()

    @override
    def pause(self) -> None:
        self.stop()

    @override
    def proceed(self) -> None:
        if self.attempt is not None:
            self.attempt.start_threads(self.workers)

    @override
    def saved(self) -> SavedStretch | None:
        if self.attempt is None or self.attempt.failures:
            return None
        return saved_attempt(self.attempt)

    @property
    @override
    def storage(self) -> Storage | None:
        return None if self.attempt is None else self.attempt.host_state.storage

    @override
    def watch(self, transitions: int) -> None:
        self.wanted = transitions
        if self.attempt is not None:
            self.attempt.host_state.wanted = transitions

    @override
    def recorded(self, transitions: int) -> Record | None:
        if self.attempt is None or self.attempt.host_state.recorded.min() < transitions:
            return None
        return self.attempt.host_state.storage.first(transitions)

    @override
    def interrupted(self) -> Interrupted | None:
        self.stop()
        return None if self.attempt is None else self.attempt.interrupted()

    @override
    def forget(self) -> None:
        self.stop()
        self.attempt = None
