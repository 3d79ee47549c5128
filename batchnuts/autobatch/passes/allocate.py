"""Variable allocation ([R] section 3.2): which variables need a stack, a register, or nothing in the machine's state.

push fib.return ; fib.return = ...   -->   fib.return = ...       (REGISTER: no frame beneath is ever read)
push fib.n                           -->   push fib.n             (FULL)
"""

from __future__ import annotations

from dataclasses import replace

from batchnuts.autobatch.ir.dataflow import Variables, live_before_op, liveness
from batchnuts.autobatch.ir.program import (
    COPY,
    ControlFlowGraph,
    Op,
    PopOp,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    VariableAllocation,
    reads,
    terminator_reads,
    writes,
)


def allocate(program: Program) -> Program:
    """The lowered program with `var_alloc`, and without the pushes and pops of variables that need no stack."""
    stacked = needs_stack(program)
    blocks = tuple(
        replace(b, ops=tuple(op for op in b.ops if not isinstance(op, (PushOp, PopOp)) or op.var in stacked))
        for b in program.graph.blocks
    )
    return classify(program.replace(graph=ControlFlowGraph(blocks)))


def needs_stack(program: Program) -> Variables:
    """Variables some frame of which is read after a pop has exposed it.

    The frame under a push matters only if, after the pop that uncovers it, the variable is read before it is
    assigned: liveness over the whole lowered program, where only reads of the top frame count, answers that by the
    call graph. Variables with equal frames at every depth (`invariants`) need no stack either.
    """
    live = liveness(program.graph, frozenset(program.vars_out), through_calls=True, push_reads=False)
    exposed: set[str] = set()
    for block in program.graph.blocks:
        after = live.at_end[block.label] | set(terminator_reads(block.terminator))
        for op in reversed(block.ops):
            if isinstance(op, PopOp) and op.var in after:
                exposed.add(op.var)
            after = live_before_op(op, after, push_reads=False)
    return frozenset(exposed) - invariants(program)


def invariants(program: Program) -> Variables:
    """Variables whose frames are equal at every depth of a recursion, so that one register serves them all.

    A formal parameter that every call within the recursion passes on unchanged (the static argument transformation),
    and a local that one op assigns, from nothing but literals and such variables. A variable that is assigned within
    the recursion must have no other value from outside: a parameter set to a literal first has its caller's value.
    """
    reach = _reach(program)
    recursion = recursions(program)
    popped_in = {(op.var, b.owner) for b in program.graph.blocks for op in b.ops if isinstance(op, PopOp)}
    assigned: dict[str, list[tuple[str, Op]]] = {v: [("", PrimOp((v,), COPY, (v,)))] for v in program.vars_in}
    for block in program.graph.blocks:
        for op in block.ops:
            for variable in writes(op):
                assigned.setdefault(variable, []).append((block.owner, op))

    def changes(variable: str, functions: frozenset[str], above: frozenset[str]) -> bool:
        assigning = assigned.get(variable, [])
        if not any(owner in functions for owner, _ in assigning):
            return False
        (_, op), *others = assigning
        if others or not isinstance(op, PrimOp):
            return True
        return any(v in above or changes(v, functions, above | {v}) for v in op.vars_in)

    def within(owner: str) -> frozenset[str]:
        """The functions that may run between two frames of the owner's recursion."""
        return recursion[owner] | reach[owner]

    changed = {v for v, owner in popped_in if changes(v, within(owner), frozenset({v}))}
    return frozenset(v for v, _ in popped_in) - changed


def recursions(program: Program) -> dict[str, frozenset[str]]:
    """For each function, all functions that call it and are called by it, directly or not, and itself."""
    reach = _reach(program)
    return {f: frozenset({f} | {g for g in callees if f in reach[g]}) for f, callees in reach.items()}


def _reach(program: Program) -> dict[str, frozenset[str]]:
    """For each function, all functions that it calls, directly or not."""
    owner = {b.label: b.owner for b in program.graph.blocks}
    reach: dict[str, set[str]] = {b.owner: set() for b in program.graph.blocks}
    for block in program.graph.blocks:
        if isinstance(block.terminator, PushGotoOp):
            reach[block.owner].add(owner[block.terminator.target_label])
    for _ in reach:
        for callees in reach.values():
            callees |= set().union(*(reach[c] for c in callees))
    return {f: frozenset(callees) for f, callees in reach.items()}


def classify(program: Program) -> Program:
    """The lowered program with `var_alloc` as its ops demand it: what is pushed or popped is FULL."""
    stacked = {op.var for b in program.graph.blocks for op in b.ops if isinstance(op, (PushOp, PopOp))}
    live = liveness(program.graph, frozenset(program.vars_out), through_calls=True)
    crossing = set(program.vars_in) | set(program.vars_out) | stacked
    crossing |= set().union(*(live.at_start[label] for label in program.graph.labels))
    read = set(program.vars_out)
    mentioned = set(program.vars_in) | set(program.vars_out)
    for block in program.graph.blocks:
        read |= set(terminator_reads(block.terminator))
        for op in block.ops:
            read |= set(reads(op))
            mentioned |= set(reads(op)) | set(writes(op))
    result = {}
    for variable in sorted(mentioned):
        if variable in stacked:
            result[variable] = VariableAllocation.FULL
        elif variable not in read:
            result[variable] = VariableAllocation.NULL
        elif variable in crossing:
            result[variable] = VariableAllocation.REGISTER
        else:
            result[variable] = VariableAllocation.TEMPORARY
    return program.replace(var_alloc=result)
