"""Lowering: function calls become pushes, jumps and pops in one graph.

Within `fib`, a call of itself with `left` live across it

        fib.right = call fib fib._3
    -->
        push fib.left                      caller saves what is live across and what the callee may overwrite
        push fib.n ; fib.n = copy fib._3   one new frame for each formal parameter
        push_goto fib.resume.2 fib.entry
    fib.resume.2:
        fib.right = copy fib.return ; pop fib.return
        pop fib.left

and every return of `fib` becomes `push fib.return ; pop fib.n ; return`. This is the stack discipline that
`check.check_stack_discipline` verifies: one net pop of each formal parameter and one net push of each return
variable on every path through a body, nothing else changed.
"""

from __future__ import annotations

from batchnuts.autobatch.compiler.cfg import Calls, call_graph
from batchnuts.autobatch.compiler.dataflow import function_liveness, live_after_ops
from batchnuts.autobatch.compiler.ir import (
    COPY,
    Block,
    ControlFlowGraph,
    Function,
    FunctionCallOp,
    IndirectGotoOp,
    Op,
    PopOp,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    Terminator,
    jump_labels,
    terminator_reads,
)


def lower_function_calls(program: Program) -> Program:
    """One graph without FunctionCallOps, the bodies one after another behind the main graph's blocks.

    Raises ValueError for an instruction that is none of the IR's, a call of an unknown function or with the wrong
    number of variables, a jump to an unknown label, or a variable that may be read before any path assigns it.
    """
    check_well_formed(program)
    calls = call_graph(program)
    blocks: list[Block] = []
    for function in program.all_functions():
        blocks += _lower_body(program, function, calls)
    return program.replace(graph=ControlFlowGraph(tuple(blocks)), functions=())


def check_well_formed(program: Program) -> None:
    """What `lower_function_calls` needs of its input; raises ValueError."""
    for function in program.all_functions():
        labels = set(function.graph.labels)
        for block in function.graph.blocks:
            for op in block.ops:
                if not isinstance(op, Op):
                    raise ValueError(f"block {block.label!r}: {op!r} is no instruction of the IR")
                if isinstance(op, FunctionCallOp):
                    _check_call(program, block, op)
            if not isinstance(block.terminator, Terminator) or isinstance(block.terminator, PushGotoOp):
                raise ValueError(f"block {block.label!r} ends in {block.terminator!r}, expected goto, branch or return")
            for label in jump_labels(block.terminator):
                if label not in labels:
                    raise ValueError(f"block {block.label!r} jumps to {label!r}, which is no block of its function")
        undefined = function_liveness(function).at_start[function.graph.entry] - set(function.vars_in)
        if undefined:
            raise ValueError(f"function {function.name!r} may read {sorted(undefined)} before assigning them")


def _check_call(program: Program, block: Block, op: FunctionCallOp) -> None:
    try:
        callee = program.function(op.function)
    except KeyError:
        raise ValueError(f"block {block.label!r} calls {op.function!r}, which the program does not have") from None
    if len(op.vars_in) != len(callee.vars_in) or len(op.vars_out) != len(callee.vars_out):
        raise ValueError(f"block {block.label!r}: the call of {op.function!r} does not fit its variables")


def _copy(outs: tuple[str, ...], ins: tuple[str, ...], like: FunctionCallOp) -> list[Op]:
    pairs = [(o, i) for o, i in zip(outs, ins) if o != i]
    return [PrimOp(tuple(o for o, _ in pairs), COPY, tuple(i for _, i in pairs), like.source)] if pairs else []


def _lower_body(program: Program, function: Function, calls: Calls) -> list[Block]:
    live = function_liveness(function)
    result = []
    resumes = 0
    for block in function.graph.blocks:
        returned = set(function.vars_out) if isinstance(block.terminator, IndirectGotoOp) else set()
        live_after = live_after_ops(
            block.ops, live.at_end[block.label] | set(terminator_reads(block.terminator)) | returned
        )
        label, gate, ops = block.label, block.gate, list[Op]()
        for op, live_out in zip(block.ops, live_after):
            if not isinstance(op, FunctionCallOp):
                ops.append(op)
                continue
            callee = program.function(op.function)
            resumes += 1
            resume = f"{function.name}.resume" + (f".{resumes}" if resumes > 1 else "")
            recursive = op.function == function.name or function.name in calls[op.function]
            # formal parameters get a frame of their own with every call, so only other variables need saving
            saved = sorted(live_out - set(op.vars_out) - set(function.vars_in)) if recursive else []
            ops += [PushOp(v) for v in saved]
            ops += [PushOp(v) for v in callee.vars_in]
            ops += _copy(callee.vars_in, op.vars_in, op)
            result.append(Block(label, tuple(ops), PushGotoOp(resume, callee.graph.entry), function.name, gate))
            label, gate = resume, 0.0  # a gate holds lanes back once, before the first call
            ops = _copy(op.vars_out, callee.vars_out, op)
            ops += [PopOp(v) for v in callee.vars_out]
            ops += [PopOp(v) for v in reversed(saved)]
        if isinstance(block.terminator, IndirectGotoOp) and function.name != "main":
            ops += [PushOp(v) for v in function.vars_out]
            ops += [PopOp(v) for v in function.vars_in]
        result.append(Block(label, tuple(ops), block.terminator, function.name, gate))
    return result
