"""Rematerialization: literals are assigned again where they are read, instead of being carried from block to block.

    f.entry: f.limit = {10} ; goto f.while          f.entry: goto f.while
    f.while: f.more = {n < limit} f.n, f.limit -->  f.while: f.limit = {10} ; f.more = {n < limit} f.n, f.limit

So a constant is neither in the machine's state nor on a stack.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from batchnuts.autobatch.ir.program import (
    Block,
    ControlFlowGraph,
    PrimOp,
    Program,
    VariableAllocation,
    reads,
    terminator_reads,
    writes,
)

LARGEST_LITERAL = 16
"""The maximum number of elements of such a literal; a larger one is better kept than repeated in many blocks."""


def rematerialize(program: Program) -> Program:
    """The allocated program in which small literals are assigned in each block that reads them."""
    assigned = Counter(v for b in program.graph.blocks for op in b.ops for v in writes(op))
    literals = {
        op.vars_out[0]: op
        for b in program.graph.blocks
        for op in b.ops
        if isinstance(op, PrimOp) and not op.vars_in and len(op.vars_out) == 1 and not op.function.batched
        if assigned[op.vars_out[0]] == 1 and _may_move(program, op.vars_out[0])
    }

    def with_literals(block: Block) -> Block:
        read = dict.fromkeys(v for op in block.ops for v in reads(op))
        read.update(dict.fromkeys(terminator_reads(block.terminator)))
        written = {v for op in block.ops for v in writes(op)}
        copies = tuple(literals[v] for v in read if v in literals and v not in written)
        return replace(block, ops=copies + block.ops)

    return program.replace(graph=ControlFlowGraph(tuple(map(with_literals, program.graph.blocks))))


def _may_move(program: Program, variable: str) -> bool:
    """Whether the variable is small, has no stack, and neither comes into the program nor goes out."""
    stacked = program.var_alloc[variable] is VariableAllocation.FULL
    small = math.prod(program.var_defs[variable].shape) <= LARGEST_LITERAL
    return small and not stacked and variable not in (*program.vars_in, *program.vars_out)
