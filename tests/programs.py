"""The corpus: single-lane programs that every executor must run alike, with inputs for a few lanes.

`CASES` lists them. Each program is chosen for one feature of the language; inputs are chosen so that lanes take
different paths and integer operations that a lane must not reach would raise there (division by zero).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from batchnuts import autobatch
from batchnuts.autobatch import batch, ops, primitive, write


@dataclass(frozen=True)
class Case:
    """A program, its inputs for all lanes, and what the plain Python function cannot tell of the result."""

    function: Any
    inputs: tuple[Any, ...]
    dtypes: tuple[str, ...] | None = None
    """The results' dtypes, leaf by leaf, where plain Python's depend on the path a lane takes."""
    note: str = ""

    @property
    def name(self) -> str:
        return self.function.__name__ + (f"-{self.note}" if self.note else "")


def ints(*values: Any) -> np.ndarray:
    return np.array(values, "int64")


def floats(*values: Any, dtype: str = "float64") -> np.ndarray:
    return np.array(values, dtype)


# ---- recursion ------------------------------------------------------------------------------------------------------


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


@batch
def mccarthy(n):
    if n > 100:
        return n - 10
    return mccarthy(mccarthy(n + 11))


@batch
def recursion_in_loop(n):
    total = 1
    for i in range(n):
        total += recursion_in_loop(i) * (i + 1)
    return total


@batch
def loop_in_recursion(n, step):
    if n <= 0:
        return step
    k = 0
    while k < n:
        k += step
    return k + 2 * loop_in_recursion(n - k, step + 1) + k % 3


@batch
def binomial(n, k):
    """The whole recursion in one expression, with arguments that need temporaries."""
    return 1 if k == 0 or k == n else binomial(n - 1, k - 1) + binomial(n - 1, k)


@batch
def swap_arguments(a, b, n):
    """A recursive call with its own parameters in another order."""
    if n == 0:
        return a, b
    return swap_arguments(b, a + 1, n - 1)


@batch
def same_argument(x, n):
    """`x` is passed on unchanged by every recursive call, `scaled` is live across them."""
    if n <= 0:
        return x
    scaled = x * 0.5
    return same_argument(x, n - 1) + scaled + same_argument(x, n - 2)


@batch
def count_down(n):
    """An `or` whose second side is a tail call."""
    if n == 0:
        return False
    return n > 9 or count_down(n - 3 if n > 2 else 0)


@batch
def three_a(n):
    return n if n < 2 else three_b(n - 1) + 1


@batch
def three_b(n):
    return n if n < 2 else three_c(n - 1) * 2


@batch
def three_c(n):
    kept = n
    inner = three_a(n - 1) if n % 2 == 0 else three_b(n - 2)
    return inner + kept


@batch
def main(n):
    """A function called like the program's own main graph."""
    return main(n - 1) + 2 if n > 0 else 0


# ---- control flow ---------------------------------------------------------------------------------------------------


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


# ---- assignment -----------------------------------------------------------------------------------------------------


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


# ---- structures -----------------------------------------------------------------------------------------------------


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


# ---- closures, primitives, builtins -------------------------------------------------------------------------------


LOUD = False
TABLE = np.array([3, 1, 4, 1, 5, 9, 2, 6])
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
def static_comprehensions(n, x):
    powers = [x**k for k in range(1, 4)]
    total = sum(powers) + float(sum(k * n for k in range(3)))
    polynomial = lambda_sum(n) if n > 1 else (lambda y: y * y + n)(3)
    stacked = ops.stack([x * c for c in (1.0, 0.5)])
    return total, polynomial, stacked


@batch
def lambda_sum(n):
    return sum(map(lambda k: k + n, range(3)))  # noqa: C417


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


# ---- types ---------------------------------------------------------------------------------------------------------


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


# ---- buffers -------------------------------------------------------------------------------------------------------


@batch
def squares(n, m):
    buffer = np.zeros(5, dtype="int64")
    rows = np.zeros((3, 2))
    for i in range(n):
        buffer = write(buffer, i, i * i)
        if i < m:
            rows = write(rows, i, ops.stack([float(i), 0.5]))
            copy = write(buffer, 0, 7)
            buffer = write(copy, i, buffer[i] + copy[0])
    return buffer, rows


