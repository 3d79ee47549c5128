"""Redundant copies across blocks: a copy to a variable that already holds the value is removed.

    f.resume: f.kept = copy f.result ; branch f.ok a b
    b: f.result = copy f.kept ; return                   -->    b: return

Inside a block `eliminate` does this; this pass finds which variables hold the same value wherever paths meet.
"""

from __future__ import annotations

from dataclasses import replace

from batchnuts.autobatch.ir.dataflow import Analysis, solve
from batchnuts.autobatch.ir.program import COPY, Block, ControlFlowGraph, Op, PopOp, PrimOp, Program, writes

Equal = frozenset[frozenset[str]]
"""Pairs of variables whose top frames hold the same value on every lane at a point."""


def propagate_copies(program: Program) -> Program:
    """The lowered program without copies between variables that are equal already."""
    no_path: Equal | None = None

    def merge(a: Equal | None, b: Equal | None) -> Equal | None:
        if a is None or b is None:
            return b if a is None else a
        return a & b

    def transfer(block: Block, equal: Equal | None) -> Equal | None:
        if equal is None:
            return None
        for op in block.ops:
            equal = _after(op, equal, program)
        return equal

    analysis = Analysis[Equal | None](
        forward=True, boundary=frozenset(), bottom=no_path, merge=merge, transfer=transfer
    )
    equalities = solve(program.graph, analysis, through_calls=True)

    def convert(block: Block) -> Block:
        equal = equalities.at_start[block.label] or frozenset()
        ops: list[Op] = []
        for op in block.ops:
            after = _after(op, equal, program)
            if isinstance(op, PrimOp) and op.function is COPY:
                pairs = [(o, i) for o, i in zip(op.vars_out, op.vars_in) if frozenset({o, i}) not in equal]
                op = replace(op, vars_out=tuple(o for o, _ in pairs), vars_in=tuple(i for _, i in pairs))
                if not pairs:
                    continue
            ops.append(op)
            equal = after
        return replace(block, ops=tuple(ops))

    return program.replace(graph=ControlFlowGraph(tuple(map(convert, program.graph.blocks))))


def _after(op: Op, equal: Equal, program: Program) -> Equal:
    """What is equal after an op. A push leaves all top frames as they are; a copy to another type is a cast."""
    changed = {op.var} if isinstance(op, PopOp) else set(writes(op))
    if not (isinstance(op, PrimOp) and op.function is COPY):
        return frozenset(pair for pair in equal if not pair & changed)
    still_equal = {pair for pair in equal if not pair & changed}
    for out, source in zip(op.vars_out, op.vars_in):
        if frozenset({out, source}) in equal:  # `out` keeps its value
            still_equal |= {pair for pair in equal if out in pair and not (pair - {out}) & changed}
        if source not in changed and program.var_defs[out] == program.var_defs[source]:
            still_equal.add(frozenset({out, source}))
    return frozenset(still_equal)
