"""`assert` per lane, and the checks that the language makes by itself: never a wrong number, on any executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from from_source import load, marked_line

from batchnuts import autobatch
from batchnuts.autobatch import LaneAssertionError, batch, ops

EXECUTORS: dict[str, dict[str, Any]] = {
    "numpy": {"backend": "numpy"},
    "numpy-stackless": {"backend": "numpy", "executor": "stackless"},
    "eager": {"backend": "tensorflow", "mode": "eager"},
    "graph": {"mode": "graph"},
    "xla": {"backend": "tensorflow", "mode": "xla"},
    "eager-stackless": {"executor": "stackless"},
}
every_executor = pytest.mark.parametrize("executor", EXECUTORS)

ASSERTION = """
LIMIT = 3

@batch
def f(n):
    x = n
    for i in range(LIMIT):
        assert n >= 0 and 12 // (n + 5) > 0 or n == -7, "n must not be " + "negative"  # error
        x = x + n
    return x
"""


@every_executor
def test_an_assertion_names_line_lane_and_text(executor: str, tmp_path: Path) -> None:
    module = load(tmp_path, ASSERTION)
    np.testing.assert_array_equal(module.f.run(np.array([0, 4, -7]), **EXECUTORS[executor]), [0, 16, -28])
    with pytest.raises(LaneAssertionError) as caught:
        module.f.run(np.array([0, 4, -2, -3]), **EXECUTORS[executor])
    text = str(caught.value)
    assert text.startswith(f"{module.__file__}:{marked_line(module)}:9\n")
    assert "lane 2: assertion failed: n >= 0 and 12 // (n + 5) > 0 or n == -7 (n must not be negative)" in text
    assert "(2 of 4 lanes in all)" in text


def test_an_assertion_in_plain_python(tmp_path: Path) -> None:
    module = load(tmp_path, ASSERTION)
    with pytest.raises(LaneAssertionError, match=r"lane 2: assertion failed \(n must not be negative\)") as caught:
        module.f.run(np.array([0, 4, -2, -3]), executor="unbatched")
    assert str(caught.value).startswith(f"{module.__file__}:{marked_line(module)}:")
    assert isinstance(caught.value.__cause__, AssertionError)
    with pytest.raises(AssertionError, match="n must not be negative"):
        module.f.function(-2)


def test_assertions_that_are_constant() -> None:
    @batch
    def program(n):
        assert len(TABLE) == 3
        if n > 2:
            assert LOUD, "only where it is reached"
        return n

    assert len(asserts(program, "int64")) == 1
    np.testing.assert_array_equal(program.run(np.array([1, 2]), backend="numpy"), [1, 2])
    with pytest.raises(LaneAssertionError, match=r"lane 1: .*LOUD \(only where it is reached\)"):
        program.run(np.array([1, 3]), backend="numpy")


LOUD = False


def asserts(program: Any, *types: str, after: str = "infer_types", backend: str = "numpy") -> list[str]:
    """The conditions that the program asserts after a pass."""
    lines = program.dump(*types, after=after, backend=backend).splitlines()
    return [line.strip() for line in lines if line.strip().startswith("assert")]


# ---- the language's own checks ---------------------------------------------------------------------------------------

FAULTS = {
    "//": ("n // d", "integer division by zero in `n // d`"),
    "%": ("n % d", "integer division by zero in `n % d`"),
    "divmod": ("divmod(n, d)[0]", r"integer division by zero in `divmod\(n, d\)`"),
    "**": ("n ** (d - 1)", r"an integer to a negative power in `n \*\* \(d - 1\)`"),
    "pow": ("pow(n, d - 1)", r"an integer to a negative power in `pow\(n, d - 1\)`"),
    "<<": ("n << (d - 1)", r"a negative shift in `n << d - 1`"),
    ">>": ("n >> (d - 1)", r"a negative shift in `n >> d - 1`"),
    "x[i]": ("int(TABLE[d - 9])", r"an index out of range in `TABLE\[d - 9\]`"),
    "x[i, j]": ("int(MATRIX[1, d - 3])", r"an index out of range in `MATRIX\[1, d - 3\]`"),
    "in a comprehension": ("sum([n // (d + k) for k in range(2)])", r"integer division by zero in `n // \(d \+ k\)`"),
    "in a lambda": ("(lambda k: n // k)(d)", "integer division by zero in `n // k`"),
    "in a condition": ("(1 if n % d == 1 else 2)", "integer division by zero in `n % d`"),
    "in a bound": ("f_sum(n // d)", "integer division by zero in `n // d`"),
    "augmented": ("augmented(n, d)", "integer division by zero in `a // b`"),
}

HEAD = """
TABLE = np.arange(8)
MATRIX = np.arange(4).reshape(2, 2)

@batch
def f_sum(m):
    total = 0
    for i in range(m):
        total += i
    return total

@batch
def augmented(a, b):
    a //= b
    return a

