"""Loops over arrays and structures, enumerate and zip, and assignments to elements."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from batchnuts.autobatch import batch, ops
from programs.case import Case, floats, ints

WEIGHTS = (1.0, 0.5, 0.25)
GRID = np.array([[1, 2], [3, 4], [5, 6]])


class Pair(NamedTuple):
    left: Any
    right: Any


@batch
def horner_up_to(coefficients, x, most):
    """A polynomial, lowest coefficient first, that stops at a bound; the loop's variable is read after it."""
    value = 0.0
    for c in reversed(coefficients):
        value = value * x + c
        if value > most:
            break
    else:
        value = -value
    return value, c


@batch
def dot_of_rows(m, v, n):
    """Rows of a matrix beside a vector, numbered; `continue` and `break` on different lanes."""
    total = 0.0
    for i, (row, w) in enumerate(zip(m, v), 1):
        if row[0] > w:
            continue
        if i > n:
            break
        total += i * (row @ row) * w
    return total, i


@batch
def mixed_structures(n, x, v):
    """Elements of different types and shapes: the body is written once for each, nested loops too."""
    total = 0.0
    for k, part in enumerate(((n,), (x, v), [v, v + 1.0])):
        for leaf in part:
            if n > 2:
                continue
            half = leaf * 0.5
            total = total * 0.5 + k + ops.sum(half)
        if n == 0 and k == 1:
            break
    else:
        total += 100.0
    return total


@batch
def alike_structures(x, y, n):
    """Elements of one type: one body serves all, also of structures in structures."""
    total = 0.0
    for left, (right, scale) in ((x, (y, 2.0)), (y, (x, 3.0)), (x * y, (y, 0.5))):
        total = total + (left - right) * scale
    for pair in [Pair(x, n), Pair(y, n + 1)]:
        total += pair.left * float(pair.right)
    for value in {"a": x, "b": y}.values():
        total -= value
    return total, value


@batch
def counted_with_others(n, x):
    """A range up to a number of the lane beside arrays and constants."""
    code = 0
    last = -1
    for i, k, w in zip(range(n), (3, 1, 2), x):
        code = code * 10 + i * k + int(w)
        last = i
    for w in WEIGHTS:
        code += int(w * 4.0)
    for a, b in GRID:
        code = code * 2 + a - b
    for i in reversed(range(n)):
        code = code * 3 + i
    return code, last, w, a


@batch
def over_names(n, x):
    """Constants that no variable holds: texts, functions, and the numbers beside them."""
    limits = {"low": n, "high": n + 5}
    total = 0.0
    for name, scale in (("low", 1.0), ("high", 0.5)):
        total = total + float(limits[name]) * scale
    for function, argument in zip((ops.exp, ops.abs), (x * 0.25, x)):
        total += function(argument)
    return total


@batch
def variable_after_loop(x, n):
    """Loops that certainly run: their variables are there after them."""
    for i in range(3):
        n += i
    for k, v in enumerate(x):
        n += k + int(v)
    for j in range(len(x)):
        n += j
    return n, i, k, v, j


@batch
def loops_in_loops(m, n):
    """An array's rows, their elements, and a loop that some lanes leave early, from the inner one."""
    count = 0
    for row in m:
        for value in row:
            if value == n:
                return count, value
            if value < 0:
                break
            count += 1
        else:
            count += 10
    return count, n


@batch
def insertion_sort(x, n):
    """Elements assigned, augmented and swapped; another name for the array keeps the old one."""
    before = x
    for i in range(1, n):
        for j in reversed(range(i)):
            if x[j] <= x[j + 1]:
                break
            x[j], x[j + 1] = x[j + 1], x[j]
    x[-1] += before[0]
    return x, before


@batch
def elements_of_matrices(m, i, j):
    """Two indices, rows, chains of indices and of targets, a nested target."""
    old = m
    m[i, j] = m[j][i] + 1
    m[j][-1] *= 2
    m[i], m[0] = m[0], m[i]
    k, (m[0, 0], m[k, k]) = 1, (i, j)
    y = m[2, 0] = k + 5
    return m, old, y


@batch
def in_place_operators(v, n):
    """`+=` makes a new array: other names, in structures too, keep the old one."""
    kept = v
    pair = (v, n)
    v += 1.0
    while n > 0:
        v *= 2.0
        n -= 1
    return v, kept, pair


@batch
def histogram_in_place(values, low):
    """A callee's assignments are not seen by its caller."""
    counts = np.zeros(4, dtype="int64")
    for value in values:
        counts[(value - low) % 4] += 1
    return counts, with_first_changed(counts), counts


@batch
def with_first_changed(counts):
    counts[0] = -1
    return counts


MATRICES = np.arange(27).reshape(3, 3, 3) % 7

CASES = (
    Case(horner_up_to, (floats([1, 2, 3], [0, -1, 0.5]), floats(2.0, -1.0), floats(10.0, 0.25))),
    Case(dot_of_rows, (floats([[1, 2], [3, 0]], [[0, 1], [1, 1]]), floats([2, 3], [1, 2]), ints(2, 1))),
    Case(mixed_structures, (ints(0, 2, 5), floats(0.5, 2.0, 1.0), floats([1, 2], [3, 4], [5, 6]))),
    Case(alike_structures, (floats(0.5, 2.0), floats(-1.0, 4.0), ints(1, 3))),
    Case(counted_with_others, (ints(0, 2, 5), floats([1, 2], [3, 4], [5, 6]))),
    Case(over_names, (ints(0, 2), floats(0.0, -2.0))),
    Case(variable_after_loop, (floats([1, 2], [3, 4]), ints(0, 5))),
    Case(loops_in_loops, (ints([[1, 2], [3, 4]], [[-1, 2], [5, -3]], [[0, 0], [0, 9]]), ints(3, 7, 9))),
    Case(insertion_sort, (floats([3, 1, 2, 0], [1, 2, 3, 4], [2, 1, 0, 5]), ints(4, 2, 3))),
    Case(elements_of_matrices, (MATRICES, ints(0, 2, 1), ints(1, 0, -1))),
    Case(in_place_operators, (floats([1, 2], [3, 4]), ints(0, 2))),
    Case(histogram_in_place, (ints([1, 2, 3, 1], [0, 0, 5, 9]), ints(0, -1))),
)
