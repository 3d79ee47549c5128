"""How chains are divided into chunks, how wide those are, and how many rows they record before these go to the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from batchnuts.autobatch.machine import COSTLY_WORK, LaneProgram, engine_infos, processors, use_own_threads
from batchnuts.mcmc.execution.call_runner import TRANSITIONS_PER_CALL
from batchnuts.mcmc.kernel.sample_statistics import draw_bytes
from batchnuts.mcmc.settings.run_settings import ExecutionSettings

COSTLY_CHUNK_LANES = 128
"""Chains of a chunk at most, where the gradient costs most of the time."""

MAX_WIDTH = 256
"""The same for cheap gradients: with more, too many wait at the chunk's end."""

BUFFER_BYTES = 16_000_000
"""Size of the rows that a chunk records before they go to the host: twice a second they go in and out of the compiled
program, which takes some ten milliseconds for this size."""

MIN_ROWS, MAX_ROWS = 8, 1024
"""Bounds of the number of rows of each chain, however large or small they are. A chain that fills its rows halts until
the next return to the host: once in so many transitions, that is nothing."""

OWN_PACE_WIDTH, WIDE_WORK = 128, 5_000
"""Chains of a chunk at most where each runs at its own pace, and the work of one gradient above which it is MAX_WIDTH:
what a narrow chunk gains in the processor's caches, a wide product of matrices gains more (docs/decisions/0067)."""

ALONE = 2
"""Chains for each thread up to which each is a chunk of its own, where the gradient is cheap. A machine of one lane has
no masks, and runs only the blocks that its chain needs: with 4 chains the virtual machine is eight times as fast."""


@dataclass(frozen=True)
class Chunking:
    """How chains are divided: `chunks` of `lanes` chains each, the last one padded, and `shards` threads."""

    chunks: int
    lanes: int
    shards: int


def is_compiled(execution: ExecutionSettings) -> bool:
    """Whether a chunk's machine is one compiled program, which threads run at the same time."""
    if execution.expert.executor != "virtual_machine":
        return False
    if execution.backend == "auto":  # some library that differentiates
        return execution.expert.mode == "xla"
    return engine_infos()[execution.backend].is_compiled(execution.expert.mode)


def maximum_width(program: LaneProgram) -> int:
    """The maximum number of chains of a chunk of the program `run_chain`, where its machine is compiled."""
    if program.costly_work > COSTLY_WORK:
        return COSTLY_CHUNK_LANES
    return OWN_PACE_WIDTH if program.engine.info.own_pace and program.costly_work <= WIDE_WORK else MAX_WIDTH


def chains_alone(program: LaneProgram) -> int:
    """Up to how many chains of each thread run alone; a costly gradient gains by a second chain, with one matrix, and
    chains that run at their own pace gain by each."""
    return 1 if program.costly_work > COSTLY_WORK or program.engine.info.own_pace else ALONE


def own_threads(chains: int | Literal["auto"], execution: ExecutionSettings) -> None:
    """Give each shard threads of its own if there will be several, and the backend's library is not initialized yet.

    Not with one chunk, whose gradient may use all threads.
    """
    likely = processors() if chains == "auto" else chains
    shards = divide(likely, execution, likely, processors(), alone=1).shards
    if is_compiled(execution) and shards > 1:
        use_own_threads(shards, execution.backend)


def buffer_rows(
    transitions: int, chains: int, dimension: int, dtype: str, execution: ExecutionSettings, divergences: bool = False
) -> int:
    """How many transitions of each chain a machine's buffers hold.

    transitions: that each chain makes at most. A compiled machine's buffers do not depend on it: runs of any length
    have the same compiled program, and so the same draws to the last bit. divergences: whether the ends of trajectories
    are recorded too.
    """
    if execution.expert.executor != "virtual_machine":
        return min(TRANSITIONS_PER_CALL, transitions)
    size = draw_bytes(dimension, dtype, divergences)
    lanes = min(chains, execution.chunk_lanes or (MAX_WIDTH if is_compiled(execution) else chains))
    most = MAX_ROWS if is_compiled(execution) else transitions
    return min(most, max(MIN_ROWS, BUFFER_BYTES // (lanes * size)))


def divide(chains: int, execution: ExecutionSettings, max_width: int, cores: int, alone: int) -> Chunking:
    """The chunking that the settings ask for, and where they leave it open one of at most `max_width` chains a chunk,
    and of single chains where there are no more than `alone` for each thread.

    Chosen automatically, only compiled programs are divided: elsewhere Python's lock lets one thread run at a time.
    """
    compiled = is_compiled(execution)
    shards = execution.expert.shards or (cores if compiled else 1)
    if execution.chunk_lanes is not None:
        lanes = min(execution.chunk_lanes, chains)
    elif not compiled:
        lanes = chains
    elif chains <= alone * shards:
        lanes = 1
    else:  # a round number of chunks for each thread
        chunks = min(math.ceil(chains / (max_width * shards)) * shards, chains)
        lanes = math.ceil(chains / chunks)
    chunks = math.ceil(chains / lanes)
    return Chunking(chunks, lanes, min(shards, chunks))
