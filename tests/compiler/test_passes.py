"""Each optimization on small programs: what its result looks like, and that the programs still mean the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import programs
import pytest
from nuts_shaped import NUTS_SHAPED_TYPES, nuts_shaped
from programs.control_flow import known_at_first
from programs.recursion import climb

from batchnuts.autobatch import (
    BranchOp,
    ControlFlowGraph,
    FunctionCallOp,
    GotoOp,
    PopOp,
    PrimOp,
    Program,
    PushGotoOp,
    PushOp,
    VariableAllocation,
    batch,
    ops,
)
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.ir.program import COPY
from batchnuts.autobatch.ir.verify import MalformedProgramError, check_stack_discipline
from batchnuts.autobatch.passes.depth_bound import depth_bound
from batchnuts.autobatch.passes.if_convert import SELECT
from batchnuts.autobatch.pipeline import compile_function
from batchnuts.autobatch.runtime.virtual_machine import affordable_depth

WAYS = [
    {"backend": "numpy", "schedule": "earliest"},
    {"backend": "numpy", "schedule": "drain"},
    {"backend": "numpy", "executor": "stackless"},
]


def passes(function: Any, *types: Any, backend: str = "tensorflow") -> dict[str, Program]:
    found: dict[str, Program] = {}
    compile_function(function, tuple(map(as_type, types)), get_backend(backend, "eager"), found.__setitem__)
    return found


def ops_of(program: Program, *kinds: type) -> list[Any]:
    bodies = [program.graph, *(f.graph for f in program.functions)]
    return [op for graph in bodies for b in graph.blocks for op in (*b.ops, b.terminator) if isinstance(op, kinds)]


def pushed(program: Program) -> list[str]:
    return sorted(op.var for op in ops_of(program, PushOp))


def full(program: Program) -> set[str]:
    return {v for v, a in program.var_alloc.items() if a is VariableAllocation.FULL}


def assert_same(function: Any, *lanes: Any) -> None:
    expected = function.run(*lanes, executor="unbatched")
    for way in WAYS:
        np.testing.assert_array_equal(function.run(*lanes, **way), expected)


# ---- tail calls ------------------------------------------------------------------------------------------------------


@batch
def sum_to(n, total=0):
    if n == 0:
        return total
    return sum_to(n - 1, total + n)


def test_a_self_tail_call_is_a_loop() -> None:
    found = passes(sum_to, "int64", "int64")
    assert len(ops_of(found["eliminate"], FunctionCallOp)) == 2
    assert len(ops_of(found["self_tail_calls"], FunctionCallOp)) == 1, "main's own call"
    assert not ops_of(found["tail_calls"], PushGotoOp, PushOp, PopOp)
    n = np.array([0, 5000, 3, 100])
    np.testing.assert_array_equal(sum_to.run(n, backend="numpy", max_stack_depth=1), n * (n + 1) // 2)
    np.testing.assert_array_equal(sum_to.run(n, backend="numpy", executor="stackless"), n * (n + 1) // 2)


@batch
def swap_down(a, b, n):
    """The arguments of the tail call read each other's parameters: a parallel assignment."""
    if n == 0:
        return a * 100 + b
    return swap_down(b, a + 1, n - 1)


def test_arguments_of_a_tail_call_are_assigned_in_parallel() -> None:
    assert_same(swap_down, np.array([1, 2, 3]), np.array([7, 8, 9]), np.array([0, 3, 8]))


def test_mutual_tail_calls_are_jumps() -> None:
    found = passes(programs.is_even, "int64")
    assert len(ops_of(found["propagate_copies"], PushGotoOp)) == 3
    (call,) = ops_of(found["tail_calls"], PushGotoOp)
    assert call.target_label == "is_even.entry", "only main still calls"
    assert not ops_of(found["tail_calls"], PushOp, PopOp)
    n = np.array([0, 3001, 3000])
    found_even = programs.is_even.run(n, backend="numpy", max_stack_depth=1)
    np.testing.assert_array_equal(found_even, [True, False, True])


def test_tail_calls_between_functions_that_keep_frames() -> None:
    found = passes(climb, "int64", "int64")
    jumps = [
        (b.owner, b.terminator.label)
        for b in found["tail_calls"].graph.blocks
        if isinstance(b.terminator, GotoOp) and not b.terminator.label.startswith(b.owner)
    ]
    assert {owner for owner, _ in jumps} == {"climb", "descend"}
    assert full(found["tail_calls"])
    # a lane below zero in every second call: short recursions of both
    assert_same(climb, np.array([0, 4, 5, 9]), np.array([1, 2, 3, 4]))


def test_a_call_whose_result_is_used_is_no_tail_call() -> None:
    found = passes(programs.fibonacci, "int64")
    assert len(ops_of(found["self_tail_calls"], FunctionCallOp)) == 3


# ---- branches and blocks ---------------------------------------------------------------------------------------------


@batch
def clamp(x, low, high):
    if x < low:
        x = low
    elif x > high:
        x = high
    else:
        x = x * 1
    return x


def test_small_branches_become_selects() -> None:
    found = passes(clamp, "int64", "int64", "int64")
    assert ops_of(found["inline"], BranchOp)
    assert not ops_of(found["if_convert"], BranchOp)
    selects = [op for op in ops_of(found["if_convert"], PrimOp) if op.function is SELECT]
    assert len(selects) == 2
    assert_same(clamp, np.array([1, 5, 9]), 3, np.array([4, 6, 6]))


