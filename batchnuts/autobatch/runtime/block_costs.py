"""The cost of a dispatch of each block, estimated without running it; schedules are made from it.

    cost = DISPATCH + LANES (PRODUCT products + ELEMENT (elements computed + elements kept))

in microseconds on one core. DISPATCH and ELEMENT are those of NUTS, compiled by XLA for the processor, on three cheap
densities of 10 and 100 coordinates, PRODUCT is that of a logistic regression (docs/decisions/0019-expensive-blocks.md).
On other hardware, and on backends where each operation costs more, only their ratios matter, and these are approximate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from batchnuts.autobatch.backends.backend import Backend, Work
from batchnuts.autobatch.ir.program import (
    STORED,
    Block,
    PopOp,
    PrimOp,
    Program,
    PushOp,
    WriteRowOp,
)
from batchnuts.autobatch.scheduling.policies import costly_blocks
from batchnuts.autobatch.scheduling.sweep_search import DISPATCH, LANES

PRODUCT = 1e-5
"""Microseconds of a multiplication within a product of matrices."""
ELEMENT = 7e-5
"""Microseconds of an element that an operation computes, or that outlives the block: in a register, on a stack."""


@dataclass(frozen=True)
class Costs:
    """What the primitives of a lowered program compute for one lane."""

    work: Mapping[str, Work]
    """The work of each block, by its label; empty where the backend cannot estimate it."""
    costly: float
    """Multiplications and elements of the costly primitives, all of them once; one counts as zero where the backend
    cannot analyse it."""


def costs_of_program(program: Program, backend: Backend) -> Costs:
    """Counted in the primitives' graphs, so they depend only on the program."""
    costly = 0.0
    for label in costly_blocks(program):
        for op in program.graph.block(label).ops:
            if isinstance(op, PrimOp) and op.function.costly:
                work = backend.work(op.function, tuple(program.var_defs[v] for v in op.vars_in))
                costly += work.products + work.elements if work is not None else 0.0
    return Costs(block_work(program, backend), costly)


def block_costs(program: Program, backend: Backend) -> dict[str, float]:
    """The cost of each block, by its label (see the module). Empty where the backend cannot estimate work."""
    return costs_of(program, block_work(program, backend))


def block_work(program: Program, backend: Backend) -> dict[str, Work]:
    """The work of each block's primitives for one lane, by label. Empty where the backend cannot estimate it."""
    by_label: dict[str, Work] = {}
    for block in program.graph.blocks:
        work = _work(program, block, backend)
        if work is None:
            return {}
        by_label[block.label] = work
    return by_label


def costs_of(program: Program, work: Mapping[str, Work]) -> dict[str, float]:
    """The cost of each block, by its label, from the work of its primitives (see the module)."""
    costs: dict[str, float] = {}
    for label, done in work.items():
        elements = done.elements + _kept(program, program.graph.block(label))
        costs[label] = DISPATCH + LANES * (PRODUCT * done.products + ELEMENT * elements)
    return costs


def _work(program: Program, block: Block, backend: Backend) -> Work | None:
    total = Work()
    for op in block.ops:
        if isinstance(op, PrimOp):
            work = backend.work(op.function, tuple(program.var_defs[v] for v in op.vars_in))
            if work is None:
                return None
            total += work
    return total


def _kept(program: Program, block: Block) -> int:
    """Elements that go to stacks and buffers or come from stacks, and of variables that outlive the block."""

    def size(variable: str) -> int:
        return math.prod(program.var_defs[variable].shape)

    total = 0
    outlive: set[str] = set()
    for op in block.ops:
        match op:
            case PushOp(var) | PopOp(var):
                total += size(var)
            case WriteRowOp():
                total += size(op.value)
            case PrimOp():
                outlive |= {v for v in op.vars_out if program.var_alloc.get(v) in STORED}
    return total + sum(map(size, outlive))
