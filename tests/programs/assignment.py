"""Assignments: parallel, chained, augmented; keyword and default arguments."""

from __future__ import annotations

from batchnuts.autobatch import batch
from programs.case import Case, floats, ints
from programs.recursion import swap_arguments


@batch
def parallel_assignment(a, b, c, n):
    for _ in range(n):
        a, b, c = b, c, a + b
        remainder = a - b
        a, b = b, remainder
        (a, (b, c)) = (c, (a, b))
    return a, b, c


@batch
def gcd_with_temporary(a, b):
    while b != 0:
        remainder = a % b
        a, b = b, remainder
    return a


@batch
def chained_assignment(n):
    a = b = n + 1
    (c, d) = e = swap_arguments(a, n, 1)
    a, b = f = (b - n, a)
    i = n = n + 5
    return a, b, c, d, e, f, i, n


@batch
def augmented(n, x):
    n += 1
    n -= 3
    n *= n
    n //= 2
    n %= 7
    n <<= 2
    n >>= 1
    n |= 1
    n ^= 3
    n &= 15
    x /= 4
    x **= 2
    return n, x, -n, +n, ~n


@batch
def annotated(n: int) -> int:
    """Docstrings, annotations, pass and constants are no operations."""
    total: int = n
    ignored: float  # noqa: F842
    pass
    "text"
    return total


@batch
def with_defaults(x, scale=2.0, *, shift=1):
    return x * scale + shift


@batch
def keyword_arguments(x, n):
    a = with_defaults(x)
    b = with_defaults(x, 3.0)
    c = with_defaults(shift=n, x=a)
    d = with_defaults(scale=x, x=x, shift=with_defaults(b, shift=0))
    return a, b, c, d


CASES = (
    Case(parallel_assignment, (ints(1, 2, 3), ints(4, 5, 6), ints(7, 8, 9), ints(0, 1, 3))),
    Case(gcd_with_temporary, (ints(12, 9, 7), ints(18, 6, 0))),
    Case(chained_assignment, (ints(1, 2),)),
    Case(augmented, (ints(1, 9, 100), floats(1.0, -2.0, 0.5))),
    Case(annotated, (ints(1, 2),)),
    Case(keyword_arguments, (floats(1.0, 2.0), floats(3.0, -1.0))),
    Case(with_defaults, (floats(1.0, 2.0, dtype="float32"),), note="float32"),
)
