"""Self tail calls become loops: a function that returns its own call's result jumps to its own beginning.

    f._1 = call f f._2, f.y                f.x, f.y = copy f._2, f.y
    f.return = copy f._1            -->    goto f.entry
    return

No frame, no return address, and no activation of its own under `stackless` either. Tail calls between different
functions are dealt with after lowering (`tail_calls`).
"""

from __future__ import annotations

from dataclasses import replace

from batchnuts.autobatch.ir.program import (
    COPY,
    Block,
    ControlFlowGraph,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    PrimOp,
    Program,
)


def self_tail_calls(program: Program) -> Program:
    """The program with calls, in which no function ends by calling itself."""
    return program.with_functions(
        {
            f.name: replace(f, graph=ControlFlowGraph(tuple(_without_tail_call(f, b) for b in f.graph.blocks)))
            for f in program.all_functions()
        }
    )


def _without_tail_call(function: Function, block: Block) -> Block:
    call = tail_call(function, _with_return(function, block))
    if call is None or call.function != function.name:
        return block
    before = block.ops[: block.ops.index(call)]
    pairs = [(p, a) for p, a in zip(function.vars_in, call.vars_in) if p != a]
    passed = PrimOp(tuple(p for p, _ in pairs), COPY, tuple(a for _, a in pairs), call.source)
    return replace(block, ops=(*before, passed) if pairs else before, terminator=GotoOp(function.graph.entry))


def _with_return(function: Function, block: Block) -> Block:
    """The block, together with the block it jumps to if that does nothing but copy and return."""
    if not isinstance(block.terminator, GotoOp):
        return block
    target = function.graph.block(block.terminator.label)
    only_copies = all(isinstance(op, PrimOp) and op.function is COPY for op in target.ops)
    if not only_copies or target.gate or not isinstance(target.terminator, IndirectGotoOp):
        return block
    return replace(block, ops=block.ops + target.ops, terminator=target.terminator)


def tail_call(function: Function, block: Block) -> FunctionCallOp | None:
    """The call whose results the block returns as they are, with nothing in between but copies."""
    if not isinstance(block.terminator, IndirectGotoOp):
        return None
    returned = dict(zip(function.vars_out, function.vars_out))
    for op in reversed(block.ops):
        match op:
            case PrimOp(function=f) if f is COPY:
                moved = dict(zip(op.vars_out, op.vars_in))
                returned = {out: moved.get(v, v) for out, v in returned.items()}
            case FunctionCallOp():
                same = tuple(returned[v] for v in function.vars_out) == op.vars_out
                return op if same else None
            case _:
                return None
    return None
