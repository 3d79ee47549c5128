"""Python's numbers that meet narrower dtypes: each fits, or is refused at its line, or stops its lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchnuts import autobatch
from batchnuts.autobatch import LaneAssertionError, TypeConflictError, ops, write

BYTES, SHORT, ROW = np.zeros(2, np.uint8), np.array([1, 2], np.int16), np.array([0.5, 2.0], np.float32)

every_way = pytest.mark.parametrize(
    "way", [{"backend": "numpy"}, {"backend": "tensorflow", "mode": "eager"}], ids=["numpy", "eager"]
)


@autobatch.batch
def computed(n, rounds):
    count = 0
    while count < rounds:
        count = count + 100
    return write(BYTES, 0, count)


@autobatch.batch
def as_operand(n, rounds):
    count = 0
    while count < rounds:
        count += 100
    return n + count


@autobatch.batch
def one_or(n):
    return n


@autobatch.batch
def as_argument(n, rounds):
    count = 0
    while count < rounds:
        count += 100
    return one_or(n), one_or(count)


@autobatch.batch
def assigned(n, rounds):
    pair = (n, 0)
    for i in range(rounds + 1):
        pair = (i, n)
    return pair


@every_way
@pytest.mark.parametrize("function", [computed, as_operand, as_argument, assigned], ids=lambda f: f.__name__)
def test_a_computed_number_that_does_not_fit_stops_its_lane(
    function: autobatch.BatchedFunction, way: dict[str, Any]
) -> None:
    n, rounds = np.array([1, 2], np.uint8), np.array([7, 200])
    found = function.run(n, rounds, **way)
    wanted = [function.function(*lane) for lane in zip(n, rounds)]
    for part, *lanes in zip(found, *wanted) if isinstance(found, tuple) else [(found, *wanted)]:
        assert part.dtype == np.uint8
        np.testing.assert_array_equal(part, lanes)
    with pytest.raises(LaneAssertionError, match=r"lane 1: the integer `.*` does not fit uint8, which holds 0 to 255"):
        function.run(n, np.array([7, 300]), **way)


@autobatch.batch
def in_a_pair(n):
    pair = (0, 300)
    if n > 0:
        pair = (n, n)
    return pair


@autobatch.batch
def returned(n):
    return n if n > 0 else 300


@autobatch.batch
def calls(n):
    return one_or(n), one_or(-1)


@autobatch.batch
def added(n):
    return n + 300


@autobatch.batch
def too_large_a_float(x):
    return x * 1e39


REFUSED = [
    (in_a_pair, "uint8"),
    (returned, "uint8"),
    (calls, "uint8"),
    (added, "uint8"),
    (too_large_a_float, "float32"),
]


@every_way
@pytest.mark.parametrize(("function", "dtype"), REFUSED, ids=lambda v: getattr(v, "__name__", v))
def test_a_known_number_that_does_not_fit_is_refused(
    function: autobatch.BatchedFunction, dtype: str, way: dict[str, Any]
) -> None:
    with pytest.raises(TypeConflictError, match=r"(300|-1|1e\+39)") as caught:
        function.run(np.array([1, 2], dtype), **way)
    assert __file__ in str(caught.value)


@autobatch.batch
def written(value):
    return write(BYTES, 0, value)


@every_way
@pytest.mark.parametrize("dtype", ["float64", "int64", "int8", "uint16", "bool"])
def test_a_buffer_takes_no_other_dtype(dtype: str, way: dict[str, Any]) -> None:
    with pytest.raises(TypeConflictError, match=rf"is uint8\[\] and cannot hold {dtype}\[\]"):
        written.run(np.array([1, 0], dtype), **way)


@autobatch.batch
def compared(n):
    return n < 300, 300 > n, n == -1, n in (1, 300), n >= -5, n != 2**70, -(2**70) > n  # noqa: SIM300


@autobatch.batch
def with_lists(v, x):
    return v + [0.5, x], [1, x] * v, v < [2.0, x], ROW + [x, 1]  # noqa: RUF005


@autobatch.batch
def with_constants(u):
    return (SHORT - u) * 1000, -u, SHORT[0] + 1000


@every_way
def test_what_numpy_allows_is_allowed(way: dict[str, Any]) -> None:
    for function, lanes in (
        (compared, (np.array([0, 1, 255], np.uint8),)),
        (compared, (np.array([-128, -5, 127], np.int8),)),
        (with_lists, (np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0.25, 8.0]))),
        (with_constants, (np.array([1, 2, 30], np.int16),)),
    ):
        wanted = [function.function(*lane) for lane in zip(*lanes)]
        for found, *expected in zip(function.run(*lanes, **way), *wanted):
            np.testing.assert_array_equal(found, np.array(expected))


@autobatch.batch
def no_narrowing(n, x):
    total = 0
    for i in range(n):
        total += i * 2
        x = x * i + 1 - len(SHORT)
    return total, x, ops.where(x > 3, x, 0)


def test_where_nothing_is_narrowed_nothing_is_checked() -> None:
    for n, x in (("int64", "int64"), ("int8", "float32"), ("int32", "int64")):
        assert "assert" not in no_narrowing.dump(n, x, after="infer_types", backend="numpy")


@autobatch.batch
def of_parts(x, rounds):
    total, cell, small = x[0], ops.zeros_like(x), x[0]
    for i in range(rounds):
        total = x[i % 2] + i * 50
        cell[0] += i * 50
        small = x[1] + (i - 5) * 100 // 100 + max(i * 300, 0) // 300 + 5
    return total, cell, small


@autobatch.batch
def in_tests(x, rounds):
    tests, rest, whole = 0, 0, 0
    for i in range(rounds):
        if x + i < 100:
            tests += 1
        rest = (x + i) % 7 - 3
        whole = int(x + i)
    return tests, int(rest), whole


@every_way
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint64", "float32"])
def test_pythons_numbers_are_computed_before_they_meet_arrays(dtype: str, way: dict[str, Any]) -> None:
    """Within one expression too: i * 50 is 300, not 44, where it is added to an array of uint8."""
    x = np.array([[1, 2], [3, 250]], dtype)
    wide, rounds = dtype != "uint8", np.array([3, 6])
    if dtype[0] == "u":  # of which (i - 5) * 100 // 100 is below zero
        with pytest.raises(LaneAssertionError, match=r"does not fit uint"):
            of_parts.run(x, rounds, **way)
    else:
        found = of_parts.run(x, np.array([3, 12]), **way)
        for part, *wanted in zip(found, *(of_parts.function(*lane) for lane in zip(x, np.array([3, 12])))):
            np.testing.assert_array_equal(part, np.array(wanted))
    with np.errstate(all="ignore"):
        lanes = [in_tests.function(*lane) for lane in zip(x[:, 1], rounds + 5)]
    found = in_tests.run(x[:, 1], rounds + 5, **way)
    assert [part.tolist() for part in found] == [list(part) for part in zip(*lanes)]
    assert wide or lanes[1][2] == 4  # 250 + 10 wraps


@autobatch.batch
def one_product(x, rounds):
    total = x
    for i in range(rounds):
        total = x + i * 50
    return total


@every_way
def test_a_product_of_pythons_numbers_that_does_not_fit_stops_its_lane(way: dict[str, Any]) -> None:
    x = np.array([1, 2], np.uint8)
    assert one_product.run(x, np.array([1, 6]), **way).tolist() == [1, 252]
    with pytest.raises(LaneAssertionError, match=r"lane 1: the integer `i \* 50` does not fit uint8"):
        one_product.run(x, np.array([1, 7]), **way)


@autobatch.batch
def of_large(x, start):
    total = x
    for i in range(start, start + 2):
        total = x * (i - 16777216)
    return total


@every_way
def test_large_numbers_cancel_before_they_are_rounded(way: dict[str, Any]) -> None:
    x, start = np.array([1.0, 3.0], np.float32), np.array([16777216, 16777220])
    assert of_large.run(x, start, **way).tolist() == [1.0, 15.0]


# ---- variables that are Python's integers on some lanes -------------------------------------------------------------


@autobatch.batch
def twice(k):
    return k + k


@autobatch.batch
def of_one_expression(n):
    k = 100
    if n > 1:
        k = n
    return k + k


@autobatch.batch
def of_a_part(n):
    k = 100
    if n > 1:
        k = n
    return (k + k) // 2 + n


@autobatch.batch
def of_a_condition(n):
    k = 100
    if n > 1:
        k = n
    return n if k + k > 150 else n + n


@autobatch.batch
def of_an_assignment(n):
    k = 100
    if n > 1:
        k = n
    k += k
    return k // 4


@autobatch.batch
def of_a_structure(n):
    pair = (100, 1)
    if n > 1:
        pair = (n, 2)
    return pair[0] * 2 - 5


@autobatch.batch
def of_a_count(n):
    count = 0
    for _ in range(50):
        count = count + 3
        if n > 1:
            count = n
    return count


@autobatch.batch
def of_a_parameter(n):
    return twice(n) if n > 1 else twice(100)


@autobatch.batch
def of_a_result(n):
    k = number_or(n)
    return -k - k


@autobatch.batch
def number_or(n):
    if n > 1:
        return n
    return 100


MIXED = [
    of_one_expression,
    of_a_part,
    of_a_condition,
    of_an_assignment,
    of_a_structure,
    of_a_count,
    of_a_parameter,
    of_a_result,
]


@every_way
@pytest.mark.parametrize("function", MIXED, ids=lambda f: f.__name__)
def test_a_variable_that_may_be_pythons_integer_never_wraps_where_python_does_not(
    function: autobatch.BatchedFunction, way: dict[str, Any]
) -> None:
    """Wider, or with lanes on which nothing wraps, the results are Python's; the others stop, at their line."""
    small = np.array([5, 7], np.int8)
    np.testing.assert_array_equal(function.run(small, **way), [function.function(n) for n in small])
    wide = np.array([5, 0], np.int16)
    np.testing.assert_array_equal(function.run(wide, **way), [function.function(n) for n in wide])
    with pytest.raises(LaneAssertionError, match=r"(?s)test_narrowing.*lane 1: .* wraps in int8, .*numpy.int8\(...\)"):
        function.run(np.array([5, 0], np.int8), **way)


def test_nothing_is_checked_where_no_variable_is_pythons() -> None:
    @autobatch.batch
    def hashed(n):
        h = 7
        h = n
        for _ in range(3):
            h = h * 31 + n
        return h

    @autobatch.batch
    def known(n):
        k = 3
        if n > 1:
            k = n
        return k + k

    values = np.array([100, -7], np.int8)
    with np.errstate(all="ignore"):
        expected = [hashed.function(n) for n in values]
    np.testing.assert_array_equal(hashed.run(values, backend="numpy"), expected)
    for function in (hashed, known):
        assert "assert" not in function.dump("int8", after="infer_types", backend="numpy")
