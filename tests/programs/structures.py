"""Tuples, lists, dicts, namedtuples and frozen dataclasses of arrays, threaded through loops and calls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from batchnuts.autobatch import batch
from programs.case import Case, floats, ints


class Point(NamedTuple):
    q: Any
    p: Any


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


@batch
def leapfrog(point, n):
    """namedtuple fields and `_replace`, through a loop and a recursive call."""
    if n == 0:
        return point
    point = point._replace(p=point.p - 0.1 * point.q)
    moved = Point(point.q + 0.2 * point.p, point.p)
    if n % 2 == 0:
        moved = moved._replace(q=-moved.q)
    return leapfrog(moved, n - 1)


@batch
def dataclass_fields(n):
    pair = Pair(n, n + 1)
    for i in range(n):
        pair = Pair(left=pair.right, right=pair.left + i)
        if pair.left > 5:
            pair = replace(pair, right=0 * n)
    return pair, pair.left - pair.right


@dataclass(frozen=True)
class Ordered:
    """Checks what it is made of, and has a field that is computed, and an attribute that is none."""

    low: Any
    high: Any
    width: Any = field(init=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "scale", 3)  # no field
        if np.any(self.low > self.high):
            raise ValueError("low is above high")
        object.__setattr__(self, "width", self.high - self.low)


@batch
def checked_fields(interval, n):
    """A dataclass whose `__post_init__` needs values."""
    total = interval.width
    for i in range(n):
        total += i * interval.low * interval.scale
    return interval, total


@batch
def divide(a, b):
    return a // b, a % b


@batch
def unpacks_results(a, b):
    quotient, remainder = divide(a, b)
    pair = divide(quotient + 7, 3)
    (u, v), w = pair, remainder
    return quotient, remainder, pair, u * pair[1] + v + w


@batch
def nested_structures(x, n):
    state = {"point": Point(x, (n, [x[0], x[1]])), "done": n > 1}
    for _ in range(n):
        q, (k, both) = state["point"]
        state = {"point": Point(q * 2.0, (k + 1, [both[1], both[0] + q[0]])), "done": k > 3}
    return state


class Interval(NamedTuple):
    low: Any
    high: Any


@dataclass(frozen=True)
class Summary:
    range: Interval
    total: Any
    count: Any


@batch
def join(a, b):
    low, high = min(a.range.low, b.range.low), max(a.range.high, b.range.high)
    return Summary(Interval(low, high), a.total + b.total, a.count + b.count)


@batch
def summarize(x, depth):
    """A frozen dataclass around a namedtuple, joined over the two halves of a recursion."""
    if depth == 0:
        return Summary(range=Interval(x, x), total=x, count=1)
    first = summarize(x * 0.5, depth - 1)
    second = summarize(x - first.total, depth - 1)
    both = join(first, second)
    if both.range.high > 1.0:
        return replace(both, range=both.range._replace(high=1.0 + 0.0 * x))
    return replace(join(both, first), count=both.count)


@batch
def sort_three(triple):
    """Tuples swapped as wholes and in parts."""
    (a, b), c = triple
    for _ in range(3):
        (a, b) = (a, b) if a <= b else (b, a)
        pair = (b, c)
        if pair[0] > pair[1]:
            pair = pair[1], pair[0]
        b, c = pair
    return ((a, b), c), [c, (b, a)]


@batch
def compares_structures(x, n):
    """Comparisons of structures of equal and of differing shape, in conditions and as values."""
    p, q, k = Point(x, n), (n, x), 0
    pair, swapped = Pair(n, (x, k)), Pair(k + 1, (2 * x, 0))
    while (n, k) != (0, 3) and (k, n) <= (3, 4):
        n, k = max(n - 1, 0), k + 1
    equal = p == q, p == (2, 2), [n, 1] == [k, 1], {"a": n, "b": x} == {"b": 2, "a": k - 2}, pair == swapped
    never = p == (x, n, n), (n, k) == [n, k], {"a": n} == {"b": n}, pair == p, (n, "a") != (n, "b"), n in (None, "a")
    member = (n, k) in ((1, 2), (0, 3), q), [n] not in [[k - 3], [1]], p in {(2, 2), (4, 0)}, n in {"a": k - 3}.values()
    ordered = p < q, (n, (k, 1)) >= (0, (3, n)), [n, k] > [n], [n, k] <= [n, k, 0]
    return equal, never, member, ordered, n, k


CASES = (
    Case(compares_structures, (ints(2, 4, 0, 1), ints(2, 0, 9, 2))),
    Case(checked_fields, (Ordered(floats(1.0, 0.5, 2.0), floats(1.0, 1.5, 7.0)), ints(0, 3, 4))),
    Case(leapfrog, (Point(floats(1.0, 0.5, 2.0), floats(0.0, 1.0, -1.0)), ints(0, 3, 4))),
    Case(dataclass_fields, (ints(0, 3, 8),)),
    Case(unpacks_results, (ints(17, 5, -7), ints(5, 3, 2))),
    Case(nested_structures, (floats([1.0, 2.0], [0.5, -1.0], [3.0, 0.0]), ints(0, 2, 4))),
    Case(summarize, (floats(1.0, 4.0, -2.0), ints(0, 3, 2))),
    Case(sort_three, (((ints(3, 1, 2), ints(2, 2, 9)), ints(1, 3, 4)),)),
)
