"""What the compiler made of a function, as it is kept on disk: the same program, whose primitives compile it again."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchnuts
from batchnuts.autobatch import BatchedFunction, BatchnutsError, batch, ops
from batchnuts.autobatch.backends.backend import Identity
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.cached_functions import _as_entry, read, write
from batchnuts.autobatch.ir.printer import show_program
from batchnuts.autobatch.ir.program import PrimOp
from batchnuts.autobatch.language.libraries.jax_programs import key_by_identity
from batchnuts.autobatch.language.shared import Shared
from batchnuts.autobatch.pipeline import CompiledFunction
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine, run_to_end
from batchnuts.disk_cache.folder import keeping

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


def helped_by(helper: Any) -> BatchedFunction:
    @batch
    def helped(n: Any) -> Any:
        while n > 3:
            n = n - helper(1)
        return n

    return helped


FUNCTIONS = {
    "recursion": fibonacci,
    "structures": scaled_by(2),
    "values of the scope": scaled_by(5),
    "a function of the user's": helped_by(lambda x: x + 1),
}


def compiled(function: BatchedFunction) -> CompiledFunction:
    return function.compiled(function.lane_types((N,)), NUMPY)


def results(found: CompiledFunction) -> list[np.ndarray]:
    _, arrays = run_to_end(VirtualMachine(found.lowered, NUMPY, len(N), 16), [N], grow=True)
    return [np.asarray(array) for array in arrays]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_read_is_what_was_written(function: str) -> None:
    """And runs by its expressions; where it calls a user's function, it is compiled when the first is called, once."""
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
    assert again == ([function] if function == "a function of the user's" else [])


def test_a_program_that_the_compiler_would_not_make_now_does_not_run() -> None:
    dropped: list[bool] = []
    helped = helped_by(lambda x: x + 1)
    found = read(write(compiled(helped)), lambda: compiled(scaled_by(2)), lambda: dropped.append(True))
    with pytest.raises(BatchnutsError, match="It was deleted: run again"):
        results(found)
    assert dropped


def counter(step: int) -> BatchedFunction:
    """Known by everything but its step, which is said besides."""

    @batch
    def count(n: Any) -> Any:
        while n < 3:
            n = n + step
        return n

    count.identity = Identity(lambda lanes: "count", key_by_identity).with_text(repr(step))
    return count


def test_what_a_function_depends_on_besides_is_part_of_every_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batchnuts, "BEGAN", time.time())
    made = []
    for step in (1, 2, 1):
        with keeping(str(tmp_path)) as kept:
            assert kept is not None
            expected = [n if n >= 3 else 3 + (3 - n) % step for n in N.tolist()]
            np.testing.assert_array_equal(counter(step).run(N, backend="jax"), expected)
            made.append(kept.tally.written)
    assert made == [3, 6, 6]


def test_an_entry_that_cannot_be_read_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchnuts, "BEGAN", time.time())
    with keeping(str(tmp_path)) as kept:
        assert kept is not None
        one = counter(1)
        one.compiled(one.lane_types((N,)), NUMPY)
        (file,) = kept.folder.iterdir()
        kept.put(file.stem, b"no program")
        two = counter(1)
        two.compiled(two.lane_types((N,)), NUMPY)
        assert (kept.tally.dropped, kept.tally.written) == (1, 3)
        assert b"no program" not in next(kept.folder.iterdir()).read_bytes()


class Users(dict):  # type: ignore[type-arg]
    """A class of a user."""


def test_classes_of_others_are_neither_written_nor_read() -> None:
    whole = compiled(fibonacci)
    assert _as_entry(whole) is not None
    assert _as_entry(replace(whole, result_type=Users())) is None
    with pytest.raises(pickle.UnpicklingError, match="Users is not a class of batchnuts"):
        read(pickle.dumps(replace(whole, with_calls=None, lowered=None, result_type=Users())), lambda: whole)  # type: ignore[arg-type]
    for named in (
        b"cbatchnuts.disk_cache.entries\nos.system\n.",  # protocol 0
        b"\x80\x04\x8c\x1cbatchnuts.disk_cache.entries\x8c\x09os.system\x93.",  # protocol 4 follows dots
        b"cbatchnuts.disk_cache.identity\ndigest_of\n.",
        b"cbuiltins\neval\n.",
    ):
        with pytest.raises(pickle.UnpicklingError, match="is not a class of batchnuts"):
            read(named, lambda: whole)
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
