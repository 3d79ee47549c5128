"""A lowered program cut where a lane must wait: at primitives that are not emitted.

    block ::= segment+          segment ::= op* (terminator | Wait)

A lane that comes to a `Wait` stores its variables and stops. What drives it computes the primitive, for all lanes that
wait there together, writes its results to their places, and lets them go on with the next segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from batchnuts.autobatch.ir.dataflow import Variables, live_after_ops, liveness
from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.ir.program import (
    COPY,
    Block,
    IndirectGotoOp,
    Op,
    PrimOp,
    Program,
    Terminator,
    VariableAllocation,
    terminator_reads,
)
from batchnuts.autobatch.native.expressions import is_emitted
from batchnuts.autobatch.native.types import DTYPES
from batchnuts.autobatch.passes.record_expressions import expression_over_lanes


@dataclass(frozen=True)
class Wait:
    """The lane waits for the results of a primitive."""

    op: PrimOp


@dataclass(frozen=True)
class Segment:
    """Straight code from one place where lanes can be to the next. label: of its block."""

    label: str
    ops: tuple[Op, ...]
    end: Terminator | Wait
    needed: Variables
    """The variables that must be stored at its end."""
    first: bool
    """Whether its block begins here."""


@dataclass(frozen=True)
class Segments:
    """All segments, in the order of the blocks; a lane's counter is the number of the next."""

    segments: tuple[Segment, ...]
    first: dict[str, int]
    """The number of each block's first."""
    stored: tuple[str, ...]
    """The variables that have a place in a lane's row."""

    @property
    def halted(self) -> int:
        """The counter of a lane that has halted."""
        return len(self.segments)


def is_foreign(op: Op, program: Program) -> bool:
    """Whether something else computes an op of a primitive."""
    if not isinstance(op, PrimOp):
        return False
    if op.function is COPY:
        return any(program.var_defs[v].dtype not in DTYPES for v in (*op.vars_in, *op.vars_out)) and any(
            program.var_defs[a] != program.var_defs[b] for a, b in zip(op.vars_in, op.vars_out)
        )
    return body_of(op, program) is None


def body_of(op: PrimOp, program: Program) -> Expression | None:
    """The expression that is emitted for a primitive, if one is; of a batched one, over lanes of one."""
    body = op.function.body or op.function.emitted
    if body is None and op.function.batched and not op.function.costly:
        inputs, outputs = (tuple(program.var_defs[v] for v in names) for names in (op.vars_in, op.vars_out))
        body = expression_over_lanes(op.function, inputs, outputs)
    return body if body is not None and is_emitted(body) else None


def segments_of(program: Program, foreign: Callable[[Op, Program], bool] = is_foreign) -> Segments:
    """Cut the blocks of a lowered, allocated program."""
    # of a stack only the top frame is stored, so one that is popped before it is read is not kept
    live = liveness(program.graph, frozenset(program.vars_out), through_calls=True, pop_exposes=False)
    segments: list[Segment] = []
    first: dict[str, int] = {}
    stored = {v for v, a in program.var_alloc.items() if a in (VariableAllocation.REGISTER, VariableAllocation.FULL)}
    for block in program.graph.blocks:
        first[block.label] = len(segments)
        segments += _cut(block, live.at_end[block.label], program, foreign)
    for segment in segments:
        if isinstance(segment.end, Wait):
            stored |= segment.needed | {*segment.end.op.vars_in, *segment.end.op.vars_out}
    order = {v: i for i, v in enumerate((*program.var_alloc, *program.var_defs))}
    return Segments(tuple(segments), first, tuple(sorted(stored, key=lambda v: order[v])))


def _cut(
    block: Block, live_at_end: Variables, program: Program, foreign: Callable[[Op, Program], bool]
) -> list[Segment]:
    needed = live_at_end
    if block.owner == "main" and isinstance(block.terminator, IndirectGotoOp):
        needed |= set(program.vars_out)
    live_after = live_after_ops(block.ops, needed | set(terminator_reads(block.terminator)))
    segments: list[Segment] = []
    begin = 0
    for i, op in enumerate(block.ops):
        if foreign(op, program):
            assert isinstance(op, PrimOp)
            at_end = (live_after[i] - {*op.vars_out}) | {*op.vars_in}
            segments.append(Segment(block.label, block.ops[begin:i], Wait(op), at_end, not segments))
            begin = i + 1
    segments.append(Segment(block.label, block.ops[begin:], block.terminator, needed, not segments))
    return segments
