"""Stackless: waiting points, calls deeper than Python's stack, blocks compiled once, what goes wrong on a lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import Case, covering_by_default, fibonacci, is_even

from batchnuts.autobatch import (
    BatchnutsError,
    Block,
    BranchOp,
    ControlFlowGraph,
    GotoOp,
    IndirectGotoOp,
    Primitive,
    PrimOp,
    Program,
    StackOverflowError,
    batch,
    write,
)
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.runtime import faults, stackless
from batchnuts.autobatch.runtime.stackless import Part

NUMPY = get_backend("numpy", "eager")
INT = as_type("int64")


def run(function: Any, backend: Any, *inputs: np.ndarray, cache: Any = None, **options: Any) -> Any:
    program = function.compiled(function.lane_types(inputs), backend).with_calls
    return stackless.execute(program, backend, cache, *inputs, **options)


# ---- waiting points ------------------------------------------------------------------------------------------------


def test_lanes_at_one_block_are_one_entry_and_the_earliest_comes_first() -> None:
    waiting = stackless._Waiting()
    a, b, nobody = np.array([True, False, False]), np.array([False, True, False]), np.zeros(3, bool)
    for index, lanes in ((3, a), (1, nobody), (2, b), (3, b), (0, nobody)):
        waiting.add(index, lanes)
    index, lanes = waiting.take_first()
    assert (index, lanes.tolist()) == (2, [False, True, False])
    index, lanes = waiting.take_first()
    assert (index, lanes.tolist()) == (3, [True, True, False])
    assert waiting.take_first() is None
    assert a.tolist() == [True, False, False]


@covering_by_default()
def test_no_block_runs_without_lanes(case: Case) -> None:
    dispatches: list[tuple[str, int, int]] = []
    inputs = case.function._bind(case.inputs, {}).leaves
    program = case.function.compiled(case.function.lane_types(case.inputs), NUMPY).with_calls
    tally: stackless.Tally = {}
    stackless.execute(program, NUMPY, None, *inputs, tally=tally, observe=lambda *seen: dispatches.append(seen))
    assert dispatches
    assert all(1 <= lanes <= len(inputs[0]) and depth >= 0 for _, lanes, depth in dispatches)
    assert {label: n for label, (n, _) in tally.items()} == {
        label: sum(seen[0] == label for seen in dispatches) for label in tally
    }


def test_lanes_that_part_meet_again() -> None:
    """Both sides of a branch run once, and what follows it once, for all lanes. (Built by hand: no pass merges it.)"""

    def assign(variable: str, text: str, function: Any, *inputs: str) -> PrimOp:
        return PrimOp((variable,), Primitive(text, lambda *values: (function(*values),)), inputs)

    blocks = (
        Block("start", (assign("large", "n > 2", lambda n: n > 2, "n"),), BranchOp("large", "double", "add")),
        Block("double", (assign("n", "n * 2", lambda n: n * 2, "n"),), GotoOp("meet")),
        Block("add", (assign("n", "n + 100", lambda n: n + 100, "n"),), GotoOp("meet")),
        Block("meet", (assign("m", "n - 1", lambda n: n - 1, "n"),), IndirectGotoOp()),
    )
    types = {"n": INT, "m": INT, "large": as_type("bool")}
    program = Program(ControlFlowGraph(blocks), (), ("n",), ("m",), types)
    tally: stackless.Tally = {}
    (found,) = stackless.execute(program, NUMPY, None, np.array([1, 3, 2, 5]), tally=tally)
    np.testing.assert_array_equal(found, [100, 5, 101, 9])
    assert tally == {"start": (1, 4), "double": (1, 2), "add": (1, 2), "meet": (1, 4)}


# ---- blocks as compiled functions --------------------------------------------------------------------------------


def traces(cache: stackless.BlockCodeCache) -> list[int]:
    parts = [part for code in cache.values() for part in code.parts if isinstance(part, Part)]
    return [part.run.experimental_get_tracing_count() for part in parts]  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_a_block_is_compiled_once_for_a_number_of_lanes(mode: str) -> None:
    backend = get_backend("tensorflow", mode)
    cache: stackless.BlockCodeCache = {}
    np.testing.assert_array_equal(run(fibonacci, backend, np.array([3, 7, 4, 5]), cache=cache)[0], [3, 21, 5, 8])
    ready = dict(cache)
    assert len(traces(cache)) >= 3
    assert set(traces(cache)) == {1}
    np.testing.assert_array_equal(run(fibonacci, backend, np.array([2, 0, 6, 1]), cache=cache)[0], [2, 1, 13, 1])
    assert set(traces(cache)) == {1}
    assert all(cache[label] is ready[label] for label in ready)
    np.testing.assert_array_equal(run(fibonacci, backend, np.array([4, 1]), cache=cache)[0], [5, 1])
    assert set(traces(cache)) == {2}  # another shape


def test_run_keeps_compiled_blocks() -> None:
    fibonacci.run(np.array([1, 2, 3]), executor="stackless", backend="tensorflow")
    cache = fibonacci._block_code.values()[-1]
    before = traces(cache)
    again = fibonacci.run(np.array([4, 5, 6]), executor="stackless", backend="tensorflow")
    np.testing.assert_array_equal(again, [5, 8, 13])
    assert traces(cache) == before


def test_between_calls_lies_one_part() -> None:
    """The branch's condition and the merge are in it: entry; two calls with a part before, between and after."""
    cache: stackless.BlockCodeCache = {}
    run(fibonacci, NUMPY, np.array([3]), cache=cache)
    kinds = {label: ["part" if isinstance(p, Part) else "call" for p in code.parts] for label, code in cache.items()}
    assert kinds == {
        "main.entry": ["call"],
        "fibonacci.entry": ["part"],
        "fibonacci.then": ["part"],
        "fibonacci.endif": ["part", "call", "part", "call", "part"],
    }


