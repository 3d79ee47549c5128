"""Closures over arrays and functions, declared primitives, comprehensions, Python's builtins, linear algebra."""

from __future__ import annotations

import math

import numpy as np

from batchnuts.autobatch import batch, ops, primitive
from programs.case import Case, floats, ints

MATRIX = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]])


def plain_helper(x, y):
    """Not batched: called like any traceable function."""
    return ops.exp(-x * x) + y


def make_closure(factor, helper):
    weights = np.linspace(0.0, 1.0, 3)

    # fmt: off
    @batch
    def closure(x, n):
        """Doc of
no indentation."""
        # fmt: on
        total = ops.sum(weights * x) * factor
        while n > 0:
            total = helper(total, MATRIX[1, 2]) + math.pi
            n -= 1
        return total

    return closure


closure = make_closure(0.5, plain_helper)


@primitive(batched=True)
def row_sums(x):
    return ops.sum(x * x, axis=1)


@primitive(batched=True, costly=True)
def costly_step(x, h):
    return x - ops.reshape(h, (-1, 1)) * x, ops.sum(x, axis=1)


@primitive(costly=True)
def costly_one_lane(x):
    return ops.tanh(x)


@batch
def declared_primitives(x, n):
    total = row_sums(x) * 0.0
    while n > 0:
        if n % 3 == 0:
            x = costly_one_lane(x)
        x, s = costly_step(x, 0.25)
        total += s + row_sums(x + 1.0)
        n -= 1
    return x, total


@batch
def costly_after_uneven_work(x, n):
    """Lanes come to the costly primitive after inner loops of different lengths."""
    while n > 0:
        k = n % 3
        while k > 0:
            x = x + 0.25
            k -= 1
        x = costly_one_lane(x)
        n -= 1
    return x


@batch
def static_comprehensions(n, x):
    powers = [x**k for k in range(1, 4)]
    total = sum(powers) + float(sum(k * n for k in range(3)))
    polynomial = lambda_sum(n) if n > 1 else (lambda y: y * y + n)(3)
    stacked = ops.stack([x * c for c in (1.0, 0.5)])
    return total, polynomial, stacked


@batch
def lambda_sum(n):
    return sum(map(lambda k: k + n, range(3)))  # noqa: C417


INDICES = np.array([2, 0])
NAMED = {1: "one", 4: "four"}


@batch
def members(n, x):
    """`in` of ranges, sets and dicts: arithmetic, or a comparison with each element."""
    ranges = (n in range(5), n in range(1, 9, 3), n in range(8, -3, -2), n not in range(len(x)), n in range(0))
    floats_too = (x[0] in range(3), x[0] * 0.5 in range(-1, 4), x[0] in range(0), (n > 2) in range(1, 2))
    return ranges, floats_too, n in {1, 2, 7}, n in NAMED, n in {1: 2}.values(), n in {"a": n}.values()


@batch
def lists_of_indices(x, m):
    """Elements chosen by constant lists, arrays and masks."""
    return (
        x[[0, 2]],
        x[[-1, 0, 0]],
        x[INDICES],
        x[[True, False, True]],
        m[[1, 0]],
        m[:, INDICES],
        m[..., [0]],
        ops.sum(x[[]]),
    )


SCALE = np.float64(2.0)
CLASSES_OF = np.arange(3)


@batch
def classes_of_constants(n):
    """`is`, `isinstance` and `type` of constants and structures are known when the program is compiled."""
    pair = (n, n + 1)
    if isinstance(SCALE, float | np.ndarray) and type(SCALE) is np.float64 and isinstance(pair, (tuple, dict)):
        n = n + 2
    if n is None or isinstance(n, (tuple, dict)) or not isinstance(CLASSES_OF, np.ndarray):
        n = n + 50
    return n + pair[1]


@batch
def chosen_at_compile_time(x, n):
    """Conditions in lambdas, `filter` and `sorted` that do not go by the lane."""
    some = sum(map(lambda k: k if k > 1 else n, range(4))) + sum(filter(lambda k: k > 0, INDICES))  # noqa: C417
    scaled = sum(map(lambda c: (c if c > 1 else 0) * n, INDICES))  # noqa: C417
    return some, scaled, sorted(INDICES)[0] + n, sum([x * k for k in sorted((3, 1))]), list(zip(*[x, x]))[1][0]


@batch
def python_builtins(x, n):
    return (
        min(x, 2.0),
        max(n, 3, 0),
        abs(x),
        int(x),
        float(n),
        bool(n),
        round(x),
        len(MATRIX),
        not n,
        np.zeros(2, dtype=float) + x,
    )


@batch
def linear_algebra(x, i):
    y = MATRIX @ x
    column = MATRIX.T @ y
    return y, y @ y, column[i], x[::-1], ops.sum(ops.square(column)) + MATRIX[0] @ x


CASES = (
    Case(classes_of_constants, (ints(0, 2),)),
    Case(closure, (floats([1, 2, 3], [0, 0.5, 1]), ints(0, 2))),
    Case(declared_primitives, (floats([1, 2], [0, 0.5], [-1, 1]), ints(0, 4, 2))),
    Case(costly_after_uneven_work, (floats(0.5, -1.0, 2.0, 1.0), ints(0, 5, 4, 3))),
    Case(static_comprehensions, (ints(1, 2), floats(1.5, -0.5))),
    Case(members, (ints(1, 4, 7, -2), floats([1, 2], [0.5, 1], [2, 0], [np.nan, 1]))),
    Case(lists_of_indices, (floats([1, 2, 3], [0, 0.5, 1]), floats(*[[[1, 2, 3], [4, 5, 6]]] * 2))),
    Case(chosen_at_compile_time, (floats([1, 2], [3, 4]), ints(1, 2))),
    Case(python_builtins, (floats(1.5, -2.5, 3.7), ints(1, 0, 5))),
    Case(linear_algebra, (floats([1, 2, 3], [0, 0.5, 1]), ints(0, 2))),
)
