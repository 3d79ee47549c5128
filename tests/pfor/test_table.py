"""docs/add_a_converter.md has the registry's table; and what it says of the ops that test_ops has no case of.

Of the others, test_ops says so: eagerly in each run, under XLA with `pytest -m slow`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from test_ops import CASES
from test_random import STATEFUL

from batchnuts.autobatch.pfor import REGISTRY, converts, pfor, table

DOCUMENT = Path(__file__).parents[2] / "docs" / "add_a_converter.md"
START, END = "<!-- table -->\n", "<!-- end of table -->\n"


def test_the_documents_table_is_the_registrys(request: pytest.FixtureRequest) -> None:
    text = DOCUMENT.read_text()
    before, rest = text.split(START)
    found, after = rest.split(END)
    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(before + START + table() + END + after)
    else:
        assert found == table(), "pytest --update-golden writes the table again"


def test_there_are_enough_converters() -> None:
    assert len(REGISTRY) >= 350


def test_an_op_has_one_converter() -> None:
    with pytest.raises(ValueError, match="op MatMul has a converter already, in matmul"):
        converts("MatMul")(lambda site: [])
    with pytest.raises(ValueError, match="no_xla names ops that are not registered here"):
        converts("NthElement", no_xla="Other")


X = tf.constant(np.arange(1.0, 13.0).reshape(4, 3))
_raw = tf.raw_ops


def _list(i: Any) -> Any:
    """Three scalars of the row."""
    return _raw.TensorListFromTensor(tensor=X[i], element_shape=_SCALAR)


_SCALAR = tf.constant([], tf.int32, [0])


def _item(handle: Any, k: Any) -> Any:
    return _raw.TensorListGetItem(input_handle=handle, index=k, element_shape=_SCALAR, element_dtype=tf.float64)


def _elements(handle: Any) -> Any:
    return _raw.TensorListStack(input_handle=handle, element_shape=_SCALAR, element_dtype=tf.float64)


def _pushed(i: Any) -> Any:
    empty = _raw.EmptyTensorList(element_shape=_SCALAR, max_num_elements=2, element_dtype=tf.float64)
    return _raw.TensorListPushBack(input_handle=empty, tensor=X[i, 1])


def _reserved(i: Any) -> Any:
    reserved = _raw.TensorListReserve(element_shape=_SCALAR, num_elements=2, element_dtype=tf.float64)
    return _raw.TensorListSetItem(input_handle=reserved, index=i % 2, item=X[i, 1])


def _called(stateful: bool) -> Any:
    @tf.function(autograph=False)
    def inner(x: Any) -> Any:
        return tf.random.uniform([]) * 0.0 + tf.cast(x, tf.float32) if stateful else tf.sin(x)

    return lambda i: inner(X[i])


def _branch(i: Any, *, stateful: bool) -> Any:
    other = (lambda: tf.cast(tf.random.uniform([3]), tf.float64) * 0.0) if stateful else (lambda: -X[i])
    return tf.cond(X[i, 0] > 5.0, lambda: X[i], other)


def _cases(i: Any, *, stateful: bool) -> Any:
    other = (lambda: _asserted(i)) if stateful else (lambda: -X[i])
    return tf.switch_case(i % 3, [lambda: X[i], other, lambda: 2.0 * X[i]])


def _trips(i: Any, *, stateful: bool) -> Any:
    noise = (lambda: tf.cast(tf.random.uniform([3]), tf.float64) * 0.0) if stateful else (lambda: 1.0)
    return tf.while_loop(lambda k, s: k < i, lambda k, s: (k + 1, s * X[i] + noise()), (0, X[i]), maximum_iterations=4)[
        1
    ]


def _assigned(variable: Any, how: str) -> Any:
    def body(i: Any) -> Any:
        given = tf.constant([1.0, 2.0, 3.0], tf.float64) if how == "assign" else X[i]
        if how.startswith("scatter"):
            getattr(variable, how)(tf.IndexedSlices(X[i, :1], i[None] % 3))
        else:
            getattr(variable, how)(given)
        return X[i]

    return body


VARIABLE = tf.Variable([1.0, 2.0, 3.0], dtype=tf.float64)
_UPDATES = {
    "AssignVariableOp": "assign",
    "AssignAddVariableOp": "assign_add",
    "AssignSubVariableOp": "assign_sub",
    "ResourceScatterAdd": "scatter_add",
    "ResourceScatterSub": "scatter_sub",
}


def _asserted(i: Any) -> Any:
    _raw.Assert(condition=X[i, 0] > 0.0, data=[tf.constant("not above 0")])
    return X[i]


def _after_nothing(i: Any) -> Any:
    with tf.control_dependencies([_raw.NoOp()]):
        return tf.identity(X[i])


WITHOUT_CASES: dict[str, Any] = {
    "EmptyTensorList": lambda i: _item(_pushed(i), 0),
    "TensorListReserve": lambda i: _item(_reserved(i), 0),
    "TensorListPushBack": lambda i: _item(_pushed(i), 0),
    "TensorListPopBack": lambda i: _raw.TensorListPopBack(
        input_handle=_pushed(i), element_shape=_SCALAR, element_dtype=tf.float64)[1],
    "TensorListGetItem": lambda i: (_item(_list(i), 1), _item(_list(i), i % 3)),
    "TensorListSetItem": lambda i: _elements(_reserved(i)),
    "TensorListStack": lambda i: _elements(_list(i)),
    "TensorListGather": lambda i: _raw.TensorListGather(
        input_handle=_list(i), indices=[2, 0], element_shape=_SCALAR, element_dtype=tf.float64),
    "TensorListFromTensor": lambda i: _elements(_list(i)),
    "TensorListScatterIntoExistingList": lambda i: _elements(_raw.TensorListScatterIntoExistingList(
        input_handle=_list(i), tensor=2.0 * X[i, :2], indices=[2, 0])),
    "TensorListLength": lambda i: _raw.TensorListLength(input_handle=_list(i)),
    "TensorListElementShape": lambda i: _raw.TensorListElementShape(input_handle=_list(i), shape_type=tf.int32),
    "TensorListResize": lambda i: _item(_raw.TensorListResize(input_handle=_list(i), size=2), 1),
    "OptionalFromValue": lambda i: _raw.OptionalGetValue(
        optional=_raw.OptionalFromValue(components=[X[i]]), output_types=[tf.float64], output_shapes=[[3]]),
    "OptionalNone": lambda i: (_raw.OptionalNone(), X[i])[1],
    "OptionalGetValue": lambda i: _raw.OptionalGetValue(
        optional=_raw.OptionalFromValue(components=[X[i]]), output_types=[tf.float64], output_shapes=[[3]]),
    "OptionalHasValue": lambda i: _raw.OptionalHasValue(optional=_raw.OptionalFromValue(components=[X[i]])),
    "PartitionedCall": _called(stateful=False),
    "StatefulPartitionedCall": _called(stateful=True),
    "StatelessIf": lambda i: _branch(i, stateful=False),
    "If": lambda i: _branch(i, stateful=True),
    "StatelessCase": lambda i: _cases(i, stateful=False),
    "Case": lambda i: _cases(i, stateful=True),
    "StatelessWhile": lambda i: _trips(i, stateful=False),
    "While": lambda i: _trips(i, stateful=True),
    "Range": lambda i: tf.cast(_raw.Range(start=tf.size(X[i]), limit=7, delta=1), tf.float64) * X[i, 0],
    "BroadcastGradientArgs": lambda i: _raw.BroadcastGradientArgs(s0=tf.shape(X[i]), s1=tf.constant([1])),
    "ReadVariableOp": lambda i: VARIABLE * X[i],
    "VarIsInitializedOp": lambda i: _raw.VarIsInitializedOp(resource=VARIABLE.handle),
    "VariableShape": lambda i: _raw.VariableShape(input=VARIABLE.handle),
    "Assert": _asserted,
    "CheckNumerics": lambda i: (
        _raw.CheckNumerics(tensor=X[i], message="row"), _raw.CheckNumerics(tensor=X[0], message="all")),
    "NoOp": _after_nothing,
    "PlaceholderWithDefault": lambda i: _raw.PlaceholderWithDefault(input=X[i], shape=[3]),
    "RandomUniform": lambda i: tf.shape(_raw.RandomUniform(shape=[3], dtype=tf.float32)),
    "RandomStandardNormal": lambda i: tf.shape(_raw.RandomStandardNormal(shape=[3], dtype=tf.float32)),
    "TruncatedNormal": lambda i: tf.shape(_raw.TruncatedNormal(shape=[3], dtype=tf.float32)),
    "RandomUniformInt": lambda i: tf.shape(_raw.RandomUniformInt(shape=[3], minval=0, maxval=4)),
}  # fmt: skip
"""Bodies with ops that test_ops has no case of: of lists, branches, loops and state."""
WITHOUT_CASES |= {op: _assigned(VARIABLE, how) for op, how in _UPDATES.items()}


def _outcome(op: str, run: Any) -> list[Any]:
    """What it gives, and what it leaves in the variable."""
    VARIABLE.assign([1.0, 2.0, 3.0])
    return [*map(np.asarray, tf.nest.flatten(run())), VARIABLE.numpy()]


def _one_by_one(op: str) -> list[Any]:
    one = tf.function(WITHOUT_CASES[op], autograph=False)

    def run() -> list[Any]:
        rows = [tf.nest.flatten(one(tf.constant(i))) for i in range(4)]
        return [np.stack(column) for column in zip(*rows, strict=True)]

    return _outcome(op, run)


def _all_at_once(op: str, **options: Any) -> list[Any]:
    run = tf.function(lambda: pfor(WITHOUT_CASES[op], 4), autograph=False, **options)
    return _outcome(op, run)


def test_every_op_of_the_table_is_run() -> None:
    assert set(WITHOUT_CASES) | {case.op for case in CASES} | set(STATEFUL) | {"XlaDynamicUpdateSlice"} == set(REGISTRY)


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.filterwarnings("ignore::batchnuts.autobatch.AssertionWarning")
@pytest.mark.parametrize("op", WITHOUT_CASES)
def test_what_the_table_says_of_ops_without_cases(op: str) -> None:
    wanted = _one_by_one(op)
    runs = [_outcome(op, lambda: pfor(WITHOUT_CASES[op], 4)), _all_at_once(op)]
    if REGISTRY[op].xla:
        runs.append(_all_at_once(op, jit_compile=True))
    for found in runs:
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    graph = tf.function(WITHOUT_CASES[op], autograph=False).get_concrete_function(tf.TensorSpec([], tf.int32)).graph
    assert op in {found.type for found in graph.get_operations()}


@pytest.mark.parametrize("op", [op for op in WITHOUT_CASES if not REGISTRY[op].xla and "Optional" not in op])
def test_xla_lacks_what_the_table_says_it_lacks(op: str) -> None:
    one = tf.function(WITHOUT_CASES[op], autograph=False, jit_compile=True)
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)):
        one(tf.constant(0))