def test_a_cache_of_another_program_does_no_harm() -> None:
    @batch
    def main_twin(n):
        return n * 7

    @batch
    def other(n):
        return n + 1

    cache: stackless.BlockCodeCache = {}
    np.testing.assert_array_equal(run(main_twin, NUMPY, np.array([2]), cache=cache)[0], [14])
    np.testing.assert_array_equal(run(other, NUMPY, np.array([2]), cache=cache)[0], [3])
    eager = get_backend("tensorflow", "eager")
    np.testing.assert_array_equal(run(other, eager, np.array([2]), cache=cache)[0], [3])


# ---- depth --------------------------------------------------------------------------------------------------------


def test_calls_nest_deeper_than_pythons_own_stack() -> None:
    np.testing.assert_array_equal(is_even.run(np.array([3001, 4000]), executor="stackless", backend="numpy"), [0, 1])


def test_the_limit_is_exact() -> None:
    @batch
    def down(n):
        if n == 0:
            return 0
        return down(n - 1) + 1

    run(down, NUMPY, np.array([3, 0]), max_stack_depth=4)  # 4 calls: of 3, 2, 1 and 0
    with pytest.raises(StackOverflowError, match=r"lane 0 recursed too deep in 'down': calls may nest 3 deep \(1 of 2"):
        run(down, NUMPY, np.array([3, 0]), max_stack_depth=3)


def test_an_endless_recursion_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "LARGEST_STACK_DEPTH", 50)

    @batch
    def upwards(n):
        if n == 0:
            return 0
        return upwards(n + 1) + n

    with pytest.raises(
        StackOverflowError,
        match=r"lane 1 .*'upwards': calls may nest 50 deep.*such as max_stack_depth=100; it may also be infinite",
    ):
        run(upwards, NUMPY, np.array([0, 1]))


# ---- faults --------------------------------------------------------------------------------------------------------


@batch
def write_late(n, index):
    """Lane by lane another write goes wrong, the higher lanes' first."""
    buffer = np.zeros(3)
    while n > 0:
        n -= 1
    if index < 0:
        return write(buffer, index, 1.0)  # too low
    return write(buffer, index, 2.0)  # too high


@pytest.mark.parametrize("mode", ["eager", "xla"])
def test_the_first_lane_is_named_whichever_failed_first(mode: str) -> None:
    n, index = np.array([0, 5, 0, 1]), np.array([1, 7, -1, 0])
    for options in ({"executor": "stackless", "mode": mode}, {"executor": "reference"}, {"backend": "numpy"}):
        with pytest.raises(BatchnutsError, match=r"(?s)# too high.*lane 1: wrote outside of .*2 of 4 lanes"):
            write_late.run(n, index, **options)
    np.testing.assert_array_equal(
        write_late.run(n, np.array([1, 2, 0, 0]), executor="stackless", mode=mode).argmax(axis=1), [1, 2, 0, 0]
    )


# ---- the hybrid on the corpus --------------------------------------------------------------------------------------


@covering_by_default()
def test_the_hybrid_agrees_with_plain_python(case: Case) -> None:
    expected = flatten(case.function.run(*case.inputs, executor="unbatched"))[0]
    found = flatten(case.function.run(*case.inputs, executor="stackless", backend="tensorflow", mode="xla"))[0]
    dtypes = case.dtypes or tuple(leaf.dtype.name for leaf in expected)
    for a, b, dtype in zip(found, expected, dtypes, strict=True):
        assert a.dtype == dtype
        tolerance = {"float32": 2e-6, "float64": 1e-13}.get(dtype, 0.0)
        np.testing.assert_allclose(a, b.astype(dtype), rtol=tolerance, atol=tolerance)
