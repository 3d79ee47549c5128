"""Branches, loops and the ways out of them, short circuit, and code that never runs."""

from __future__ import annotations

import numpy as np

from batchnuts.autobatch import batch
from programs.case import Case, ints

LOUD = False
TABLE = np.array([3, 1, 4, 1, 5, 9, 2, 6])


@batch
def early_return(n, limit):
    total = 0
    for i in range(n):
        if i == 3:
            continue
        total += i
        if total > limit:
            return -total
        while total % 5 == 4:
            total += 1
            if total > 20:
                return total
    return total


@batch
def nested_conditionals(n):
    return (0 if n < 0 else 1 if n < 2 else n * (2 if n % 2 == 0 else 3)) + (n if n > 4 else -n)


@batch
def guarded_division(n, d):
    ok = d != 0 and n // d > 1
    either = d == 0 or n % d == 0
    value = d or n
    both = n and d
    quotient = n // d if d else -1
    if (d != 0 and n // d == 3) or n == 7:
        quotient += 100
    return ok, either, value, both, quotient


@batch
def reads_itself(x, y):
    """`and`/`or` whose later sides read the variable that is being assigned."""
    x = y and x + 1
    y = x or y - x
    return x, y


@batch
def chained_comparison(n, d):
    inside = 0 <= n < 10 > d
    late = 1 <= d < n // d
    counted = 0
    if not 2 < n <= 5 < n + d:
        counted = 1
    return inside, late, counted


@batch
def for_ranges(start, stop, step):
    a = b = c = 0
    for i in range(stop):
        a = 3 * a + i
    for i in range(start, stop):
        b = 3 * b + i
    for i in range(start, stop, step):
        c = 3 * c + i
    for i in range(stop, start, -2):
        c = c - i
    return a, b, c


@batch
def changed_bounds(n, step):
    """The loop's variable and its bounds change in the body; range was evaluated before."""
    seen = 0
    for i in range(0, n, step):
        i = i * 10
        n -= 1
        step = 7
        seen = seen * 2 + i
    for n in range(n):  # noqa: B020
        seen += n
    return seen, n, step


@batch
def loop_else(n, wanted):
    found = -1
    for i in range(n):
        if i * i == wanted:
            found = i
            break
    else:
        found = 100 + n
    k = 0
    while k < n:
        k += 1
        if k == wanted:
            break
        if k % 2:
            continue
        found += k
    else:
        found = -found
    return found, k


@batch
def endless_with_break(n):
    k = 1
    while True:
        if k > n:
            break
        k *= 2
        if k == 8:
            return -k
    return k


@batch
def static_branches(n):
    """Conditions known at compile time: the untaken side need not even fit the types."""
    if LOUD and n > 2:
        n = "never"
    kept = n + 1 if not LOUD else n + "text"
    if len(TABLE) > 2:
        kept += int(TABLE[0])
    return kept


@batch
def dead_code(n):
    unused = n * n
    if n > 3:
        unused = unused + 1
        return n
        n = n + 1
    unused = 0
    return n - unused


@batch
def primes_below(n):
    """`else` of the inner loop belongs to the outer one's body; `break` leaves the inner one only."""
    count = last = 0
    for candidate in range(2, n):
        for divisor in range(2, candidate):
            if divisor * divisor > candidate:
                count += 1
                last = candidate
                break
            if candidate % divisor == 0:
                break
        else:
            count += 1
            last = candidate
    return count, last


@batch
def one_block_loops(n, step):
    """Loops whose body is one block that jumps to itself or nearly so, one right after another."""
    while n >= step:
        n -= step
    k = 0
    while k * k < n:
        k += 1
    for _ in range(k):
        n += k
    return n, k


@batch
def leaves_both_loops(n, product):
    """A flag carries the `break` of the inner loop to the outer one."""
    i = a = b = 0
    found = False
    while i < n and not found:
        i += 1
        for j in range(i, n):
            if i * j == product:
                found = True
                a, b = i, j
                break
            elif i * j > product:
                break
        else:
            continue
        a += 100
    return a, b, i, found


@batch
def returns_from_depth(n, wanted):
    """Returns from two loops deep, from an else and from the end."""
    seen = 0
    for i in range(n):
        for j in range(i + 1):
            seen += 1
            if i * 10 + j == wanted:
                return seen
            while seen % 7 == 6:
                if j == 3:
                    return -1
                seen += 2
        if seen > 40:
            break
    else:
        return seen * 1000
    return seen * 100


@batch
def bubbles(a, b, c, d):
    """Swaps until nothing moves."""
    passes = 0
    moved = True
    while moved:
        moved = False
        passes += 1
        if a > b:
            a, b = b, a
            moved = True
        if b > c:
            b, c = c, b
            moved = True
        if c > d:
            c, d, moved = d, c, True
    return (a, b, c, d), passes


@batch
def known_at_first(n):
    """A loop whose test is a literal before its first pass."""
    going = True
    steps = 0
    while going:
        steps += 1
        going = steps < n
    return steps


CASES = (
    Case(known_at_first, (ints(0, 5, 8),)),
    Case(early_return, (ints(0, 4, 9, 6), ints(9, 9, 12, 3))),
    Case(nested_conditionals, (ints(-3, 1, 2, 5, 8),)),
    Case(guarded_division, (ints(7, 6, 0, 9, 0), ints(0, 2, 3, 3, 0))),
    Case(reads_itself, (ints(-1, 2, 3), ints(5, 0, 4))),
    Case(chained_comparison, (ints(10, 3, 5, 9), ints(2, 0, 1, 20))),
    Case(for_ranges, (ints(0, 2, 5, 1), ints(3, 4, 1, 0), ints(1, 2, -2, -1))),
    Case(changed_bounds, (ints(0, 3, 7), ints(1, 1, 2))),
    Case(loop_else, (ints(3, 5, 0, 4), ints(4, 9, 1, 1))),
    Case(endless_with_break, (ints(0, 3, 9),)),
    Case(static_branches, (ints(1, 5),)),
    Case(dead_code, (ints(1, 5),)),
    Case(primes_below, (ints(2, 12, 9),)),
    Case(one_block_loops, (ints(17, 0, 30), ints(10, 3, 31))),
    Case(leaves_both_loops, (ints(6, 4, 5), ints(12, 9, 8))),
    Case(returns_from_depth, (ints(3, 5, 9, 0, 12), ints(21, 99, 99, 5, 31))),
    Case(bubbles, (ints(4, 1, 3), ints(3, 2, 1), ints(2, 3, 3), ints(1, 4, 2))),
)
