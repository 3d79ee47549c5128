"""A function that is traced and converted once gives what it gives itself, in every kind of program that calls it."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch.pfor import PforError, vectorized_map
from batchnuts.autobatch.pfor.errors import noting_warnings
from batchnuts.autobatch.pfor.traced_once import _TRACES, TracedOnce

DATA = np.arange(200, dtype="float32") / 100


class Counted:
    """A value and a gradient, and how often it was traced or run."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        with tf.GradientTape() as tape:
            tape.watch(x)
            large = tf.gather(tf.constant(DATA), [3, 199])  # data that the function captures
            value = tf.reduce_sum(tf.sin(x) * large[0]) + tf.exp(x[0]) * large[1]
        return value, tape.gradient(value, x), tf.constant(2.0)


def rows(n: int) -> Any:
    return tf.constant(np.random.default_rng(n).normal(size=(n, 3)).astype("float32"))


@pytest.mark.parametrize("xla", [False, True])
def test_results_are_those_of_the_function_and_it_is_traced_once(xla: bool) -> None:
    counted = Counted()
    once = TracedOnce(counted, xla=xla)
    for n in (2, 5):
        expected = [np.stack(parts) for parts in zip(*(Counted()(row) for row in rows(n)))]
        for _ in range(2):  # two programs
            program = tf.function(lambda x: vectorized_map(once, x), autograph=False, jit_compile=xla)
            found = program(rows(n))
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5)
    assert counted.calls == 1
    (trace,) = once._traces.values()
    assert len(trace.converted) == 2


def test_within_a_loop_of_a_program() -> None:
    once = TracedOnce(Counted(), xla=True)

    @tf.function(autograph=False, jit_compile=True)
    def program(x: Any) -> Any:
        def step(i: Any, x: Any) -> Any:
            return i + 1, x + 0.1 * vectorized_map(lambda row: once(row)[1], x)

        return tf.while_loop(lambda i, _: i < 3, step, (tf.constant(0), x))[1]

    x = expected = rows(4)
    for _ in range(3):
        expected = expected + 0.1 * tf.stack([Counted()(row)[1] for row in expected])
    np.testing.assert_allclose(program(x), expected, rtol=1e-4)


def test_eagerly_the_function_itself_runs() -> None:
    counted = Counted()
    once = TracedOnce(counted, xla=True)
    once(rows(2)[0])
    once(rows(2)[0])
    assert counted.calls == 2


def test_what_is_kept_is_freed_with_it() -> None:
    before = len(_TRACES)
    kept = [TracedOnce(Counted(), xla=False)]
    tf.function(lambda x: vectorized_map(kept[0], x), autograph=False)(rows(2))
    assert len(_TRACES) == before + 1
    kept.clear()
    gc.collect()
    assert len(_TRACES) == before


@pytest.mark.parametrize("xla", [False, True])
def test_branches_that_rows_take_apart_from_each_other(xla: bool) -> None:
    def branchy(x: Any) -> Any:
        return tf.cond(x[0] > 0, lambda: tf.exp(x[1]), lambda: x[2])

    once = TracedOnce(branchy, xla=xla)
    found = tf.function(lambda x: vectorized_map(once, x), autograph=False, jit_compile=xla)(rows(9))
    np.testing.assert_allclose(found, [branchy(row) for row in rows(9)], rtol=1e-6)


def test_an_error_names_the_line_of_the_function() -> None:
    def prints(x: Any) -> Any:
        tf.raw_ops.PrintV2(input="text")
        return x

    once = TracedOnce(prints, xla=False)
    with pytest.raises(PforError, match="it has effects of its own") as caught:
        tf.function(lambda x: vectorized_map(once, x), autograph=False)(rows(2))
    assert caught.value.source is not None
    assert "PrintV2" in caught.value.source.text


@pytest.mark.filterwarnings("ignore::batchnuts.autobatch.pfor.FallbackWarning")
def test_each_program_is_noted_to_warn() -> None:
    """Also one that uses what was converted for another."""
    once = TracedOnce(lambda x: tf.quantization.fake_quant_with_min_max_args(x), xla=False)
    for _ in range(2):
        program = tf.function(lambda x: vectorized_map(once, x), autograph=False)
        with noting_warnings() as warned:
            program.get_concrete_function(rows(2))
        assert warned
    (trace,) = once._traces.values()
    assert len(trace.converted) == 1
