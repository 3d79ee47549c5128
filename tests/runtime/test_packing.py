"""Small arrays cross the border of compiled code together, and come back as they were."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from batchnuts.autobatch import batch
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.backends.tensorflow.packing import GRAPH, HOST, SMALL, Layout, PackedFunction
from batchnuts.autobatch.ir.program import TensorType

DTYPES = ("bool", "int32", "int64", "uint32", "float32", "float64")

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple) | st.sampled_from([(SMALL - 1,), (SMALL,), (2, SMALL)])
types = st.lists(st.builds(TensorType, st.sampled_from(DTYPES), shapes), min_size=1, max_size=12).map(tuple)


def some(types: tuple[TensorType, ...]) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, 100, t.shape).astype(t.dtype) for t in types]


def assert_same(found: list[Any], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for here, there in zip(found, expected):
        assert np.asarray(here).dtype == there.dtype
        np.testing.assert_array_equal(here, there, strict=True)


@given(types)
def test_arrays_come_back_as_they_were(types: tuple[TensorType, ...]) -> None:
    layout, arrays = Layout(types, 1 << 30), some(types)
    crossed = layout.pack(arrays, HOST)
    assert [TensorType(c.dtype.name, c.shape) for c in crossed] == list(layout.crossing)
    assert_same(layout.unpack(crossed, HOST), arrays)
    assert_same(layout.unpack([tf.constant(c) for c in crossed], GRAPH), arrays)
    for most in (1 << 30, None):
        again = Layout(types, most).unpack_in_graph([tf.constant(c) for c in crossed], tf.constant(True))
        assert_same(again, arrays)
    assert_same(layout.pack([tf.constant(a) for a in arrays], GRAPH), crossed)


@given(types)
def test_small_ones_cross_together(types: tuple[TensorType, ...]) -> None:
    large = [t for t in types if np.prod(t.shape) >= SMALL]
    dtypes = {t.dtype for t in types if np.prod(t.shape) < SMALL}
    crossing = Layout(types, 1 << 30).crossing
    assert list(crossing[: len(large)]) == large
    assert {t.dtype for t in crossing[len(large) :]} == dtypes
    assert len(crossing) == len(large) + len(dtypes)


@given(types, st.integers(0, 200))
def test_many_bytes_cross_by_themselves(types: tuple[TensorType, ...], most: int) -> None:
    small = [t for t in types if np.prod(t.shape) < SMALL]
    size = sum(int(np.prod(t.shape)) * np.dtype(t.dtype).itemsize for t in small)
    layout = Layout(types, most)
    assert layout.together == (tuple(i for i, t in enumerate(types) if t in small) if size <= most else ())
    if size > most:
        assert layout.crossing == types
    assert_same(layout.unpack(layout.pack(some(types), HOST), HOST), some(types))


def test_a_function_is_traced_once_for_each_set_of_types() -> None:
    def step(state: dict[str, Any], by: Any) -> tuple[dict[str, Any], Any]:
        return {name: array + tf.cast(by, array.dtype) for name, array in state.items()}, by + 1

    packed = PackedFunction(step, lambda function: tf.function(function, autograph=False), most=1000)
    state: dict[str, Any] = {"a": np.zeros(3, "int32"), "b": np.ones((2, SMALL)), "c": np.ones(2)}
    for by in (1, 2):
        state, scalar = packed(state, np.asarray(by))
        assert scalar == by + 1
    assert list(state) == ["a", "b", "c"]
    assert_same(list(state.values()), [np.full(3, 3, "int32"), np.full((2, SMALL), 4.0), np.full(2, 4.0)])
    assert all(isinstance(array, np.ndarray) for array in state.values()), "a session gives NumPy's"
    assert packed.traces == 1
    packed({"a": np.zeros(4, "int32")}, np.asarray(1))
    packed({"b": np.zeros(4, "int32")}, np.asarray(1))
    assert packed.traces == 3


def test_threads_that_come_first_at_once_trace_once() -> None:
    threads, calls = 4, []
    together = threading.Barrier(threads)

    def step(state: dict[str, Any], by: Any) -> tuple[dict[str, Any], Any]:
        calls.append(threading.get_ident())
        time.sleep(0.05)  # for the others to come
        return {"a": state["a"] + by}, by

    packed = PackedFunction(step, lambda function: tf.function(function, autograph=False), most=1000)

    def first(by: int) -> Any:
        together.wait(30)
        return packed({"a": np.arange(3)}, np.asarray(by))[0]["a"]

    with ThreadPoolExecutor(threads) as pool:
        for by, found in enumerate(pool.map(first, range(threads))):
            np.testing.assert_array_equal(found, np.arange(3) + by)
    assert packed.traces == len(calls) == 1


@batch
def sums(x, n):
    total = x
    while n > 0:
        total = total + x
        n = n - 1
    return total, x


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_a_machine_crosses_with_few_arrays(mode: str) -> None:
    backend = get_backend("tensorflow", mode)
    machine = sums.machine((as_type("float32"), as_type("int64")), 3, backend, "earliest", 4)
    state = machine.start((np.ones(3, "float32"), np.arange(3)))
    limits = [np.asarray(5), np.asarray(0)]
    graph = machine._advance.graph(state, *limits)
    dtypes = {array.dtype for array in state.values()}
    assert len(state) > 10
    assert len(graph.inputs) - 1 == len(dtypes) == 3  # and one that says that it is to be cut
    assert len(graph.outputs) <= 3


@pytest.mark.parametrize("mode", ["graph", "xla", "eager"])
def test_a_machine_keeps_arrays_of_its_own(mode: str) -> None:
    """What a caller writes into his arrays afterwards changes neither a run under way nor its results."""
    backend = get_backend("tensorflow", mode)
    machine = sums.machine((as_type("float32"), as_type("int64")), 3, backend, "earliest", 4)
    x, n = np.ones(3, "float32"), np.arange(3)
    state = machine.start((x, n))
    x[:], n[:] = 7, 0
    state = machine.advance(state, 100)
    x[:] = 8
    total, same = (np.asarray(r) for r in machine.results(state))
    np.testing.assert_array_equal(total, [1, 2, 3])
    np.testing.assert_array_equal(same, [1, 1, 1])


def test_the_state_before_stays_valid() -> None:
    backend = get_backend("tensorflow", "xla")
    machine = sums.machine((as_type("float32"), as_type("int64")), 3, backend, "earliest", 4)
    first = machine.start((np.ones(3, "float32"), np.full(3, 9)))
    second = machine.advance(first, 2)
    before = {name: np.array(array) for name, array in second.items()}
    third = machine.advance(second, 100)
    assert machine.is_finished(third)
    assert_same([np.asarray(second[name]) for name in before], list(before.values()))
    assert machine.is_finished(machine.advance(second, 100))
    np.testing.assert_array_equal(machine.results(machine.advance(first, 100))[0], machine.results(third)[0])
