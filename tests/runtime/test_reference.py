"""The reference interpreter: agrees with plain Python on every form of every program, and catches broken forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import Case, covering_by_default, fibonacci

from batchnuts.autobatch import (
    AssertOp,
    Block,
    BranchOp,
    ControlFlowGraph,
    GotoOp,
    IndirectGotoOp,
    LaneAssertionError,
    PopOp,
    Primitive,
    PrimOp,
    Program,
    PushOp,
    TensorType,
    batch,
    write,
)
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.errors import BatchnutsError, StackOverflowError, TypeConflictError
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.pipeline import compile_function
from batchnuts.autobatch.runtime import faults, reference
from batchnuts.autobatch.runtime.reference import InternalError

every_case = covering_by_default()


def forms(function: Any, types: tuple[Any, ...], backend: str = "numpy") -> dict[str, Program]:
    """The program after every pass."""
    found: dict[str, Program] = {}
    compile_function(function, types, get_backend(backend, "eager"), found.__setitem__)
    return found


@pytest.mark.parametrize("backend", ["numpy", pytest.param("tensorflow", marks=pytest.mark.slow)])
@every_case
def test_every_pass_keeps_the_meaning(case: Case, backend: str) -> None:
    """TensorFlow finds out more about primitives than NumPy can, so its programs are other ones."""
    expected = flatten(case.function.run(*case.inputs, executor="unbatched"))[0]
    dtypes = case.dtypes or tuple(leaf.dtype.name for leaf in expected)
    bound = case.function._bind(case.inputs, {})
    programs = forms(case.function, bound.types, backend)
    assert {"frontend", "flatten_structures", "inline", "lower", "allocate", "coalesce"} <= set(programs)
    for name, program in programs.items():
        structured = name in ("frontend", "infer_types")
        results = reference.execute(program, *(bound.values if structured else bound.leaves))
        for leaf, wanted, dtype in zip(flatten(results)[0], expected, dtypes, strict=True):
            assert leaf.shape == wanted.shape, name
            if name != "frontend":  # before types are known a literal stays Python's number
                assert leaf.dtype == dtype, name
            np.testing.assert_array_equal(leaf, wanted.astype(dtype), err_msg=name)


def test_the_executor_runs_it() -> None:
    n = np.array([3, 7, 4, 0])
    np.testing.assert_array_equal(fibonacci.run(n, executor="reference"), [3, 21, 5, 1])


def test_calls_nest_deeper_than_pythons_own_stack() -> None:
    @batch
    def triangle(n):
        if n == 0:
            return 0
        return n + triangle(n - 1)

    np.testing.assert_array_equal(triangle.run(np.array([3, 5000]), executor="reference"), [6, 12502500])


# ---- what is the user's to fix -------------------------------------------------------------------------------------


def test_an_overflow_names_function_and_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    n = np.array([3, 7, 4, 5])
    with pytest.raises(
        StackOverflowError, match=r"lane 1 recursed too deep in 'fibonacci': calls may nest 4 deep \(2 of"
    ):
        fibonacci.run(n, executor="reference", max_stack_depth=4)
    lowered = forms(fibonacci, (TensorType("int64"),))["coalesce"]
    with pytest.raises(StackOverflowError, match="lane 1 recursed too deep in 'fibonacci'"):
        reference.execute(lowered, n, max_stack_depth=4)
    monkeypatch.setattr(faults, "LARGEST_STACK_DEPTH", 4)
    with pytest.raises(StackOverflowError, match=r"nest 4 deep .*such as max_stack_depth=8; it may also be infinite"):
        fibonacci.run(n, executor="reference")


@batch
def write_at(buffer, index):
    return write(buffer, index, 1.0)  # the write


def test_a_write_outside_its_buffer_names_lane_and_line() -> None:
    with pytest.raises(
        BatchnutsError, match=r"(?s)test_reference.py:.*# the write.*lane 2: wrote outside.*2 of 4 lanes"
    ):
        write_at.run(np.zeros((4, 3)), np.array([0, 2, 3, -1]), executor="reference")


# ---- what is a bug of a pass --------------------------------------------------------------------------------------

BLOCK_TYPES = {"n": TensorType("int64"), "m": TensorType("int64"), "c": TensorType("bool")}
DOUBLE = Primitive("n * 2", lambda n: (n * 2,))
ROW = Primitive("[n]", lambda n: (np.array([n]),), of_language=True)
POSITIVE = Primitive("n > 0", lambda n: (n > 0,))


def one_block(*ops: Any) -> Program:
    return by_hand(Block("start", ops, IndirectGotoOp()))


def by_hand(*blocks: Block) -> Program:
    return Program(ControlFlowGraph(blocks), (), ("n",), ("m",), BLOCK_TYPES)


def test_a_program_by_hand_runs() -> None:
    program = by_hand(
        Block("start", (PrimOp(("c",), POSITIVE, ("n",)),), BranchOp("c", "yes", "no")),
        Block("yes", (PushOp("n"), PrimOp(("n",), DOUBLE, ("n",)), PopOp("n")), GotoOp("no")),
        Block("no", (PrimOp(("m",), DOUBLE, ("n",)),), IndirectGotoOp()),
    )
    np.testing.assert_array_equal(reference.execute(program, np.array([1, -2]))[0], [2, -4])


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (one_block(PrimOp(("m",), DOUBLE, ("m",))), r"block 'start', .*n \* 2.*'m' has no value here"),
        (one_block(), r"block 'start', IndirectGotoOp\(\): 'm' has no value here"),
        (one_block(PopOp("n")), r"block 'start', PopOp\(var='n'\): the stack of 'n' is empty"),
        (one_block(PushOp("m"), PrimOp(("m",), DOUBLE, ("n",)), PopOp("m")), "'m' has no value here"),
        (one_block("nonsense"), r"block 'start', nonsense: no op of the IR"),
        (one_block(PrimOp(("m",), Primitive("n, n", lambda n: (n, n)), ("n",))), "2 values for 1 variables"),
        (one_block(PrimOp(("m",), ROW, ("n",))), r"shape \(1,\) where int64"),
    ],
)
def test_a_malformed_program_is_refused(program: Program, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        reference.execute(program, np.array([1]))


def test_a_users_function_that_gives_another_type_is_the_users_mistake() -> None:
    for given, found in ((np.array([1]), r"int64\[1\]"), (0.5, r"float64\[\]"), (None, "None")):
        program = one_block(PrimOp(("m",), Primitive("h(n)", lambda n, given=given: (given,)), ("n",)))
        with pytest.raises(TypeConflictError, match=rf"gave {found} where int64\[\] was inferred"):
            reference.execute(program, np.array([1]))


def test_an_assertion_names_lane_and_count() -> None:
    check = AssertOp("c", "n is positive")
    program = one_block(PrimOp(("c",), POSITIVE, ("n",)), check, PrimOp(("m",), DOUBLE, ("n",)))
    np.testing.assert_array_equal(reference.execute(program, np.array([3, 1]))[0], [6, 2])
    with pytest.raises(LaneAssertionError, match=r"lane 1: n is positive \(2 of 3 lanes in all\)"):
        reference.execute(program, np.array([3, 0, -1]))
