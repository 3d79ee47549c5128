"""The verifier: what must hold of a program after each pass. A failure here is a bug of ours, never the user's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from batchnuts.autobatch.compiler.cfg import successors
from batchnuts.autobatch.compiler.dataflow import Analysis, liveness, solve
from batchnuts.autobatch.compiler.ir import (
    Block,
    ControlFlowGraph,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    PopOp,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    TensorType,
    VariableAllocation,
    jump_labels,
    reads,
    terminator_reads,
    writes,
)
from batchnuts.autobatch.compiler.tree import flatten


class MalformedProgramError(ValueError):
    """A program that breaks the rules of the IR; names the block."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise MalformedProgramError(message)


def check_structure(program: Program) -> None:
    """Labels are unique and every jump has a target in the same body; calls name known functions and fit them."""
    counts = Counter(label for f in program.all_functions() for label in f.graph.labels)
    repeated = [label for label, count in counts.items() if count > 1]
    _require(not repeated, f"labels defined twice: {repeated}")
    for function in program.all_functions():
        labels = set(function.graph.labels)
        for block in function.graph.blocks:
            targets = set(jump_labels(block.terminator))
            if isinstance(block.terminator, PushGotoOp):
                targets.add(block.terminator.resume_label)
            _require(targets <= labels, f"{block.label} jumps to unknown {sorted(targets - labels)}")
            for op in block.ops:
                if isinstance(op, FunctionCallOp):
                    known = any(f.name == op.function for f in program.functions)
                    _require(known, f"{block.label}: call of unknown function {op.function}")
                    callee = program.function(op.function)
                    fits = len(op.vars_in) == len(callee.vars_in) and len(op.vars_out) == len(callee.vars_out)
                    _require(fits, f"{block.label}: call of {op.function} with the wrong number of variables")
                if isinstance(op, PrimOp):
                    repeats = len(set(op.vars_out)) != len(op.vars_out)
                    _require(not repeats, f"{block.label}: {op.vars_out} writes a variable twice")


def check_types(program: Program) -> None:
    """Structure, and a TensorType at every leaf of every variable that a reachable op mentions."""
    check_structure(program)
    for function in program.all_functions():
        for block in function.graph.blocks:
            for op in block.ops:
                for variable in (*reads(op), *writes(op)):
                    _require(variable in program.var_defs, f"{block.label}: {variable} has no type")
                    for leaf in flatten(program.var_defs[variable])[0]:
                        _require(isinstance(leaf, TensorType), f"{variable} has {leaf!r} for a type")


Heights = frozenset[tuple[str, int]] | None
"""Net pushes per variable since the function's entry (zeros left out); None where no path has been seen."""


def check_stack_discipline(program: Program, functions: tuple[Function, ...]) -> None:
    """A lowered program's discipline, for the functions it was lowered from.

    Control enters a body at its first block or a resume block and leaves by return or push_goto; on every path from a
    body's entry to a return each formal parameter has one net pop, each return variable one net push and every other
    variable none; the heights agree wherever paths meet. Of an allocated program that is true of the variables that
    have a stack; and there a body may also be left by a jump to another function's entry, which has given that
    function's parameters their frames and dropped the body's own: a tail call.
    """
    full = {v for v, a in program.var_alloc.items() if a is VariableAllocation.FULL}

    def stacked(variables: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(v for v in variables if v in full) if program.var_alloc else variables

    for block in program.graph.blocks:
        calls = any(isinstance(op, FunctionCallOp) for op in block.ops)
        _require(not calls, f"{block.label}: a call is left after lowering")
    check_structure(program)
    owner = {block.label: block.owner for block in program.graph.blocks}
    entry = {f.graph.entry: f for f in functions}
    by_name = {f.name: f for f in functions}
    for block in program.graph.blocks:
        if isinstance(block.terminator, PushGotoOp):
            _require(block.terminator.target_label in entry, f"{block.label} enters a function past its first block")
            _require(owner[block.terminator.resume_label] == block.owner, f"{block.label} resumes in another function")
        else:
            for label in jump_labels(block.terminator):
                is_tail_call = bool(program.var_alloc) and isinstance(block.terminator, GotoOp) and label in entry
                _require(is_tail_call or owner[label] == block.owner, f"{block.label} jumps out of its function")

    def transfer(block: Block, fact: Heights) -> Heights:
        if fact is None:
            return None
        heights = Counter(dict(fact))
        for op in block.ops:
            if isinstance(op, PushOp):
                heights[op.var] += 1
            elif isinstance(op, PopOp):
                heights[op.var] -= 1
        if isinstance(block.terminator, PushGotoOp):
            callee = entry[block.terminator.target_label]
            heights.subtract(stacked(callee.vars_in))
            heights.update(stacked(callee.vars_out))
        if isinstance(block.terminator, IndirectGotoOp) and block.owner != "main":
            expected = _net_pushes(by_name[block.owner], stacked)
            _require(_same(heights, expected), f"{block.label} returns with net pushes {dict(heights)}")
        if isinstance(block.terminator, GotoOp) and owner[block.terminator.label] != block.owner:
            expected = _net_pushes(by_name[block.owner], stacked)
            expected.subtract(_net_pushes(entry[block.terminator.label], stacked))
            _require(_same(heights, expected), f"{block.label} makes a tail call with net pushes {dict(heights)}")
        return frozenset((v, n) for v, n in heights.items() if n)

    def merge(a: Heights, b: Heights) -> Heights:
        if a is None or b is None:
            return b if a is None else a
        _require(a == b, f"stack heights differ where paths meet: {sorted(a ^ b)}")
        return a

    for name in dict.fromkeys(owner.values()):
        body = _body(program.graph, name)
        analysis = Analysis[Heights](forward=True, boundary=frozenset(), bottom=None, merge=merge, transfer=transfer)
        solve(body, analysis, through_calls=False)


def _net_pushes(function: Function, stacked: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Counter[str]:
    """What a whole call of the function does to the stacks."""
    result = Counter(stacked(function.vars_out))
    result.subtract(stacked(function.vars_in))
    return result


def _same(a: Counter[str], b: Counter[str]) -> bool:
    return all(a[v] == b[v] for v in {*a, *b})


def _body(graph: ControlFlowGraph, name: str) -> ControlFlowGraph:
    return ControlFlowGraph(tuple(block for block in graph.blocks if block.owner == name))


def check_allocation(program: Program) -> None:
    """Every variable read has storage; only FULL ones are pushed or popped; TEMPORARY ones stay within a block."""
    check_structure(program)
    allocation: Mapping[str, VariableAllocation] = program.var_alloc
    live = liveness(program.graph, frozenset(program.vars_out), through_calls=True)
    for block in program.graph.blocks:
        for op in block.ops:
            if isinstance(op, (PushOp, PopOp)):
                full = allocation[op.var] is VariableAllocation.FULL
                _require(full, f"{block.label}: {op.var} is pushed or popped but has no stack")
        for variable in (v for op in block.ops for v in reads(op)):
            stored = allocation.get(variable, VariableAllocation.NULL) is not VariableAllocation.NULL
            _require(stored, f"{block.label}: {variable} is read but not stored")
        for variable in (*live.at_start[block.label], *terminator_reads(block.terminator)):
            if variable in live.at_start[block.label]:
                kept = allocation[variable] in (VariableAllocation.REGISTER, VariableAllocation.FULL)
                _require(kept, f"{block.label}: {variable} crosses blocks but is {allocation[variable].value}")
    _require(set(successors(program.graph)) == set(program.graph.labels), "edges to unknown blocks")
