"""The verifier: what must hold of a program after each pass.

A failure in a compiled function is a bug of ours; in a program built by hand it is its author's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from batchnuts.autobatch.errors import LaneInputError
from batchnuts.autobatch.ir.cfg import predecessors, successors
from batchnuts.autobatch.ir.dataflow import Analysis, block_liveness, function_liveness, liveness, solve
from batchnuts.autobatch.ir.expression import Constant, Expression, operands
from batchnuts.autobatch.ir.program import (
    COPY,
    RETURN_ADDRESS,
    STORED,
    Block,
    ControlFlowGraph,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    Op,
    PopOp,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    TensorType,
    Terminator,
    VariableAllocation,
    jump_labels,
    mentioned,
    mentioned_in,
    reads,
    terminator_reads,
    writes,
)
from batchnuts.autobatch.language.pytree import flatten


class MalformedProgramError(ValueError):
    """A program that breaks the rules of the IR; names the block."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise MalformedProgramError(message)


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def check_names(program: Program) -> None:
    """Bodies have blocks; names of functions, labels and parameters are unique, and each variable is of one body."""
    functions = program.all_functions()
    twice = _twice(f.name for f in functions)
    _require(
        not twice, f"functions defined twice: {twice}; names are unique, and 'main' is that of the program's own graph"
    )
    repeated = _twice(label for f in functions for label in f.graph.labels)
    _require(not repeated, f"labels defined twice: {repeated}")
    body_of: dict[str, str] = {}
    for function in functions:
        _require(bool(function.graph.blocks), f"function {function.name!r} has no block, expected its entry at least")
        twice = _twice(function.vars_in)
        _require(not twice, f"function {function.name!r} has the parameters {twice} twice")
        both = [v for v in function.vars_in if v in function.vars_out and function.name != "main"]
        _require(not both, f"function {function.name!r} has {both} as parameters and results; return a copy of each")
        for variable in sorted(mentioned_in(function)):
            _require(variable != RETURN_ADDRESS, f"variable {variable!r}: this name stands for return addresses")
            owner = body_of.setdefault(variable, function.name)
            if owner != function.name:  # the message takes as long to write as all of this takes to check
                raise MalformedProgramError(
                    f"{_first_mention(function, variable)} uses {variable!r}, which is a variable of {owner!r}: names "
                    f"are unique in the whole program. Call it {function.name}.{variable.rpartition('.')[2]}, say"
                )


def _first_mention(function: Function, variable: str) -> str:
    """The block, or else the head of the function, where a variable of it stands."""
    for block in function.graph.blocks:
        if variable in mentioned_in(replace(function, vars_in=(), vars_out=(), graph=ControlFlowGraph((block,)))):
            return f"block {block.label!r}"
    return f"function {function.name!r}"


def check_structure(program: Program) -> None:
    """Names, and only ops of the IR; every jump has a target in the same body; calls and copies fit."""
    check_names(program)
    for function in program.all_functions():
        labels = set(function.graph.labels)
        for block in function.graph.blocks:
            for op in block.ops:
                _check_op(program, block, op)
            end = block.terminator
            _require(
                isinstance(end, Terminator),
                f"block {block.label!r} ends in {end!r}, expected goto, branch, push_goto or return",
            )
            targets = [
                *jump_labels(end),
                *([end.resume_label] if isinstance(end, PushGotoOp) else ()),
            ]
            for target in targets:
                _require(
                    target in labels, f"block {block.label!r} jumps to {target!r}, which is not a block of its function"
                )


def _check_op(program: Program, block: Block, op: Op) -> None:
    _require(isinstance(op, Op), f"block {block.label!r}: {op!r} is not an instruction of the IR")
    if isinstance(op, FunctionCallOp):
        callees = [f for f in program.functions if f.name == op.function]
        _require(bool(callees), f"block {block.label!r} calls {op.function!r}, which the program does not have")
        actual, expected = ((len(x.vars_in), len(x.vars_out)) for x in (op, callees[0]))
        _require(
            actual == expected,
            f"block {block.label!r}: the call of {op.function!r} has {actual[0]} inputs and {actual[1]} outputs, "
            f"expected {expected[0]} and {expected[1]}",
        )
    twice = _twice(writes(op))
    _require(not twice, f"block {block.label!r}: an op writes {twice} twice")
    if isinstance(op, PrimOp):
        fits = op.function is not COPY or len(op.vars_in) == len(op.vars_out)
        _require(fits, f"block {block.label!r} copies {len(op.vars_in)} variables to {len(op.vars_out)}")


def check_well_formed(program: Program) -> None:
    """A program with calls: structure, owners, no pushes, nothing read before it is assigned."""
    check_structure(program)
    for function in program.all_functions():
        for block in function.graph.blocks:
            enters = isinstance(block.terminator, PushGotoOp)
            _require(not enters, f"block {block.label!r} ends in push_goto before lowering; call functions by a call")
            pushes = any(isinstance(op, (PushOp, PopOp)) for op in block.ops)
            _require(not pushes, f"block {block.label!r} pushes or pops before lowering, which adds what calls need")
            _require(
                block.owner == function.name,
                f"block {block.label!r} of function {function.name!r} has the owner {block.owner!r}",
            )
        for variable in sorted(function_liveness(function).at_start[function.graph.entry] - {*function.vars_in}):
            _raise_undefined(function, variable)