@batch
def guarded(x, i, use):
    if use:
        y = x[i]
    else:
        y = 0.0
    return y


def test_what_may_fail_is_not_converted() -> None:
    """`x[i]` on a lane that does not use it may lie outside x."""
    assert ops_of(passes(guarded, "float64[3]", "int64", "bool")["if_convert"], BranchOp)
    assert_same(guarded, np.arange(6.0).reshape(2, 3), np.array([1, 77]), np.array([True, False]))


@batch
def swaps_if(a, b, c):
    if c:
        a, b = b, a
    return a * 10 + b


def test_both_arms_read_the_values_before_the_branch() -> None:
    assert not ops_of(passes(swaps_if, "int64", "int64", "bool")["if_convert"], BranchOp)
    assert_same(swaps_if, np.array([1, 2]), np.array([3, 4]), np.array([True, False]))


@batch
def condition_changes(c, x):
    if c:
        c = x > 3
        x = x + 1
    return x if c else -x


def test_an_arm_may_assign_the_condition() -> None:
    assert_same(condition_changes, np.array([True, True, False]), np.array([5, 1, 2]))


@batch
def count_up(n):
    i = 0
    while i < n:
        i = i + 2
    return i


def test_a_loops_test_runs_with_its_body() -> None:
    found = passes(count_up, "int64")
    assert len(found["if_convert"].graph.blocks) == 4
    blocks = found["duplicate_tails"].graph.blocks
    assert len(blocks) == 3
    assert any(b.label in b.terminator.__dict__.values() for b in blocks), "the body is a loop of one block"
    assert_same(count_up, np.array([0, 5, 8]))


def test_a_branch_on_a_literal_is_a_jump() -> None:
    program = passes(known_at_first, "int64")["duplicate_tails"]
    assert len(ops_of(program, BranchOp)) == 1
    assert_same(known_at_first, np.array([0, 5, 8]))


# ---- state and stacks ------------------------------------------------------------------------------------------------


@batch
def with_literal(n):
    limit = 10
    step = 3
    if n > limit:
        return n
    return with_literal(n + step) + limit


def test_literals_are_neither_state_nor_stacked() -> None:
    found = passes(with_literal, "int64")
    kept = {VariableAllocation.REGISTER, VariableAllocation.FULL}
    stored = {v for v, a in found["tail_calls"].var_alloc.items() if a in kept}
    assert not {v for v in stored if v.endswith((".limit", ".step"))}
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


def test_the_last_call_takes_over_its_callers_frame() -> None:
    found = passes(quadrature, "float64", "float64", "int64")
    before, after = pushed(found["invert"]), pushed(found["reuse_frames"])
    assert before.count("quadrature.b") == 3, "by main and both recursive calls"
    assert after.count("quadrature.b") == 2, "the second recursive call needs no new frame"
    pops = [op.var for op in ops_of(found["reuse_frames"], PopOp)]
    assert pops.count("quadrature.b") == 1, "only a leaf drops the frame: elsewhere the callee has had it"
    assert_same(quadrature, np.array([0.0, 1.0]), np.array([1.0, 3.0]), np.array([3, 5]))


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


def test_copies_to_where_the_value_stands_go() -> None:
    found = passes(nuts_shaped, *NUTS_SHAPED_TYPES)

    def copied(name: str) -> int:
        return sum(len(op.vars_out) for op in ops_of(found[name], PrimOp) if op.function is COPY)

    assert copied("propagate_copies") < copied("coalesce")


# ---- the shape of NUTS -----------------------------------------------------------------------------------------------


def test_stacks_and_pushes_of_a_nuts_shaped_program() -> None:
    found = passes(nuts_shaped, *NUTS_SHAPED_TYPES)
    assert full(found["tail_calls"]) == {"grow.first.chosen", "grow.first.total", "grow.first.weight"}
    assert pushed(found["tail_calls"]) == ["grow.first.chosen", "grow.first.total", "grow.first.weight"]
    assert len(pushed(found["lower"])) >= 15


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tree_depth", [0, 1, 4])
def test_the_nuts_shaped_program_runs(tree_depth: int, way: dict[str, str]) -> None:
    x = np.linspace(-1, 2, 15).reshape(3, 5)
    inputs = (x, np.minimum(tree_depth, np.array([0, 1, 4])), np.array([3, 1, 2]))
    expected = nuts_shaped.run(*inputs, executor="unbatched")
    for a, b in zip(nuts_shaped.run(*inputs, **way), expected, strict=True):
        np.testing.assert_array_equal(a, b)


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


@pytest.mark.parametrize("program", [programs.ackermann, programs.is_even, sum_to, not_invertible, changed_on_the_way])
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


@batch
def gcd_in_an_expression(a, b):
    return a if b == 0 else gcd_in_an_expression(b, a % b)


def test_a_self_tail_call_in_a_conditional_expression_is_a_loop() -> None:
    found = passes(gcd_in_an_expression, "int64", "int64")
    assert len(ops_of(found["duplicate_tails"], FunctionCallOp)) == 0, "nothing recursive is left, so it is inlined"
    assert_same(gcd_in_an_expression, np.array([12, 91, 7, 0]), np.array([18, 35, 0, 5]))
