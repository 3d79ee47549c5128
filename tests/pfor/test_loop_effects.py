"""What pfor refuses, at the user's line, and effects that can be joined."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch import AssertionWarning
from batchnuts.autobatch.pfor import (
    PforError,
    pfor,
)

X = tf.constant(np.arange(12.0).reshape(4, 3), tf.float32)

VARIABLE = tf.Variable([1.0, 2.0])


def _prints(i: Any) -> Any:
    tf.print("now", i)  # here
    return i


def _runs_python(i: Any) -> Any:
    return tf.numpy_function(np.sin, [X[i]], tf.float32)  # here


def _ranges(i: Any) -> Any:
    return tf.range(i)  # here


def _reshapes(i: Any) -> Any:
    return tf.reshape(tf.ones([4]), [i, -1])  # here


def _slices(i: Any) -> Any:
    return X[0, :i]  # here


def _fills(i: Any) -> Any:
    return tf.fill([i], 1.0)  # here


def _assigns(i: Any) -> Any:
    VARIABLE.assign(X[i, :2])  # here
    return i


def _assigns_sometimes(i: Any) -> Any:
    def assign() -> Any:
        VARIABLE.assign([0.0, 0.0])  # here
        return 1

    return tf.cond(i > 1, assign, lambda: 0)


def _reads_what_it_updates(i: Any) -> Any:
    VARIABLE.assign_add(X[i, :2])
    return VARIABLE.read_value() * 2.0  # here


def _branches_of_unlike_shapes(i: Any) -> Any:
    x = X[i]
    return tf.cond(i > 1, lambda: x, lambda: x[:2])  # here


def _cases_of_unlike_shapes(i: Any) -> Any:
    x = X[i]
    return tf.reduce_sum(tf.switch_case(i, [lambda: x, lambda: x[:2], lambda: x[:1]]))  # here


def _takes_the_largest(i: Any) -> Any:
    return tf.reduce_sum(tf.math.top_k(X[i], i)[0])  # here


def _partitions(i: Any) -> Any:
    return tf.dynamic_partition(X[i], tf.cast(X[i] > 1.0, tf.int32), 2)  # here


def _common_entries(i: Any) -> Any:
    return tf.sets.size(tf.sets.intersection(tf.range(3)[None] + i, tf.range(3)[None]))  # here


REFUSED = {
    _branches_of_unlike_shapes: r"branches give shapes \(2,\) and \(3,\), .* Reduce in the branches",
    _cases_of_unlike_shapes: r"branches give shapes \(3,\) and \(2,\) and \(1,\)",
    _takes_the_largest: "how many entries it takes depends on the iteration.* Take the largest number for all",
    _partitions: r"lengths of its outputs depend on values.* Write tf.where\(partitions == k, x, 0\)",
    _common_entries: "lengths of its outputs depend on values.* Write a comparison of all pairs",
    _prints: "effects of its own",
    _runs_python: "effects of its own",
    _ranges: "the ends of a range depend on the iteration",
    _reshapes: "the new shape depends on the iteration",
    _slices: "whose length depends on the iteration, so it cannot be stacked",
    _fills: "the shape depends on the iteration",
    _assigns: "the value assigned depends on the iteration",
    _assigns_sometimes: "whether the variable is assigned depends on the iteration",
    _reads_what_it_updates: "both updates and reads this variable",
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__.strip("_"))
def test_what_has_no_right_result_is_refused_at_its_line(body: Any) -> None:
    VARIABLE.assign([1.0, 2.0])
    lines, first = inspect.getsourcelines(body)
    (line,) = [first + k for k, text in enumerate(lines) if "# here" in text]
    with pytest.raises(PforError, match=REFUSED[body]) as caught:
        pfor(body, 4)
    assert caught.value.source is not None
    assert (caught.value.source.filename, caught.value.source.line) == (__file__, line)
    np.testing.assert_array_equal(VARIABLE, [1.0, 2.0])  # nothing was half applied


def test_unknown_rank_is_refused() -> None:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec(None)])
    def function(x: Any) -> Any:
        return pfor(lambda i: tf.sort(x * tf.cast(i, tf.float32)), 3)

    with pytest.raises(PforError, match="unknown rank"):
        function(X)


@pytest.mark.filterwarnings("ignore::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("known", [False, True])
def test_shapes_known_only_when_it_runs_must_be_the_same(known: bool) -> None:
    """Of an op that runs row by row; the error names the op and its line."""

    def left(i: Any) -> Any:
        return tf.raw_ops.ListDiff(x=tf.range(5), y=tf.range(3) + (0 if known else 4) * i + i)[0]  # here

    lines, first = inspect.getsourcelines(left)
    line = first + next(k for k, text in enumerate(lines) if "# here" in text)
    if known:
        wanted = [[3, 4], [0, 4], [0, 1]]
        np.testing.assert_array_equal(pfor(left, 3), wanted)
        return
    said = r"pfor cannot stack the outputs of op .*ListDiff"
    with pytest.raises(tf.errors.InvalidArgumentError, match=said) as caught:
        pfor(left, 3)
    assert f"{__file__}:{line}" in str(caught.value)


def test_rows_of_different_lengths_are_refused() -> None:
    def grows(i: Any) -> Any:
        array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=())
        loop = tf.while_loop(lambda k, a: k < i, lambda k, a: (k + 1, a.write(k, 1.0)), (0, array))
        return loop[1].stack()

    with pytest.raises(PforError, match="rows would have different lengths"):
        pfor(grows, 3)


# ---- effects that can be joined ---------------------------------------------------------------------------------


@pytest.mark.parametrize("xla", [False, True])
def test_updates_are_added_up_first(xla: bool) -> None:
    total, count = tf.Variable(tf.zeros(3)), tf.Variable(0)

    def body(i: Any) -> Any:
        total.assign_add(X[i])
        total.assign_sub(tf.ones(3))
        count.assign_add(2)
        return i

    tf.function(lambda: pfor(body, 4), autograph=False, jit_compile=xla)()
    np.testing.assert_array_equal(total, np.sum(X, axis=0) - 4)
    assert count == 8


@pytest.mark.parametrize("masked", [False, True])
def test_updates_in_a_branch_or_a_loop_are_those_of_the_iterations_that_take_it(masked: bool) -> None:
    total = tf.Variable(0.0)

    def body(i: Any) -> Any:
        def add() -> Any:
            total.assign_add(X[i, 0])
            return 0

        def trip(k: Any) -> Any:
            total.assign_add(100.0)
            return k + 1

        tf.cond(i > 1, add, lambda: 0)
        return tf.while_loop(lambda k: k < i, trip, (0,))

    tf.function(lambda: pfor(body, 4, masked=masked), autograph=False)()
    assert total == 6.0 + 9.0 + 100.0 * (0 + 1 + 2 + 3)


@pytest.mark.parametrize("masked", [False, True])
def test_updates_in_a_branch_of_a_branch(masked: bool) -> None:
    total = tf.Variable(0.0)

    def body(i: Any) -> Any:
        def add() -> Any:
            total.assign_add(X[i, 0])
            return 0

        return tf.cond(i > 0, lambda: tf.cond(i < 3, add, lambda: 0), lambda: 0)

    tf.function(lambda: pfor(body, 4, masked=masked), autograph=False)()
    assert total == X[1, 0] + X[2, 0]


def test_scattered_updates_and_assignment_of_what_is_the_same() -> None:
    table, other = tf.Variable(tf.zeros((3, 2))), tf.Variable(0.0)

    def body(i: Any) -> Any:
        table.scatter_add(tf.IndexedSlices(X[i, :2][None], (i % 3)[None]))
        other.assign(5.0)
        return table.shape[0]

    tf.function(lambda: pfor(body, 4), autograph=False)()
    np.testing.assert_array_equal(table, [X[0, :2] + X[3, :2], X[1, :2], X[2, :2]])
    assert other == 5.0


def test_a_variable_is_read_once() -> None:
    function = tf.function(lambda: pfor(lambda i: VARIABLE * tf.cast(i, tf.float32), 4), autograph=False)
    reads = [op for op in function.get_concrete_function().graph.get_operations() if op.type == "ReadVariableOp"]
    assert len(reads) == 1
    np.testing.assert_array_equal(function()[3], 3 * VARIABLE)


def test_asked_for_the_iterations_run_one_after_another(capfd: pytest.CaptureFixture[str]) -> None:
    last = tf.Variable(0.0)

    def body(i: Any) -> Any:
        before = last.read_value()
        last.assign(X[i, 0] + before)
        tf.print("at", i)
        return {"sum": last.read_value()}

    found = pfor(body, 4, sequential=True)
    np.testing.assert_array_equal(found["sum"], [0.0, 3.0, 9.0, 18.0])
    assert last == 18.0
    assert capfd.readouterr().err.split("\n")[:4] == ["at 0", "at 1", "at 2", "at 3"]


def test_checks_in_the_body_are_those_of_all_iterations() -> None:
    def body(i: Any) -> Any:
        tf.debugging.assert_less(X[i, 0], 8.0)
        return i

    pfor(body, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"assertion failed.*\(at .*test_loop_effects.py:\d+\)"):
        pfor(body, 4)


def _checked_in_a_branch(i: Any) -> Any:
    return tf.cond(X[i, 0] > 0.0, lambda: tf.debugging.check_numerics(X[i], "a row"), lambda: X[i])  # here


def _checks_what_is_the_same(i: Any) -> Any:
    tf.debugging.assert_less(X[0, 0], 8.0)  # here
    return X[i]


def _checks_in_a_function(i: Any) -> Any:
    @tf.function
    def inner(row: Any) -> Any:
        tf.Assert(row[0] < 20.0, [row])  # here
        return row

    return inner(X[i])


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("body", [_checked_in_a_branch, _checks_what_is_the_same, _checks_in_a_function])
def test_xla_leaves_checks_out_and_says_so_at_their_line(body: Any, sequential: bool) -> None:
    lines, first = inspect.getsourcelines(body)
    (line,) = [first + k for k, text in enumerate(lines) if "# here" in text]
    with pytest.warns(AssertionWarning, match="XLA compiles none") as caught:
        tf.function(lambda: pfor(body, 4, sequential=sequential), jit_compile=True, autograph=False)()
    assert {(w.filename, w.lineno) for w in caught if w.category is AssertionWarning} == {(__file__, line)}
    pfor(body, 4, sequential=sequential)
