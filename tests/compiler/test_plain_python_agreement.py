"""Programs whose results on every executor are those of plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchnuts import autobatch
from batchnuts.autobatch import batch, ops, primitive, write

EXECUTORS: tuple[dict[str, Any], ...] = (
    {"backend": "numpy"},
    {"mode": "eager"},
    {"mode": "xla"},
    {"executor": "stackless"},
    {"executor": "stackless", "backend": "numpy"},
)
n = np.array([1, 2, 3])


def on_every_executor(function: Any, *inputs: Any) -> None:
    """Each executor's result is plain Python's."""
    expected = function.run(*inputs, executor="unbatched")
    for options in EXECUTORS:
        np.testing.assert_array_equal(function.run(*inputs, **options), expected, err_msg=str(options))


@primitive(batched=True)
def row_sum(x):
    return ops.sum(x, axis=1)


def test_a_row_written_after_the_buffer_was_computed_in_the_same_block() -> None:
    @batch
    def program(x, n):
        i = 0
        while i < n:
            x = x + 3.0
            s = row_sum(x)
            x = write(x, 1, s)
            i += 1
        return x

    on_every_executor(program, np.zeros((4, 3)), np.array([0, 1, 2, 3]))


def test_tensorflow_identity_uses_its_input() -> None:
    import tensorflow as tf

    @batch
    def program(x):
        return tf.identity(x)

    for mode in ("eager", "xla"):
        np.testing.assert_array_equal(program.run(np.arange(3.0), mode=mode), np.arange(3.0))


def absolute(x):
    return x if x > 0 else -x


def five_or_half(n):
    return 2 if n > 3 else 0.5


def test_plain_helpers_that_branch_run_lane_by_lane_under_numpy() -> None:
    @batch
    def program(x):
        return absolute(x)

    np.testing.assert_array_equal(program.run(np.array([-3.0, 2.0]), backend="numpy"), [3.0, 2.0])

    @batch
    def mixed(n):
        return five_or_half(n)

    with pytest.raises(autobatch.BatchnutsError, match="type"):
        mixed.run(np.array([5, 1]), backend="numpy")


def test_a_range_over_unsigned_bounds_goes_down_to_zero() -> None:
    @batch
    def program(n):
        total = 0
        for i in range(n - 1, -1, -1):
            total += i
        return total

    n = np.array([3, 4], "uint32")
    for options in EXECUTORS:
        np.testing.assert_array_equal(program.run(n, **options), [3, 6])


DEBUG = False


@batch
def never_called(x):
    return never_called(x) + 1


def test_calls_in_dead_code_do_not_matter() -> None:
    @batch
    def program(x):
        if DEBUG:
            x = never_called(x)
        return x + 1

    on_every_executor(program, np.arange(3))


@batch
def countdown(n):
    if n <= 0:
        return 1
    total = 0
    for _ in range(countdown(n - 1)):
        total += 1
    return total


def test_batched_calls_in_range_are_no_constants() -> None:
    on_every_executor(countdown, np.array([0, 1, 3]))


def test_literals_as_indices_and_in_sums() -> None:
    @batch
    def program(x):
        s = 0.0
        for i in range(3):
            s = s + i * 0.5
            s = s + x[i]
        return s

    on_every_executor(program, np.arange(6.0).reshape(2, 3))


def test_a_target_named_twice_keeps_the_last_value() -> None:
    @batch
    def program(x):
        _, y, _ = x, x + 1, x + 2
        return y + _

    on_every_executor(program, np.arange(3))


def test_a_small_unsigned_index_reaches_a_long_buffer() -> None:
    @batch
    def program(x, i):
        x = write(x, i, 1.0)
        return x

    on_every_executor(program, np.zeros((2, 300)), np.array([0, 255], "uint8"))


def itself_above_one(x):
    if x > 1:
        return x
    return 0 * x


def bigger(a, b):
    return a if a > b else b


@batch
def by_a_function(x):
    return itself_above_one(x)


@batch
def one_of_two(a, b):
    return bigger(a, b)


@batch
def by_a_lambda(a, b):
    return (lambda: a if a > b else b)()


@batch
def largest_pair(a):
    return max((a, 1), (2, 0))


@pytest.mark.parametrize(
    ("function", "lanes"),
    [
        (by_a_function, (n,)),
        (one_of_two, (n, np.array([2, 2, 2]))),
        (one_of_two, (np.array([2, 2, 2]), n)),
        (by_a_lambda, (n, np.array([2, 2, 2]))),
        (largest_pair, (n,)),
    ],
)
@pytest.mark.parametrize("executor", ["virtual_machine", "stackless", "reference"])
def test_functions_may_choose_between_their_arguments_on_numpy(function: Any, lanes: Any, executor: str) -> None:
    """Which argument comes back depends on its value: that is no copy."""
    found = function.run(*lanes, executor=executor, backend="numpy")
    np.testing.assert_array_equal(found, function.run(*lanes, executor="unbatched"))
