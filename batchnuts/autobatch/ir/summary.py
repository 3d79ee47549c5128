"""Counts of what a program consists of, which the passes reduce."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from batchnuts.autobatch.ir.program import (
    COPY,
    AssertOp,
    FunctionCallOp,
    PopOp,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    VariableAllocation,
    WriteRowOp,
    mentioned,
)


@dataclass(frozen=True)
class Summary:
    """Static counts over a program's text: how often something is written down, not how often it runs."""

    functions: int
    """Bodies: functions before lowering (main included), owners of blocks after it."""
    blocks: int
    primitives: int
    """Primitive ops other than copies."""
    copies: int
    """Variables that copies assign; a parallel copy of three counts three."""
    writes: int
    assertions: int
    calls: int
    """Call ops, before lowering."""
    pushes: int
    """Pushes of variables."""
    return_addresses: int
    """Pushes of return addresses, by push_goto."""
    pops: int
    variables: int
    """Variables that are named by some op, parameter or result."""
    full: int | None
    register: int | None
    temporary: int | None
    null: int | None
    """Variables by allocation; None before allocation."""


def summarize(program: Program) -> Summary:
    """The counts of a program in any form."""
    blocks = [block for function in program.all_functions() for block in function.graph.blocks]
    ops = [op for block in blocks for op in block.ops]
    primitives = [op for op in ops if isinstance(op, PrimOp)]
    copies = [op for op in primitives if op.function is COPY]
    kinds = Counter(type(op) for op in ops)
    allocated = Counter(program.var_alloc.values())

    def count(allocation: VariableAllocation) -> int | None:
        return allocated[allocation] if program.var_alloc else None

    return Summary(
        functions=len({block.owner for block in blocks}),
        blocks=len(blocks),
        primitives=len(primitives) - len(copies),
        copies=sum(len(op.vars_out) for op in copies),
        writes=kinds[WriteRowOp],
        assertions=kinds[AssertOp],
        calls=kinds[FunctionCallOp],
        pushes=kinds[PushOp],
        return_addresses=sum(isinstance(block.terminator, PushGotoOp) for block in blocks),
        pops=kinds[PopOp],
        variables=len(mentioned(program)),
        full=count(VariableAllocation.FULL),
        register=count(VariableAllocation.REGISTER),
        temporary=count(VariableAllocation.TEMPORARY),
        null=count(VariableAllocation.NULL),
    )
