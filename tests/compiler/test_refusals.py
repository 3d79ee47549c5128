"""Programs and options that are refused, or that stop a lane: each message names what was found and what to write."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batchnuts import autobatch
from batchnuts.autobatch import CompileError, LaneAssertionError, UnsupportedSyntaxError, batch, ops, primitive

NUMPY = {"backend": "numpy"}
EAGER = {"mode": "eager"}
n = np.array([1, 2, 3])


@batch
def countdown(n):
    return 1 if n <= 0 else countdown(n - 1)


@pytest.mark.parametrize("options", [{"backend": "numpy"}, {"mode": "xla"}], ids=str)
def test_a_batched_primitive_must_keep_the_lane_axis(options: dict[str, Any]) -> None:
    @primitive(batched=True)
    def total(x):
        return ops.sum(x * x)

    @batch
    def program(x):
        y = total(x)
        return y

    with pytest.raises(CompileError, match="lane axis in front"):
        program.run(np.ones((5, 3)), **options)


def test_a_decorator_beneath_batch_is_refused() -> None:
    def double(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(x):
            return 2 * function(x)

        return wrapped

    @batch
    @double
    def program(x):
        return x + 1

    with pytest.raises(CompileError, match="below that decorator"):
        program.run(np.ones(2), backend="numpy")


def test_an_integer_literal_that_does_not_fit_is_refused() -> None:
    @batch
    def program(x):
        b = 1099511627776
        return x + b

    with pytest.raises(autobatch.TypeConflictError, match="1099511627776 meets int32"):
        program.run(np.array([1], "int32"), mode="eager")
    assert program.run(np.array([1]), mode="eager") == 1099511627777


@pytest.mark.parametrize("depth", [0, -1])
def test_stack_depths_below_one_are_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        countdown.run(np.array([1]), backend="numpy", max_stack_depth=depth)


def test_a_batched_function_called_by_a_plain_helper_is_refused() -> None:
    def helper(n):
        return countdown(n) + 1

    @batch
    def program(n):
        return helper(n)

    with pytest.raises(CompileError, match="decorate the helper that calls it with @batch"):
        program.run(np.array([1]), backend="numpy")


def test_an_integer_operand_that_does_not_fit_is_refused() -> None:
    @batch
    def program(n):
        return n + 3000000000

    with pytest.raises(autobatch.TypeConflictError, match="3000000000 does not fit int32"):
        program.run(np.array([1], "int32"))
    np.testing.assert_array_equal(program.run(np.array([1])), [3000000001])


def test_a_range_with_step_zero_is_refused() -> None:
    @batch
    def program(n):
        total = 0
        for i in range(0, n, 0):
            total += i
        return total

    with pytest.raises(UnsupportedSyntaxError, match="step 0"):
        program.run(np.array([1]), backend="numpy")


@pytest.mark.parametrize("way", [NUMPY, EAGER], ids=["numpy", "tensorflow"])
def test_a_range_with_a_step_of_zero_stops_the_lane(way: dict[str, str]) -> None:
    @batch
    def rounds(step):
        total = 0
        for _ in range(0, 6, step):
            total += 1
        return total

    np.testing.assert_array_equal(rounds.run(n, **way), [6, 3, 2])
    with pytest.raises(LaneAssertionError, match=r"(?s)range\(0, 6, step\).*lane 1: range\(\) with a step of 0"):
        rounds.run(np.array([2, 0, 1]), **way)


@pytest.mark.parametrize("way", [NUMPY, EAGER], ids=["numpy", "tensorflow"])
def test_a_list_is_not_repeated_by_a_lanes_number(way: dict[str, str]) -> None:
    @batch
    def padded(k):
        return len([0] * k + [k])

    with pytest.raises(CompileError, match="list times a lane's number has no length at compile time"):
        padded.run(n, **way)


def test_random_numbers_that_belong_to_no_lane_are_refused() -> None:
    generator = np.random.default_rng(0)

    @batch
    def legacy(x):
        return x + np.random.normal()  # noqa: NPY002

    @batch
    def modern(x):
        return x + generator.normal()

    @batch
    def pythons(x):
        return x + random.random()

    for function in (legacy, modern, pythons):
        with pytest.raises(UnsupportedSyntaxError, match=r"(?s)do not belong to a lane.*autobatch\.random"):
            function.run(np.ones(2), **NUMPY)


def test_a_stack_depth_that_is_no_number() -> None:
    for depth in ("3", True):
        with pytest.raises(ValueError, match=f"must be at least 1, or None to let stacks grow; found {depth!r}"):
            countdown.run(n, max_stack_depth=depth, **NUMPY)
