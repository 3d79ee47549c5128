"""Tail calls push nothing: a call after which its function only returns is a jump.

    f.a: ... ; push_goto f.resume g.entry                f.a: ... ; pop f.x ; goto g.entry
    f.resume: pop f.x ; return                   -->

The callee then returns to where `f` would have returned. What `f` still has to drop it drops before, unless the callee
may use that frame: it may start from the value there, or leave its result on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from batchnuts.autobatch.ir.cfg import reachable
from batchnuts.autobatch.ir.dataflow import Analysis, Variables, live_before_op, solve
from batchnuts.autobatch.ir.program import (
    Block,
    ControlFlowGraph,
    GotoOp,
    IndirectGotoOp,
    PopOp,
    Program,
    PushGotoOp,
    PushOp,
    terminator_reads,
)


def tail_calls(program: Program) -> Program:
    """The coalesced program with such calls as jumps. The main program's calls stay calls: its return ends the run."""
    blocks = {block.label: block for block in program.graph.blocks}
    passed_on = _passed_on(program.graph)
    results = {
        op.var
        for b in program.graph.blocks
        if isinstance(b.terminator, IndirectGotoOp)
        for op in b.ops
        if isinstance(op, PushOp)
    }

    def convert(block: Block) -> Block:
        if not isinstance(block.terminator, PushGotoOp) or block.owner == "main":
            return block
        resume = blocks[block.terminator.resume_label]
        drops = tuple(op for op in resume.ops if isinstance(op, PopOp))
        pushed = {op.var for op in block.ops if isinstance(op, PushOp)}
        only_returns = isinstance(resume.terminator, IndirectGotoOp) and len(drops) == len(resume.ops)
        needed = pushed | results | passed_on[block.terminator.target_label]
        if not only_returns or needed & {op.var for op in drops}:
            return block
        return replace(block, ops=block.ops + drops, terminator=GotoOp(block.terminator.target_label))

    graph = ControlFlowGraph(tuple(map(convert, program.graph.blocks)))
    alive = reachable(graph)
    return program.replace(graph=ControlFlowGraph(tuple(b for b in graph.blocks if b.label in alive)))


def _passed_on(graph: ControlFlowGraph) -> Mapping[str, Variables]:
    """For each block, the variables whose top frame is read from there on, itself or as a push's duplicate of it."""

    def transfer(block: Block, live: Variables) -> Variables:
        live |= set(terminator_reads(block.terminator))
        for op in reversed(block.ops):
            live = live - {op.var} if isinstance(op, PopOp) else live_before_op(op, live, push_reads=False)
        return live

    analysis = Analysis[Variables](
        forward=False, boundary=frozenset(), bottom=frozenset(), merge=frozenset.union, transfer=transfer
    )
    return solve(graph, analysis, through_calls=True).at_start
