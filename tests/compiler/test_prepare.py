"""Programs built by hand or from text, made ready by `prepare`: they run everywhere, and mistakes in them are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from batchnuts.autobatch import (
    Block,
    CompileError,
    ControlFlowGraph,
    IndirectGotoOp,
    LaneAssertionError,
    LaneInputError,
    MalformedProgramError,
    Primitive,
    PrimOp,
    Program,
    StackOverflowError,
    TensorType,
    WriteRowOp,
    allocate,
    get_backend,
    lower_function_calls,
    parse,
    prepare,
    stackless,
    virtual_machine,
)
from batchnuts.autobatch.runtime import reference

LOOP = """
main(x, n) -> power, i
  main.entry:
    power = {one}
    i = {n - n} n
    goto main.test
  main.test:
    more = {i < n} i, n
    branch more main.body main.end
  main.body:
    power = {power * x} power, x
    i = {i + 1} i
    goto main.test
  main.end:
    return
"""

FIBONACCI = """
main(n) -> result
  main.entry:
    result = call fib n
    return

fib(fib.n) -> fib.return
  fib.entry:
    fib.base = {n <= 1} fib.n
    branch fib.base fib.one fib.more
  fib.one:
    fib.return = {1}
    return
  fib.more:
    fib.a = {n - 2} fib.n
    fib.left = call fib fib.a
    fib.b = {n - 1} fib.n
    fib.right = call fib fib.b
    fib.return = {left + right} fib.left, fib.right
    return
"""

EVERYWHERE = [("numpy", "eager"), ("tensorflow", "eager"), ("tensorflow", "xla")]


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
@pytest.mark.parametrize(("backend", "mode"), EVERYWHERE)
def test_a_loop_and_a_recursion_run(backend: str, mode: str, executor: str) -> None:
    loop = prepare(parse(LOOP, namespace={"one": np.float64(1)}), "float64", "int64", backend=backend, mode=mode)
    power, i = loop.run(np.array([2.0, 3.0, 0.5]), np.array([10, 3, 0]), executor=executor)
    np.testing.assert_array_equal(power, [1024.0, 27.0, 1.0])
    np.testing.assert_array_equal(i, [10, 3, 0])
    fib = prepare(parse(FIBONACCI, namespace={}), "int64", backend=backend, mode=mode)
    (found,) = fib.run(np.array([3, 7, 4, 5]), executor=executor)
    np.testing.assert_array_equal(found, [3, 21, 5, 8])
    assert found.dtype == np.int64


def test_a_lane_of_one_is_used_on_every_lane() -> None:
    loop = prepare(parse(LOOP, namespace={"one": np.float64(1)}), "float64", "int64", backend="numpy")
    np.testing.assert_array_equal(loop.run(np.array([2.0]), np.array([1, 2, 3]))[0], [2.0, 4.0, 8.0])


def test_types_come_from_the_program_where_none_are_given() -> None:
    program = parse(FIBONACCI + "\nvariables\n  n: int64[]\n  fib.left: int64[]\n", namespace={})
    assert prepare(program, backend="numpy").lowered.var_defs["result"] == TensorType("int64")
    np.testing.assert_array_equal(prepare(program, backend="numpy").run(np.array([6]))[0], [13])


def test_the_schedule_and_the_stack_depth_are_used() -> None:
    fib = prepare(parse(FIBONACCI, namespace={}), "int64", backend="numpy")
    np.testing.assert_array_equal(fib.run(np.array([6, 2]), schedule="drain")[0], [13, 2])
    with pytest.raises(StackOverflowError):
        fib.run(np.array([9]), max_stack_depth=2)
    with pytest.raises(ValueError, match="schedule must be one of"):
        fib.run(np.array([9]), schedule="later")
    with pytest.raises(ValueError, match="executor must be one of virtual_machine, stackless; found 'cpu'"):
        fib.run(np.array([9]), executor="cpu")


class Pair(NamedTuple):
    a: Any
    b: Any


def test_inputs_and_variables_may_be_structures() -> None:
    swap = PrimOp(("y",), Primitive("Pair(x.b, x.a)", lambda x: (Pair(x.b, x.a),)), ("x",))
    program = Program(ControlFlowGraph((Block("main.entry", (swap,), IndirectGotoOp()),)), (), ("x",), ("y",))
    prepared = prepare(program, Pair("int64", "float64[2]"), backend="numpy")
    first, second = prepared.run(Pair(np.array([1, 2]), np.ones((2, 2))))
    np.testing.assert_array_equal(first, np.ones((2, 2)))
    np.testing.assert_array_equal(second, [1, 2])


STORE = """
main(x, i) -> y
  main.entry:
    one = {numpy.float64(1)}
    buffer = write x, i, one
    y = {i + 1} i
    return
