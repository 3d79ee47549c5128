"""Seconds of a batched function beside what else runs a recursion or a loop for ten thousand inputs.

    python docs/results/autobatch_beside_others.py        # numba is among the extra `peers`

Each is called once to compile it, which is timed, and then five times in turn with the others: the median.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numba
import numpy as np

from batchnuts import autobatch

LANES = 10_000

jax.config.update("jax_enable_x64", True)


@autobatch.batch
def fibonacci(n):  # type: ignore[no-untyped-def]
    """A Fibonacci number."""
    if n <= 1:
        return 1
    return fibonacci(n - 2) + fibonacci(n - 1)


@autobatch.batch
def steps_of_collatz(n):  # type: ignore[no-untyped-def]
    """How many steps lead to 1."""
    steps = 0
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


@autobatch.batch
def integrand(x, sharpness):  # type: ignore[no-untyped-def]
    """A peak at 0."""
    return 1.0 / (1.0 + sharpness * x * x)


@autobatch.batch
def simpson(a, b, tolerance, sharpness):  # type: ignore[no-untyped-def]
    """The integral from a to b."""
    m = 0.5 * (a + b)
    fa, fm, fb = integrand(a, sharpness), integrand(m, sharpness), integrand(b, sharpness)
    left, right = integrand(0.5 * (a + m), sharpness), integrand(0.5 * (m + b), sharpness)
    whole = (b - a) / 6.0 * (fa + 4.0 * fm + fb)
    halves = (b - a) / 12.0 * (fa + 4.0 * left + 2.0 * fm + 4.0 * right + fb)
    if abs(halves - whole) < tolerance:
        return halves
    return simpson(a, m, 0.5 * tolerance, sharpness) + simpson(m, b, 0.5 * tolerance, sharpness)


def undecorated(function: Any, compiled: Callable[[Any], Any] = lambda code: code, *helpers: Any) -> Any:
    """The function as if it had no decorator, which calls itself; compiled: what is made of it, and of its helpers."""
    code = function.python_function
    names = {**code.__globals__, **{helper.__name__: compiled(helper) for helper in helpers}}
    names[code.__name__] = compiled(type(code)(code.__code__, names, code.__name__))
    return names[code.__name__]


def one_by_one(batched: Any) -> Callable[..., Any]:
    """Plain Python, a lane after the other."""
    function = undecorated(batched, lambda code: code, integrand.python_function)
    return lambda *arrays: np.array([function(*row) for row in zip(*(array.tolist() for array in arrays), strict=True)])


def in_numba(function: Any, dtype: str, *helpers: Any) -> Callable[..., Any]:
    """Numba's compiled function, called in a compiled loop."""
    compiled = undecorated(function, numba.njit, *helpers)

    @numba.njit
    def loop(rows: Any, out: Any) -> Any:
        for i in range(len(out)):
            out[i] = compiled(*rows[i])
        return out

    def run(*arrays: Any) -> Any:
        return loop(list(zip(*arrays, strict=True)), np.empty(len(arrays[0]), dtype))

    return run


@jax.jit
@jax.vmap
def collatz_by_vmap(n: Any) -> Any:
    """The same loop as JAX wants it."""

    def step(state: Any) -> Any:
        n, steps = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return jax.lax.while_loop(lambda state: state[0] > 1, step, (n, jnp.zeros_like(n)))[1]


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Of a call, and its result."""
    began = time.perf_counter()
    result = np.asarray(call())
    return time.perf_counter() - began, result


def main() -> None:
    """Measure, and print the rows of a table."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 20, LANES)
    starts = rng.integers(1, 50_000, LANES)
    zero, one = np.full(LANES, -1.0), np.ones(LANES)
    tolerance, sharpness = np.full(LANES, 1e-7), 10 ** rng.uniform(0, 4, LANES)
    integrals = (zero, one, tolerance, sharpness)
    programs: dict[str, tuple[tuple[Any, ...], dict[str, Callable[..., Any]]]] = {
        "Fibonacci numbers, recursive": (
            (numbers,),
            {
                "batchnuts": fibonacci,
                "batchnuts inside jax.jit": jax.jit(autobatch.jax(fibonacci, max_stack_depth=24, check=False)),
                "numba, one core": in_numba(fibonacci, "int64"),
                "plain Python": one_by_one(fibonacci),
            },
        ),
        "Collatz, a loop": (
            (starts,),
            {
                "batchnuts": steps_of_collatz,
                "jax.vmap of while_loop": collatz_by_vmap,
                "numba, one core": in_numba(steps_of_collatz, "int64"),
                "plain Python": one_by_one(steps_of_collatz),
            },
        ),
        "adaptive quadrature, recursive": (
            integrals,
            {
                "batchnuts": simpson,
                "batchnuts inside jax.jit": jax.jit(autobatch.jax(simpson, max_stack_depth=32, check=False)),
                "numba, one core": in_numba(simpson, "float64", integrand.python_function),
                "plain Python": one_by_one(simpson),
            },
        ),
    }
    print("| program | by | first call | seconds |\n|---|---|---|---|")
    for program, (arrays, ways) in programs.items():
        expected = None
        times: dict[str, list[float]] = {way: [] for way in ways}
        for repetition in range(6):
            for way, function in ways.items():
                if way == "plain Python" and repetition > 1:
                    continue
                taken, found = seconds(lambda: as_result(function(*arrays)))  # noqa: B023
                times[way].append(taken)
                expected = found if expected is None else expected
                np.testing.assert_allclose(found, expected, rtol=1e-5)
        for way, (first, *later) in times.items():
            print(f"| {program} | {way} | {first:.2f} | {statistics.median(later):.3f} |")


def as_result(result: Any) -> Any:
    """Without the faults that a function inside of a program gives, too."""
    return result[0] if isinstance(result, tuple) else result


if __name__ == "__main__":
    main()
