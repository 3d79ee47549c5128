"""How deep a recursion goes, where an argument of the program gives it before the run.

    f(n): ... f(n - 1) ... f(n - 2) ...        at most about n calls within one another, if it stops near zero

That is no proof, since the function need not stop near zero. It is a first depth for the machine's stacks, which notice
an overflow and grow; without it each doubling would run the program again from the start.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batchnuts.autobatch.ir.cfg import call_graph
from batchnuts.autobatch.ir.program import (
    COPY,
    Block,
    Function,
    FunctionCallOp,
    PrimOp,
    Program,
    writes,
)


@dataclass(frozen=True)
class DepthBound:
    """A recursion that counts down an input of the program: about `variable` / `step` calls deep."""

    variable: str
    """An integer input of the program."""
    step: int

    def depth(self, largest: int) -> int:
        """Frames to provide when the largest lane's input is this: a power of two, so that few machines are made."""
        frames = max(largest, 0) // self.step + 2
        return int(1 << (frames - 1).bit_length())


def depth_bound(program: Program) -> DepthBound | None:
    """The bound of the only recursion of a program with calls, or None where no input gives one."""
    calls = call_graph(program)
    recursive = [f for f in program.functions if f.name in calls[f.name]]
    if len(recursive) != 1 or any(f.name in calls[g] for f in recursive for g in calls[f.name] - {f.name}):
        return None
    (function,) = recursive
    for position, parameter in enumerate(function.vars_in):
        step = _countdown(function, position, parameter)
        variable = _passed_from_outside(program, function, position) if step else None
        is_integer = variable is not None and np.dtype(program.var_defs[variable].dtype).kind in "iu"
        if step and variable and is_integer:
            return DepthBound(variable, step)
    return None


def _sites(function: Function, callee: str) -> list[tuple[Block, int, FunctionCallOp]]:
    return [
        (block, i, op)
        for block in function.graph.blocks
        for i, op in enumerate(block.ops)
        if isinstance(op, FunctionCallOp) and op.function == callee
    ]


def _countdown(function: Function, position: int, parameter: str) -> int | None:
    """The smallest integer that a recursive call subtracts from the parameter, or None if one of them does not."""
    if any(parameter in writes(op) for block in function.graph.blocks for op in block.ops):
        return None
    steps = []
    for block, i, call in _sites(function, function.name):
        argument = call.vars_in[position]
        maker = next((op for op in reversed(block.ops[:i]) if argument in writes(op)), None)
        if not isinstance(maker, PrimOp) or maker.vars_in != (parameter,) or (maker.function.offset or 0) >= 0:
            return None
        steps.append(-(maker.function.offset or 0))
    return min(steps, default=None)


def _passed_from_outside(program: Program, function: Function, position: int) -> str | None:
    """The program's input that every other function's call of it passes on, if they all pass the same one."""
    passed = set()
    for caller in program.all_functions():
        if caller.name == function.name:
            continue
        for block, i, call in _sites(caller, function.name):
            argument = call.vars_in[position]
            for op in reversed(block.ops[:i]):
                if isinstance(op, PrimOp) and op.function is COPY and argument in op.vars_out:
                    argument = op.vars_in[op.vars_out.index(argument)]
            passed.add(argument)
    assigned = {v for f in program.all_functions() for b in f.graph.blocks for op in b.ops for v in writes(op)}
    return passed.pop() if len(passed) == 1 and passed <= set(program.vars_in) - assigned else None
