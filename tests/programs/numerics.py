"""Floats, vectors and matrices: iterations and recursions whose length the values of a lane decide."""

from __future__ import annotations

import numpy as np

from batchnuts.autobatch import batch, ops, write
from programs.case import Case, floats, ints


@batch
def newton_root(x, tolerance):
    """Square root; the number of steps differs by lane."""
    guess = max(x, 1.0)
    steps = 0
    while abs(guess * guess - x) > tolerance * x and steps < 60:
        guess = 0.5 * (guess + x / guess)
        steps += 1
    return guess, steps


def peak(x):
    return 1.0 / (0.02 + (x - 0.3) * (x - 0.3))


@batch
def quadrature(a, b, tolerance, depth):
    """Adaptive Simpson quadrature: an interval whose halves disagree with it is split."""
    middle = 0.5 * (a + b)
    whole = (b - a) / 6.0 * (peak(a) + 4.0 * peak(middle) + peak(b))
    first = (middle - a) / 6.0 * (peak(a) + 4.0 * peak(0.5 * (a + middle)) + peak(middle))
    second = (b - middle) / 6.0 * (peak(middle) + 4.0 * peak(0.5 * (middle + b)) + peak(b))
    if depth == 0 or abs(first + second - whole) < 15.0 * tolerance:
        return first + second, 1
    left, n = quadrature(a, middle, 0.5 * tolerance, depth - 1)
    right, m = quadrature(middle, b, 0.5 * tolerance, depth - 1)
    return left + right, n + m


@batch
def bisection(low, high, target):
    """The cube root by halving; one lane's interval does not hold it."""
    steps = 0
    if low * low * low > target or high * high * high < target:
        return low, -1
    while high - low > 1e-6:
        middle = 0.5 * (low + high)
        if middle * middle * middle == target:
            return middle, steps
        if middle * middle * middle < target:
            low = middle
        else:
            high = middle
        steps += 1
    return 0.5 * (low + high), steps


@batch
def oscillator(y, end, tolerance):
    """Heun's method with steps that adapt to the error, accepted or tried again."""
    t = 0.0 * end
    h = 0.25 + t
    accepted = rejected = 0
    while t < end:
        h = min(h, end - t)
        k1 = ops.stack([y[1], -4.0 * y[0]])
        z = y + h * k1
        k2 = ops.stack([z[1], -4.0 * z[0]])
        error = 0.5 * h * ops.max(ops.abs(k2 - k1))
        if error <= tolerance:
            t = t + h
            y = y + 0.5 * h * (k1 + k2)
            accepted += 1
            if error < 0.25 * tolerance:
                h = 2.0 * h
        else:
            h = 0.5 * h
            rejected += 1
    return y, accepted, rejected


@batch
def mandelbrot(re, im, limit):
    x = y = 0.0
    n = 0
    while x * x + y * y <= 4.0:
        if n == limit:
            break
        x, y = x * x - y * y + re, 2.0 * x * y + im
        n += 1
    else:
        n = -n
    return n


@batch
def geometric_mean(a, b):
    """The arithmetic-geometric mean, by a tail call that swaps roles."""
    if abs(a - b) < 1e-9 * a:
        return a
    return geometric_mean(0.5 * (a + b), ops.sqrt(a * b))


@batch
def matrix_power(matrix, n):
    """Square and multiply: the recursion's result is live through the product."""
    if n == 0:
        return np.eye(2)
    half = matrix_power(matrix, n // 2)
    square = half @ half
    return square @ matrix if n % 2 else square


@batch
def determinant(a):
    """Gaussian elimination, row by row in place; stops at a pivot of zero."""
    result = 1.0
    for k in range(3):
        pivot = a[k, k]
        if abs(pivot) < 1e-12:
            return 0.0 * pivot, k
        result = result * pivot
        for i in range(k + 1, 3):
            factor = a[i, k] / pivot
            a = write(a, i, a[i] - factor * a[k])
    return result, 3


@batch
def horner(coefficients, x):
    total = 0.0 * x
    for i in range(len(coefficients)):
        total = total * x + coefficients[i]
    return total


@batch
def life(cells, generations):
    """Conway's rule on a ring of boolean cells, until nothing changes."""
    changed = True
    steps = 0
    while changed and steps < generations:
        shifted = ops.concatenate([cells[1:], cells[:1]])
        other = ops.concatenate([cells[-1:], cells[:-1]])
        after = (shifted ^ other) | (cells & ~shifted)
        changed = ops.any(after ^ cells)
        cells = after
        steps += 1
    return cells, changed, steps


@batch
def power_iteration(matrix, vector, tolerance):
    """The largest eigenvalue; normalized in a function of its own."""
    value = 0.0
    before = 2.0 * tolerance
    n = 0
    while abs(value - before) > tolerance:
        before = value
        vector = unit(matrix @ vector)
        value = vector @ (matrix @ vector)
        n += 1
    return value, n


@batch
def unit(v):
    length = ops.sqrt(ops.sum(v * v))
    if length == 0.0:
        return v
    return v / length


@batch
def julia(z, c):
    """Complex numbers: `abs` is real, a power with a complex exponent is not."""
    n = 0
    while n < 30 and abs(z) < 2.0:
        z = (z + 0j) ** 2 + c
        n += 1
    return n, z


CASES = (
    Case(newton_root, (floats(2.0, 1e6, 0.01), floats(1e-12, 1e-3, 1e-10)), rtol=1e-12),
    Case(quadrature, (floats(0.0, -1.0, 0.2), floats(1.0, 1.0, 0.3), floats(1e-3, 1e-1, 1e-2), ints(5, 3, 2))),
    Case(bisection, (floats(0.0, 0.0, 3.0, 1.0), floats(2.0, 4.0, 4.0, 9.0), floats(2.0, 8.0, 1.0, 50.0))),
    Case(oscillator, (floats([1, 0], [0, 2]), floats(1.0, 0.5), floats(0.02, 0.1)), rtol=1e-12),
    Case(mandelbrot, (floats(0.0, 0.3, 2.0, -0.75), floats(0.0, 0.5, 2.0, 0.2), ints(9, 20, 5, 30))),
    Case(julia, (np.array([0.1 + 0.2j, 1 + 1j, 0.0]), np.array([-0.4 + 0.6j, 0.3, 0.3 - 0.01j])), rtol=1e-9),
    Case(geometric_mean, (floats(1.0, 24.0, 3.0), floats(2.0, 6.0, 3.0))),
    Case(matrix_power, (floats([[1, 1], [1, 0]], [[2, 0], [1, 1]], [[0, 1], [1, 0]]), ints(7, 0, 4))),
    Case(
        determinant, (floats(np.diag([2, 3, 4]), [[1, 2, 0], [3, 4, 1], [0, 5, 1]], [[1, 2, 3], [2, 4, 1], [1, 1, 1]]),)
    ),
    Case(horner, (floats([1, 2, 3], [0, -1, 4]), floats(2.0, 0.5))),
    Case(life, (np.array([[1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 0, 1]], bool), ints(3, 9, 2))),
    Case(
        power_iteration,
        (floats([[2, 1], [1, 3]], [[0, 0], [0, 0]]), floats([1, 0], [1, 1]), floats(1e-6, 1e-3)),
        rtol=1e-12,
    ),
)
