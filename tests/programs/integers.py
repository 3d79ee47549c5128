"""Integer algorithms: bits, digits, remainders, counting."""

from __future__ import annotations

import numpy as np

from batchnuts.autobatch import batch
from programs.case import Case, ints


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
def popcount(bits):
    count = 0
    while bits != 0:
        bits = bits & (bits - 1)
        count += 1
    return count


@batch
def xorshift(state, n):
    """Marsaglia's generator on 32 bits; shifts drop what leaves the word."""
    for _ in range(n):
        state = state ^ (state << 13)
        state = state ^ (state >> 17)
        state = state ^ (state << 5)
    return state, (state >> 16) & 255


@batch
def modular_power(base, exponent, modulus):
    result = 1
    base = base % modulus
    while exponent > 0:
        if exponent & 1:
            result = result * base % modulus
        base = base * base % modulus
        exponent >>= 1
    return result


@batch
def tower(base, height, modulus):
    """A power of a power of ...: a recursion whose result is an argument of another function's loop."""
    if height == 0:
        return 1
    return modular_power(base, tower(base, height - 1, modulus), modulus)


@batch
def reverse_digits(n):
    sign = -1 if n < 0 else 1
    n = abs(n)
    result = 0
    while n:
        result, n = result * 10 + n % 10, n // 10
    return sign * result


@batch
def integer_root(n):
    """Newton's iteration on integers, floor division and all."""
    if n < 2:
        return n
    x = n
    y = (x + 1) // 2
    while y < x:
        x = y
        y = (x + n // x) // 2
    return x


@batch
def floor_and_remainder(a, b):
    """Python's signs: the remainder has the divisor's."""
    q = a // b
    r = a % b
    return q, r, q * b + r == a, -a // b, a % -b, (a >> 1) == a // 2


@batch
def reverse_bits(n, width):
    result = 0
    for i in range(width):
        if n & (1 << i):
            result |= 1 << (width - 1 - i)
    return result, n ^ (n >> 1)


CASES = (
    Case(gcd, (ints(12, 9, 7, 0), ints(18, 6, 0, 5))),
    Case(collatz, (ints(1, 6, 7, 16),)),
    Case(popcount, (np.array([0, 255, 2**31 + 5], "uint32"),)),
    Case(xorshift, (np.array([1, 2463534242, 77], "uint32"), ints(3, 5, 0))),
    Case(modular_power, (ints(3, 2, 10, 7), ints(13, 0, 5, 21), ints(7, 5, 1, 1000))),
    Case(tower, (ints(2, 3, 5), ints(4, 2, 0), ints(1000, 100, 9))),
    Case(reverse_digits, (ints(120, -305, 0, 7),)),
    Case(integer_root, (ints(0, 26, 10**12, 3),)),
    Case(floor_and_remainder, (ints(7, -7, 7, -8, 0), ints(3, 3, -3, -4, 5))),
    Case(reverse_bits, (ints(6, 1, 200), ints(4, 8, 8))),
)