@batch
def recursive_record(trace, n, depth):
    """A structure of buffers written through a recursion."""
    trace = autobatch.write(trace, n, Point(depth, 0.5 * float(n)))
    if n == 0:
        return trace, depth
    trace, last = recursive_record(trace, n - 1, depth + 1)
    return trace, last + depth


CASES = (
    Case(fibonacci, (ints(3, 7, 4, 0),)),
    Case(is_even, (ints(0, 5, 8, 3),)),
    Case(ackermann, (ints(1, 2, 0, 2), ints(2, 1, 4, 0))),
    Case(ackermann, (ints(2, 1, 0).astype("int32"), ints(1, 2, 3).astype("int32")), ("int32",), "int32"),
    Case(gcd, (ints(12, 9, 7, 0), ints(18, 6, 0, 5))),
    Case(collatz, (ints(1, 6, 7, 16),)),
    Case(rotate_and_sum, (floats([1, 2, 3], [0, -1, 4], [2, 2, 2]), ints(0, 3, 2))),
    Case(mccarthy, (ints(101, 97, 120, 99),)),
    Case(recursion_in_loop, (ints(0, 4, 2),)),
    Case(loop_in_recursion, (ints(0, 9, 4, 23), ints(1, 2, 3, 4))),
    Case(binomial, (ints(5, 4, 3), ints(2, 4, 1))),
    Case(swap_arguments, (ints(1, 2, 3), ints(4, 5, 6), ints(0, 1, 4))),
    Case(same_argument, (floats(1.0, 2.5, -1.0), ints(0, 4, 3))),
    Case(count_down, (ints(0, 4, 12, 9),)),
    Case(three_a, (ints(0, 6, 9, 7),)),
    Case(main, (ints(0, 3),)),
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
    Case(parallel_assignment, (ints(1, 2, 3), ints(4, 5, 6), ints(7, 8, 9), ints(0, 1, 3))),
    Case(gcd_with_temporary, (ints(12, 9, 7), ints(18, 6, 0))),
    Case(chained_assignment, (ints(1, 2),)),
    Case(augmented, (ints(1, 9, 100), floats(1.0, -2.0, 0.5))),
    Case(annotated, (ints(1, 2),)),
    Case(keyword_arguments, (floats(1.0, 2.0), floats(3.0, -1.0))),
    Case(with_defaults, (floats(1.0, 2.0, dtype="float32"),), note="float32"),
    Case(leapfrog, (Point(floats(1.0, 0.5, 2.0), floats(0.0, 1.0, -1.0)), ints(0, 3, 4))),
    Case(dataclass_fields, (ints(0, 3, 8),)),
    Case(unpacks_results, (ints(17, 5, -7), ints(5, 3, 2))),
    Case(nested_structures, (floats([1.0, 2.0], [0.5, -1.0], [3.0, 0.0]), ints(0, 2, 4))),
    Case(closure, (floats([1, 2, 3], [0, 0.5, 1]), ints(0, 2))),
    Case(declared_primitives, (floats([1, 2], [0, 0.5], [-1, 1]), ints(0, 4, 2))),
    Case(static_comprehensions, (ints(1, 2), floats(1.5, -0.5))),
    Case(python_builtins, (floats(1.5, -2.5, 3.7), ints(1, 0, 5))),
    Case(linear_algebra, (floats([1, 2, 3], [0, 0.5, 1]), ints(0, 2))),
    Case(weak_zero, (floats(1.5, 2.5, dtype="float32"), ints(3, 0)), ("float32", "float32", "int64")),
    Case(weak_copies, (floats(1.5, 2.5, dtype="float32"), ints(4, 0)), ("float32", "int64", "float32")),
    Case(weak_argument, (floats(1.5, 2.5, dtype="float32"), ints(2, 0)), ("float32", "int64")),
    Case(unsigned, (np.array([3, 4000000000, 170], "uint32"),)),
    Case(mixed_lanes, (np.array([True, False, True]), floats(0.1, 5.0, 2.0), floats([1, 2], [3, 4], [0, 0]))),
    Case(squares, (ints(0, 3, 5), ints(1, 2, 0))),
    Case(recursive_record, (Point(np.zeros((3, 4), "int64"), np.zeros((3, 4))), ints(0, 3, 2), ints(5, 6, 7))),
)
