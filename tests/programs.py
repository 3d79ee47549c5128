"""The corpus: single-lane programs that every executor must run alike, with inputs for a few lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from batchnuts import autobatch
from batchnuts.autobatch import batch, ops


@batch
def fibonacci(n):
    if n <= 1:
        return 1
    left = fibonacci(n - 2)
    right = fibonacci(n - 1)
    return left + right


@batch
def is_even(n):
    if n == 0:
        return True
    return is_odd(n - 1)


@batch
def is_odd(n):
    if n == 0:
        return False
    return is_even(n - 1)


@batch
def ackermann(m, n):
    if m == 0:
        return n + 1
    if n == 0:
        return ackermann(m - 1, 1)
    return ackermann(m - 1, ackermann(m, n - 1))


@batch
def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a


@batch
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@batch
def rotate_and_sum(x, depth):
    """Vector-valued recursion: each level adds the two halves' results, rotated differently."""
    if depth == 0:
        return x
    left = rotate_and_sum(x * 0.5, depth - 1)
    right = rotate_and_sum(x[::-1] + 1.0, depth - 1)
    return left + 2.0 * right
