"""Literals that take the dtype they meet, unsigned and boolean lanes."""

from __future__ import annotations

import numpy as np

from batchnuts.autobatch import batch, ops
from programs.case import Case, floats, ints


@batch
def weak_zero(x, n):
    """`total` starts as a literal and takes the dtype of what it meets; `k` stays Python's."""
    total = 0
    k = 0
    while k < n:
        total = total + x
        k += 1
    mean = total / 2
    return total, mean, k


@batch
def weak_copies(x, n):
    """A copy of an integer literal becomes a float; the original stays an integer."""
    k = 0
    if n > 2:
        k = 3
    total = k
    first = total + x
    total = total + x
    for _ in range(n):
        total = total + x
    return total, k, first


@batch
def pass_through(x, n):
    return x if n <= 0 else pass_through(x, n - 1)


@batch
def weak_argument(x, n):
    """One callee called with an array and with an integer literal."""
    k = 0 if n > 1 else 1
    return pass_through(x, n) + pass_through(k, n), k


@batch
def unsigned(x):
    shifted = 0
    while x > 100:
        x = (x >> 3) ^ 5
        shifted += 1
    return x * 3 + 1, (x << 1) & 63, shifted


@batch
def mixed_lanes(flag, x, v):
    """Boolean, float and vector lanes."""
    while x < 3.0 and (flag or x < 1.0):
        x = x * 1.5 + 0.25
        flag = not flag or ops.sum(v) > 2.0
        v = ops.where(v > x, v, v + x)
    return flag, x, v, ops.any(v > 2.0) and flag


CASES = (
    Case(weak_zero, (floats(1.5, 2.5, dtype="float32"), ints(3, 0)), ("float32", "float32", "int64")),
    Case(weak_copies, (floats(1.5, 2.5, dtype="float32"), ints(4, 0)), ("float32", "int64", "float32")),
    Case(weak_argument, (floats(1.5, 2.5, dtype="float32"), ints(2, 0)), ("float32", "int64")),
    Case(unsigned, (np.array([3, 4000000000, 170], "uint32"),)),
    Case(mixed_lanes, (np.array([True, False, True]), floats(0.1, 5.0, 2.0), floats([1, 2], [3, 4], [0, 0]))),
)
