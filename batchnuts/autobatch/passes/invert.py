"""Invertible parameters: what a recursive call adds to an integer is subtracted again after it, without a stack.

    push f.depth                                      f.depth = {depth - 1} f.depth
    f.depth = {depth - 1} f.depth                     push_goto f.resume f.entry
    push_goto f.resume f.entry                 -->    ...
    ...                                               f.resume:
    f.resume: ... f.depth is read again                 f.depth = {depth + 1} f.depth
    ... pop f.depth ; return                          ... return

That holds for a parameter which its function never assigns and only ever passes on to itself, plus or minus an integer
literal. Integers wrap around, so adding and subtracting are exact inverses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import Source
from batchnuts.autobatch.ir.program import (
    COPY,
    Block,
    ControlFlowGraph,
    Function,
    Op,
    PopOp,
    Primitive,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    VariableAllocation,
    reads,
    writes,
)
from batchnuts.autobatch.passes.allocate import classify, recursions


@dataclass(frozen=True)
class _Step:
    """What one recursive call adds to the parameter, and the block that resumes after it."""

    offset: int
    resume: str
    source: Source | None


def invert(program: Program, functions: Sequence[Function]) -> Program:
    """The allocated program, in which no invertible parameter has a stack. `functions`: those it was lowered from."""
    recursion = recursions(program)
    for function in functions:
        for parameter in function.vars_in:
            stacked = program.var_alloc.get(parameter) is VariableAllocation.FULL
            integer = np.dtype(program.var_defs[parameter].dtype).kind in "iu" if stacked else False
            if stacked and integer and recursion[function.name] == {function.name}:
                program = _invert(program, function, parameter)
    return program


def _invert(program: Program, function: Function, parameter: str) -> Program:
    """The program with that parameter in place, or the program itself if it is not invertible."""
    steps: dict[str, _Step] = {}
    for block in program.graph.blocks:
        if block.owner != function.name:
            continue
        recursive = isinstance(block.terminator, PushGotoOp) and block.terminator.target_label == function.graph.entry
        if recursive:
            step = _step(block, parameter)
            if step is None:
                return program
            steps[block.label] = step
        elif any(parameter in writes(op) for op in block.ops):
            return program
    resuming = {step.resume: step for step in steps.values()}

    def convert(block: Block) -> Block:
        ops = [op for op in block.ops if not (isinstance(op, (PushOp, PopOp)) and op.var == parameter)]
        if block.label in steps:
            ops = _in_place(ops, parameter, steps[block.label])
        if block.label in resuming:
            ops = [*_undo(parameter, resuming[block.label]), *ops]
        return replace(block, ops=tuple(ops))

    return classify(program.replace(graph=ControlFlowGraph(tuple(map(convert, program.graph.blocks)))))


def _step(block: Block, parameter: str) -> _Step | None:
    """How a recursive call's block changes the parameter, or None if not by an integer literal."""
    assert isinstance(block.terminator, PushGotoOp)
    resume = block.terminator.resume_label
    pushed = [i for i, op in enumerate(block.ops) if isinstance(op, PushOp) and op.var == parameter]
    assigned = [i for i, op in enumerate(block.ops) if parameter in writes(op)]
    if len(pushed) != 1 or len(assigned) > 1:
        return None
    if not assigned:  # passed on as it is
        return _Step(0, resume, None)
    if assigned[0] < pushed[0] or any(parameter in reads(op) for op in block.ops[assigned[0] + 1 :]):
        return None
    op: Op | None = block.ops[assigned[0]]
    if isinstance(op, PrimOp) and op.function is COPY:
        op = _maker(block.ops[: assigned[0]], op.vars_in[op.vars_out.index(parameter)])
    if not isinstance(op, PrimOp) or op.vars_in != (parameter,) or op.function.offset is None:
        return None
    return _Step(op.function.offset, resume, op.source)


def _maker(ops: tuple[Op, ...], variable: str) -> Op | None:
    """The last op that assigns the variable."""
    return next((op for op in reversed(ops) if variable in writes(op)), None)


def _in_place(ops: list[Op], parameter: str, step: _Step) -> list[Op]:
    """The ops with the parameter's assignment as the last thing before the call: all else reads it unchanged."""
    if not step.offset:
        return ops
    result: list[Op] = []
    for op in ops:
        if isinstance(op, PrimOp) and parameter in op.vars_out:
            pairs = [(o, i) for o, i in zip(op.vars_out, op.vars_in) if o != parameter]
            if op.function is not COPY or not pairs:
                continue
            op = replace(op, vars_out=tuple(o for o, _ in pairs), vars_in=tuple(i for _, i in pairs))
        result.append(op)
    return [*result, _shift(parameter, step.offset, step.source)]


def _undo(parameter: str, step: _Step) -> list[Op]:
    return [_shift(parameter, -step.offset, step.source)] if step.offset else []


def _shift(parameter: str, offset: int, source: Source | None) -> PrimOp:
    """parameter = parameter + offset; with a literal of no sign, as unsigned dtypes have no negative ones."""
    amount, name = abs(offset), parameter.rpartition(".")[2]

    def shifted(x: Any) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):  # wrapping around is meant
            return (x + amount if offset > 0 else x - amount,)

    function = Primitive(f"{name} {'+' if offset > 0 else '-'} {amount}", shifted, offset=offset, of_language=True)
    return PrimOp((parameter,), function, (parameter,), source)
