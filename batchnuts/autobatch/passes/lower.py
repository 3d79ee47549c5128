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

from batchnuts.autobatch.ir.cfg import Calls, call_graph
from batchnuts.autobatch.ir.dataflow import function_liveness, live_after_ops
from batchnuts.autobatch.ir.program import (
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
    fresh_name,
    mentioned,
    terminator_reads,
)
from batchnuts.autobatch.ir.verify import check_well_formed


def lower_function_calls(program: Program) -> Program:
    """One graph without FunctionCallOps, the bodies one after another, following the main graph's blocks.

    Types of variables that no op mentions any more are left out. Raises ValueError, naming the block, for an
    instruction that is not part of the IR, a call of an unknown function or with the wrong number of variables, a jump
    to an unknown label, a variable that is read and that no path assigns, or paths into a block that define different
    variables.
    """
    check_well_formed(program)
    calls = call_graph(program)
    blocks: list[Block] = []
    labels = {label for function in program.all_functions() for label in function.graph.labels}
    for function in program.all_functions():
        blocks += _lower_body(program, function, calls, labels)
    program = program.replace(graph=ControlFlowGraph(tuple(blocks)), functions=())
    used = mentioned(program)
    return program.replace(var_defs={v: t for v, t in program.var_defs.items() if v in used})


def _copy(outs: tuple[str, ...], ins: tuple[str, ...], like: FunctionCallOp) -> list[Op]:
    pairs = [(o, i) for o, i in zip(outs, ins) if o != i]
    return [PrimOp(tuple(o for o, _ in pairs), COPY, tuple(i for _, i in pairs), like.source)] if pairs else []


def _lower_body(program: Program, function: Function, calls: Calls, labels: set[str]) -> list[Block]:
    """The blocks of one body; labels that are added are not among `labels`, and are added to it."""
    live = function_liveness(function)
    result = []
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
            resume = fresh_name(f"{function.name}.resume", labels)
            labels.add(resume)
            recursive = op.function == function.name or function.name in calls[op.function]
            # formal parameters get a frame of their own with every call, so only other variables need saving
            saved = sorted(live_out - set(op.vars_out) - set(function.vars_in)) if recursive else []
            ops += [PushOp(v, op.source) for v in saved]
            ops += [PushOp(v, op.source) for v in callee.vars_in]
            ops += _copy(callee.vars_in, op.vars_in, op)
            call = PushGotoOp(resume, callee.graph.entry, op.source)
            result.append(Block(label, tuple(ops), call, function.name, gate))
            label, gate = resume, 0.0  # a gate holds lanes back once, before the first call
            ops = _copy(op.vars_out, callee.vars_out, op)
            ops += [PopOp(v) for v in callee.vars_out]
            ops += [PopOp(v) for v in reversed(saved)]
        if isinstance(block.terminator, IndirectGotoOp) and function.name != "main":
            ops += [PushOp(v, function.source) for v in function.vars_out]
            ops += [PopOp(v) for v in function.vars_in]
        result.append(Block(label, tuple(ops), block.terminator, function.name, gate))
    return result
