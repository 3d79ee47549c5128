"""Inlining: a function that is not recursive and has one call site becomes part of its caller.

        a: x = call f y ; ... rest                a: f.p = copy y ; goto f.entry
        f.entry: ... f.return = ... ; return  --> f.entry: ... f.return = ... ; goto a.inlined
                                                  a.inlined: x = copy f.return ; ... rest

Variables keep their names: they are unique in the program, and a body that is there once needs no copy of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from batchnuts.autobatch.ir.cfg import call_graph, simplify
from batchnuts.autobatch.ir.program import (
    COPY,
    Block,
    ControlFlowGraph,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    Op,
    PrimOp,
    Program,
    fresh_name,
)


def inline(program: Program) -> Program:
    """The program with every such function taken into its caller, repeatedly."""
    while (name := _candidate(program)) is not None:
        callee = program.function(name)
        labels = frozenset(label for f in program.all_functions() for label in f.graph.labels)
        resume = fresh_name(f"{name}.inlined", labels)
        functions = {f.name: _into(f, callee, resume) for f in program.all_functions() if f.name != name}
        rest = tuple(f for f in program.functions if f.name != name)
        program = simplify(program.replace(functions=rest).with_functions(functions))
    return program


def _candidate(program: Program) -> str | None:
    sites = Counter(
        op.function
        for f in program.all_functions()
        for b in f.graph.blocks
        for op in b.ops
        if isinstance(op, FunctionCallOp)
    )
    calls = call_graph(program)
    for function in program.functions:
        if sites[function.name] == 1 and function.name not in calls[function.name]:
            return function.name
    return None


def _into(caller: Function, callee: Function, resume: str) -> Function:
    blocks: list[Block] = []
    for block in caller.graph.blocks:
        for i, op in enumerate(block.ops):
            if isinstance(op, FunctionCallOp) and op.function == callee.name:
                passed: Op = PrimOp(callee.vars_in, COPY, op.vars_in, op.source)
                returned: Op = PrimOp(op.vars_out, COPY, callee.vars_out, op.source)
                before = (*block.ops[:i], passed) if callee.vars_in else block.ops[:i]
                blocks.append(replace(block, ops=before, terminator=GotoOp(callee.graph.entry)))
                blocks += _body(callee, resume, caller.name)
                blocks.append(replace(block, label=resume, ops=(returned, *block.ops[i + 1 :]), gate=0.0))
                break
        else:
            blocks.append(block)
    return replace(caller, graph=ControlFlowGraph(tuple(blocks)))


def _body(callee: Function, resume: str, owner: str) -> list[Block]:
    def leave(block: Block) -> Block:
        terminator = GotoOp(resume) if isinstance(block.terminator, IndirectGotoOp) else block.terminator
        return replace(block, terminator=terminator, owner=owner)

    return [leave(block) for block in callee.graph.blocks]