def _raise_undefined(function: Function, variable: str) -> NoReturn:
    """Raise for a variable that is live at the start of the function, at the block that reads it."""

    def transfer(block: Block, assigned: frozenset[bool]) -> frozenset[bool]:
        writing = any(variable in writes(op) for op in block.ops)
        return frozenset({True}) if writing and assigned else assigned

    analysis = Analysis[frozenset[bool]](
        forward=True, boundary=frozenset({False}), bottom=frozenset(), merge=frozenset.union, transfer=transfer
    )
    state = solve(function.graph, analysis, through_calls=False)
    live = function_liveness(function).at_start
    before = predecessors(function.graph, through_calls=False)
    for block in function.graph.blocks:
        if variable in live[block.label] and state.at_start[block.label] == {True, False}:
            with_it = next(p for p in before[block.label] if True in state.at_end[p])
            without = [f"block {p!r}" for p in before[block.label] if False in state.at_end[p]]
            raise MalformedProgramError(
                f"block {block.label!r}: paths into it define different variables: {variable!r} is assigned on a path "
                f"through block {with_it!r}, but not on one through {(*without, 'the start of the function')[0]}"
            )
    for block in function.graph.blocks:
        returned = frozenset(function.vars_out) if isinstance(block.terminator, IndirectGotoOp) else frozenset()
        if False in state.at_start[block.label] and variable in block_liveness(block).before(returned):
            read = "reads" if variable in block_liveness(block).exposed else "returns"
            raise MalformedProgramError(f"block {block.label!r} {read} {variable!r}, which no path to it assigns")
    raise AssertionError(f"{variable} is live at the start of {function.name}, but no block reads it")


def check_types(program: Program) -> None:
    """Structure, and a TensorType at every leaf of every input, output and variable that an op mentions."""
    check_structure(program)
    for variable in (*program.vars_in, *program.vars_out):
        _require(variable in program.var_defs, f"{variable!r}, an input or output of the program, has no type")
    for function in program.all_functions():
        for block in function.graph.blocks:
            for op in block.ops:
                for variable in (*reads(op), *writes(op)):
                    _require(variable in program.var_defs, f"block {block.label!r}: {variable!r} has no type")
                    for leaf in flatten(program.var_defs[variable])[0]:
                        _require(
                            isinstance(leaf, TensorType), f"{variable!r} has {leaf!r} for a type, expected a TensorType"
                        )


def check_expressions(program: Program) -> None:
    """Types, and bodies of primitives whose inputs and results have the types of their ops' variables.

    A value in a body is an input or the result of an earlier node.
    """
    check_types(program)
    for function in program.all_functions():
        for block in function.graph.blocks:
            for op in block.ops:
                if isinstance(op, PrimOp) and op.function.body is not None:
                    _check_body(block, op, op.function.body, program.var_defs)


def _check_body(block: Block, op: PrimOp, body: Expression, types: Mapping[str, Any]) -> None:
    where = f"block {block.label!r}, the expression of {op.function.text!r}"
    given, wanted = (tuple(types[v] for v in variables) for variables in (op.vars_in, op.vars_out))
    _require(body.inputs == given, f"{where} takes {body.inputs}, its variables are {given}")
    defined = len(body.inputs)
    for node in body.nodes:
        for operand in operands(node.arguments):
            _require(
                isinstance(operand, Constant) or 0 <= operand.number < defined,
                f"{where}: {node.function} reads {operand}, where {defined} values are defined",
            )
        defined += len(node.types)
    gives = tuple(body.type_of(output) for output in body.outputs)
    _require(gives == wanted, f"{where} gives {gives}, its variables are {wanted}")


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


def require_inputs(program: Program, inputs: tuple[Any, ...]) -> None:
    """Raise LaneInputError unless there is one input for each of the program's."""
    if len(inputs) != len(program.vars_in):
        raise LaneInputError(
            f"the program takes {len(program.vars_in)} inputs ({', '.join(program.vars_in)}), found {len(inputs)}."
        )


def check_lowered(program: Program) -> None:
    """What the virtual machine needs: one graph without calls, and a type and a place for every variable."""
    check_types(program)
    _require(not program.functions, "the program has functions; lower_function_calls makes one graph of their bodies")
    unplaced = mentioned(program) - program.var_alloc.keys()
    _require(not unplaced, f"variables {sorted(unplaced)} have no place to live; allocate gives each one")
    check_allocation(program)


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
                persistent = allocation[variable] in STORED
                _require(persistent, f"{block.label}: {variable} crosses blocks but is {allocation[variable].value}")
    _require(set(successors(program.graph)) == set(program.graph.labels), "edges to unknown blocks")
