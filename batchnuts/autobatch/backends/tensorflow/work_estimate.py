"""How much a TensorFlow function does for one lane, read from its graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from batchnuts.autobatch.backends.abstract import TRACED_LANES
from batchnuts.autobatch.ir.program import Primitive, TensorType
from batchnuts.autobatch.pfor.calls import ELEMENTWISE
from batchnuts.autobatch.pfor.graphs import called, function_graph, trace_of

FREE = {"Placeholder", "Const", "Identity", "IdentityN", "StopGradient", "Reshape", "Squeeze", "ExpandDims", "Shape"}
"""Ops that compute nothing."""
PRODUCTS = {"MatMul": "transpose_a", "BatchMatMul": "adj_x", "BatchMatMulV2": "adj_x", "BatchMatMulV3": "adj_x"}
"""Products of matrices, and the attribute that turns the first one."""


def primitive_work(function: Primitive, inputs: tuple[TensorType, ...]) -> float:
    """Estimate the work of a primitive from its trace.

    A rough measure: a loop counts once, a branch with both arms, a call and its derivative up to three times.
    """
    lanes = TRACED_LANES if function.batched else 1
    specs = [tf.TensorSpec((lanes, *t.shape) if function.batched else t.shape, t.dtype) for t in inputs]
    return _graph_work(trace_of(function.call, specs).graph) / lanes


def _graph_work(graph: Any) -> float:
    """The work in a graph and in the functions that it calls."""
    total = 0.0
    for op in graph.get_operations():
        size = float(sum(s for tensor in op.outputs if (s := tensor.shape.num_elements()) is not None))
        if op.type == "PartitionedCall" and op.get_attr("f").name in ELEMENTWISE:
            computing = sum(part.type not in FREE for part in called(op, "f").get_operations())
            total += computing * size / len(op.outputs)
            continue
        if op.type in PRODUCTS:
            extent = op.inputs[0].shape[-2 if op.get_attr(PRODUCTS[op.type]) else -1]
            total += size * (int(extent) if extent is not None else 1)
        elif op.type not in FREE:
            total += size
        for attribute in op.node_def.attr.values():
            if attribute.HasField("func"):
                total += _graph_work(function_graph(graph, attribute.func.name))
    return total
