"""Recursion: double, mutual, nested, in loops, in conditions, in arguments, with live values of every kind."""

from __future__ import annotations

from batchnuts.autobatch import batch
from programs.case import Case, floats, ints


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
def exchange(a, b, n):
    """A tail call that exchanges its parameters: a parallel assignment."""
    if n == 0:
        return a - 2 * b
    return exchange(b, a, n - 1)


@batch
def climb(n, base):
    """Tail calls between two functions of which one keeps frames."""
    if n <= 0:
        return descend(base, n + 1)
    return climb(n - 2, base + n) + base


@batch
def descend(base, n):
    if n <= 0:
        return base
    return climb(n - 3, base - 1)


@batch
def rounded_down(n):
    """A parameter that is counted down and also assigned."""
    if n <= 0:
        return 0
    while n % 3 != 0:
        n = n - 1
    return rounded_down(n - 1) + n


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


@batch
def female(n):
    """Hofstadter's sequences: each call of one nests a call of both."""
    if n == 0:
        return 1
    return n - male(female(n - 1))


@batch
def male(n):
    if n == 0:
        return 0
    return n - female(male(n - 1))


@batch
def tak(x, y, z):
    """Takeuchi's function: three calls as arguments of a tail call."""
    if y >= x:
        return z
    return tak(tak(x - 1, y, z), tak(y - 1, z, x), tak(z - 1, x, y))


@batch
def hanoi(n, source, target):
    """The number of moves, and which pegs they touch, as digits."""
    if n == 0:
        return 0, 0
    other = 6 - source - target
    before, path = hanoi(n - 1, source, other)
    after, rest = hanoi(n - 1, other, target)
    return before + 1 + after, (path * 10 + source * target + rest) % 1000003


@batch
def partitions(n, largest):
    """How many ways n is a sum of numbers not above `largest`."""
    if n == 0:
        return 1
    if n < 0 or largest == 0:
        return 0
    return partitions(n - largest, largest) + partitions(n, largest - 1)


@batch
def gcd_by_tail_call(a, b):
    return a if b == 0 else gcd_by_tail_call(b, a % b)


@batch
def ping(n, total):
    """Mutual tail calls that never come back before the end."""
    if n <= 0:
        return total
    return pong(n - 1, total + n)


@batch
def pong(n, total):
    if n <= 0:
        return -total
    if total % 3 == 0:
        return ping(n - 2, total * 2)
    return pong(n - 1, total - 1)


@batch
def calls_in_conditions(n):
    """Recursive calls decide branches, loops and short circuits."""
    if n <= 0:
        return 1 - n
    if calls_in_conditions(n - 1) > 2 and is_even(n):
        return 2
    k = 0
    while calls_in_conditions(n - 2 - k) > 1 and k < 3:
        k += 1
    return k + 2 if is_odd(k) or calls_in_conditions(n - 3) == 2 else 1


@batch
def loop_recursion_loop(n):
    """A loop inside a recursion inside a loop of another function."""
    total = 0
    for i in range(n):
        total = 2 * total + fans_out(i, n - i)
        if total > 500:
            total -= 500
    return total


@batch
def fans_out(n, width):
    if n <= 0:
        return width
    total = n
    for i in range(width):
        if i == 2:
            break
        total += fans_out(n - 1 - i, width - 1) * (i + 1)
    return total


@batch
def sums_to(n, target):
    """A search that stops at the first hit: some of 1, 4, 9, ..., n*n add up to the target."""
    if target == 0:
        return True
    if n == 0 or target < 0:
        return False
    return sums_to(n - 1, target - n * n) or sums_to(n - 1, target)


@batch
def queens(row, columns, left, right, size):
    """Placements of queens on a board: recursion in a loop over the set bits."""
    if row == size:
        return 1
    free = ((1 << size) - 1) & ~(columns | left | right)
    count = 0
    while free != 0:
        bit = free & -free
        free = free ^ bit
        count += queens(row + 1, columns | bit, (left | bit) << 1, (right | bit) >> 1, size)
    return count


@batch
def saved_before_each_call(n):
    """Four calls, each with other variables live across it."""
    a = n * 3
    if n < 2:
        return a + 1
    b = saved_before_each_call(n - 1)
    c = a - saved_before_each_call(n - 2)
    if b > c:
        a, b = b, saved_before_each_call(n // 2)
    else:
        c = saved_before_each_call(n // 3) + c
    return (a + 2 * b + 3 * c) % 97


CASES = (
    Case(fibonacci, (ints(3, 7, 4, 0),)),
    Case(is_even, (ints(0, 5, 8, 3),)),
    Case(ackermann, (ints(1, 2, 0, 2), ints(2, 1, 4, 0))),
    Case(ackermann, (ints(2, 1, 0).astype("int32"), ints(1, 2, 3).astype("int32")), ("int32",), "int32"),
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
    Case(female, (ints(0, 6, 3),)),
    Case(tak, (ints(4, 3, 6), ints(2, 3, 4), ints(0, 1, 2))),
    Case(hanoi, (ints(0, 4, 2), ints(1, 1, 3), ints(3, 2, 1))),
    Case(partitions, (ints(6, 0, 8), ints(6, 3, 2))),
    Case(gcd_by_tail_call, (ints(12, 91, 7, 0), ints(18, 35, 0, 5))),
    Case(ping, (ints(7, 0, 12), ints(1, 5, 0))),
    Case(calls_in_conditions, (ints(4, 0, 6),)),
    Case(loop_recursion_loop, (ints(3, 0, 4),)),
    Case(sums_to, (ints(4, 3, 5, 2), ints(21, 6, 30, 5))),
    Case(queens, (ints(0, 0), ints(0, 0), ints(0, 0), ints(0, 0), ints(5, 4))),
    Case(exchange, (ints(1, 2, 3), ints(4, 5, 6), ints(0, 1, 4))),
    Case(climb, (ints(0, 4, 5, 9), ints(1, 2, 3, 4))),
    Case(rounded_down, (ints(0, 1, 37, 10),)),
    Case(saved_before_each_call, (ints(5, 1, 6),)),
)
