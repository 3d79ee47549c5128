"""A stretch under way as plain data, and the attempt that goes on from it (attempt.py).

The rows in the buffers of machines go to the storage first, which makes them durable itself: so a saved stretch is as
large as the states of all chains, however much they have recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import map_leaves
from batchnuts.files.sealed_file import CheckpointError
from batchnuts.mcmc.execution.attempt import Attempt, MergePosition
from batchnuts.mcmc.execution.chain_machine import ChainMachine
from batchnuts.mcmc.execution.chunk import Chunk
from batchnuts.mcmc.execution.chunk_plan import Chunking
from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult
from batchnuts.mcmc.storage.contract import MakeStorage


@dataclass(frozen=True, eq=False)
class SavedChunk:
    """A chunk (chunk.py) at the end of a slice."""

    place: MergePosition
    chains: NDArray[np.int64]
    """[lanes]."""
    inputs: ChainInputs
    state: dict[str, np.ndarray]
    """The state of its machine, as `ResumableMachine.save` gives it."""
    counts: Counts
    merged: Counts


@dataclass(frozen=True, eq=False)
class SavedStretch:
    """All chunks, and the state of all chains on the host."""

    lanes: int
    """The lanes of each chunk."""
    rows: int
    """The rows of a machine's buffers."""
    stack_depth: int
    machine: str
    """Its fingerprint."""
    chunks: tuple[SavedChunk, ...]
    waiting: tuple[MergePosition, ...]
    ready: tuple[MergePosition, ...]
    ended: tuple[MergePosition, ...]
    finished: bool
    ends: ChainResult
    """Without records."""
    recorded: NDArray[np.int64]
    """[chains]: transitions of each that the storage has made durable."""


def saved_attempt(attempt: Attempt) -> SavedStretch:
    """The attempt, when no thread is working on it. Raises OSError where its records cannot be made durable."""
    for chunk in attempt.chunks.values():
        chunk.go_on(attempt.host_state)
    host_state, machine = attempt.host_state, attempt.machine
    host_state.storage.flush()
    chunks = [
        SavedChunk(place, chunk.chains, chunk.inputs, machine.machine.save(chunk.state), chunk.counts, chunk.merged)
        for place, chunk in attempt.chunks.items()
    ]
    return SavedStretch(
        lanes=attempt.chunking.lanes,
        rows=machine.capacity,
        stack_depth=machine.machine.stack_depth,
        machine=machine.fingerprint,
        chunks=tuple(chunks),
        waiting=tuple(sorted(attempt.waiting)),
        ready=tuple(sorted(attempt.ready)),
        ended=tuple(sorted(attempt.ended)),
        finished=attempt.finished,
        ends=map_leaves(np.array, host_state.ends),  # copies: the attempt goes on
        recorded=host_state.recorded.copy(),
    )


def restored_attempt(
    saved: SavedStretch,
    machine: ChainMachine,
    chunking: Chunking,
    chains: int,
    transitions: int,
    leave: float,
    wanted: int,
    make_storage: MakeStorage,
) -> Attempt:
    """The attempt that goes on where another one was saved; chains to make_storage: of `Attempt`.

    Raises CheckpointError where the machine is another one, or the storage does not have what it should.
    """
    machine.set_stack_depth(saved.stack_depth)
    if machine.fingerprint != saved.machine or saved.lanes != chunking.lanes:
        raise CheckpointError(
            "The checkpoint is of another compiled program: the model, settings of the sampler, or libraries differ."
        )
    try:
        chunks = {
            saved_chunk.place: Chunk(
                machine,
                saved_chunk.chains,
                saved_chunk.inputs,
                machine.machine.restore(saved_chunk.state, saved_chunk.inputs),
                machine.sweeps_per_second,
                saved_chunk.counts,
                saved_chunk.merged,
            )
            for saved_chunk in saved.chunks
        }
    except ValueError as error:
        raise CheckpointError(f"The checkpoint does not fit the compiled program: {error}.") from error
    attempt = Attempt(machine, chunking, chunks, chains, transitions, leave, wanted, make_storage)
    attempt.host_state.ends, attempt.host_state.recorded = map_leaves(np.array, saved.ends), saved.recorded.copy()
    attempt.host_state.storage.resume(saved.recorded)
    attempt.waiting, attempt.ready, attempt.ended = set(saved.waiting), set(saved.ready), set(saved.ended)
    attempt.finished = saved.finished
    return attempt
