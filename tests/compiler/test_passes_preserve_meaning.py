"""Passes preserve what a program means; plain Python is the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchnuts import autobatch
from batchnuts.autobatch import batch
from batchnuts.autobatch.prepare import prepare
from batchnuts.autobatch.text.parser import parse

WAYS: list[dict[str, Any]] = [
    *({"schedule": schedule} for schedule in ("earliest", "most_active", "sweep", "drain")),
    {"executor": "stackless"},
    {"executor": "reference"},
]


def assert_same(function: Any, *lanes: Any) -> None:
    with np.errstate(over="ignore"):
        expected = function.run(*lanes, executor="unbatched")
    for way in WAYS:
        np.testing.assert_array_equal(function.run(*lanes, backend="numpy", **way), expected, err_msg=str(way))


# ---- variables that seem to have one value all the way down (`allocate.invariants`) ----------------------------------


@batch
def reset_to_literal(x, n):
    if n == 0:
        return 0
    before = reset_to_literal(x, n - 1)
    both = x + 2 * before  # the caller's x, though the call has set its own to 5
    x = 5
    return both + 3 * reset_to_literal(x, n - 1) + x


def test_a_parameter_set_to_a_literal_has_its_callers_value_before() -> None:
    assert_same(reset_to_literal, np.array([7, 7, -1, 2]), np.arange(4))


@batch
def even_root(n):
    k = 0
    while k * k < n + 7:
        k = k + 2
    return k


@batch
def sum_of_roots(n):
    if n == 0:
        return 0
    here = even_root(n)
    below = sum_of_roots(n - 1)  # `here` is live across it, and comes from a function outside the recursion
    return here + below + even_root(n - 1)


def test_the_result_of_a_function_outside_the_recursion_differs_from_frame_to_frame() -> None:
    assert_same(sum_of_roots, np.array([0, 1, 4, 40]))


# ---- parameters counted down and up again (`invert`) -----------------------------------------------------------------


@batch
def sum_around(a, n):
    if n == 0:
        return a
    left = sum_around(a + 3, n - 1)
    return left + sum_around(a - 1, n - 1) + a


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64", "int8", "int32"])
def test_a_step_is_undone_in_every_integer_dtype(dtype: str) -> None:
    """Unsigned dtypes have no -3 to add, and counting wraps around."""
    assert_same(sum_around, np.array([0, 1, 125], dtype), np.array([3, 0, 4], dtype))


# ---- inputs that a program by hand assigns --------------------------------------------------------------------------

RESET_INPUT = """\
main(main.n) -> main.result
  main.entry:
    main.result = {0}
    main.k = {0}
    goto main.head
  main.head:
    main.result = {result + n} main.result, main.n
    main.k = {k + 1} main.k
    main.more = {k < 3} main.k
    branch main.more main.set main.end
  main.set:
    main.n = {5}
    goto main.head
  main.end:
    return
"""


def test_an_input_that_is_set_to_a_literal_comes_in_with_its_own_value() -> None:
    program = prepare(parse(RESET_INPUT, namespace={}), "int64", backend="numpy", mode="eager")
    for executor in ("stackless", "virtual_machine"):
        (result,) = program.run(np.array([7, 1, -1]), executor=executor)
        np.testing.assert_array_equal(result, [17, 11, 9])


# ---- frames that a tail call's callee still needs (`tail_calls`) -----------------------------------------------------


@batch
def keeps_argument(a, n):
    if n <= 0:
        return a
    if n % 2 == 1:
        _ = keeps_argument(a + 0, n - 1)
        if not a > 1:
            return passes_back(n - 2, a)  # the callee passes on what is in a's frame
    return keeps_argument(a, n - 2)


@batch
def passes_back(n, d):
    if n < 1:
        return d
    return keeps_argument(d, n - 1)


def test_a_frame_that_the_callee_passes_on_is_not_dropped_before_it() -> None:
    assert_same(keeps_argument, np.array([9, -3, 0, -1, -2]), np.array([0, 1, 7, 5, 1]))


@batch
def has_result(d, n, c, b, a):
    if n == 0:
        return d if b < d else b
    y = d + 1
    autobatch.sync(1.0)
    if n % 2 == 0:
        y = (y if not d > d else has_result(2 + d, n - 1, d, b + 0, c)) % 97
        _ = leaves_result(a - 2, c - 3, n - 2)  # nobody reads it, and it lands on top of this function's own
    return y


@batch
def leaves_result(a, c, n):
    if n <= 0:
        return a * 5 % 31
    for _ in range(n):
        a += 1
    return has_result(a, n // 2, c, 0, n - 1)


def test_a_result_that_nobody_reads_does_not_overwrite_the_callers() -> None:
    lanes = [[6, 5, 2, 3, 4], [4, 5, 0, 5, 0], [2, 9, -2, 6, 8], [1, -4, 6, 7, -4], [3, -1, 7, 4, -3]]
    assert_same(has_result, *np.array(lanes))
