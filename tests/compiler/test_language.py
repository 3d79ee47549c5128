"""Features of the language, each against plain Python on NumPy's and TensorFlow's executors."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from array_libraries import HAS_JAX
from from_source import load, marked_line
from programs import BY_NAME

from batchnuts.autobatch import CompileError, LaneAssertionError, UnsupportedSyntaxError, batch, ops, write
from batchnuts.autobatch.language.pytree import flatten

WAYS: tuple[dict[str, Any], ...] = (
    {"backend": "numpy"},
    {"backend": "numpy", "executor": "stackless"},
    {"backend": "tensorflow", "mode": "eager"},
)


def agrees(program: Any, *inputs: Any, ways: tuple[dict[str, Any], ...] = WAYS) -> None:
    """Values and dtypes of every executor are those of plain Python."""
    expected, tree = flatten(program.run(*inputs, executor="unbatched"))
    for way in ways:
        found, found_tree = flatten(program.run(*inputs, **way))
        assert found_tree == tree
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype, way
            np.testing.assert_allclose(a, b, rtol=1e-12, err_msg=str(way))


N = np.array([-7, 0, 3, 12])
D = np.array([2, -3, 5, -4])
X = np.array([0.5, -1.5, 2.25, 7.0])


# ---- promotion ------------------------------------------------------------------------------------------------------


def test_dtypes_meet_on_every_backend() -> None:
    @batch
    def program(n, m, x, y):
        a = n * 0.5
        b = n + m
        c = n / m
        e = x + y
        f = n // m, n % m, x // y, x % y
        g = n < x, m == n, n >= 2.5
        h = x - n, 1 / m, 2 ** (m * m)
        return a, b, c, e, f, g, h

    agrees(program, N, D.astype("int32"), X, np.array([2.0, -0.5, 0.25, 3.0], "float32"))


def test_augmented_assignment_of_every_operator() -> None:
    @batch
    def program(n, d, x, v):
        n += d
        n -= 1
        n *= 3
        n //= d
        n %= 11
        n **= 2
        n <<= 2
        n >>= 1
        n |= 8
        n &= 29
        n ^= 3
        x /= d
        x **= 2
        v @= v
        return n, x, v

    agrees(program, N, D, X, np.arange(16.0).reshape(4, 2, 2))


def test_unary_and_bit_operators() -> None:
    @batch
    def program(n, flag):
        both = flag & (n > 1)
        return -n, +n, ~n, ~flag, not flag, both | (n < 0), flag ^ both, n & 6, n | True, n ^ 5, n << 3, n >> 1

    agrees(program, N, np.array([True, False, True, False]))


def test_integers_wrap_as_numpys_do() -> None:
    @batch
    def program(n):
        return n * n, n + n, -n, n * 3

    n = np.array([2**31 - 1, -(2**31), 70000], "int32")
    with np.errstate(all="ignore"):
        expected = (n * n, n + n, -n, n * np.int32(3))
    for way in (*WAYS, {"mode": "xla"}):
        for found, wanted in zip(program.run(n, **way), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


# ---- conditions and builtins ----------------------------------------------------------------------------------------


def test_conditions_and_conditional_expressions() -> None:
    @batch
    def program(n, d, x):
        a = n and d
        b = n or d or 5
        c = not (n > 0 and d > 0)
        e = -3 < n <= 3 != d
        f = (n if d > 0 else d if n > 0 else 0) + (1 if not n else 2)
        g = 1.0 if x > 0.0 and (n > 0 or d > 3) else x
        n, d = d, n
        n = n
        n, d = d + 1, n if n > d else d
        return a, b, c, e, f, g, n, d, n in (0, d), x not in TABLE, 3 in [k * 3 for k in range(2)]

    agrees(program, N, D, X)


def test_builtins() -> None:
    @batch
    def program(n, d, x, v):
        return (
            (min(n, d), max(n, d, 1), min(v), max(v), abs(n), abs(x)),
            (round(x), round(x, 1), int(x), float(n), bool(n), len(v)),
            (sum(v), sum([n, d]), sum([v[k] * k for k in range(3)], start=x)),
            (any([n > 0, d > 0]), all([n > 0, d > 0]), any(v > 1.0)),
            (divmod(n, d), pow(n, 2), pow(x, 2.0)),
            ([not k for k in range(2)], sum(1 for k in range(5) if 0 < k < 3) + n),
        )

    agrees(program, N, D, X, np.arange(12.0).reshape(4, 3))


TABLE = np.array([0.5, 7.0])

# ---- structures -----------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    q: Any
    p: Any

    def energy(self) -> Any:
        return ops.sum(self.q * self.q)


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any = 0

    @property
    def total(self) -> Any:
        return self.left + self.right


def test_structures() -> None:
    @batch
    def program(v, n):
        point = Point(v, n)
        pair = Pair(n)
        for i in range(n):
            point = point._replace(p=point.p + i)
            pair = replace(pair, right=pair.total + i)
            pair = Pair(pair.right, right=pair.left)
        (a, (b, c)), e = (n, (point.q[0], pair)), {"x": point, "y": [n, (n, n)]}
        return point, pair, a, b, c.left, e, point.energy(), pair.total

    agrees(program, np.arange(8.0).reshape(4, 2), np.array([0, 1, 4, 2]))


# ---- names from around the function ---------------------------------------------------------------------------------


def test_structures_are_compared_by_their_elements() -> None:
    on_jax = ({"backend": "jax", "mode": "eager"},) if HAS_JAX else ()
    case = BY_NAME["compares_structures"]
    agrees(case.function, *case.inputs, ways=(*WAYS, *on_jax))


def factory(offset: int) -> Any:
    """Siblings that call each other and names assigned after them."""

    @batch
    def even(n):
        return offset if n == 0 else odd(n - 1) + scaled(n)

    @batch
    def odd(n):
        return -offset if n == 0 else even(n - 1) * helper(n)

    scaled = lambda k: k * table[1]  # noqa: E731

    def helper(k):
        return k + last

    table = np.array([1, 2, 3])
    last = 3
    return even


def test_nested_functions_close_over_the_enclosing_scope() -> None:
    agrees(factory(10), np.array([0, 1, 2, 5]))
    agrees(factory(20), np.array([0, 1, 2, 5]))


def test_a_recursive_function_inside_a_function() -> None:
    base = 2

    @batch
    def tower(n, *, power=base):
        if n <= 0:
            return power
        return tower(n - 1, power=power + base) + 1

    agrees(tower, np.array([0, 1, 4]))


class Model:
    """A plain object whose methods are primitives."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.rows = np.eye(2)

    def log_density(self, q: Any) -> Any:
        return -0.5 * ops.sum(ops.square(ops.matmul(self.rows, q))) * self.scale

    @classmethod
    def half(cls, x: Any) -> Any:
        return x * 0.5

    @staticmethod
    def twice(x: Any) -> Any:
        return x * 2.0

    def __call__(self, x: Any) -> Any:
        return x + self.scale


