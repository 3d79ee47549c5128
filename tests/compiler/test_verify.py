"""Programs made by hand: the verifier refuses the broken ones, the machine runs a good one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch import (
    Block,
    BranchOp,
    ControlFlowGraph,
    Function,
    FunctionCallOp,
    GotoOp,
    IndirectGotoOp,
    PopOp,
    Primitive,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    TensorType,
    VariableAllocation,
    lower_function_calls,
)
from batchnuts.autobatch.backends.numpy import NumpyBackend
from batchnuts.autobatch.backends.tensorflow.backend import TensorFlowBackend
from batchnuts.autobatch.ir.program import COPY
from batchnuts.autobatch.ir.verify import (
    MalformedProgramError,
    check_allocation,
    check_stack_discipline,
    check_structure,
    check_types,
)
from batchnuts.autobatch.passes.allocate import allocate
from batchnuts.autobatch.runtime import stackless, virtual_machine

INT, BOOL = TensorType("int64"), TensorType("bool")


def op(out: str, text: str, function: Any, *inputs: str) -> PrimOp:
    return PrimOp((out,), Primitive(text, lambda *values: (function(*values),)), inputs)


def factorial_program() -> Program:
    """n! from the documented classes alone."""
    body = ControlFlowGraph(
        (
            Block(
                "f.entry",
                (op("f.base", "n < 1", lambda n: n < 1, "f.n"),),
                BranchOp("f.base", "f.one", "f.more"),
                "f",
            ),
            Block("f.one", (op("f.result", "1", lambda: np.int64(1)),), IndirectGotoOp(), "f"),
            Block(
                "f.more",
                (
                    op("f.less", "n - 1", lambda n: n - 1, "f.n"),
                    FunctionCallOp(("f.rest",), "f", ("f.less",)),
                    op("f.result", "n * rest", lambda n, rest: n * rest, "f.n", "f.rest"),
                ),
                IndirectGotoOp(),
                "f",
            ),
        )
    )
    main = ControlFlowGraph((Block("main.entry", (FunctionCallOp(("y",), "f", ("x",)),), IndirectGotoOp()),))
    types = dict.fromkeys(("x", "y", "f.n", "f.less", "f.rest", "f.result"), INT) | {"f.base": BOOL}
    return Program(main, (Function("f", ("f.n",), ("f.result",), body),), ("x",), ("y",), types)


def with_block(program: Program, label: str, /, **changes: Any) -> Program:
    """The program with fields of one block changed."""

    def change(graph: ControlFlowGraph) -> ControlFlowGraph:
        return ControlFlowGraph(tuple(replace(b, **changes) if b.label == label else b for b in graph.blocks))

    functions = tuple(replace(f, graph=change(f.graph)) for f in program.functions)
    return program.replace(graph=change(program.graph), functions=functions)


def ops_of(program: Program, label: str) -> tuple[Any, ...]:
    return next(b.ops for f in program.all_functions() for b in f.graph.blocks if b.label == label)


# ---- a good program -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [NumpyBackend(), TensorFlowBackend("eager"), TensorFlowBackend("xla")])
def test_a_program_made_by_hand_runs(backend: Any) -> None:
    program = factorial_program()
    check_types(program)
    lowered = lower_function_calls(program)
    assert lowered.functions == ()
    check_stack_discipline(lowered, program.functions)
    allocated = allocate(lowered)
    check_allocation(allocated)
    assert {v for v, a in allocated.var_alloc.items() if a is VariableAllocation.FULL} == {"f.n"}
    (found,) = virtual_machine.execute(allocated, backend, np.array([0, 1, 5, 3]))
    np.testing.assert_array_equal(found, [1, 1, 120, 6])


def test_a_program_made_by_hand_runs_stackless() -> None:
    (found,) = stackless.execute(factorial_program(), NumpyBackend(), None, np.array([0, 1, 5, 3]))
    np.testing.assert_array_equal(found, [1, 1, 120, 6])


def test_passes_leave_their_input_alone() -> None:
    program = factorial_program()
    before = repr(program)
    allocate(lower_function_calls(program))
    assert repr(program) == before


# ---- structure and types --------------------------------------------------------------------------------------------


def refused(message: str) -> Any:
    return pytest.raises(MalformedProgramError, match=message)


def test_refuses_two_blocks_of_one_label() -> None:
    program = with_block(factorial_program(), "f.one", label="f.entry")
    with refused(r"labels defined twice: \['f.entry'\]"):
        check_structure(program)


@pytest.mark.parametrize(
    ("label", "changes", "message"),
    [
        ("f.entry", {"terminator": GotoOp("nowhere")}, "'f.entry' jumps to 'nowhere', which is not a block of its"),
        ("f.entry", {"terminator": BranchOp("f.base", "f.one", "nowhere")}, "'f.entry' jumps to 'nowhere'"),
        ("f.entry", {"terminator": PushGotoOp("nowhere", "f.one")}, "'f.entry' jumps to 'nowhere'"),
        ("f.one", {"terminator": GotoOp("main.entry")}, "'f.one' jumps to 'main.entry', which is not a block"),
        ("main.entry", {"ops": ("y = x",)}, "block 'main.entry': 'y = x' is not an instruction of the IR"),
        ("main.entry", {"terminator": None}, "'main.entry' ends in None, expected goto, branch, push_goto or return"),
        ("main.entry", {"ops": (FunctionCallOp(("y",), "g", ("x",)),)}, "calls 'g', which the program does not have"),
        ("main.entry", {"ops": (FunctionCallOp(("y",), "f", ()),)}, "of 'f' has 0 inputs and 1 outputs, expected 1"),
        ("main.entry", {"ops": (FunctionCallOp(("y", "x"), "f", ("x",)),)}, "1 inputs and 2 outputs, expected 1 and 1"),
        ("main.entry", {"ops": (PrimOp(("y", "y"), Primitive("x, x", print), ("x",)),)}, r"writes \['y'\] twice"),
        ("main.entry", {"ops": (PrimOp(("y",), COPY, ("x", "x")),)}, "'main.entry' copies 2 variables to 1"),
    ],
)
def test_refuses_malformed_blocks_by_name(label: str, changes: dict[str, Any], message: str) -> None:
    """Of every form; lowering, which looks first, refuses them too."""
    program = with_block(factorial_program(), label, **changes)
    for refuse in (check_structure, lower_function_calls):
        with refused(message):
            refuse(program)


def test_refuses_variables_without_a_type() -> None:
    program = factorial_program()
    types = {v: t for v, t in program.var_defs.items() if v != "f.less"}
    with refused("block 'f.more': 'f.less' has no type"):
        check_types(program.replace(var_defs=types))


def test_refuses_types_that_are_none() -> None:
    program = factorial_program()
    with refused("'f.n' has 'int64' for a type, expected a TensorType"):
        check_types(program.replace(var_defs={**program.var_defs, "f.n": "int64"}))


# ---- stack discipline ----------------------------------------------------------------------------------------------


def broken_lowering(label: str, /, **changes: Any) -> None:
    program = factorial_program()
    check_stack_discipline(with_block(lower_function_calls(program), label, **changes), program.functions)


def test_refuses_a_return_without_its_pop() -> None:
    lowered = lower_function_calls(factorial_program())
    ops = tuple(o for o in ops_of(lowered, "f.one") if o != PopOp("f.n"))
    with refused(r"f.one returns with net pushes \{'f.result': 1\}"):
        broken_lowering("f.one", ops=ops)


def test_refuses_a_return_without_its_push() -> None:
    lowered = lower_function_calls(factorial_program())
    ops = tuple(o for o in ops_of(lowered, "f.one") if o != PushOp("f.result"))
    with refused("f.one returns with net pushes"):
        broken_lowering("f.one", ops=ops)


def test_refuses_another_variable_left_pushed() -> None:
    lowered = lower_function_calls(factorial_program())
    with refused("f.resume returns with net pushes .*'f.base': 1"):
        broken_lowering("f.resume", ops=(PushOp("f.base"), *ops_of(lowered, "f.resume")))


def test_refuses_heights_that_differ_where_paths_meet() -> None:
    pushing = Block("f.more", (PushOp("f.base"),), GotoOp("f.one"), "f")
    with refused(r"stack heights differ where paths meet: \[\('f.base', 1\)\]"):
        broken_lowering("f.more", ops=pushing.ops, terminator=pushing.terminator)


def test_refuses_a_loop_that_pushes() -> None:
    with refused("stack heights differ where paths meet"):
        broken_lowering("f.more", ops=(PushOp("f.base"),), terminator=GotoOp("f.entry"))


def test_refuses_calls_left_after_lowering() -> None:
    with refused("f.more: a call is left after lowering"):
        program = factorial_program()
        call = FunctionCallOp(("f.rest",), "f", ("f.less",))
        lowered = with_block(lower_function_calls(program), "f.more", ops=(call,))
        check_stack_discipline(lowered.replace(functions=program.functions[:0]), program.functions)


def test_refuses_entering_a_function_past_its_first_block() -> None:
    with refused("main.entry enters a function past its first block"):
        broken_lowering("main.entry", terminator=PushGotoOp("main.resume", "f.one"))


def test_refuses_resuming_in_another_function() -> None:
    with refused("main.entry resumes in another function"):
        broken_lowering("main.entry", terminator=PushGotoOp("f.resume", "f.entry"))


def test_refuses_jumping_out_of_a_function() -> None:
    with refused("f.one jumps out of its function"):
        broken_lowering("f.one", terminator=GotoOp("main.resume"))


# ---- allocation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "allocation", "message"),
    [
        ("f.n", VariableAllocation.REGISTER, "f.n is pushed or popped but has no stack"),
        ("f.less", VariableAllocation.NULL, "f.less is read but not stored"),
        ("f.result", VariableAllocation.TEMPORARY, "f.result crosses blocks but is temporary"),
    ],
)
def test_refuses_wrong_allocations(variable: str, allocation: VariableAllocation, message: str) -> None:
    allocated = allocate(lower_function_calls(factorial_program()))
    check_allocation(allocated)
    with refused(message):
        check_allocation(allocated.replace(var_alloc={**allocated.var_alloc, variable: allocation}))


# ---- what lower_function_calls refuses besides ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "changes", "message"),
    [
        ("f.one", {"terminator": PushGotoOp("f.more", "f.entry")}, "'f.one' ends in push_goto before lowering"),
        ("f.more", {"ops": ()}, "block 'f.more' returns 'f.result', which no path to it assigns"),
        ("main.entry", {"ops": (FunctionCallOp(("y",), "f", ("z",)),)}, "'main.entry' reads 'z', which no path to it"),
        (
            "f.one",
            {"ops": (), "terminator": BranchOp("f.rest", "f.more", "f.more")},
            "block 'f.one' reads 'f.rest', which no path to it assigns",
        ),
    ],
)
def test_lowering_refuses(label: str, changes: dict[str, Any], message: str) -> None:
    program = with_block(factorial_program(), label, **changes)
    check_structure(program)
    with refused(message):
        lower_function_calls(program)


def test_lowering_refuses_paths_that_define_different_variables() -> None:
    """One branch assigns the result; the block after both reads it."""
    program = with_block(factorial_program(), "f.one", terminator=GotoOp("f.end"))
    program = with_block(program, "f.more", ops=ops_of(program, "f.more")[:2], terminator=GotoOp("f.end"))
    (function,) = program.functions
    end = Block("f.end", (), IndirectGotoOp(), "f")
    function = replace(function, graph=ControlFlowGraph((*function.graph.blocks, end)))
    message = (
        "block 'f.end': paths into it define different variables: 'f.result' is assigned on a path through block "
        "'f.one', but not on one through block 'f.more'"
    )
    with refused(message):
        lower_function_calls(program.replace(functions=(function,)))


def test_lowering_refuses_a_loop_that_assigns_too_late() -> None:
    """The first round reads what only the round before it assigns."""
    body = (op("y", "y + 1", lambda y: y + 1, "y"), op("b", "y < 9", lambda y: y < 9, "y"))
    blocks = (Block("loop", body, BranchOp("b", "loop", "end")), Block("end", (), IndirectGotoOp()))
    with refused("block 'loop': paths into it .* block 'loop', but not on one through the start of the function"):
        lower_function_calls(Program(ControlFlowGraph(blocks), (), ("x",), ("y",)))