@batch
def f(n, d, which):
{cases}    return n
"""


IN_ANY_MODE = ("numpy", "numpy-stackless")
ONCE = ("eager", "graph", "xla", "eager-stackless")


@pytest.mark.parametrize(
    ("fault", "executor"),
    [(fault, executor) for fault in FAULTS for executor in IN_ANY_MODE]
    + [
        pytest.param("every", executor, marks=() if executor in ("eager", "xla") else pytest.mark.slow)
        for executor in ONCE
    ],
)
def test_what_has_no_value_is_an_error(fault: str, executor: str, tmp_path: Path) -> None:
    """On NumPy each fault alone; on TensorFlow, whose compilation takes long, the one that `which` picks."""
    faults = FAULTS if fault == "every" else {fault: FAULTS[fault]}
    cases = "".join(f"    if which == {i}:\n        return {e}\n" for i, (e, _) in enumerate(faults.values()))
    module = load(tmp_path, HEAD.format(cases=cases))
    n, d, options = np.array([7, 9, 5]), np.array([3, 2, 4]), EXECUTORS[executor]
    for which, (_, message) in enumerate(faults.values()):
        expected = module.f.run(n, d, which, executor="unbatched")
        np.testing.assert_array_equal(module.f.run(n, d, which, **options), expected)
        with pytest.raises(LaneAssertionError, match=f"lane 1: {message}"):
            module.f.run(n, np.array([3, 0, 4]), which, **options)


@every_executor
def test_short_circuits_guard_as_in_python(executor: str) -> None:
    @batch
    def program(x, n, d):
        a = d != 0 and n // d > 1
        b = n % d if d else -1
        c = 0 < d < n // d
        e = n < 3 and x[n] > 0.0
        total = 0
        while d > 0 and n % d == 0:
            n = n // d
            total += 1
        return a, b, c, e, total

    inputs = (np.ones((4, 3)), np.array([7, 8, 1, 9]), np.array([0, 2, 3, 0]))
    expected = program.run(*inputs, executor="unbatched")
    for found, wanted in zip(program.run(*inputs, **EXECUTORS[executor]), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@every_executor
def test_negative_indices_count_from_the_end(executor: str) -> None:
    @batch
    def program(x, i, j):
        return x[i, j], x[i], x[:, j][i], x[-1], x[i][j]

    inputs = (np.arange(24.0).reshape(4, 2, 3), np.array([0, -1, 1, -2]), np.array([2, -3, -1, 0]))
    expected = program.run(*inputs, executor="unbatched")
    for found, wanted in zip(program.run(*inputs, **EXECUTORS[executor]), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
def test_no_check_where_types_rule_the_fault_out(backend: str) -> None:
    @batch
    def floats(x, y):
        return x // y + x % y + x**y + x / y

    assert asserts(floats, "float64", "float32", backend=backend) == []
    assert len(asserts(floats, "int64", "int64", backend=backend)) == 3
    assert len(asserts(floats, "int64", "int64", after="frontend", backend=backend)) == 3

    @batch
    def constants(x, n):
        return n // DIVISOR + n % 3 + n**2 + (n << 2) + n // len(x), x[0], x[-1], x[::-1], [x[k] for k in range(3)]

    assert asserts(constants, "float64[3]", "int32", backend=backend) == []


DIVISOR = 4


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
def test_a_literal_in_a_variable_is_checked_as_the_array_it_becomes(backend: str) -> None:
    @batch
    def program(n):
        k = 5
        while k > n:
            k = k - 1
        return 10 // k

    np.testing.assert_array_equal(program.run(np.array([1, 2]), backend=backend, mode="eager"), [10, 5])
    with pytest.raises(LaneAssertionError, match="lane 1: integer division by zero in `10 // k`"):
        program.run(np.array([1, 0]), backend=backend, mode="eager")


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("n // 0", "by zero"),
        ("n % ZERO", "by zero"),
        ("n ** -1", "negative power"),
        ("n // len(x[:0])", "integer division by zero in `n // len(x[:0])`, on every lane"),
        ("x[3]", "out of bounds"),
        ("sum([x[k] for k in range(4)])", "an index out of range in `x[k]`, on every lane"),
        ("(1, 2)[n]", "index of a tuple"),
        ("x[:n]", "bounds of a slice"),
    ],
)
def test_what_is_wrong_on_every_lane_is_a_compile_error(
    expression: str, message: str, backend: str, tmp_path: Path
) -> None:
    module = load(tmp_path, f"ZERO = 0\n@batch\ndef f(x, n):\n    return {expression}  # error\n")
    with pytest.raises(autobatch.CompileError) as caught:
        module.f.run(np.zeros((2, 3)), np.array([1, 2]), backend=backend, mode="eager")
    assert message in str(caught.value)
    assert caught.value.source is not None
    assert caught.value.source.line == marked_line(module)


def test_a_check_of_a_number_taken_out_of_an_array_is_still_made() -> None:
    """NumPy's `item` hides from the compiler that a divisor is a lane's value."""

    @batch
    def program(n, d):
        return n // d.item()

    np.testing.assert_array_equal(program.run(np.array([7, 8]), np.array([2, 3]), backend="numpy"), [3, 2])
    with pytest.raises(
        LaneAssertionError, match=r"(?s)test_drop_checks\.py.*integer division by zero in `n // d.item\(\)`"
    ):
        program.run(np.array([7, 8]), np.array([2, 0]), backend="numpy")


def test_an_index_of_every_kind_of_array() -> None:
    @batch
    def program(x, i, flags):
        order = ops.where(flags, 0, 2)
        return TABLE[i], x[order], x[order][i], WORDS[i]

    inputs = (np.arange(6.0).reshape(2, 3), np.array([1, 2], "uint8"), np.array([[True, False, True]] * 2))
    for options in EXECUTORS.values():
        table, rows, row, word = program.run(*inputs, **options)
        assert table.tolist() == [1, 4]
        assert rows.tolist() == [[0.0, 2.0, 0.0], [3.0, 5.0, 3.0]]
        assert row.tolist() == [2.0, 3.0]
        assert word.dtype == "uint32"


TABLE = np.array([3, 1, 4])
WORDS = np.array([3, 1, 4], "uint32")


def test_asserts_are_in_the_text() -> None:
    @batch
    def program(n, d):
        return n // d

    text = program.dump("int64", "int64", after="infer_types", backend="numpy")
    assert "program.return, program._check1 = {n // d} program.n, program.d" in text
    assert "assert program._check1" in text
