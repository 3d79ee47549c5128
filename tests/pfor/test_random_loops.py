"""Loops that iterations leave at different times, over everything that has a part for each iteration: rows, lists that
are read or written, rows of different lengths, branches and loops inside. Drawn at random, against the sequential loop.

    expression ::= ("element", k) | ("own element", k)          of a list: at the trip's index, at an index of the row
                 | ("all elements",) | ("two elements", k)      of a list, stacked or gathered
                 | ("number", k) | ("part",) | ("written", k)   a row's number, a sum of a part, what was written
                 | ("window",) | ("mapped",)                    a slice of fixed length, tf.map_fn over a part
                 | ("branch", e, e) | ("loop", e) | ("grow", e, e)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from batchnuts.autobatch.pfor import pfor

ROWS, WIDTH = 5, 3
_rng = np.random.default_rng(11)
TABLE = tf.constant(_rng.normal(size=(ROWS, WIDTH)))
NUMBERS = tf.constant(_rng.normal(size=(ROWS, WIDTH)))
TRIPS = tf.constant([1, 3, 0, 2, 2])
INNER = tf.constant([2, 0, 1, 3, 1])
PARTS = tf.constant([3, 1, 2, 0, 3])
STARTS = tf.constant([0, 1, 1, 0, 1])

leaves = st.one_of(
    st.tuples(st.sampled_from(["element", "own element", "two elements", "number", "written"]), st.integers(0, 2)),
    st.tuples(st.sampled_from(["all elements", "part", "window", "mapped"])),
)
expressions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("branch"), inner, inner),
        st.tuples(st.just("loop"), inner),
        st.tuples(st.just("grow"), inner, inner),
    ),
    max_leaves=4,
)
programs = st.tuples(expressions, expressions, st.booleans(), st.sampled_from(["reads", "writes", "scatters"]))
"""The first loop's expression, that of a second loop over the same lists, whether the list is the same for all rows,
and what the loops do to the other list."""


def build(program: tuple[Any, ...]) -> Any:
    """The body of one iteration."""
    first, second, shared, writes = program

    def body(i: Any) -> list[Any]:
        rows = TABLE[0] if shared else TABLE[i]
        array = tf.TensorArray(tf.float64, size=WIDTH, clear_after_read=False).unstack(rows)
        numbers = NUMBERS[i]
        kept = tf.TensorArray(tf.float64, size=WIDTH, clear_after_read=False).unstack(numbers * 0.5)

        def value(node: tuple[Any, ...], j: Any, s: Any, held: Any) -> Any:
            match node:
                case ("element", k):
                    return array.read((j + k) % WIDTH)
                case ("own element", k):
                    return array.read((j + i + k) % WIDTH)
                case ("two elements", k):
                    return tf.reduce_sum(array.gather([k, 1]))
                case ("all elements",):
                    return tf.reduce_sum(array.stack() * numbers)
                case ("number", k):
                    return numbers[k]
                case ("part",):
                    return tf.reduce_sum(numbers[: PARTS[i]])
                case ("window",):
                    return tf.reduce_sum(numbers[STARTS[i] : STARTS[i] + 2])
                case ("mapped",):
                    return tf.reduce_sum(tf.map_fn(lambda v: v * tf.cos(s), numbers))
                case ("written", k):
                    return held.read((j + k) % WIDTH)
                case ("grow", one, other):
                    return 0.5 * value(one, j, s, held) + value(other, j, s, held)
                case ("branch", one, other):
                    return tf.cond(s > numbers[1], lambda: value(one, j, s, held), lambda: -value(other, j, s, held))
                case ("loop", inner):
                    return tf.while_loop(
                        lambda k, t: k < INNER[i],
                        lambda k, t: (k + 1, tf.sin(t) + value(inner, k, t, held)),
                        (0, s),
                        maximum_iterations=4,
                    )[1]
            raise AssertionError(node)

        def trip(node: tuple[Any, ...]) -> Any:
            def run(j: Any, s: Any, held: Any) -> Any:
                s = tf.sin(s) + value(node, j, s, held)
                if writes == "writes":
                    return j + 1, s, held.write(j % WIDTH, s)
                return j + 1, s, held.scatter([j % WIDTH], s[None]) if writes == "scatters" else held

            return run

        _, s, held = tf.while_loop(
            lambda j, s, held: j < TRIPS[i], trip(first), (0, numbers[0], kept), maximum_iterations=4
        )
        _, t, held = tf.while_loop(
            lambda j, t, held: t * t < 1.0 + numbers[2], trip(second), (0, s, held), maximum_iterations=3
        )
        return [s, t, held.stack()]

    return body


def check(program: tuple[Any, ...], how: str) -> None:
    body = build(program)
    sequential = tf.function(body, autograph=False)
    rows = [sequential(tf.constant(i)) for i in range(ROWS)]
    if how == "eager":
        found = pfor(body, ROWS)
    else:
        run = lambda: pfor(body, ROWS, masked=True if how == "masked" else None)  # noqa: E731
        found = tf.function(run, autograph=False, jit_compile=how == "xla")()
    for one, *wanted in zip(found, *rows):
        np.testing.assert_allclose(one, np.stack(wanted), rtol=1e-9, atol=1e-9)


_REPORTED = pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")


@_REPORTED
@pytest.mark.parametrize("how", ["eager", "graph", "masked"])
@examples(3)
@given(programs)
def test_loops_that_rows_leave_at_different_times(how: str, program: tuple[Any, ...]) -> None:
    check(program, how)


@pytest.mark.slow
@_REPORTED
@examples(2)
@given(programs)
def test_the_same_under_xla(program: tuple[Any, ...]) -> None:
    check(program, "xla")