def test_methods_and_partial_functions_are_primitives() -> None:
    model = Model(3.0)
    bound = model.log_density
    at_least_one = functools.partial(ops.maximum, 1.0)
    weighted = functools.partial(lambda x, weight: x * weight, weight=2.0)

    @batch
    def program(q, n):
        total = model.log_density(q) + bound(q)
        for _ in range(n):
            total = model(model.half(total)) + Model.twice(total) + at_least_one(total) + weighted(total)
        return total

    agrees(program, np.arange(8.0).reshape(4, 2), np.array([0, 1, 2, 3]))


def test_a_partial_batched_function_is_called() -> None:
    inner = factory(1)
    bound = functools.partial(inner, 3)

    @batch
    def program(n):
        return bound() + n

    agrees(program, N)


def test_a_partial_of_values_of_the_lane_names_the_lambda() -> None:
    @batch
    def program(n):
        h = functools.partial(stores_and_returns, np.zeros(2) + n)
        return h(0)

    with pytest.raises(UnsupportedSyntaxError, match=r"holds values of the lane, .* h = lambda y: f\(x, y\)"):
        program.run(N, backend="numpy")


@pytest.mark.parametrize(
    ("unpack", "message"),
    [
        ("a, b, *c = (n,)", "cannot unpack 1 values into 2 names and a starred one"),
        ("a, (b, *c, d) = n, (n,)", "cannot unpack 1 values into 2 names and a starred one"),
        ("a, b = map(abs, (n,))", "cannot unpack 1 values into 2 names"),
    ],
)
def test_values_that_are_too_few_are_counted(unpack: str, message: str, tmp_path: Path) -> None:
    module = load(tmp_path, f"@batch\ndef f(n):\n    {unpack}  # error\n    return a\n")
    with pytest.raises(CompileError, match=message) as caught:
        module.f.run(N, backend="numpy")
    assert str(caught.value).startswith(f"{module.__file__}:{marked_line(module)}:")


