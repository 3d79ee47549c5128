"""Block merging: a small block that several others jump to is repeated at the end of each.

    a: i = {0} ; goto b                          a: i = {0} ; more = {i < n} i, n ; branch more c d
    b: more = {i < n} i, n ; branch more c d
    c: i = {i + 1} i ; goto b             -->    c: i = {i + 1} i ; more = {i < n} i, n ; branch more c d
    d: ...                                       d: ...

A loop's test so runs in the same dispatch as its body. What is repeated must be cheap: lanes that come from different
places no longer share its evaluation.
"""

from __future__ import annotations

from dataclasses import replace

from batchnuts.autobatch.ir.cfg import computes_little, simplify
from batchnuts.autobatch.ir.program import (
    Block,
    BranchOp,
    ControlFlowGraph,
    Function,
    GotoOp,
    IndirectGotoOp,
    Program,
)

LARGEST_REPEATED = 4
"""Computing ops that a repeated block may have."""


def duplicate_tails(program: Program) -> Program:
    """The program with calls, in which no block jumps to a small one."""
    return simplify(program.with_functions({f.name: _merge(f) for f in program.all_functions()}))


def _merge(function: Function) -> Function:
    repeated = {block.label: block for block in function.graph.blocks if _is_small(block)}

    def with_target(block: Block) -> Block:
        if not isinstance(block.terminator, GotoOp) or block.terminator.label not in repeated:
            return block
        target = repeated[block.terminator.label]
        return replace(block, ops=block.ops + target.ops, terminator=target.terminator)

    return replace(function, graph=ControlFlowGraph(tuple(map(with_target, function.graph.blocks))))


def _is_small(block: Block) -> bool:
    return isinstance(block.terminator, (BranchOp, IndirectGotoOp)) and computes_little(block, LARGEST_REPEATED)
