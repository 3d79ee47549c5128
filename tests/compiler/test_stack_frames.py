"""Passes that need fewer stacks and frames, the depth of stacks, and the verifier on what these passes leave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import programs
import pytest
from pass_results import assert_same, full, ops_of, passes, pushed
from programs.recursion import climb, gcd_by_tail_call

from batchnuts.autobatch import ControlFlowGraph, GotoOp, PopOp, Program, PushOp, batch, ops
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.ir.verify import MalformedProgramError, check_stack_discipline
from batchnuts.autobatch.passes.depth_bound import depth_bound
from batchnuts.autobatch.runtime.virtual_machine import affordable_depth

# ---- state and stacks ------------------------------------------------------------------------------------------------


@batch
def with_literal(n):
    limit = 10
    step = 3
    if n > limit:
        return n
    return with_literal(n + step) + limit


def test_literals_are_not_stacked() -> None:
    found = passes(with_literal, "int64")
    assert not full(found["tail_calls"])
    assert_same(with_literal, np.array([0, 5, 80]))


def test_an_invertible_parameter_needs_no_stack() -> None:
    found = passes(programs.fibonacci, "int64")
    assert full(found["allocate"]) == {"fibonacci.n", "fibonacci.left"}
    assert full(found["invert"]) == {"fibonacci.left"}
    assert len(ops_of(found["allocate"], PushOp)) == 4
    assert pushed(found["tail_calls"]) == ["fibonacci.left"]


@batch
def counts_down(n):
    if n == 0:
        return n
    return counts_down(n - 1) + n


@batch
def counts_up(n):
    """From 251 on `n + 5` wraps around."""
    if n < 6:
        return n
    return counts_up(n + 5) + n


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64"])
def test_what_is_taken_off_an_unsigned_integer_is_added_again(dtype: str) -> None:
    """NumPy refuses `n + -1` there."""
    assert not full(passes(counts_down, dtype, backend="numpy")["invert"])
    assert_same(counts_down, np.array([0, 3, 9], dtype))


@pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")
def test_inverting_is_exact_where_integers_wrap_around() -> None:
    assert not full(passes(counts_up, "uint8", backend="numpy")["invert"])
    assert_same(counts_up, np.array([2, 200, 251, 255], "uint8"))


@batch
def not_invertible(n):
    """Halving loses a bit: the frame has to be kept."""
    if n == 0:
        return 0
    return not_invertible(n // 2) + n


@batch
def changed_on_the_way(n):
    """The parameter is assigned, so that adding back what the call took would not restore it."""
    if n <= 0:
        return 0
    n = n - n % 3
    return changed_on_the_way(n - 1) + n


@batch
def float_parameter(x):
    """Floats do not come back: (x - 1) + 1 is not always x."""
    if x <= 0.0:
        return x
    return float_parameter(x - 1.0) + x


@pytest.mark.parametrize(
    ("function", "lanes"),
    [
        (not_invertible, np.array([0, 1, 37, 1000])),
        (changed_on_the_way, np.array([0, 1, 37, 100])),
        (float_parameter, np.array([0.3, 1e-17, 7.7])),
    ],
)
def test_other_parameters_keep_their_stacks(function: Any, lanes: Any) -> None:
    name = function.__name__
    (parameter,) = function.__wrapped__.__code__.co_varnames[:1]
    assert full(passes(function, lanes.dtype.name)["invert"]) == {f"{name}.{parameter}"}
    assert_same(function, lanes)


@batch
def quadrature(a, b, depth):
    middle = (a + b) * 0.5
    if depth == 0:
        return (b - a) * middle * middle
    left = quadrature(a, middle, depth - 1)
    return left + quadrature(middle, b, depth - 1)


@batch
def reassigned_after(n, k):
    """`k` is not read after the second call, but assigned and then read: the frame is needed as a place."""
    if n <= 0:
        return k
    first = reassigned_after(n - 1, k * 2)
    k = k + first
    second = reassigned_after(n - 2, k + 1)
    k = second * 3
    return first + k


@batch
def calls_in_one_arm(n, k):
    """Paths with and without the handed-on frame meet before the return."""
    if n <= 0:
        return k
    result = calls_in_one_arm(n - 1, k + 1) + k
    if result % 2 == 0:
        result = calls_in_one_arm(n - 2, k * 2)
        result = result // 3 * 2
    else:
        result = result // 5
    return result % 1000


@pytest.mark.parametrize("function", [reassigned_after, calls_in_one_arm])
def test_frames_that_are_still_needed_stay(function: Any) -> None:
    assert_same(function, np.array([0, 3, 6, 5]), np.array([1, 2, 3, 4]))


# ---- stack depth -----------------------------------------------------------------------------------------------------


@batch
def total(n):
    if n <= 0:
        return 0
    return total(n - 1) + n


@batch
def by_threes(x, n):
    return ops.abs(x) + (0 if n < 3 else by_threes(x, n - 3))


def test_an_argument_that_is_counted_down_bounds_the_depth() -> None:
    bound = depth_bound(passes(by_threes, "int64", "int64")["duplicate_tails"])
    assert bound is not None
    assert (bound.variable, bound.step, bound.depth(100)) == ("main.n", 3, 64)


def test_the_machine_starts_with_that_depth() -> None:
    n = np.array([700, 3])
    np.testing.assert_array_equal(total.run(n, backend="numpy"), n * (n + 1) // 2)
    assert [machine.stack_depth for machine in total._machines.values()] == [1024]
    np.testing.assert_array_equal(total.run(n * 2, backend="numpy"), n * (2 * n + 1))
    assert [machine.stack_depth for machine in total._machines.values()] == [2048]


@pytest.mark.parametrize(
    "program", [programs.ackermann, programs.is_even, gcd_by_tail_call, not_invertible, changed_on_the_way]
)
def test_no_bound_where_no_argument_gives_one(program: Any) -> None:
    parameters = program.__wrapped__.__code__.co_argcount
    assert depth_bound(passes(program, *["int64"] * parameters)["duplicate_tails"]) is None


def test_an_input_that_only_looks_like_a_depth_costs_little() -> None:
    """A billion on one lane: too much to provide for, so stacks start small and grow as usual."""
    lowered = total.compiled((as_type("int64"),), get_backend("numpy", "")).lowered
    assert affordable_depth(lowered, 1 << 20) < 1 << 10

    @batch
    def stops_soon(n, k):
        if k <= 0:
            return n
        return stops_soon(n - 1, k // 2) + 1

    n, k = np.array([10**9, 5]), np.array([100, 0])
    assert_same(stops_soon, n, k)
    assert [machine.stack_depth for machine in stops_soon._machines.values()] == [16, 16]


# ---- the verifier on allocated programs ------------------------------------------------------------------------------


def disciplined(function: Any, *types: Any) -> tuple[Program, tuple[Any, ...]]:
    found = passes(function, *types)
    return found["tail_calls"], found["duplicate_tails"].functions


def without(program: Program, kind: type, variable: str, number: int) -> Program:
    """The program without its number-th push or pop of the variable."""
    seen = 0
    blocks = []
    for block in program.graph.blocks:
        kept = []
        for op in block.ops:
            if isinstance(op, kind) and op.var == variable:
                seen += 1
                if seen == number:
                    continue
            kept.append(op)
        blocks.append(replace(block, ops=tuple(kept)))
    assert seen >= number
    return program.replace(graph=ControlFlowGraph(tuple(blocks)))


@pytest.mark.parametrize(("kind", "number"), [(PushOp, 2), (PopOp, 1)])
def test_the_verifier_misses_no_frame_of_an_allocated_program(kind: type, number: int) -> None:
    program, functions = disciplined(quadrature, "float64", "float64", "int64")
    check_stack_discipline(program, functions)
    with pytest.raises(MalformedProgramError, match=r"net pushes|stack heights differ"):
        check_stack_discipline(without(program, kind, "quadrature.b", number), functions)


def test_the_verifier_misses_no_frame_at_a_tail_call() -> None:
    program, functions = disciplined(climb, "int64", "int64")
    check_stack_discipline(program, functions)
    (variable,) = full(program)
    with pytest.raises(MalformedProgramError, match=r"net pushes|stack heights differ"):
        check_stack_discipline(without(program, PopOp, variable, 1), functions)


def test_the_verifier_refuses_other_jumps_out_of_a_body() -> None:
    program, functions = disciplined(climb, "int64", "int64")
    inner = next(b.label for b in program.graph.blocks if b.owner == "descend" and b.label != "descend.entry")
    blocks = [
        replace(b, terminator=GotoOp(inner)) if isinstance(b.terminator, GotoOp) and b.owner == "climb" else b
        for b in program.graph.blocks
    ]
    with pytest.raises(MalformedProgramError, match="jumps out of its function"):
        check_stack_discipline(program.replace(graph=ControlFlowGraph(tuple(blocks))), functions)