"""


def test_a_write_that_nothing_reads_is_within_its_buffer() -> None:
    program = parse(STORE, namespace={"numpy": np})
    inputs = (np.zeros((2, 3)), np.array([2, 3]))
    prepared = prepare(program, "float64[3]", "int64", backend="numpy")
    assert not any(isinstance(op, WriteRowOp) for block in prepared.lowered.graph.blocks for op in block.ops)
    types = {"x": TensorType("float64", (3,)), "buffer": TensorType("float64", (3,)), "one": TensorType("float64")}
    typed = program.replace(var_defs={**types, "i": TensorType("int64"), "y": TensorType("int64")})
    backend = get_backend("numpy", "eager")
    runs: tuple[Callable[[], Any], ...] = (
        lambda: prepared.run(*inputs),
        lambda: prepared.run(*inputs, executor="stackless"),
        lambda: virtual_machine.execute(allocate(lower_function_calls(typed)), backend, *inputs),
        lambda: stackless.execute(typed, backend, None, *inputs),
        lambda: reference.execute(typed, *inputs),
    )
    for run in runs:
        with pytest.raises(LaneAssertionError, match=r"lane 1: wrote outside of 'x'.*\(1 of 2 lanes"):
            run()


@pytest.mark.parametrize(
    ("text", "types", "error", "message"),
    [
        (FIBONACCI, (), LaneInputError, "input 'n' has no type"),
        (FIBONACCI, ("int64", "int64"), LaneInputError, r"the program has 1 inputs \(n\), found 2 types"),
        (FIBONACCI.replace("fib.one fib.more", "fib.one fib.mor"), ("int64",), MalformedProgramError, "'fib.mor'"),
        (
            FIBONACCI.replace("call fib fib.b", "call f fib.b"),
            ("int64",),
            MalformedProgramError,
            "fib.more' calls 'f'",
        ),
        (FIBONACCI.replace("fib.b = ", "fib.c = "), ("int64",), MalformedProgramError, "'fib.more' reads 'fib.b'"),
        (FIBONACCI.replace("n <= 1", "n + 1"), ("int64",), CompileError, "a condition must be a scalar boolean"),
        (FIBONACCI.replace("{n - 2}", "{n[0]}"), ("int64",), CompileError, r"`n\[0\]` failed while it was traced"),
        (FIBONACCI + "variables\n  fib.left: float64[]\n", ("int64",), MalformedProgramError, "declared as float64"),
        ("main() -> y\n  main.entry:\n    y = {1}\n    return\n", (), MalformedProgramError, "needs an input"),
    ],
)
def test_mistakes_are_named(text: str, types: tuple[str, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        prepare(parse(text, namespace={}), *types, backend="numpy")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((np.array([1.0]),), r"the program takes 2 arrays \(x, n\), found 1"),
        ((np.array([1.0]), 3), r"input 'n' has shape \(\) and dtype int64, expected int64\[\] with the lane axis"),
        ((np.array([1.0]), np.array([0.5])), "input 'n' has shape .* and dtype float64"),
        ((np.ones((2, 2)), np.array([1, 2])), r"input 'x' has shape \(2, 2\)"),
        ((np.ones(2), np.array([1, 2, 3])), "different numbers of lanes: 2, 3"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: tuple[Any, ...], message: str) -> None:
    prepared = prepare(parse(LOOP, namespace={"one": np.float64(1)}), "float64", "int64", backend="numpy")
    with pytest.raises(LaneInputError, match=message):
        prepared.run(*inputs)
