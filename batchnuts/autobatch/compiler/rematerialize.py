"""Literals are written down again where they are read, instead of being carried from block to block.

    f.entry: f.limit = {10} ; goto f.while          f.entry: goto f.while
    f.while: f.more = {n < limit} f.n, f.limit -->  f.while: f.limit = {10} ; f.more = {n < limit} f.n, f.limit

So a constant is neither in the machine's state nor on a stack.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from batchnuts.autobatch.compiler.ir import (
    Block,
    ControlFlowGraph,
    Function,
    PrimOp,
    Program,
    TensorType,
    reads,
    terminator_reads,
    writes,
)

LARGEST_LITERAL = 16
"""Elements that a literal may have; a larger one is better kept than repeated in the code of many blocks."""


def rematerialize(program: Program) -> Program:
    """The typed, flattened program with calls, in which small literals are assigned in each block that reads them."""
    bodies = program.all_functions()
    assigned = Counter(v for f in bodies for b in f.graph.blocks for op in b.ops for v in writes(op))
    fixed = {v for f in bodies for v in (*f.vars_in, *f.vars_out)}
    literals = {
        op.vars_out[0]: op
        for f in bodies
        for b in f.graph.blocks
        for op in b.ops
        if isinstance(op, PrimOp) and not op.vars_in and len(op.vars_out) == 1 and not op.function.batched
        if assigned[op.vars_out[0]] == 1 and op.vars_out[0] not in fixed and _is_small(program, op.vars_out[0])
    }

    def with_literals(block: Block) -> Block:
        read = dict.fromkeys(v for op in block.ops for v in reads(op))
        read.update(dict.fromkeys(terminator_reads(block.terminator)))
        here = {v for op in block.ops for v in writes(op)}
        again = tuple(literals[v] for v in read if v in literals and v not in here)
        return replace(block, ops=again + block.ops)

    def body(function: Function) -> Function:
        return replace(function, graph=ControlFlowGraph(tuple(map(with_literals, function.graph.blocks))))

    return program.with_functions({f.name: body(f) for f in bodies})


def _is_small(program: Program, variable: str) -> bool:
    type_ = program.var_defs[variable]
    return isinstance(type_, TensorType) and math.prod(type_.shape) <= LARGEST_LITERAL
