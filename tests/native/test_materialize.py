"""Which arrays are written to memory: those that several loops would compute again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch import ops
from batchnuts.autobatch.ir.expression import Expression
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.native.expressions import ELEMENTWISE
from batchnuts.autobatch.native.materialize import materialized
from batchnuts.autobatch.passes.record_expressions import recorded

INDEX = np.array([0, 2, 2, 1] * 10)
TABLE = np.arange(200.0).reshape(40, 5)


def expression_of(function: Callable[[Any], Any], size: int = 40) -> Expression:
    known = recorded(function, TensorType("float64", (size,)))
    assert known is not None
    return known[0]


@pytest.mark.parametrize(
    ("function", "written"),
    [
        (lambda q: ops.sum(ops.exp(q)), []),
        (lambda q: ops.sum(ops.exp(q)) + ops.sum(ops.exp(q) * q), ["exp"]),
        (lambda q: ops.sum(ops.exp(q) * q) + ops.max(ops.exp(q) - q), ["exp"]),
        (lambda q: ops.sum(q * 2.0) + ops.max(q * 2.0), []),
        (lambda q: ops.sum(q**2.0) + ops.max(q**2.0), []),
        (lambda q: ops.sum(q**2.5) + ops.max(q**2.5), ["power"]),
        (lambda q: ops.sum(ops.take(ops.log(q[:3]), INDEX)), ["log"]),
        (lambda q: ops.sum(ops.take(2.0 * q[:3], INDEX)), []),
        (lambda q: ops.cumsum(ops.tanh(q)), ["tanh"]),
        (lambda q: ops.matmul(TABLE.T, ops.log(ops.exp(q) + 1.0)) + ops.sum(ops.exp(q)), ["exp"]),
        (lambda q: ops.sum(q[:, None] * ops.exp(TABLE[0] * q[0])), ["exp"]),
        (lambda q: ops.sum(ops.exp(q[:, None] * TABLE)), ["multiply"]),
    ],
)
def test_costly_arrays_that_are_read_again_are_written(function: Callable[[Any], Any], written: list[str]) -> None:
    folded = expression_of(function)
    assert [folded.nodes[place].function for place in sorted(materialized(folded, ELEMENTWISE))] == written