def test_a_parameter_that_is_none_and_assigned_needs_another_name() -> None:
    @batch
    def scaled(n, by=None):
        if by is None:
            by = 2
        return n * by

    @batch
    def program(n):
        return scaled(n)

    with pytest.raises(UnsupportedSyntaxError, match=r"'by' that is given None .* value = 0.0 if by is None else by"):
        program.run(N, backend="numpy")


# ---- assignment makes new values ------------------------------------------------------------------------------------


@batch
def changed_by_callee(x, *, by=1.0):
    x[0] = by
    x += by
    return x


def make_aliases(offset: Any) -> Any:
    """Names and structures of an array that is then changed in each way there is."""

    @batch
    def aliases(x, i, more=2.0):
        y = x
        pair = (x, {"x": x})
        x[i] = more
        z = x
        x[-1] += offset[0]
        called = changed_by_callee(x, by=more)

        def inside(v):
            v[0] = 9.0
            v *= 2.0
            return v

        held = inside(x)
        x **= 2.0
        x[0], x[1] = x[1], x[0]
        return y, pair, z, x, called, held

    return aliases


def test_no_other_name_sees_an_assignment() -> None:
    aliases = make_aliases(np.array([0.5]))
    x, i = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0, -1])
    given = x.copy()
    agrees(aliases, x, i, ways=(*WAYS, {"mode": "xla"}, {"executor": "reference"}))
    for executor in ("unbatched", "virtual_machine"):
        y, pair, z, changed, called, held = aliases.run(x, i, executor=executor, backend="numpy")
        np.testing.assert_array_equal(y, given)
        np.testing.assert_array_equal(pair[1]["x"], given)
        assert z.tolist() == [[2.0, 2.0], [3.0, 2.0]]
        assert changed.tolist() == [[6.25, 4.0], [6.25, 9.0]]
        assert called.tolist() == [[4.0, 4.5], [4.0, 4.5]]
        assert held.tolist() == [[18.0, 5.0], [18.0, 5.0]]
    np.testing.assert_array_equal(x, given)


def test_the_plain_function_leaves_its_arguments_alone() -> None:
    offset = np.array([0.5])
    aliases = make_aliases(offset)
    x = np.array([1.0, 2.0])
    y, _, z, *_ = aliases.function(x, 0, more=5.0)
    assert x.tolist() == y.tolist() == [1.0, 2.0]
    assert z.tolist() == [5.0, 2.0]
    offset[0] = 10.0  # a closure's variables are read when it runs
    assert aliases.function(x, 0)[3].tolist() == [144.0, 4.0]
    assert aliases.function.__name__ == "aliases"


def test_the_plain_function_is_the_users_own_where_nothing_changes_in_place() -> None:
    assert make_aliases(1).plain_function is not make_aliases(1).python_function
    program = factory(1)
    assert program.plain_function is program.python_function


def test_what_cannot_be_assigned_is_refused_by_plain_python_too() -> None:
    table = np.zeros(2)

    @batch
    def program(n):
        table[0] = n
        return n

    for options in ({"executor": "unbatched"}, {"backend": "numpy"}):
        with pytest.raises(UnsupportedSyntaxError, match="copy it into one first: x = table"):
            program.run(N, **options)
    assert table.tolist() == [0.0, 0.0]


def test_a_plain_function_that_was_read_again_fails_at_its_own_line() -> None:
    @batch
    def program(x):
        x[0] += 1.0
        assert x[0] < 3.0, "too large"
        return x

    with pytest.raises(LaneAssertionError, match=r'assert x\[0\] < 3.0, "too large"') as caught:
        program.run(np.array([[1.0], [2.0]]), executor="unbatched")
    assert "test_language.py" in str(caught.value)
    assert "lane 1" in str(caught.value)


def test_an_element_outside_the_array_is_an_error_in_all_ways() -> None:
    @batch
    def program(x, i):
        x[i] = 1.0
        return x

    for i in (2, -3):
        for way in (*WAYS, {"mode": "xla"}, {"executor": "reference"}):
            with pytest.raises(LaneAssertionError, match=r"(?s)x\[i\] = 1.0.*lane 1: wrote outside of 'x'"):
                program.run(np.zeros((2, 2)), np.array([1, i]), **way)
        with pytest.raises(ValueError, match="outside the buffer's 2 rows"):
            program.function(np.zeros(2), i)


@batch
def stores_and_returns(x, i):
    x[i] = 1.0
    return i


