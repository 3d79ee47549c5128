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
    PrimOp,
    Program,
    writes,
)

LARGEST_REPEATED = 4
"""Computing ops that a repeated block may have."""


def duplicate_tails(program: Program) -> Program:
    """The program with calls, in which no block jumps to a small one."""
    return simplify(program.with_functions({f.name: _merge(f) for f in program.all_functions()}))


def fold_branches(program: Program) -> Program:
    """The program in which no block branches on what it has itself set to True or False."""
    return simplify(program.with_functions({f.name: _fold(f) for f in program.all_functions()}))


def _merge(function: Function) -> Function:
    repeated = {block.label: block for block in function.graph.blocks if _is_small(block)}

    def with_target(block: Block) -> Block:
        if not isinstance(block.terminator, GotoOp) or block.terminator.label not in repeated:
            return block
        target = repeated[block.terminator.label]
        return replace(block, ops=block.ops + target.ops, terminator=target.terminator)

    return replace(function, graph=ControlFlowGraph(tuple(map(with_target, function.graph.blocks))))


def _fold(function: Function) -> Function:
    def folded(block: Block) -> Block:
        if not isinstance(block.terminator, BranchOp):
            return block
        condition = block.terminator.cond_var
        maker = next((op for op in reversed(block.ops) if condition in writes(op)), None)
        if not isinstance(maker, PrimOp) or maker.vars_in or len(maker.vars_out) != 1:
            return block
        value = maker.function.call()[0]
        if not isinstance(value, bool):
            return block
        return replace(block, terminator=GotoOp(block.terminator.true_label if value else block.terminator.false_label))

    return replace(function, graph=ControlFlowGraph(tuple(map(folded, function.graph.blocks))))


def _is_small(block: Block) -> bool:
    return isinstance(block.terminator, (BranchOp, IndirectGotoOp)) and computes_little(block, LARGEST_REPEATED)
