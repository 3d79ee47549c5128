"""Features of the language, each against plain Python on NumPy's and TensorFlow's executors."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from batchnuts.autobatch import batch, ops
from batchnuts.autobatch.compiler.tree import flatten

WAYS: tuple[dict[str, Any], ...] = (
    {"backend": "numpy"},
    {"backend": "numpy", "executor": "stackless"},
    {"mode": "eager"},
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


def factory(offset: int) -> Any:
    """Siblings that call each other and names assigned behind them."""

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


def test_a_partial_batched_function_is_refused() -> None:
    inner = factory(1)
    bound = functools.partial(inner, 3)

    @batch
    def program(n):
        return bound() + n

    with pytest.raises(Exception, match="call it directly in a batched function"):
        program.run(N, backend="numpy")