@batch
def in_a_branch(x, i):
    if i > 1:
        x[i] = 1.0
    else:
        x[i] = 2.0
    return i


@batch
def overwritten(x, i):
    x[i] = 1.0
    x = np.ones(2)
    return x


@batch
def another_name(x, i):
    y = x
    y[i] = 1.0
    return x


@batch
def of_a_row(x, i):
    y = np.zeros((2, 2))
    y[1, i] = x[0]
    return x


@batch
def of_a_part(x, i):
    first, second = (x, x + 1.0)
    first[i] = 1.0
    return second


@batch
def by_write(x, i):
    y = write(x, i, 1.0)  # noqa: F841
    return x


@batch
def in_a_called_one(x, i):
    return stores_and_returns(x, i) + 1


@batch
def in_a_recursion(x, i):
    x[i] = 1.0
    return i if i % 2 == 0 else in_a_recursion(x, i - 1)


UNREAD = (
    stores_and_returns,
    in_a_branch,
    overwritten,
    another_name,
    of_a_row,
    of_a_part,
    by_write,
    in_a_called_one,
    in_a_recursion,
)


@pytest.mark.parametrize("program", UNREAD, ids=lambda program: program.__name__)
def test_a_store_outside_of_an_array_that_is_not_read_is_an_error(program: Any) -> None:
    x, inside, outside = np.zeros((2, 2)), np.array([1, 0]), np.array([0, 2])
    agrees(program, x, inside)
    with pytest.raises(ValueError, match="outside the buffer's 2 rows"):
        program.function(x[0], 2)
    for way in (*WAYS, {"executor": "reference"}):
        with pytest.raises(LaneAssertionError, match=r"lane 1: wrote outside of.* \(1 of 2 lanes in all\)"):
            program.run(x, outside, **way)
    if program is not in_a_recursion:  # the store itself is gone
        assert " = write " not in program.dump("float64[2]", "int64", after="tail_calls", backend="numpy")


def test_plain_python_names_the_index_that_is_written() -> None:
    for program in (stores_and_returns, of_a_row):
        with pytest.raises(ValueError, match="index -4 is outside the buffer's 2 rows"):
            program.function(np.zeros(2), -4)


# ---- loops that types decide ----------------------------------------------------------------------------------------


def test_a_loop_takes_the_length_that_its_types_have() -> None:
    """One program, of lengths zero to three, of alike and of different elements."""

    @batch
    def program(x, values):
        last = x * 0.0
        for i, value in enumerate(values):
            last = ops.sum(value) + i * x
        return last

    numpy, _, eager = WAYS
    for count in range(4):
        agrees(program, X, np.ones((4, count)), ways=(numpy,))
        agrees(program, X, (X,) * count, ways=(numpy,))
        agrees(program, X, tuple(np.ones((4, k + 1)) for k in range(count)), ways=(numpy,))
    for values in (np.ones((4, 0)), (), (X, np.ones((4, 2)))):
        agrees(program, X, values, ways=(eager,))


def test_what_a_loop_runs_over_is_the_value_at_its_beginning() -> None:
    @batch
    def program(v):
        for i, x in enumerate(v):
            v[1] = x + i
            v = v * 2.0
        return v, x

    agrees(program, np.arange(8.0).reshape(4, 2))


@batch
def comprehensions_over_arrays(v, n):
    kept = [v[k] for k in range(len(v)) if k != 1]
    pairs = sum([a * k for k, a in enumerate(v, 1)]) + sum(a * b for a, b in zip(v, reversed(v)))
    third = list(v)[2]
    known = sum(1 if k > 1 else 2 for k in (1, 2, 3)) + len(f"{len(v)}") + hash(3) + len({len(v): 1})
    return kept, pairs, max(a for a in v), third, [*v, n][2], sum(map(lambda a: a * n, v)), known  # noqa: C417


@pytest.mark.parametrize("way", [{"backend": "numpy"}, {"mode": "eager"}], ids=["numpy", "eager"])
def test_comprehensions_iterate_over_arrays(way: dict[str, Any]) -> None:
    v, n = np.array([[1.0, 2.0, 4.0], [0.5, -1.0, 3.0]]), np.array([2.0, 3.0])
    found = flatten(comprehensions_over_arrays.run(v, n, **way))[0]
    wanted = [flatten(comprehensions_over_arrays.function(*lane))[0] for lane in zip(v, n)]
    for part, *lanes in zip(found, *wanted, strict=True):
        np.testing.assert_array_equal(part, lanes)
