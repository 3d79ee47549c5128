"""Shared arrays: one for all lanes, read by batched primitives, changed between runs without a new compilation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchnuts import autobatch
from batchnuts.autobatch import CompileError, Shared, batch, ops, primitive
from batchnuts.autobatch.machine import LaneProgram

WAYS = [
    {"executor": "virtual_machine", "backend": "numpy"},
    {"executor": "virtual_machine", "backend": "tensorflow", "mode": "eager"},
    {"executor": "virtual_machine", "backend": "tensorflow", "mode": "graph"},
    {"executor": "virtual_machine", "backend": "tensorflow", "mode": "xla"},
    {"executor": "virtual_machine", "backend": "jax", "mode": "eager"},
    {"executor": "virtual_machine", "backend": "jax", "mode": "xla"},
    {"executor": "stackless", "backend": "numpy"},
    {"executor": "stackless", "backend": "tensorflow", "mode": "xla"},
    {"executor": "stackless", "backend": "jax", "mode": "eager"},
    {"executor": "stackless", "backend": "jax", "mode": "xla"},
    {"executor": "reference", "backend": "numpy"},
    {"executor": "unbatched", "backend": "numpy"},
]
X, N = np.arange(8.0).reshape(4, 2), np.array([0, 3, 1, 2])
MATRICES = np.array([[[1.0, 2.0], [0.0, 1.0]], [[0.0, 1.0], [-1.0, 0.5]]])


def powers() -> tuple[Any, Shared]:
    """`f(x, n)`, x times the n-th power of a shared matrix, by recursion, and the matrix."""
    matrix = Shared("matrix", MATRICES[0])

    @primitive(batched=True, shared=(matrix,))
    def times(x, matrix):
        return ops.matmul(x, matrix)

    @batch
    def power(x, n):
        if n == 0:
            return x
        return power(times(x), n - 1)

    return power, matrix


def expected(matrix: np.ndarray) -> np.ndarray:
    return np.stack([x @ np.linalg.matrix_power(matrix, n) for x, n in zip(X, N)])


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()))
def test_the_next_run_has_the_new_value(way: dict[str, str]) -> None:
    power, matrix = powers()
    for value in MATRICES:
        matrix.value = value
        np.testing.assert_allclose(power.run(X, N, **way), expected(value), rtol=1e-12)


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_machine_keeps_the_value_of_its_start_and_compiles_once(backend: str) -> None:
    matrix, traced = Shared("matrix", MATRICES[0]), []

    @primitive(batched=True, shared=(matrix,))
    def times(x, matrix):
        traced.append(matrix)
        return ops.matmul(x, matrix)

    @batch
    def one(x, n):
        while n > 0:
            x = times(x)
            n = n - 1
        return x

    program = LaneProgram(one, (X, N), backend, "xla")
    machine = program.machine(4, 4)
    states, traces = [], []
    for value in MATRICES:
        matrix.value = value
        states.append(machine.start((X, N)))
    for state, value in zip(states, MATRICES):
        done = machine.advance(state, 1000)
        traces.append(len(traced))
        np.testing.assert_allclose(machine.results(done)[0], expected(value), rtol=1e-12)
        assert done["shared:matrix"].shape == (2, 2), "no copy for each lane"
    assert traces[0] == traces[1]
    moved = machine.move(states[0], np.array([0]), states[1], np.array([1]))
    np.testing.assert_array_equal(moved["shared:matrix"], MATRICES[0])


def test_other_types_and_misuse_are_named() -> None:
    power, matrix = powers()
    with pytest.raises(ValueError, match=r"'matrix': found float64\[3, 3\], expected float64\[2, 2\]"):
        matrix.value = np.eye(3)
    with pytest.raises(ValueError, match="found float32"):
        matrix.value = np.eye(2, dtype="float32")
    with pytest.raises(TypeError, match="expected numbers"):
        Shared("names", ["a"])
    with pytest.raises(ValueError, match="batched=True"):
        primitive(lambda x, m: x, shared=(matrix,))
    with pytest.raises(ValueError, match="one name"):
        primitive(lambda x, m, n: x, batched=True, shared=(matrix, Shared("matrix", 1.0)))
    with pytest.raises(CompileError, match="shared array 'matrix'"):
        autobatch.jax(power, max_stack_depth=4)(X, N)


def test_two_of_one_name_in_a_program_are_an_error() -> None:
    one, other = (primitive(lambda x, a: x + a, batched=True, shared=(Shared("a", np.float64(i)),)) for i in range(2))

    @batch
    def both(x):
        return one(x) + other(x)

    with pytest.raises(CompileError, match="two shared arrays of the program are named 'a'"):
        both.run(np.ones(3), backend="numpy")
