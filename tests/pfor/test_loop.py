"""pfor as a function: structures, counts, effects, what it refuses, and at which line."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.autobatch.pfor import (
    FallbackWarning,
    PforError,
    hessian,
    jacobian,
    per_example_gradient,
    pfor,
    vectorized_map,
)

X = tf.constant(np.arange(12.0).reshape(4, 3), tf.float32)


class Pair(NamedTuple):
    first: Any
    second: Any


def test_results_keep_the_structure_the_body_returns() -> None:
    def body(i: Any) -> Any:
        return {"a": X[i], "b": Pair([i], (tf.constant(2.0), None))}

    found = pfor(body, 4)
    np.testing.assert_array_equal(found["a"], X)
    assert isinstance(found["b"], Pair)
    np.testing.assert_array_equal(found["b"].first[0], range(4))
    np.testing.assert_array_equal(found["b"].second[0], [2.0] * 4)
    assert found["b"].second[1] is None


def test_the_index_takes_what_is_there_without_a_gather() -> None:
    def ops(body: Callable[[Any], Any]) -> set[str]:
        function = tf.function(lambda x: pfor(lambda i: body((i, x)), 4), autograph=False)
        graph = function.get_concrete_function(tf.TensorSpec([4, 3])).graph
        return {op.type for op in graph.get_operations()}

    assert "GatherV2" not in ops(lambda given: given[1][given[0]] * 2.0)
    assert "GatherV2" not in ops(lambda given: tf.gather(given[1], given[0]) * 2.0)
    assert "GatherV2" in ops(lambda given: tf.gather(given[1], 3 - given[0]))


def test_an_index_that_was_cast_to_less_is_one_no_more() -> None:
    found = pfor(lambda i: X[tf.cast(tf.cast(i, tf.bool), tf.int32)], 4)
    np.testing.assert_array_equal(found, tf.gather(X, [0, 1, 1, 1]))


def test_what_is_the_same_is_computed_once() -> None:
    def body(i: Any) -> Any:
        return tf.exp(tf.linalg.matmul(X, X, transpose_b=True))[0, 0] * tf.cast(i, tf.float32)

    graph = tf.function(lambda: pfor(body, 4), autograph=False).get_concrete_function().graph
    (product,) = [op for op in graph.get_operations() if op.type == "MatMul"]
    assert product.outputs[0].shape == (4, 4)


def test_a_product_with_a_shared_matrix_is_one_product_without_transposes() -> None:
    matrix = tf.constant(np.eye(3), tf.float32)

    def body(i: Any) -> Any:
        with tf.GradientTape() as tape:
            row = X[i]
            tape.watch(row)
            value = tf.reduce_sum(tf.sin(tf.linalg.matvec(matrix, row)))
        return value, tape.gradient(value, row)

    graph = tf.function(lambda: pfor(body, 4), autograph=False).get_concrete_function().graph
    types = [op.type for op in graph.get_operations()]
    assert types.count("MatMul") == 2
    assert not {"Transpose", "BatchMatMulV2", "Einsum"} & set(types)


@pytest.mark.parametrize("count", [0, -3, 2**31, 2.5, True, "4"])
def test_counts_that_are_none(count: Any) -> None:
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.raises(PforError, match="iters must be") as caught:
        pfor(lambda i: X[i], count)
    assert caught.value.source is not None
    assert (caught.value.source.filename, caught.value.source.line) == (__file__, line)


def test_a_count_of_zero_that_is_known_only_when_it_runs() -> None:
    function = tf.function(
        lambda n: pfor(lambda i: X[i], n), autograph=False, input_signature=[tf.TensorSpec([], tf.int32)]
    )
    assert function(tf.constant(2)).shape == (2, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="iters of pfor must be at least 1"):
        function(tf.constant(0))


def test_what_would_not_fit_says_how_many_bytes() -> None:
    with pytest.raises(PforError, match=r"1,000,000,000 iterations of .*float32\[1000\].* are 4,000,000,000,000 bytes"):
        pfor(lambda i: tf.ones([1000]) * tf.cast(i, tf.float32), 10**9)


def test_the_index_may_not_leave_the_tensor() -> None:
    with pytest.raises(PforError, match="goes up to 4, but the axis it is used on has only 4 entries"):
        pfor(lambda i: X[i], 5)


# ---- ops without a converter ------------------------------------------------------------------------------------


def _without_converter(i: Any) -> Any:
    return tf.raw_ops.ListDiff(x=X[i], y=X[i] + 1.0)[1], tf.raw_ops.NthElement(input=X[i], n=1)  # here


def test_an_op_without_converter_runs_row_by_row_and_says_so() -> None:
    lines, first = inspect.getsourcelines(_without_converter)
    line = first + next(k for k, text in enumerate(lines) if "# here" in text)
    body = lambda i: _without_converter(i)[1]  # noqa: E731
    with pytest.warns(FallbackWarning) as caught:
        found = pfor(body, 4)
    np.testing.assert_array_equal(found, X[:, 1])
    text = str(caught[0].message)
    assert f"{__file__}:{line}" in text
    assert "NthElement" in text
    assert "it has no converter" in text
    with pytest.raises(PforError, match="fallback=False") as refused:
        pfor(body, 4, fallback=False)
    assert refused.value.source is not None
    assert refused.value.source.line == line


def test_it_is_said_once_a_line() -> None:
    def body(i: Any) -> Any:
        return [tf.raw_ops.NthElement(input=X[i], n=n) for n in range(3)]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pfor(body, 4)
    assert len([entry for entry in caught if entry.category is FallbackWarning]) == 1


# ---- found by trying to break it --------------------------------------------------------------------------------


def test_a_gather_from_a_variable_is_a_read_of_it() -> None:
    table = tf.Variable([1.0, 2.0, 3.0])

    def body(i: Any) -> Any:
        before = tf.gather(table, 0)
        table.assign_add(tf.ones(3))
        return before

    with pytest.raises(PforError, match="both reads and updates this variable"):
        pfor(body, 4)


@pytest.mark.parametrize("known", [True, False])
def test_the_index_may_not_leave_a_tensor_whose_size_is_known_only_when_it_runs(known: bool) -> None:
    specs = [tf.TensorSpec([], tf.int32), tf.TensorSpec([None])]
    function = tf.function(
        lambda n, y: pfor(lambda i: y[i] * 2.0, 5 if known else n), autograph=False, input_signature=specs
    )
    np.testing.assert_array_equal(function(5, tf.range(6.0)), 2 * np.arange(5.0))
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(5, tf.constant([1.0]))


def test_a_segment_id_that_is_too_large_stays_out_of_other_rows() -> None:
    ids = tf.constant([[0, 2], [1, 0]])

    def body(i: Any) -> Any:
        return tf.math.unsorted_segment_sum(tf.constant([1.0, 2.0]), ids[i], 2)

    found = tf.function(lambda: pfor(body, 2), autograph=False, jit_compile=True)()  # XLA leaves such ids out
    np.testing.assert_array_equal(found, [[1.0, 0.0], [2.0, 1.0]])
    with pytest.raises(tf.errors.InvalidArgumentError):
        pfor(body, 2)


@pytest.mark.parametrize("kind", ["SparseTensor", "RaggedTensor"])
def test_outputs_that_are_several_tensors_in_one_are_refused(kind: str) -> None:
    makes = {
        "SparseTensor": lambda i: tf.SparseTensor([[0]], X[i, :1], [3]),
        "RaggedTensor": lambda i: tf.RaggedTensor.from_row_splits(X[i], [0, 1, 3]),
    }
    with pytest.raises(PforError, match=f"an output of the body is a {kind}"):
        pfor(lambda i: (makes[kind](i), X[i]), 4)


def test_an_op_without_a_result_is_refused_as_an_output() -> None:
    with pytest.raises(PforError, match="an output of the body is the op PrintV2, which has no result") as caught:
        pfor(lambda i: (X[i], tf.print(i)), 4)
    assert caught.value.source is not None
    assert "tf.print(i)" in caught.value.source.text


def test_default_arguments_are_no_inputs() -> None:
    np.testing.assert_array_equal(pfor(lambda i, x=X: x[i], 4), X)


def test_a_variable_is_known_inside_of_a_loop() -> None:
    total = tf.Variable(1.0)

    def body(i: Any) -> Any:
        found = tf.while_loop(lambda k, a: k < 2, lambda k, a: (k + 1, a + total), (0, 0.0))[1]
        total.assign_add(1.0)
        return found

    with pytest.raises(PforError, match="both reads and updates this variable"):
        pfor(body, 4)


@pytest.mark.parametrize("own", [True, False])
def test_an_inner_loop_whose_iterations_differ(own: bool) -> None:
    def branch(i: Any) -> Any:
        return pfor(lambda j: tf.cond(j > i, lambda: X[i, 0] * X[j, 1], lambda: 0.0), 3)

    def loop(i: Any) -> Any:
        return pfor(lambda j: tf.while_loop(lambda k, x: k < i + j, lambda k, x: (k + 1, x * X[i, j]), (0, 1.0))[1], 3)

    body = branch if own else loop
    np.testing.assert_allclose(pfor(body, 4), np.stack([body(tf.constant(i)) for i in range(4)]), rtol=1e-6)


def test_the_sequential_loop_keeps_none() -> None:
    def body(i: Any) -> Any:
        tf.print("at", i)
        return X[i], None

    found = pfor(body, 4, sequential=True)
    np.testing.assert_array_equal(found[0], X)
    assert found[1] is None


def _ranges(i: Any) -> Any:
    return tf.range(i)  # here


def test_the_error_is_the_same_inside_of_autograph() -> None:
    @tf.function
    def function() -> Any:
        return pfor(_ranges, 4)

    with pytest.raises(PforError, match="the ends of a range"):
        function()


@pytest.fixture
def run_eagerly() -> Iterator[None]:
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.usefixtures("run_eagerly")
def test_it_is_traced_where_functions_run_eagerly() -> None:
    x = tf.Variable(X)

    def total(x: Any) -> Any:
        return tf.reduce_sum(tf.function(tf.sin)(x)) * tf.while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, y * 2.0),
                                                                     (0, x[0]))[1]  # fmt: skip

    with tf.GradientTape() as tape:
        found = pfor(lambda i: total(x[i]), tf.constant(4))
    rows = np.stack([total(row) for row in tf.unstack(X)])
    np.testing.assert_allclose(found, rows, rtol=1e-6)
    assert np.all(np.isfinite(tape.gradient(found, x)))
    np.testing.assert_allclose(vectorized_map(total, X), rows, rtol=1e-6)
    np.testing.assert_allclose(tf.function(lambda: pfor(lambda i: total(X[i]), 4, masked=True))(), rows, rtol=1e-6)
    np.testing.assert_allclose(pfor(lambda i: total(X[i]), 4, sequential=True), rows, rtol=1e-6)
    np.testing.assert_allclose(jacobian(tf.square, X[0]), np.diag(2 * X[0]), rtol=1e-6)
    assert hessian(total, X[0]).shape == (3, 3)
    assert per_example_gradient(lambda row: total(row) * x[0, 0], [x], X)[0].shape == (4, 4, 3)


def _if(i: Any) -> Any:
    return X[i] if X[i, 0] > 4.0 else -X[i]  # here


def _while(i: Any) -> Any:
    while i < 3:  # here
        i += 1
    return i


def _and(i: Any) -> Any:
    return X[i, 0] > 0.0 and X[i, 1] > 0.0  # here


def _for(i: Any) -> Any:
    total = 0.0
    for value in X[i]:  # here
        total += value
    return total


def _unpacked(i: Any) -> Any:
    one, _, _ = tf.sort(X[i])  # here
    return one


def _range(i: Any) -> Any:
    return [X[k] for k in range(i)]  # here


def _int(i: Any) -> Any:
    return X[int(i)]  # here


def _entry(i: Any) -> Any:
    return [1, 2, 3, 4][i]  # here


def _numpy(i: Any) -> Any:
    return X[i].numpy()  # here


def _sine(i: Any) -> Any:
    return np.sin(X[i])  # here


def _called(i: Any) -> Any:
    return tf.cond(i > 2, lambda: _if(i), lambda: X[i])


def _mapped(i: Any) -> Any:
    return tf.map_fn(lambda v: v if v > 0.0 else -v, X[i])  # here


OF_NUMBERS = {
    "if": (_if, r"tf\.cond\(.*@tf\.function"), "while": (_while, r"tf\.while_loop"), "and": (_and, r"tf\.logical_and"),
    "for": (_for, r"tf\.unstack.*@tf\.function"), "unpacked": (_unpacked, r"tf\.unstack"),
    "range": (_range, r"tf\.while_loop"), "int": (_int, r"tf\.cast"), "index of a list": (_entry, r"tf\.gather"),
    "numpy": (_numpy, "the body is traced once"), "a function of NumPy": (_sine, r"tf\.sin in place of np\.sin"),
    "in what it calls": (_called, r"tf\.cond"), "in a map": (_mapped, r"tf\.cond"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_what_python_asks_of_a_tensor_is_reported_at_its_line(name: str) -> None:
    body, said = OF_NUMBERS[name]
    with pytest.raises(PforError, match=said) as error:
        pfor(body, 4)
    assert error.value.source is not None
    assert error.value.source.text.endswith("# here")
    assert __file__ in str(error.value)


def test_a_decorated_body_may_use_pythons_branches_and_loops() -> None:
    @tf.function
    def body(i: Any) -> Any:
        total = 0.0
        for value in X[i]:
            if value > 4.0:
                total += value
        return total

    np.testing.assert_allclose(pfor(body, 4), np.sum(X * np.where(X > 4.0, 1.0, 0.0), axis=1))


def test_other_errors_of_the_body_stay_what_they_are() -> None:
    def body(i: Any) -> Any:
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        pfor(body, 4)


def test_ops_that_were_not_traced_here_have_the_line_that_calls_them() -> None:
    """Those of a loaded model."""
    largest = tf.function(lambda x: tf.raw_ops.NthElement(input=x, n=1), input_signature=[tf.TensorSpec([3])])
    trace = largest.get_concrete_function().graph.as_graph_def()

    def body(i: Any) -> Any:
        name = trace.node[0].name
        (found,) = tf.graph_util.import_graph_def(trace, {name: X[i]}, return_elements=["NthElement:0"])
        return found

    with pytest.warns(FallbackWarning, match=r"(?s)test_loop\.py.*\(NthElement\) once"):
        np.testing.assert_array_equal(pfor(body, 4), X[:, 1])
    with pytest.raises(PforError, match=r"(?s)test_loop\.py.*fallback=False") as error:
        pfor(body, 4, fallback=False)
    assert error.value.source is not None
