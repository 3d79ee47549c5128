"""What people ran into when they first used the language: wrong without a word, or an unclear error."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch import CompileError, LaneAssertionError, UnsupportedSyntaxError, batch

NUMPY = {"backend": "numpy"}
EAGER = {"mode": "eager"}
n = np.array([1, 2, 3])


def at_least_two(x):
    if x > 1:
        return x
    return 0 * x


def bigger(a, b):
    return a if a > b else b


@batch
def by_a_function(x):
    return at_least_two(x)


@batch
def one_of_two(a, b):
    return bigger(a, b)


@batch
def by_a_lambda(a, b):
    return (lambda: a if a > b else b)()


@batch
def greatest_pair(a):
    return max((a, 1), (2, 0))


@pytest.mark.parametrize(
    ("function", "lanes"),
    [
        (by_a_function, (n,)),
        (one_of_two, (n, np.array([2, 2, 2]))),
        (one_of_two, (np.array([2, 2, 2]), n)),
        (by_a_lambda, (n, np.array([2, 2, 2]))),
        (greatest_pair, (n,)),
    ],
)
@pytest.mark.parametrize("executor", ["virtual_machine", "stackless", "reference"])
def test_functions_may_choose_between_their_arguments_on_numpy(function: Any, lanes: Any, executor: str) -> None:
    """Which argument comes back depends on its value: that is no copy."""
    found = function.run(*lanes, executor=executor, **NUMPY)
    np.testing.assert_array_equal(found, function.run(*lanes, executor="unbatched"))


@pytest.mark.parametrize("way", [NUMPY, EAGER], ids=["numpy", "tensorflow"])
def test_a_list_is_not_repeated_by_a_lanes_number(way: dict[str, str]) -> None:
    @batch
    def padded(k):
        return len([0] * k + [k])

    with pytest.raises(CompileError, match="list times a lane's number has no length at compile time"):
        padded.run(n, **way)


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
    with pytest.raises(ValueError, match="max_stack_depth must be at least 1, or None to let stacks grow; found '3'"):
        by_a_function.run(n, max_stack_depth="3", **NUMPY)
