"""What the compiler made of a function, as it is kept on disk: the same program, whose primitives compile it again."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch import BatchedFunction, BatchnutsError, batch, ops
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.ir.printer import show_program
from batchnuts.autobatch.ir.program import PrimOp
from batchnuts.autobatch.kept_functions import _as_entry, read, write
from batchnuts.autobatch.language.shared import Shared
from batchnuts.autobatch.pipeline import CompiledFunction
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine, run_to_end

NUMPY = get_backend("numpy", "eager")
N = np.arange(8)


@batch
def fibonacci(n: Any) -> Any:
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


def scaled_by(scale: Any) -> BatchedFunction:
    @batch
    def scaled(n: Any) -> Any:
        pair = {"a": n * scale, "b": (n, n + scale)}
        while pair["a"] > 3:
            pair = {"a": pair["a"] - 3, "b": pair["b"]}
        other = ops.where(n > 2, n * scale, n)
        return pair, other

    return scaled


FUNCTIONS = {"recursion": fibonacci, "structures": scaled_by(2), "values of the scope": scaled_by(5)}


def compiled(function: BatchedFunction) -> CompiledFunction:
    return function.compiled(function.lane_types((N,)), NUMPY)


def results(found: CompiledFunction) -> list[np.ndarray]:
    _, arrays = run_to_end(VirtualMachine(found.lowered, NUMPY, len(N), 16), [N], grow=True)
    return [np.asarray(array) for array in arrays]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_read_is_what_was_written(function: str) -> None:
    """And runs, by functions that are compiled when the first is called, once."""
    whole, again = compiled(FUNCTIONS[function]), []

    def compile_again() -> CompiledFunction:
        again.append(function)
        return whole

    found = read(write(whole), compile_again)
    for name in ("lowered", "with_calls"):
        assert show_program(getattr(found, name)) == show_program(getattr(whole, name))
    assert found.result_type == whole.result_type
    assert again == []
    for one, other in zip(results(found), results(whole), strict=True):
        np.testing.assert_array_equal(one, other)
    assert again == [function]


def test_a_program_that_the_compiler_would_not_make_now_does_not_run() -> None:
    found = read(write(compiled(fibonacci)), lambda: compiled(scaled_by(2)))
    with pytest.raises(BatchnutsError, match="python -m batchnuts cache --clear"):
        results(found)


class Users(dict):  # type: ignore[type-arg]
    """A class that is none of ours."""


def test_classes_of_others_are_neither_written_nor_read() -> None:
    whole = compiled(fibonacci)
    assert _as_entry(whole) is not None
    assert _as_entry(replace(whole, result_type=Users())) is None
    with pytest.raises(pickle.UnpicklingError, match="Users is none of ours"):
        read(pickle.dumps(replace(whole, with_calls=None, lowered=None, result_type=Users())), lambda: whole)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="found list"):
        read(pickle.dumps([]), lambda: whole)


def test_a_program_that_reads_arrays_of_this_process_is_not_kept() -> None:
    matrix = Shared("matrix", np.eye(2))

    def with_matrix(op: Any) -> Any:
        return replace(op, function=replace(op.function, shared=(matrix,))) if isinstance(op, PrimOp) else op

    whole = compiled(fibonacci)
    blocks = (replace(block, ops=tuple(map(with_matrix, block.ops))) for block in whole.lowered.graph.blocks)
    graph = replace(whole.lowered.graph, blocks=tuple(blocks))
    assert _as_entry(replace(whole, lowered=whole.lowered.replace(graph=graph))) is None
