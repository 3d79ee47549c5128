"""If-conversion: a small branch becomes straight-line code that computes both arms and selects.

    a: branch c b d                     a: x.then = {y + 1} y
    b: x = {y + 1} y ; goto e    -->       x = {select} c, x.then, x
    d: goto e                              ... e's code
    e: ...

One dispatch instead of two or three, and lanes that would have split stay together. Only arms that are cheap and cannot
fail on any value are converted (`Primitive.speculable`): both now run on every lane of the block.
"""

from __future__ import annotations

from dataclasses import replace

from batchnuts.autobatch.ir.cfg import computes_little, predecessors, simplify
from batchnuts.autobatch.ir.dataflow import Variables, function_liveness
from batchnuts.autobatch.ir.program import (
    Block,
    BranchOp,
    ControlFlowGraph,
    Function,
    GotoOp,
    IndirectGotoOp,
    Primitive,
    PrimOp,
    Program,
    fresh_name,
    jump_labels,
)
from batchnuts.autobatch.language import ops

LARGEST_ARM = 6
"""Computing ops that an arm may have."""


def _select(condition: object, *values: object) -> tuple[object, ...]:
    """For halves (a1, a2, ..., b1, b2, ...): each a where the condition holds, else the b."""
    half = len(values) // 2
    return tuple(ops.where(condition, a, b) for a, b in zip(values[:half], values[half:]))


SELECT = Primitive("select", _select, speculable=True, of_language=True)
"""Outputs x1 ... xn from inputs condition, a1 ... an, b1 ... bn."""


def if_convert(program: Program) -> Program:
    """The program with calls, typed and flattened, without branches around small arms."""
    for name in [f.name for f in program.all_functions()]:
        while (converted := _convert_one(program, program.function(name))) is not None:
            program = converted
    return program


def _convert_one(program: Program, function: Function) -> Program | None:
    """The program with one branch of the function converted, or None if there is none to convert."""
    before = predecessors(function.graph, through_calls=False)
    live = function_liveness(function)
    for block in function.graph.blocks:
        if not isinstance(block.terminator, BranchOp):
            continue
        arms = _arms(function, block.terminator, before)
        if arms is None:
            continue
        yes, no, join = arms
        needed = frozenset(function.vars_out) if join is None else live.at_start[join]
        return _straighten(program, function, block, (yes, no), join, needed)
    return None


Arm = tuple[PrimOp, ...]


def _arms(
    function: Function, branch: BranchOp, before: dict[str, tuple[str, ...]]
) -> tuple[Arm, Arm, str | None] | None:
    """The ops of both arms and the label where they meet (None: both return), or None if they are not convertible."""
    labels = (branch.true_label, branch.false_label)
    blocks = [function.graph.block(label) for label in labels]
    arms: list[Arm | None] = [
        tuple(op for op in b.ops if isinstance(op, PrimOp))
        if len(before[b.label]) == 1 and b.label != function.graph.entry and _is_small(b)
        else None
        for b in blocks
    ]
    ends = [jump_labels(b.terminator) for b in blocks]
    for this, other in ((0, 1), (1, 0)):  # a triangle: one arm leads to where the other one begins
        arm = arms[this]
        if arm is not None and ends[this] == (labels[other],):
            return (arm, (), labels[other]) if this == 0 else ((), arm, labels[other])
    first, second = arms
    if first is None or second is None or ends[0] != ends[1]:
        return None
    return first, second, ends[0][0] if ends[0] else None


def _is_small(block: Block) -> bool:
    """Whether the block only computes cheap things that cannot fail, and then goes on without a branch."""
    return isinstance(block.terminator, (GotoOp, IndirectGotoOp)) and computes_little(block, LARGEST_ARM)


def _straighten(
    program: Program, function: Function, block: Block, arms: tuple[Arm, Arm], join: str | None, needed: Variables
) -> Program:
    assert isinstance(block.terminator, BranchOp)
    types = dict(program.var_defs)
    results: list[dict[str, str]] = []
    straight: list[PrimOp] = []
    for arm, suffix in zip(arms, ("then", "else")):
        current: dict[str, str] = {}
        for op in arm:
            inputs = tuple(current.get(v, v) for v in op.vars_in)
            for out in op.vars_out:
                current[out] = fresh_name(f"{out}.{suffix}", types)
                types[current[out]] = types[out]
            straight.append(replace(op, vars_in=inputs, vars_out=tuple(current[v] for v in op.vars_out)))
        results.append(current)
    chosen = tuple(v for v in dict.fromkeys([*results[0], *results[1]]) if v in needed)
    if chosen:
        sides = (tuple(side.get(v, v) for v in chosen) for side in results)
        inputs = (block.terminator.cond_var, *(v for side in sides for v in side))
        straight.append(PrimOp(chosen, SELECT, inputs, block.terminator.source))
    end = IndirectGotoOp() if join is None else GotoOp(join)
    changed = replace(block, ops=(*block.ops, *straight), terminator=end)
    blocks = tuple(changed if b.label == block.label else b for b in function.graph.blocks)
    functions = {f.name: f for f in program.all_functions()}
    functions[function.name] = replace(function, graph=ControlFlowGraph(blocks))
    return simplify(program.with_functions(functions).replace(var_defs=types))
