"""Coalescing: variables that are copies of each other become one register.

        walk.position = ...                              walk.position = ...
        build.return.position = copy walk.position  -->  (nothing)
        outer.position = copy build.return.position      (nothing)

Two registers of one type may be one where neither is assigned while the other is live with a different value (Chaitin's
aggressive coalescing). Parameters, results and locals that calling conventions and structures keep apart come
together, which saves the machine a masked select each, and arrays in its state.
"""

from __future__ import annotations

from dataclasses import replace

from batchnuts.autobatch.ir.dataflow import live_before_op, liveness
from batchnuts.autobatch.ir.program import (
    COPY,
    AssertOp,
    Block,
    BranchOp,
    ControlFlowGraph,
    IndirectGotoOp,
    Op,
    PrimOp,
    Program,
    VariableAllocation,
    WriteRowOp,
    terminator_reads,
    writes,
)


def coalesce(program: Program) -> Program:
    """The allocated program over fewer variables; `renamed` maps each old name to the one that replaces it.

    Joined variables make copies disappear, and with them conflicts between variables that always hold the same value;
    so joining is repeated until nothing changes.
    """
    program = program.replace(renamed={v: v for v in program.var_alloc})
    while len((joined := _once(program)).var_alloc) < len(program.var_alloc):
        program = joined
    return program.replace(
        renamed={v: name for v, name in program.renamed.items() if v != name},
        var_defs={v: program.var_defs[v] for v in program.var_alloc},
    )


def _once(program: Program) -> Program:
    """Join what can be joined without looking at conflicts again."""
    conflicts = _interference(program)
    leader = {v: v for v in program.var_alloc}
    movable = {
        v for v, a in program.var_alloc.items() if a in (VariableAllocation.REGISTER, VariableAllocation.TEMPORARY)
    }
    fixed = {*program.vars_in, *program.vars_out}

    def find(variable: str) -> str:
        while leader[variable] != variable:
            variable = leader[variable]
        return variable

    for block in program.graph.blocks:
        for op in block.ops:
            for out, source in _copies(op):
                if out not in movable or source not in movable:
                    continue
                a, b = find(out), find(source)
                if a == b or b in conflicts[a] or program.var_defs[a] != program.var_defs[b] or {a, b} <= fixed:
                    continue
                keep, drop = (b, a) if b in fixed or (a not in fixed and _shorter(b, a)) else (a, b)
                leader[drop] = keep
                conflicts[keep] |= conflicts[drop]
                for neighbour in conflicts[drop]:
                    conflicts[neighbour].add(keep)
    renamed = {v: find(v) for v in leader}
    blocks = tuple(_rename_block(b, renamed) for b in program.graph.blocks)
    allocation: dict[str, VariableAllocation] = {}
    for variable, kind in program.var_alloc.items():
        root = renamed[variable]
        if allocation.get(root) is not VariableAllocation.REGISTER:
            allocation[root] = kind if kind is VariableAllocation.REGISTER else program.var_alloc[root]
    names = {original: renamed[name] for original, name in program.renamed.items()}
    return program.replace(graph=ControlFlowGraph(blocks), var_alloc=allocation, renamed=names)


def _shorter(a: str, b: str) -> bool:
    """Which name is more informative: no temporaries, no `.return`, then the shorter."""

    def badness(name: str) -> tuple[bool, int, str]:
        anonymous = any(part.startswith("_") or part == "return" for part in name.split("."))
        return anonymous, len(name), name

    return badness(a) < badness(b)


def _copies(op: Op) -> list[tuple[str, str]]:
    return list(zip(op.vars_out, op.vars_in)) if isinstance(op, PrimOp) and op.function is COPY else []


def _interference(program: Program) -> dict[str, set[str]]:
    """For each variable, those that are live where it is assigned and may then hold another value."""
    live = liveness(program.graph, frozenset(program.vars_out), through_calls=True)
    conflicts: dict[str, set[str]] = {v: set() for v in program.var_alloc}

    def conflict(a: str, b: str) -> None:
        if a != b:
            conflicts[a].add(b)
            conflicts[b].add(a)

    for block in program.graph.blocks:
        after = live.at_end[block.label] | set(terminator_reads(block.terminator))
        if isinstance(block.terminator, IndirectGotoOp) and block.owner == "main":
            after |= set(program.vars_out)
        for op in reversed(block.ops):
            copied = dict(_copies(op))
            for out in writes(op):
                for neighbour in (*after, *writes(op)):
                    if copied.get(out) != neighbour:
                        conflict(out, neighbour)
            after = live_before_op(op, after)
    entry_live = (*live.at_start[program.graph.entry], *program.vars_in)
    for variable in entry_live:
        for neighbour in entry_live:
            conflict(variable, neighbour)
    return conflicts


def _rename_block(block: Block, renamed: dict[str, str]) -> Block:
    def new(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(renamed[n] for n in names)

    ops: list[Op] = []
    for op in block.ops:
        match op:
            case PrimOp():
                op = replace(op, vars_out=new(op.vars_out), vars_in=new(op.vars_in))
                if op.function is COPY:
                    pairs = [(o, i) for o, i in zip(op.vars_out, op.vars_in) if o != i]
                    if not pairs:
                        continue
                    op = replace(op, vars_out=tuple(o for o, _ in pairs), vars_in=tuple(i for _, i in pairs))
            case AssertOp():
                op = replace(op, cond_var=renamed[op.cond_var])
            case WriteRowOp():
                out, buffer, index, value = new((op.var_out, op.buffer, op.index, op.value))
                op = replace(op, var_out=out, buffer=buffer, index=index, value=value)
        ops.append(op)
    terminator = block.terminator
    if isinstance(terminator, BranchOp):
        terminator = replace(terminator, cond_var=renamed[terminator.cond_var])
    return replace(block, ops=tuple(ops), terminator=terminator)
