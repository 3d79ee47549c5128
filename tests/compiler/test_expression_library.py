"""NumPy as a library that differentiates what is written with `ops`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch import ops, random
from batchnuts.autobatch.expression_library import LIBRARY, recorded
from batchnuts.autobatch.ir.tensor_type import TensorType

X = np.array([0.5, -1.0, 2.0])


def density(x: Any) -> Any:
    return -0.5 * ops.sum(x * x) + ops.sum(ops.sin(x))


def test_a_gradient_and_its_identity() -> None:
    found: list[str] = []
    value, gradient = LIBRARY.differentiated(density, found.append)(X)
    np.testing.assert_allclose(value, density(X))
    np.testing.assert_allclose(gradient, -X + np.cos(X))
    assert found == [LIBRARY.identity_of(functools.partial(LIBRARY.value_and_gradient, density), X)]
    others = [lambda x: density(x) + 1.0, lambda x: density(2.0 * x)]
    assert len({*found, *(LIBRARY.identity_of(other, X) for other in (density, *others))}) == 4


@pytest.mark.parametrize(
    "function",
    [lambda x: x, lambda x: np.float64(3.0), lambda x: ops.sum(0.0 * X), lambda x: ops.floor(x[0]) > 0],
    ids=["a vector", "a constant", "of other arrays", "a bool"],
)
def test_what_has_no_gradient(function: Any) -> None:
    value, gradient = LIBRARY.value_and_gradient(function, X)
    assert gradient is None
    np.testing.assert_array_equal(value, function(X))


def test_a_trace_says_shapes_and_computes_the_same() -> None:
    def quantities(x: Any, key: Any) -> Any:
        return {"noise": {"y": x + random.normal(key, 3)}, "sum": ops.sum(x), "known": np.ones((2, 1))}

    x, key = X.astype("float32"), random.key(1)
    traced = LIBRARY.traced(quantities, x, key)
    assert traced.shapes == {"noise": {"y": (3,)}, "sum": (), "known": (2, 1)}
    assert traced.again is not None
    again, expected = traced.again(x, key), quantities(x, key)
    np.testing.assert_array_equal(again["noise"]["y"], expected["noise"]["y"])
    np.testing.assert_array_equal(again["known"], expected["known"])
    assert LIBRARY.result_shapes(quantities, x, key) == traced.shapes


def test_a_function_that_asks_for_values_runs_as_it_stands() -> None:
    def asks(x: Any) -> Any:
        return [x, x[:1]][int(np.asarray(x[0]) > 0)]

    assert recorded(asks, TensorType("float64", (3,))) is None
    traced = LIBRARY.traced(asks, X)
    assert (traced.shapes, traced.identity, traced.again) == ((1,), None, None)
    with pytest.raises(IndexError):
        LIBRARY.result_shapes(lambda x: x[3], X)
