"""Gradients of expressions: of every function that has a derivative, beside JAX's; at ties and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch import ops
from batchnuts.autobatch.ir.evaluate import as_function
from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.language.arrays import library_of
from batchnuts.autobatch.language.libraries.recording import LIBRARY, Recording
from batchnuts.autobatch.passes.differentiate import RULES, value_and_gradient
from batchnuts.autobatch.passes.fold_expressions import folded
from batchnuts.autobatch.passes.record_expressions import as_expression

Function = Callable[[Any], Any]

MATRIX = np.arange(12.0).reshape(3, 4) / 7 - 0.5
SYMMETRIC = np.add.outer(np.arange(4.0), np.arange(4.0)) ** 2
WEIGHTS = np.linspace(-1.0, 2.0, 12)


def expression_of(function: Function, dimension: int) -> Expression:
    recording = Recording()
    recording.outputs = [function(recording.input("float64", (dimension,)))]
    return folded(as_expression(recording))


def gradient_of(function: Function, x: np.ndarray) -> tuple[Any, np.ndarray]:
    both = value_and_gradient(expression_of(function, len(x)))
    assert both is not None
    value, gradient = as_function(both)(x)
    return value, np.asarray(gradient)


def weighted(x: Any) -> Any:
    """A scalar in which no two elements count alike."""
    flat = ops.reshape(x, (-1,))
    return ops.sum(flat * WEIGHTS[: ops.static_shape(flat)[0]])


def matrix(x: Any) -> Any:
    return ops.reshape(x, (3, 4))


UNARY = ("exp", "expm1", "tanh", "sigmoid", "softplus", "sin", "cos", "tan", "erf", "square", "abs")
POSITIVE = ("log", "sqrt", "gammaln", "log1p")


def unary(name: str, positive: bool = False) -> Function:
    function = getattr(ops, name)
    return lambda x: weighted(function(ops.square(x) + 0.1 if positive else x))


CASES: dict[str, Function] = {
    **{name: unary(name) for name in UNARY},
    **{name: unary(name, True) for name in POSITIVE},
    "negative": lambda x: weighted(-ops.exp(-x)),
    "erfinv": lambda x: weighted(ops.erfinv(ops.tanh(x))),
    "add": lambda x: weighted(x + x[3:4] + 2.0),
    "subtract": lambda x: weighted(1.5 - x) - weighted(x[:1] - x),
    "multiply": lambda x: weighted(x * x[2] * MATRIX.reshape(-1)),
    "divide": lambda x: weighted(x / (1.0 + x[1] * x[1])) + weighted(2.0 / (3.0 + x * x)),
    "power": lambda x: weighted(x**3) + weighted(x**2) + weighted((x * x + 0.2) ** 1.5),
    "logaddexp": lambda x: weighted(ops.logaddexp(x, 2.0 * x[::-1])),
    "minimum": lambda x: weighted(ops.minimum(x, 0.3)),
    "maximum": lambda x: weighted(ops.maximum(x, x[::-1] + 0.01)),
    "floor": lambda x: weighted(ops.floor(3.0 * x) * x),
    "where": lambda x: weighted(ops.where(x > 0.2, ops.exp(x), x[4] * x)),
    "sum": lambda x: (
        weighted(ops.sum(ops.exp(matrix(x)), axis=1)) + weighted(ops.sum(matrix(x), axis=0, keepdims=True))
    ),
    "mean": lambda x: weighted(ops.mean(ops.exp(matrix(x)), axis=0)) + ops.mean(x),
    "min": lambda x: weighted(ops.min(matrix(x), axis=1)) * ops.max(x),
    "cumsum": lambda x: weighted(ops.cumsum(ops.sin(x), axis=0)) + weighted(ops.cumsum(matrix(x), axis=-1)),
    "dot": lambda x: ops.matmul(x, ops.exp(x)),
    "matrix by vector": lambda x: weighted(ops.matmul(matrix(x), x[:4])),
    "vector by matrix": lambda x: weighted(ops.matmul(x[:3], matrix(x))),
    "matrix by matrix": lambda x: weighted(ops.matmul(matrix(x), ops.transpose(matrix(x)))),
    "matrix of data": lambda x: weighted(ops.matmul(MATRIX, x[:4])) + weighted(ops.matmul(x[4:7], MATRIX)),
    "symmetric matrix": lambda x: ops.matmul(3.0 * x[:4], ops.matmul(SYMMETRIC, x[:4])),
    "linear in a symmetric matrix": lambda x: ops.sum(ops.matmul(SYMMETRIC, x[:4])) - ops.sum(x * x),
    "matrices": lambda x: weighted(ops.matmul(ops.reshape(x, (2, 2, 3)), MATRIX[:, :2])),
    "concatenate": lambda x: weighted(ops.concatenate([x[3:6], x[:3], x[6:]], axis=0)),
    "stack": lambda x: weighted(ops.stack([x[:4], x[4:8] * 2.0], axis=-1)),
    "one part": lambda x: weighted(library_of(x).parts_of_last_axis(ops.exp(x), [12])[0]),
    "two parts": lambda x: weighted(x[:5] * library_of(x).parts_of_last_axis(ops.exp(x), [5, 7])[0]),
    "elements": lambda x: (
        x[0] * x[-1] + weighted(x[2:9:3]) + weighted(matrix(x)[1, 1:]) + weighted(matrix(x)[:, None, 2])
    ),
    "overlapping slices": lambda x: weighted(x[:6] * x[4:10]) + weighted(x[5:]),
    "indices of data": lambda x: weighted(ops.take(x, np.array([3, 3, 0, 7]))),
    "rows": lambda x: weighted(ops.take(matrix(x), np.array([2, 0]))),
    "computed index": lambda x: weighted(x * library_of(x).gather(x, ops.cast(2.0 + x[0] * 0.0, "int32"), 0)),
    "cast": lambda x: weighted(ops.cast(ops.cast(x, "float32"), "float64") * x),
    "constant": lambda x: weighted(x * 0.0 + 1.0),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    x = np.random.default_rng(3).normal(size=12)
    value, gradient = gradient_of(CASES[name], x)
    with jax.enable_x64(True):
        expected, of_jax = jax.value_and_grad(CASES[name])(jax.numpy.asarray(x))
    tolerance = 1e-6 if name == "cast" else 1e-12
    np.testing.assert_allclose(value, expected, rtol=tolerance)
    np.testing.assert_allclose(gradient, of_jax, rtol=tolerance, atol=tolerance)


def test_the_table_has_every_function_that_is_differentiable() -> None:
    """What has no rule gives no floats of floats: comparisons, bits, indices."""
    emitted = pytest.importorskip("batchnuts.autobatch.native.expressions")
    assert {*emitted.RULES, *emitted.ELEMENTWISE} - RULES.keys() == {
        *("any", "all", "bitcast", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "isfinite", "isnan"),
        *("logical_and", "logical_not", "logical_or", "kernel", "digamma", "scatter_add"),
    }


@pytest.mark.parametrize(
    ("function", "x", "expected"),
    [
        (lambda x: ops.maximum(x[0], x[1]), [1.0, 1.0], [0.5, 0.5]),
        (lambda x: ops.max(x), [2.0, 2.0], [0.5, 0.5]),
        (lambda x: ops.logaddexp(x[0], x[1]), [-np.inf, -np.inf], [0.5, 0.5]),
        (lambda x: ops.abs(x[0]) + x[1], [0.0, 1.0], [0.0, 1.0]),
        (lambda x: ops.where(x[0] > 0.0, ops.log(ops.maximum(x[0], 0.1)), x[1]), [-1.0, 3.0], [0.0, 1.0]),
        (lambda x: x[0] ** 0.0 + x[1] ** 1.0, [0.0, 0.0], [0.0, 1.0]),
    ],
)
def test_at_ties_and_ends(function: Function, x: list[float], expected: list[float]) -> None:
    np.testing.assert_array_equal(gradient_of(function, np.array(x))[1], expected)


def test_what_has_no_rule_has_no_gradient() -> None:
    assert value_and_gradient(expression_of(lambda x: ops.sum(LIBRARY.digamma(x)), 3)) is None


def test_a_result_that_does_not_depend_on_the_input() -> None:
    recording = Recording()
    recording.input("float64", (3,))
    recording.outputs = [np.float64(2.0)]
    both = value_and_gradient(as_expression(recording))
    assert both is not None
    value, gradient = as_function(both)(np.ones(3))
    assert (value, gradient.tolist()) == (2.0, [0.0, 0.0, 0.0])


def test_slices_side_by_side_need_no_sum() -> None:
    """The gradients of a position's parts are put end to end."""
    both = value_and_gradient(expression_of(lambda x: ops.sum(ops.exp(x[:5])) + ops.sum(ops.sin(x[5:])), 12))
    assert both is not None
    functions = [node.function for node in both.nodes]
    assert functions.count("concatenate") == 1
    assert functions.count("add") == 1, "of the two sums"


def test_a_normal_density_has_one_product() -> None:
    """Of its symmetric matrix: the gradient's is that of the value."""
    both = value_and_gradient(expression_of(lambda x: -0.5 * ops.matmul(x, ops.matmul(SYMMETRIC, x)), 4))
    assert both is not None
    products = [node for node in both.nodes if node.function == "matmul" and node.types[0].shape]
    assert len(products) == 1
