"""Cases of the ops that move, join, cut, reduce, sort, take and put."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from op_cases import (
    BOOL,
    COMPLEX,
    INTS,
    case,
    complexes,
    composed,
    flags,
    floats,
    in_order,
    increasing,
    positive,
    shuffled,
    small,
    splits,
    steady,
    whole,
)

SHAPES = [
    case("Shape", input=floats(2, 3), out_type=tf.int64),
    case("ShapeN", input=[floats(2, 3), floats(4)]),
    case("Size", input=floats(2, 3)),
    case("Rank", input=floats(2, 3)),
    case("Reshape", tensor=floats(2, 6), shape=[3, -1]),
    case("Reshape", tensor=floats(), shape=[1]),
    case("EnsureShape", input=floats(2, 3), shape=[2, None]),
    case("ExpandDims", input=floats(2, 3), axis=1),
    case("ExpandDims", input=floats(2, 3), axis=-1),
    case("ExpandDims", input=floats(), axis=0),
    case("ExpandDims", input=floats(2, 3), axis=[1]),
    case("DynamicPartition", data=floats(4, 2), partitions=[1, 0, 1, 1], num_partitions=3),
    case("DynamicPartition", data=floats(2, 2, 3), partitions=[[1, 0], [1, 1]], num_partitions=2),
    case("Squeeze", input=floats(2, 1, 3, 1), axis=[]),
    case("Squeeze", input=floats(2, 1, 3, 1), axis=[-1]),
    case("Squeeze", input=floats(2, 1, 3, 1), axis=[1]),
    case("Transpose", x=floats(2, 3, 4), perm=[2, 0, 1]),
    case("ConjugateTranspose", COMPLEX, x=complexes(2, 3), perm=[1, 0]),
    case("DepthToSpace", input=floats(2, 2, 3, 4), block_size=2),
    case("SpaceToDepth", input=floats(2, 2, 4, 3), block_size=2),
    case("BatchToSpaceND", input=floats(8, 2, 3), block_shape=[2], crops=[[1, 0]]),
    case("SpaceToBatchND", input=floats(2, 4, 3), block_shape=[2], paddings=[[1, 1]]),
    case("Pack", values=[floats(2, 3), floats(2, 3)], axis=1),
    case("Pack", values=[floats(), floats(), floats()], axis=-1),
    case("Unpack", value=floats(2, 3), num=3, axis=1),
    case("Unpack", value=floats(2, 3), num=2, axis=-2),
    case("ConcatV2", values=[floats(2, 3), floats(2, 1)], axis=-1),
    case("ConcatV2", values=[floats(2, 3), floats(1, 3), floats(1, 3)], axis=0),
    case("Concat", values=[floats(2, 3), floats(1, 3)], concat_dim=0),
    case("Split", axis=1, value=floats(2, 4), num_split=2),
    case("Split", axis=-2, value=floats(2, 4), num_split=2),
    case("SplitV", value=floats(2, 5), size_splits=[2, 3], axis=1, num_split=2),
    case("Tile", input=floats(2, 3), multiples=[2, 1]),
    case("BroadcastTo", input=floats(3), shape=[2, 3]),
    case("BroadcastTo", input=floats(), shape=[2, 3]),
    case("Fill", dims=[2, 3], value=floats()),
    case("Pad", input=floats(2, 3), paddings=[[1, 0], [0, 2]]),
    case("PadV2", input=floats(2, 3), paddings=[[1, 0], [0, 2]], constant_values=floats()),
    case("MirrorPad", input=floats(2, 3), paddings=[[1, 0], [0, 2]], mode="REFLECT"),
    case("ReverseV2", tensor=floats(2, 3), axis=[-1]),
    case("Reverse", tensor=floats(2, 3), dims=[True, False]),
    case("Roll", input=floats(2, 5), shift=small(), axis=1),
    case("Roll", input=floats(5), shift=small(), axis=-1),
    case("OneHot", ("float32", "int32"), indices=small(2), depth=3, on_value=whole(), off_value=whole(), axis=-1),
    case("OneHot", ("float32", "int32"), indices=small(2), depth=4, on_value=whole(), off_value=whole(), axis=0),
    case("LinSpace", start=floats(), stop=floats(), num=4),
    case("Diag", diagonal=floats(2, 2)),
    case("DiagPart", input=floats(2, 3, 2, 3)),
    case("InvertPermutation", ("int32",), x=shuffled(5)),
]

REDUCTIONS = [
    *(
        case(op, xla=op != "EuclideanNorm", input=floats(2, 3, 2), axis=axis, keep_dims=keep)
        for op in ("Sum", "Mean", "Max", "Min", "Prod", "EuclideanNorm")
        for axis, keep in (([0, 2], False), (-1, True), ([], False), (1, False))
    ),
    *(case(op, BOOL, input=flags(2, 3), axis=[0], keep_dims=True) for op in ("All", "Any")),
    case("Sum", INTS, input=whole(2, 3), axis=[0]),
    case("Sum", COMPLEX, input=complexes(2, 3), axis=[0]),
    *(case("EuclideanNorm", COMPLEX, xla=False, input=complexes(2, 3), axis=axis) for axis in ([0, 1], [])),
    *(case(op, ("float32", "int32"), input=whole(4, 3), dimension=d) for op in ("ArgMax", "ArgMin") for d in (0, -1)),
    *(case(op, x=floats(2, 4), axis=a) for op in ("Cumsum", "Cumprod", "CumulativeLogsumexp") for a in (0, -1)),
    case("Cumsum", INTS, x=whole(4), axis=0, exclusive=True, reverse=True),
    case("L2Loss", t=floats(2, 3)),
    case("Softmax", logits=floats(3)),
    case("Softmax", logits=floats(2, 3)),
    case("Softmax", logits=floats(2, 4, 3)),
    case("LogSoftmax", logits=floats(2, 3)),
    case("LogSoftmax", logits=floats(3)),
    case("LogSoftmax", logits=floats(2, 2, 4, 3)),
    case("SoftmaxCrossEntropyWithLogits", features=floats(2, 3), labels=positive(2, 3)),
    case("SoftmaxCrossEntropyWithLogits", features=floats(2, 3), labels=positive(1, 3)),
    case("SoftmaxCrossEntropyWithLogits", features=floats(2, 1), labels=positive(1, 3)),
    case("SparseSoftmaxCrossEntropyWithLogits", features=floats(2, 3), labels=small(2)),
    case("BiasAdd", value=floats(2, 4, 3), bias=floats(3)),
    case("BiasAdd", value=floats(2, 3, 4, 4), bias=floats(3), data_format="NCHW"),
    case("BiasAddGrad", out_backprop=floats(2, 4, 3)),
    case("BiasAddGrad", out_backprop=floats(2, 3, 4, 4), data_format="NCHW"),
    *(
        case(f"UnsortedSegment{kind}", data=floats(4, 2), segment_ids=small(4), num_segments=4)
        for kind in ("Sum", "Prod", "Max", "Min")
    ),
    case("UnsortedSegmentSum", data=floats(2, 2), segment_ids=small(2, 2), num_segments=3),
    *(
        case(f"Segment{kind}", xla=False, data=floats(4, 2), segment_ids=[0, 0, 1, 2])
        for kind in ("Sum", "Mean", "Prod", "Max", "Min")
    ),
    case("TopKV2", input=floats(2, 5), k=3),
    *(case(f"{side}Bound", sorted_inputs=increasing(2, 5), values=floats(2, 3)) for side in ("Lower", "Upper")),
    case("InTopKV2", ("float32",), predictions=floats(4, 5), targets=small(4), k=2),
]

_PAIRS = [[0, 1], [2, 0]]

INDEXING = [
    case("Gather", params=floats(4, 2), indices=small(3), validate_indices=True),
    case("GatherV2", params=floats(4, 2), indices=small(), axis=0),
    case("GatherV2", params=floats(4, 3), indices=small(2, 2), axis=1),
    case("GatherV2", params=floats(2, 4, 3), indices=small(2, 2), axis=1, batch_dims=1),
    case("GatherNd", params=floats(3, 3, 2), indices=small(4, 2)),
    case("GatherNd", params=floats(3, 3), indices=small(2)),
    case("ScatterNd", indices=small(4, 1), updates=floats(4, 2), shape=[3, 2]),
    *(
        case(f"TensorScatter{kind}", tensor=floats(3, 3, 2), indices=_PAIRS, updates=floats(2, 2))
        for kind in ("Update", "Add", "Sub", "Max", "Min")
    ),
    case("TensorScatterAdd", tensor=floats(4), indices=small(2, 1), updates=floats(2)),
    case("DynamicStitch", indices=[tf.constant([0, 2]), tf.constant([3, 1])], data=[floats(2, 2), floats(2, 2)]),
    case("Slice", input=floats(3, 5), begin=[1, 2], size=[2, -1]),
    case("Slice", input=floats(5, 5), begin=small(2), size=[2, 3]),
    case("StridedSlice", input=floats(4, 5, 3), begin=[1, 0, 1], end=[3, 5, 2], strides=[1, 2, 1], shrink_axis_mask=4),
    case(
        "StridedSlice",
        input=floats(4, 3),
        begin=[0, 0, 2],
        end=[0, 0, 0],
        strides=[1, 1, 1],
        begin_mask=4,
        end_mask=5,
        new_axis_mask=2,
        ellipsis_mask=1,
    ),
    case("StridedSlice", input=floats(4, 3), begin=[3, 0], end=[0, 3], strides=[-1, 1], end_mask=1),
    case("StridedSlice", input=floats(4, 3), begin=small(1), end=[9], strides=[1], shrink_axis_mask=1),
    case("StridedSliceGrad", shape=[4, 5], begin=[1, 0], end=[3, 5], strides=[1, 2], dy=floats(2, 3)),
]

RAGGED = [
    case(
        "RaggedTensorToTensor",
        ("float64",),
        xla=False,
        shape=tf.constant([2, 5, 2]),
        values=floats(6, 2),
        default_value=floats(),
        row_partition_tensors=[splits(4)],
        row_partition_types=["ROW_SPLITS"],
    ),
    case(
        "RaggedTensorToTensor",
        ("int32",),
        xla=False,
        shape=tf.constant([4, 3, 6]),
        values=whole(6),
        default_value=steady(whole()),
        row_partition_tensors=[tf.constant(3, tf.int64), in_order(6), in_order(6)],
        row_partition_types=["FIRST_DIM_SIZE", "VALUE_ROWIDS", "VALUE_ROWIDS"],
    ),
    case(
        "RaggedTensorToTensor",
        ("float64",),
        xla=False,
        shape=tf.constant(-1),
        values=floats(5, 2),
        default_value=floats(2),
        row_partition_tensors=[tf.constant([0, 2, 2, 3], tf.int64), tf.constant([0, 2, 2, 5], tf.int64)],
        row_partition_types=["ROW_SPLITS", "ROW_SPLITS"],
    ),
    case(
        "RaggedTensorToTensor",
        ("float64",),
        xla=False,
        shape=tf.constant([-1, -1]),
        values=floats(5),
        default_value=floats(),
        row_partition_tensors=[tf.constant(4, tf.int64), tf.constant([0, 2, 2, 2, 3], tf.int64)],
        row_partition_types=["FIRST_DIM_SIZE", "VALUE_ROWIDS"],
    ),
]

# What they give differs in length from row to row: compared by its sum and its size (see test_lengths.py).
LENGTHS = [
    case("Where", BOOL, condition=flags(5), pick=lambda places: sums(places)),
    case("Where", INTS, condition=whole(2, 3), pick=lambda places: sums(places)),
    case("Unique", INTS, x=whole(7), pick=lambda found: [*sums(found[0]), found[1]]),
    case("UniqueWithCounts", INTS, xla=False, x=whole(7), pick=lambda found: [*sums(found[0]), *sums(found[2])]),
    composed("StridedSlice", lambda x, n: tf.reduce_sum(x[:n]), floats(6), small()),
    composed("StridedSlice", lambda x, i: x[..., i], floats(4, 3), small()),
    composed("StridedSlice", lambda x, i: x[i, ..., ::-1], floats(3, 4, 2), small()),
    composed("StridedSlice", lambda x, i: x[:, tf.newaxis, i, tf.newaxis, ..., 1], floats(2, 3, 4, 2), small()),
]


def sums(tensor: Any) -> list[Any]:
    return [tf.reduce_sum(tensor, axis=0), tf.size(tensor)]


CASES = [*SHAPES, *REDUCTIONS, *INDEXING, *RAGGED, *LENGTHS]
