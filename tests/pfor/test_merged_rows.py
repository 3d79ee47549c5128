"""Converters that merge the axis of the rows with another axis, for ops that work on each entry of that axis alone.

An op that looks at several entries of it would mix rows: this is the table of those that do not, and a comparison of
each with the sequential loop, for one, two and three rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from op_cases import Case
from test_ops import CASES, assert_close, body_of, choices, drawn, name

from batchnuts.autobatch.pfor import REGISTRY, pfor
from batchnuts.autobatch.pfor import converters as families

MERGED = {
    "a batch of images": """
        AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad Conv2D Conv2DBackpropInput Conv3D Conv3DBackpropInputV2 DepthToSpace
        DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput Dilation2D ExtractImagePatches FusedBatchNorm
        FusedBatchNormV2 FusedBatchNormV3 LRN LRNGrad MaxPool MaxPool3D MaxPool3DGrad MaxPoolGrad MaxPoolGradGrad
        ResizeBilinear ResizeBilinearGrad ResizeNearestNeighbor SpaceToDepth
    """,
    "a batch of images, whose patches are taken": "Conv2DBackpropFilter DepthwiseConv2dNativeBackpropFilter",
    "a batch that is put before the positions of a block, or after": "BatchToSpaceND SpaceToBatchND",
    "a batch of vectors, in the last axis": """
        InTopKV2 LogSoftmax LowerBound Softmax SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits
        UpperBound
    """,
    "rows of the left matrix": "BatchMatMulV2 MatMul",
    "columns of the right-hand side": "MatrixTriangularSolve",
}
"""What the other axis is, and the ops whose converters merge rows with it."""

OPS = {op for ops in MERGED.values() for op in ops.split()}
SOME = 7
"""Rows: no other extent of a case is a multiple."""


def merges_rows(op: Any) -> bool:
    if op.type != "Reshape" or not (op.inputs[0].shape.is_fully_defined() and op.outputs[0].shape.is_fully_defined()):
        return False
    before, after = op.inputs[0].shape, op.outputs[0].shape
    return (
        SOME in before
        and any(e > SOME and e % SOME == 0 for e in after)
        and not any(e > SOME and e % SOME == 0 for e in before)
    )


@contextmanager
def noting_merges(noted: list[Any]) -> Iterator[None]:
    """Also those with an axis of extent 1."""
    with pytest.MonkeyPatch.context() as patch:
        for family in families.__all__:
            module = getattr(families, family)
            if hasattr(module, "merge"):
                function = module.merge
                patch.setattr(
                    module, "merge", lambda tensor, axes, f=function: (noted.append(tensor), f(tensor, axes))[1]
                )
        yield


def merging(case: Case) -> bool:
    """Whether the op's converter merges rows with another axis, for some choice of the inputs that vary."""
    rows = [tf.constant(np.concatenate([value] * SOME)[:SOME]) for value in drawn(case, case.dtypes[0])]
    for choice in choices(case):
        noted: list[Any] = []

        def body(i: Any, choice: Any = choice) -> Any:
            return case.call([tf.gather(r, i) if varies else r[1] for r, varies in zip(rows, choice)], case.dtypes[0])

        with noting_merges(noted):
            graph = tf.function(lambda body=body: pfor(body, SOME), autograph=False).get_concrete_function().graph
        if noted or any(map(merges_rows, graph.get_operations())):
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({REGISTRY[case.op].family for case in CASES}))
def test_the_table_has_every_op_whose_rows_are_merged(family: str) -> None:
    found = {case.op for case in CASES if REGISTRY[case.op].family == family and merging(case)}
    assert found == {op for op in OPS if REGISTRY[op].family == family}


COLORS = {"AdjustContrastv2", "AdjustHue", "AdjustSaturation", "HSVToRGB", "RGBToHSV"}
"""Ops of any number of axes, whose rows were merged once."""
COMPARED = [case for case in CASES if case.op in OPS | COLORS]


@pytest.mark.filterwarnings("error::batchnuts.autobatch.pfor.FallbackWarning")
@pytest.mark.parametrize("count", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", range(8))
def test_rows_are_not_mixed(group: int, count: int) -> None:
    cases = COMPARED[group::8]
    bodies = [body_of(case, case.dtypes[0]) for case in cases]
    found = pfor(lambda i: [body(i) for body in bodies], count)
    for case, body, results in zip(cases, bodies, found, strict=True):
        try:
            assert_close(results, [body(tf.constant(i)) for i in range(count)], case.ulps)
        except AssertionError as error:
            raise AssertionError(name(case)) from error


def test_ops_of_any_rank_have_cases_of_several() -> None:
    """An op of which TensorFlow says that its input has any rank, or at least some, must be compared at several."""
    ranks: dict[str, set[int]] = {}
    for case in COMPARED:
        ranks.setdefault(case.op, set()).add(len(case.given[0].shape))
    flexible = {"AdjustContrastv2", "AdjustHue", "AdjustSaturation", "HSVToRGB", "RGBToHSV", "LogSoftmax", "Softmax"}
    assert {op for op, seen in ranks.items() if len(seen) > 2} >= flexible
    assert set(itertools.chain(*(ranks[op] for op in flexible))) >= {1, 2, 3, 4}
