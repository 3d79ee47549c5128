"""Passes that make fewer calls, branches, blocks and copies: what small programs look like after them."""

from __future__ import annotations

import numpy as np
import programs
import pytest
from nuts_shaped import NUTS_SHAPED_TYPES, nuts_shaped
from pass_results import WAYS, assert_same, full, ops_of, passes, pushed
from programs.recursion import climb

from batchnuts.autobatch import BranchOp, FunctionCallOp, GotoOp, PopOp, PrimOp, PushGotoOp, PushOp, batch
from batchnuts.autobatch.passes.if_convert import SELECT

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
    assert len(ops_of(found["coalesce"], PushGotoOp)) == 3
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


@batch
def gcd_in_an_expression(a, b):
    return a if b == 0 else gcd_in_an_expression(b, a % b)


def test_a_self_tail_call_in_a_conditional_expression_is_a_loop() -> None:
    found = passes(gcd_in_an_expression, "int64", "int64")
    assert len(ops_of(found["duplicate_tails"], FunctionCallOp)) == 0, "nothing recursive is left, so it is inlined"
    assert_same(gcd_in_an_expression, np.array([12, 91, 7, 0]), np.array([18, 35, 0, 5]))


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
