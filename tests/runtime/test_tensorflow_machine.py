"""Machines that TensorFlow compiles: traced once, by whichever thread comes first, and their arrays are their own."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch import batch
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.backends.tensorflow.machine import TracedMachine


def assert_same(found: list[Any], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for here, there in zip(found, expected):
        assert np.asarray(here).dtype == there.dtype
        np.testing.assert_array_equal(here, there, strict=True)


def test_a_function_is_traced_once_for_each_set_of_types() -> None:
    def step(state: dict[str, Any], by: Any) -> tuple[dict[str, Any], Any]:
        return {name: array + tf.cast(by, array.dtype) for name, array in state.items()}, by + 1

    machine = TracedMachine(step, lambda function: tf.function(function, autograph=False))
    state: dict[str, Any] = {"a": np.zeros(3, "int32"), "b": np.ones((2, 9000)), "c": np.ones(2)}
    for by in (1, 2):
        state, scalar = machine(state, np.asarray(by))
        assert scalar == by + 1
    assert list(state) == ["a", "b", "c"]
    assert_same(list(state.values()), [np.full(3, 3, "int32"), np.full((2, 9000), 4.0), np.full(2, 4.0)])
    assert all(isinstance(array, np.ndarray) for array in state.values()), "a session gives NumPy's"
    assert machine.traces == 1
    machine({"a": np.zeros(4, "int32")}, np.asarray(1))
    machine({"b": np.zeros(4, "int32")}, np.asarray(1))
    assert machine.traces == 3


def test_threads_that_come_first_at_once_trace_once() -> None:
    threads, calls = 4, []
    together = threading.Barrier(threads)

    def step(state: dict[str, Any], by: Any) -> tuple[dict[str, Any], Any]:
        calls.append(threading.get_ident())
        time.sleep(0.05)  # for the others to come
        return {"a": state["a"] + by}, by

    machine = TracedMachine(step, lambda function: tf.function(function, autograph=False))

    def first(by: int) -> Any:
        together.wait(30)
        return machine({"a": np.arange(3)}, np.asarray(by))[0]["a"]

    with ThreadPoolExecutor(threads) as pool:
        for by, found in enumerate(pool.map(first, range(threads))):
            np.testing.assert_array_equal(found, np.arange(3) + by)
    assert machine.traces == len(calls) == 1


@batch
def sums(x, n):
    total = x
    while n > 0:
        total = total + x
        n = n - 1
    return total, x


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
