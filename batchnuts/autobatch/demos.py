"""Small programs that show what the language can do; `python -m batchnuts.autobatch demo NAME` runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchnuts.autobatch.api import BatchedFunction, batch
from batchnuts.autobatch.language import ops


@batch
def fibonacci(n: Any) -> Any:
    """The n-th Fibonacci number by plain recursion: two calls, and the first result waits for the second."""
    if n <= 1:
        return 1
    left = fibonacci(n - 2)
    right = fibonacci(n - 1)
    return left + right


@batch
def ackermann(m: Any, n: Any) -> Any:
    """Ackermann's function: a recursion whose argument is a recursion."""
    if m == 0:
        return n + 1
    if n == 0:
        return ackermann(m - 1, 1)
    return ackermann(m - 1, ackermann(m, n - 1))


@batch
def collatz(n: Any) -> Any:
    """How many steps of Collatz's rule lead from n to 1: a loop that ends on each lane in its own time."""
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@batch
def binomial(n: Any, k: Any) -> Any:
    """n over k by Pascal's rule: the whole recursion in one expression."""
    return 1 if k <= 0 or k >= n else binomial(n - 1, k - 1) + binomial(n - 1, k)


@batch
def integral(a: Any, b: Any) -> Any:
    """The integral of sin(1/x) from a to b > a > 0: bisection, deeper where the function wiggles more."""
    middle = 0.5 * (a + b)
    coarse = (b - a) * ops.sin(1.0 / middle)
    fine = 0.5 * (b - a) * (ops.sin(2.0 / (a + middle)) + ops.sin(2.0 / (middle + b)))
    if not abs(coarse - fine) > 1e-6 * (b - a):
        return fine
    return integral(a, middle) + integral(middle, b)


@dataclass(frozen=True)
class Demo:
    """A program, the dtype of all its arguments, and lanes to show it with: one tuple of arguments each."""

    function: BatchedFunction
    dtype: str
    lanes: tuple[tuple[float, ...], ...]


DEMOS = {
    "fibonacci": Demo(fibonacci, "int64", ((6,), (7,), (8,), (9,))),
    "ackermann": Demo(ackermann, "int64", ((1, 2), (2, 1), (2, 3))),
    "collatz": Demo(collatz, "int64", ((1,), (6,), (27,))),
    "binomial": Demo(binomial, "int64", ((4, 2), (6, 3), (5, 0))),
    "integral": Demo(integral, "float64", ((0.1, 1), (1, 2), (0.5, 0.6))),
}
"""By name, as the command line knows them."""
