"""How chains are divided into chunks, how wide those are, and how many rows they record before these are taken out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from batchnuts.autobatch.backends.backend import Backend
from batchnuts.autobatch.backends.tensorflow.devices import processors, use_own_threads
from batchnuts.autobatch.ir.program import STORED, PrimOp, Program, WriteRowOp
from batchnuts.autobatch.scheduling.policies import costly_blocks
from batchnuts.mcmc.chain_program import empty_records
from batchnuts.mcmc.execution.runner import STRETCH
from batchnuts.mcmc.settings import ExecutionSettings

COSTLY_WORK = 400_000
"""Multiplications and elements of one chain's gradient above which its matrices want to be wide (decisions/0009)."""

COSTLY_CHUNK_LANES = 128
"""Chains of a chunk at most, where the gradient costs most of the time."""

LEAST_WIDTH, GREATEST_WIDTH = 64, 256
"""Bounds of the same elsewhere: fewer chains cost as much, and of more too many wait at the chunk's end."""

CACHE = 1_200_000
"""Bytes of variables that a chunk may have beyond LEAST_WIDTH: they stay in a core's cache."""

BUFFER_BYTES = 16_000_000
"""Of the rows that a chunk records before they are taken out: twice a second they go in and out of the compiled
program, which for so many takes some ten milliseconds."""

LEAST_ROWS = 8
"""Rows of each chain at least, however large they are."""

LEAST_LANES = 2
"""Chains of a chunk at least, where it is chosen automatically: a kernel costs as much for fewer."""


@dataclass(frozen=True)
class Chunking:
    """How chains are divided: `chunks` of `lanes` chains each, the last one filled up, and `shards` threads."""

    chunks: int
    lanes: int
    shards: int


def is_compiled(execution: ExecutionSettings) -> bool:
    """Whether XLA compiles the whole machine."""
    return (execution.executor, execution.backend, execution.mode) == ("virtual_machine", "tensorflow", "xla")


def is_costly(program: Program, backend: Backend) -> bool:
    """Whether the primitives declared costly do so much that wide chunks pay.

    Counted in their graph, so it depends on nothing but the model.
    """
    total = 0.0
    for label in costly_blocks(program):
        for op in program.graph.block(label).ops:
            if isinstance(op, PrimOp) and op.function.costly:
                work = backend.work(op.function, tuple(program.var_defs[v] for v in op.vars_in))
                total += work.products + work.elements if work is not None else 0.0
    return total > COSTLY_WORK


def greatest_width(program: Program, backend: Backend) -> int:
    """How many chains a chunk takes at most, where XLA compiles the machine."""
    if is_costly(program, backend):
        return COSTLY_CHUNK_LANES
    fit = CACHE // max(bytes_of_a_chain(program), 1)
    return max(LEAST_WIDTH, min(fit // 16 * 16, GREATEST_WIDTH))


def bytes_of_a_chain(program: Program) -> int:
    """Of the variables that one chain keeps: their top frames, without the buffers that rows are written to."""
    without = buffers(program)
    kept = (v for v, allocation in program.var_alloc.items() if allocation in STORED and v not in without)
    types = (program.var_defs[v] for v in kept)
    return sum(math.prod(t.shape) * np.dtype(t.dtype).itemsize for t in types)


def own_threads(chains: int, execution: ExecutionSettings) -> None:
    """Give each shard threads of its own, where there will be several, and if TensorFlow has not begun yet.

    Not where there is one chunk, whose gradient may make use of all threads.
    """
    shards = divide(chains, execution, chains, processors()).shards
    if is_compiled(execution) and shards > 1:
        use_own_threads(shards)


def buffers(program: Program) -> frozenset[str]:
    """The variables that rows are written to."""
    ops = (op for block in program.graph.blocks for op in block.ops if isinstance(op, WriteRowOp))
    return frozenset(v for op in ops for v in (op.buffer, op.var_out))


def buffer_rows(transitions: int, chains: int, dimension: int, dtype: str, execution: ExecutionSettings) -> int:
    """How many transitions of each chain a machine's buffers hold, at most the `transitions` that it makes in all."""
    if execution.executor != "virtual_machine":
        return min(STRETCH, transitions)
    size: int = sum(array.nbytes for array in empty_records(1, dimension, dtype))
    lanes = min(chains, execution.chunk_lanes or (GREATEST_WIDTH if is_compiled(execution) else chains))
    return min(transitions, max(LEAST_ROWS, BUFFER_BYTES // (lanes * size)))


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
