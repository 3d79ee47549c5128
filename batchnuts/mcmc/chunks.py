"""Many chains in chunks: each a batch of its own on one compiled machine, one host thread for each processor core.

The machine's arrays of a chunk fit into a core's cache, and its many small kernels are not worth dividing among cores;
whole chunks are. So chains are divided into chunks of one width, and threads ("shards") take turns at them: a
thread takes the chunk that has come least far, advances it for about half a second, and puts it back. All chunks so
come to their end together, and a run that is broken off has about as many draws of each chain.

What a chain draws does not depend on its chunk, except for rounding: its key is its own. The width is the same for all,
so that one machine serves them all; chains that are missing in the last chunk are made up for by copies of its last
chain that have no transitions to make. They count as lanes that are executed in vain (`Counts.executed_gradients`).
"""

from __future__ import annotations

import copy
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchnuts.autobatch import BatchedFunction
from batchnuts.autobatch.api import get_backend
from batchnuts.autobatch.compiler.tree import map_leaves
from batchnuts.mcmc import runner
from batchnuts.mcmc.chain_program import ChainResult
from batchnuts.mcmc.draws import Arrangement
from batchnuts.mcmc.runner import Counts, MachineRunner, Runner, StretchRunner
from batchnuts.mcmc.serving import greatest_width, is_compiled
from batchnuts.mcmc.settings import ExecutionSettings

LEAST_LANES = 2
"""Chains of a chunk at least, where it is chosen automatically: a kernel costs as much for fewer."""


@dataclass(frozen=True)
class Chunking:
    """How chains are divided: `chunks` of `lanes` chains each, the last one filled up, and `shards` threads."""

    chunks: int
    lanes: int
    shards: int


def processors() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def divide(chains: int, execution: ExecutionSettings, most: int, cores: int) -> Chunking:
    """The chunking that the settings ask for, and where they leave it open one of at most `most` chains a chunk.

    Chosen automatically, only compiled programs are divided: elsewhere Python's lock lets one thread run at a time.
    """
    compiled = is_compiled(execution)
    shards = execution.shards or (cores if compiled else 1)
    if execution.chunk_lanes is not None:
        lanes = min(execution.chunk_lanes, chains)
    elif not compiled:
        lanes = chains
    else:
        chunks = max(math.ceil(chains / most), min(shards, chains // LEAST_LANES), 1)
        if chunks > 1:  # a round number of chunks for each thread
            chunks = min(math.ceil(chunks / shards) * shards, chains)
        lanes = math.ceil(chains / chunks)
    chunks = math.ceil(chains / lanes)
    return Chunking(chunks, lanes, min(shards, chunks))


def make_runner(
    program: BatchedFunction, example: tuple[Any, ...], execution: ExecutionSettings, max_tree_depth: int
) -> Runner:
    """The runner for the executor asked for, compiled for inputs like the example."""
    if execution.executor != "virtual_machine":
        return StretchRunner(program, example, execution)
    chains = len(example[0])
    most = chains
    if is_compiled(execution):
        backend = get_backend(execution.backend, execution.mode)
        most = greatest_width(program.compiled(program.lane_types(example), backend).lowered, backend)
    chunking = divide(chains, execution, most, processors())
    depth = max_tree_depth + 1  # a tree of depth d is built by at most d + 1 calls, one within the other
    if chunking.chunks == 1:
        return MachineRunner(program, example, execution, depth)
    return ChunkRunner(program, example, execution, depth, chunking)


class ChunkRunner:
    """Chunks of chains on threads (see Runner)."""

    def __init__(
        self,
        program: BatchedFunction,
        example: tuple[Any, ...],
        execution: ExecutionSettings,
        first_depth: int,
        chunking: Chunking,
    ) -> None:
        self.chunking = chunking
        first = MachineRunner(program, self.part(example, 0), execution, first_depth)
        self.chunks = [copy.copy(first) for _ in range(chunking.chunks)]
        self.threads: list[threading.Thread] = []
        self.stopping = threading.Event()

    @property
    def arrangement(self) -> Arrangement:
        """See Runner."""
        return replace(self.chunks[0].arrangement, chunks=self.chunking.chunks, shards=self.chunking.shards)

    def part(self, inputs: tuple[Any, ...], number: int) -> tuple[Any, ...]:
        """The inputs of one chunk; lanes behind the last chain are its copies, with no transitions to make."""
        lanes = self.chunking.lanes
        start = number * lanes
        chains = len(inputs[0])
        rows = np.minimum(np.arange(start, start + lanes), chains - 1)
        *others, transitions = map_leaves(lambda array: np.asarray(array)[rows], inputs)
        return (*others, np.where(np.arange(start, start + lanes) < chains, transitions, 0))

    def run(self, inputs: tuple[Any, ...], transitions: int) -> Iterator[tuple[Counts, ChainResult | None]]:
        """See Runner."""
        self.stop()
        self.chains = len(inputs[0])
        for chunk in self.chunks:
            chunk.state = None
        return self.work(inputs)

    def work(self, inputs: tuple[Any, ...]) -> Iterator[tuple[Counts, ChainResult | None]]:
        """Starts the threads, and tells what they have done a few times a second."""
        parts = [self.part(inputs, number) for number in range(self.chunking.chunks)]
        for chunk, part in zip(self.chunks, parts):
            chunk.state = chunk.start(part)  # so that there is something of each chunk when the run is broken off
        waiting = {number: chunk.slices(part) for number, (chunk, part) in enumerate(zip(self.chunks, parts))}
        counts = [Counts()] * self.chunking.chunks
        results: dict[int, ChainResult] = {}
        failures: list[BaseException] = []
        lock = threading.Condition()
        stopping = self.stopping = threading.Event()

        def serve() -> None:
            """One thread: a slice of one chunk after another, until none is waiting."""
            while not stopping.is_set():
                with lock:
                    if not waiting:
                        return
                    number = min(waiting, key=lambda n: (counts[n].transitions, n))
                    slices = waiting.pop(number)
                try:
                    done, result = next(slices)
                except BaseException as error:
                    with lock:
                        failures.append(error)
                        stopping.set()
                        lock.notify_all()
                    return
                with lock:
                    counts[number] = done
                    if result is None:
                        waiting[number] = slices
                    else:
                        results[number] = result
                    if len(results) == len(counts):
                        lock.notify_all()

        self.threads = [threading.Thread(target=serve, daemon=True) for _ in range(self.chunking.shards)]
        for thread in self.threads:
            thread.start()
        try:
            while True:
                with lock:
                    if not failures and len(results) < len(counts):
                        lock.wait(runner.SLICE_SECONDS)
                    if failures:
                        raise failures[0]
                    so_far = sum(counts, Counts())
                    finished = len(results) == len(counts)
                yield so_far, self.joined([results[n] for n in range(len(counts))]) if finished else None
                if finished:
                    return
        finally:
            self.stop()

    def stop(self) -> None:
        """Let the threads finish the slices they are at, and wait for them."""
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        self.threads = []

    def joined(self, results: list[ChainResult]) -> ChainResult:
        """The results of all chunks as one, without the lanes that filled up the last."""
        result: ChainResult = map_leaves(lambda *arrays: np.concatenate(arrays)[: self.chains], *results)
        return result

    def interrupted(self) -> ChainResult | None:
        """See Runner: what every chunk had at the end of its last slice."""
        self.stop()
        parts = [part for chunk in self.chunks if (part := chunk.interrupted()) is not None]
        return self.joined(parts) if len(parts) == len(self.chunks) else None
