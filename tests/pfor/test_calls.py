"""Functions that stay one op: what they compute, where they are traced, and what pfor makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch import random
from batchnuts.autobatch.backends.tensorflow.work_estimate import primitive_work
from batchnuts.autobatch.ir.program import Primitive, TensorType
from batchnuts.autobatch.pfor import PforError, pfor
from batchnuts.autobatch.pfor.calls import ElementwiseFunction
from batchnuts.autobatch.pfor.graphs import trace_of

ROWS = 4


def make() -> tuple[ElementwiseFunction, list[int]]:
    traces: list[int] = []

    def mixed(x: Any, y: Any) -> tuple[Any, Any]:
        traces.append(x.shape.rank)
        return x * y + 1.0, x - y

    return ElementwiseFunction(mixed), traces


@pytest.mark.parametrize("xla", [False, True])
def test_rows_are_those_of_the_function(xla: bool) -> None:
    mixed, _ = make()
    data = tf.reshape(tf.range(12.0), [ROWS, 3])
    other = tf.constant([[10.0], [20.0]])

    def body(i: Any) -> tuple[Any, ...]:
        return (*mixed(data[i], other), *mixed(other, tf.constant(2.0)), *mixed(data[i], data[i]))

    found = tf.function(lambda: pfor(body, ROWS), autograph=False, jit_compile=xla)()
    for row in range(ROWS):
        for here, there in zip(found, body(tf.constant(row)), strict=True):
            np.testing.assert_array_equal(here[row], there)


def test_rows_that_a_loop_reads_later() -> None:
    mixed, _ = make()
    data = tf.reshape(tf.range(12.0), [ROWS, 3])

    def body(i: Any) -> Any:
        row = data[i]
        _, total = tf.while_loop(
            lambda k, _: k < i, lambda k, total: (k + 1, total + mixed(row, row)[0]), (0, tf.zeros(3))
        )
        return total

    found = pfor(body, ROWS)
    for row in range(ROWS):
        np.testing.assert_array_equal(found[row], body(tf.constant(row)))


def test_it_is_one_op_traced_once_for_some_ranks() -> None:
    mixed, traces = make()

    def body(x: Any) -> Any:
        return mixed(x, x)[0] + mixed(x[:2], x[:1])[1][0]

    graph = trace_of(lambda rows: pfor(lambda i: body(rows[i]), ROWS), [tf.TensorSpec([ROWS, 3])]).graph
    assert [op.type for op in graph.get_operations()].count("PartitionedCall") == 2
    assert traces == [1, 2]


def test_a_cipher_costs_what_its_rounds_do() -> None:
    """However it is called: schedules are made from that."""
    bits = Primitive("bits", lambda key: (random.bits(key, 1000),))
    work = primitive_work(bits, (TensorType("uint32", (2,)),))
    words = 500  # two of each block
    assert work is not None
    assert 20 * 5 * words < work < 20 * 7 * words + 5 * 1000


def test_rows_of_different_lengths_are_refused_at_the_line() -> None:
    words, keep = tf.range(6), tf.constant([[True, False, True], [False, False, True]])

    def body(i: Any) -> Any:
        some = tf.boolean_mask(tf.cast(words[:3], tf.uint32), keep[i])
        return tf.reduce_sum(random.threefry2x32((some, some), (some, some))[0])

    with pytest.raises(PforError, match=r"random\.threefry2x32"):
        pfor(body, 2)


def test_a_cipher_takes_numbers_and_unknown_ranks() -> None:
    key, counter = tf.constant([1], "uint32"), np.arange(3, dtype="uint32")
    expected = random.threefry2x32((np.asarray(key),) * 2, (counter, np.uint32(2)))
    of_numbers = random.threefry2x32((key, key), (counter, 2))

    @tf.function(input_signature=[tf.TensorSpec(None, tf.uint32)], autograph=False)
    def of_unknown(words: Any) -> Any:
        return random.threefry2x32((key, key), (words, tf.constant(2, tf.uint32)))

    for found in (of_numbers, of_unknown(counter)):
        for here, there in zip(found, expected, strict=True):
            np.testing.assert_array_equal(here, there)


def test_what_is_traced_to_look_at_may_make_a_variable_that_it_keeps() -> None:
    kept: list[Any] = []

    def keeping(x: Any) -> Any:
        if not kept:
            kept.append(tf.Variable(2.0))
        return kept[0] * x

    trace = trace_of(keeping, [tf.TensorSpec([])])
    assert trace.result.graph is trace.graph is trace.inputs[0].graph
    with pytest.raises(ValueError, match="singleton"):
        trace_of(lambda x: tf.Variable(1.0) + x, [tf.TensorSpec([])])
