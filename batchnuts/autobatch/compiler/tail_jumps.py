"""Tail calls push nothing: a call behind which its function only returns is a jump.

    f.a: ... ; push_goto f.resume g.entry                f.a: ... ; pop f.x ; goto g.entry
    f.resume: pop f.x ; return                   -->

The callee then returns to where `f` would have returned. What `f` still had to drop it drops before.
"""

from __future__ import annotations

from dataclasses import replace

from batchnuts.autobatch.compiler.cfg import reachable
from batchnuts.autobatch.compiler.ir import (
    Block,
    ControlFlowGraph,
    GotoOp,
    IndirectGotoOp,
    PopOp,
    Program,
    PushGotoOp,
    PushOp,
)


def tail_jumps(program: Program) -> Program:
    """The coalesced program with such calls as jumps. The main program's calls stay calls: its return ends the run."""
    blocks = {block.label: block for block in program.graph.blocks}

    def convert(block: Block) -> Block:
        if not isinstance(block.terminator, PushGotoOp) or block.owner == "main":
            return block
        resume = blocks[block.terminator.resume_label]
        drops = tuple(op for op in resume.ops if isinstance(op, PopOp))
        pushed = {op.var for op in block.ops if isinstance(op, PushOp)}
        only_returns = isinstance(resume.terminator, IndirectGotoOp) and len(drops) == len(resume.ops)
        if not only_returns or pushed & {op.var for op in drops}:
            return block
        return replace(block, ops=block.ops + drops, terminator=GotoOp(block.terminator.target_label))

    graph = ControlFlowGraph(tuple(map(convert, program.graph.blocks)))
    alive = reachable(graph)
    return program.replace(graph=ControlFlowGraph(tuple(b for b in graph.blocks if b.label in alive)))
