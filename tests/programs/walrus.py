"""`:=` in conditions, with short circuit, in arguments and indices, and reads before and after it."""

from __future__ import annotations

from batchnuts.autobatch import batch
from programs.case import Case, floats, ints


@batch
def collatz_steps(n):
    steps = 0
    while (n := n // 2 if n % 2 == 0 else 3 * n + 1) > 1:
        steps += 1
    return steps, n


@batch
def guarded(n, d):
    """Assigned on some lanes only, after `and`; read on those."""
    q = -1
    if d != 0 and (q := n // d) > 1:
        return q
    r = (q := q + 1) or (q := n) or d
    return q * 100 + r


@batch
def before_and_after(n, m):
    """What stands before it sees the old value, what stands after it the new one."""
    a = n + (n := m) * n
    b = pair_code(n, (n := n + 1), n)
    c = n < (n := n * 2) < n + b
    d = (m, (m := m + n), m)
    n += (n := 3)
    v = m * (k := 2) + k
    return a, b, c, d, n, v, {"x": m, "y": (m := 7), "z": m}["z"]


@batch
def pair_code(a, b, c):
    return a * 10000 + b * 100 + c


@batch
def search(x, bound):
    """In the test of a loop that also leaves, in an index, in an assertion, in what a loop runs over."""
    i = 0
    while i < 3 and (v := x[i]) < bound:
        x[(j := i)] = v * 2.0
        i = j + 1
    assert (s := x[0]) == s  # noqa: RUF018
    for w in (y := (bound, s)):
        s += w
    (t := s)
    return i, x, s + y[0], t


@batch
def in_arms(n):
    """In one arm of a conditional expression only."""
    k = 5
    value = (k := n) + k if n > 1 else (k if (n := n + 1) > 1 else (k := 9))
    return value, k, n


CASES = (
    Case(collatz_steps, (ints(6, 1, 27, 8),)),
    Case(guarded, (ints(7, 7, 0, 9), ints(2, 0, 3, 9))),
    Case(before_and_after, (ints(2, 5, -1), ints(3, 0, -4))),
    Case(search, (floats([1, 2, 3], [4, 1, 1], [0, 0, 0]), floats(2.5, 0.0, 1.0))),
    Case(in_arms, (ints(0, 1, 2, -3),)),
)
