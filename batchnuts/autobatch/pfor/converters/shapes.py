"""Ops that move, join, cut or describe axes: the axis of the rows is put before all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.pfor.errors import NoRule, Refused
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Site, merge, reshape, rows_from, rows_to, shape_of, with_axes
from batchnuts.autobatch.pfor.values import Invariant, Stacked, Tensor, Value

# ---- what a shape is: never different between rows --------------------------------------------------------------


@converts("Shape ShapeN", always=False)
def shape(site: Site) -> list[Value]:
    """The shape of a row."""
    dtype = site.attr("out_type")
    return [Invariant(_shape(site, k, dtype)) for k in range(len(site.inputs))]


def _shape(site: Site, k: int, dtype: Any) -> Tensor:
    row_shape = site.row_shape(k)
    if None not in row_shape:
        return tf.constant(row_shape, dtype, shape=(len(row_shape),))
    running = tf.shape(site.tensor(k), dtype)
    return running[1:] if site.varies(k) else running


@converts("Size")
def size(site: Site) -> list[Value]:
    """The number of elements of a row."""
    return [Invariant(tf.reduce_prod(_shape(site, 0, site.attr("out_type"))))]


@converts("Rank")
def rank(site: Site) -> list[Value]:
    """The rank of a row."""
    return [Invariant(tf.constant(site.row_rank(0)))]


def fixed(site: Site, k: int, name: str) -> Tensor:
    """Input k, which must not differ between rows. Raises Refused."""
    if site.varies(k):
        raise Refused(
            f"{name} depends on the iteration, so rows would have different shapes. Pad them to one shape and mask, or "
            "loop with tf.map_fn"
        )
    return site.tensor(k)


def _with_rows(site: Site, sizes: Tensor) -> Tensor:
    """The shape [number of rows, *sizes]."""
    constant = tf.get_static_value(sizes)
    if constant is not None and site.loop.static_count is not None:
        return tf.constant([site.loop.static_count, *constant], sizes.dtype)
    return tf.concat([tf.cast(site.loop.count, sizes.dtype)[None], sizes], 0)


# ---- new shapes of the same elements ----------------------------------------------------------------------------


@converts("Reshape", varying="tensor")
def to_shape(site: Site) -> list[Value]:
    """Reshapes to [rows, *shape]; -1 is resolved by the shape of a row where that is known, as there may be no rows."""
    target = fixed(site, 1, "the new shape")
    static = tuple(site.op.outputs[0].shape) if site.op.outputs[0].shape.rank is not None else (None,)
    if None not in static:
        target = tf.constant(static, target.dtype, shape=(len(static),))
    return site.emit_rows(site.tensor(0), _with_rows(site, target))


@converts("EnsureShape")
def ensure(site: Site) -> list[Value]:
    """Checks the shape of a row."""
    expected = tf.TensorShape(site.attr("shape"))
    return site.emit_rows(site.tensor(0), shape=tf.TensorShape([None]).concatenate(expected))


@converts("ExpandDims", varying="input")
def expand(site: Site) -> list[Value]:
    """Axes counted from the end stay as they are."""
    site.only(0)
    axis = site.axis(1, site.row_rank(0) + 1)
    return site.emit_rows(site.tensor(0), tf.constant(axis + 1))


@converts("Squeeze")
def squeeze(site: Site) -> list[Value]:
    """Without axes given, removes those known to be 1."""
    row_shape = site.row_shape(0)
    axes = [axis % len(row_shape) for axis in site.attr("squeeze_dims")]
    if not axes:
        if None in row_shape:
            raise Refused("which axes are 1 is not known before running; name them")
        axes = [axis for axis, extent in enumerate(row_shape) if extent == 1]
    if not axes:
        return [Stacked(site.tensor(0))]
    return site.emit_rows(site.tensor(0), squeeze_dims=[axis + 1 for axis in axes])


@converts("Transpose ConjugateTranspose", varying="x")
def transpose(site: Site) -> list[Value]:
    """The rows' axis stays in front."""
    order = fixed(site, 1, "the order of axes")
    constant = tf.get_static_value(order)
    if constant is not None:
        return site.emit_rows(site.tensor(0), tf.constant([0, *(constant + 1)]))
    return site.emit_rows(site.tensor(0), tf.concat([tf.zeros(1, order.dtype), order + 1], 0))


@converts("DepthToSpace SpaceToDepth")
def blocks(site: Site) -> list[Value]:
    """Images of all rows are one batch."""
    (result,) = site.emit(merge(site.tensor(0), 2))
    return [Stacked(reshape(result, [*shape_of(site.tensor(0))[:2], *shape_of(result)[1:]]))]


@converts("BatchToSpaceND", varying="input")
def batch_to_space(site: Site) -> list[Value]:
    """The batch is cut first into block positions, then into what is left: the rows go after the positions."""
    site.only(0)
    block = site.constant(1)
    if block is None:
        raise NoRule
    value = site.tensor(0)
    sizes = shape_of(value)
    cells = int(np.prod(block))
    rest = sizes[1] // cells
    apart = reshape(value, [sizes[0], cells, rest, *sizes[2:]])
    moved = tf.transpose(apart, [1, 0, *range(2, len(sizes) + 1)])
    (result,) = site.emit(reshape(moved, [cells * sizes[0] * rest, *sizes[2:]]), *site.tensors()[1:])
    return [Stacked(reshape(result, [sizes[0], rest, *shape_of(result)[1:]]))]


@converts("SpaceToBatchND", varying="input")
def space_to_batch(site: Site) -> list[Value]:
    """The inverse of batch_to_space."""
    site.only(0)
    block = site.constant(1)
    if block is None:
        raise NoRule
    sizes = shape_of(site.tensor(0))
    cells = int(np.prod(block))
    (result,) = site.emit(merge(site.tensor(0), 2), *site.tensors()[1:])
    result_sizes = shape_of(result)
    apart = reshape(result, [cells, sizes[0], sizes[1], *result_sizes[1:]])
    moved = tf.transpose(apart, [1, 0, *range(2, len(result_sizes) + 2)])
    return [Stacked(reshape(moved, [sizes[0], cells * sizes[1], *result_sizes[1:]]))]


# ---- joining and cutting ----------------------------------------------------------------------------------------


@converts("DynamicPartition", varying="data")
def partition(site: Site) -> list[Value]:
    """With one partition for all rows: the axes of the partition go first, then back."""
    site.only(0)
    return [
        Stacked(rows_from(part, 1)) for part in site.emit(rows_to(site.tensor(0), site.row_rank(1)), site.tensor(1))
    ]


@converts("Pack")
def pack(site: Site) -> list[Value]:
    """Stacks along a new axis, counted after the rows'."""
    axis = site.attr("axis")
    return site.emit_rows(*(site.stacked(k) for k in range(len(site.inputs))), axis=axis + 1 if axis >= 0 else axis)


@converts("Unpack")
def unpack(site: Site) -> list[Value]:
    """Takes apart along an axis, counted after the rows'."""
    axis = site.attr("axis")
    return site.emit_rows(site.tensor(0), axis=axis + 1 if axis >= 0 else axis)


@converts("ConcatV2", varying="values")
def concat(site: Site) -> list[Value]:
    """Joins along an axis, counted after the rows'."""
    *parts, last = range(len(site.inputs))
    axis = site.axis(last, site.row_rank(0))
    return site.emit_rows(*(site.stacked(k) for k in parts), tf.constant(axis + 1))


@converts("Concat", varying="values")
def concat_v1(site: Site) -> list[Value]:
    """Joins along an axis; the axis is the op's first input."""
    axis = site.axis(0, site.row_rank(1))
    return site.emit_rows(tf.constant(axis + 1), *(site.stacked(k) for k in range(1, len(site.inputs))))


@converts("Split", varying="value")
def split(site: Site) -> list[Value]:
    """Splits an axis, counted after the rows'."""
    return site.emit_rows(tf.constant(site.axis(0, site.row_rank(1)) + 1), site.tensor(1))


@converts("SplitV", varying="value")
def split_sizes(site: Site) -> list[Value]:
    """Splits an axis, counted after the rows', into parts of given sizes."""
    sizes = fixed(site, 1, "where it is cut")
    return site.emit_rows(site.tensor(0), sizes, tf.constant(site.axis(2, site.row_rank(0)) + 1))


@converts("Tile", varying="input")
def tile(site: Site) -> list[Value]:
    """The rows' axis is not repeated."""
    times = fixed(site, 1, "how often it is repeated")
    return site.emit_rows(site.tensor(0), tf.concat([tf.ones(1, times.dtype), times], 0))


@converts("BroadcastTo", varying="input")
def broadcast_to(site: Site) -> list[Value]:
    """Rows of lower rank get unit axes."""
    target = fixed(site, 1, "the new shape")
    rank = target.shape[0]
    if rank is None:
        raise Refused("the rank of the new shape is not known before running")
    return site.emit_rows(with_axes(site.tensor(0), rank), _with_rows(site, target))


@converts("Fill", varying="value")
def fill(site: Site) -> list[Value]:
    """Fills by broadcasting."""
    target = fixed(site, 0, "the shape")
    rank = target.shape[0]
    if rank is None:
        raise Refused("the rank of the new shape is not known before running")
    return [Stacked(tf.broadcast_to(with_axes(site.tensor(1), rank), _with_rows(site, target)))]


@converts("Pad MirrorPad", varying="input")
def pad(site: Site) -> list[Value]:
    """Nothing is padded between rows."""
    around = fixed(site, 1, "the padding")
    return site.emit_rows(site.tensor(0), tf.concat([tf.zeros((1, 2), around.dtype), around], 0))


@converts("PadV2", varying="input constant_values")
def pad_with(site: Site) -> list[Value]:
    """The value may differ between rows: then zeros first, and the value where the padding is."""
    around = fixed(site, 1, "the padding")
    around = tf.concat([tf.zeros((1, 2), around.dtype), around], 0)
    if not site.varies(2):
        return site.emit_rows(site.stacked(0), around, site.tensor(2))
    padded = tf.pad(site.stacked(0), around)
    inside = tf.pad(tf.ones_like(site.stacked(0), tf.bool), around)
    return [Stacked(tf.where(inside, padded, with_axes(site.tensor(2), site.row_rank(0))))]


@converts("ReverseV2", varying="tensor")
def reverse(site: Site) -> list[Value]:
    """Axes are counted after the rows'."""
    axes = site.constant(1)
    if axes is None:
        raise NoRule
    return site.emit_rows(site.tensor(0), tf.constant(axes % site.row_rank(0) + 1, tf.int32))


@converts("Reverse", varying="tensor")
def reverse_v1(site: Site) -> list[Value]:
    """The axes are given by one bool for each."""
    which = fixed(site, 1, "which axes are reversed")
    return site.emit_rows(site.tensor(0), tf.concat([[False], which], 0))


@converts("Roll", varying="input")
def roll(site: Site) -> list[Value]:
    """Axes are counted after the rows'. A shift that differs between rows is a gather, along one axis."""
    axes = site.constant(2)
    if axes is None:
        raise NoRule
    axes = axes % site.row_rank(0) + 1
    if not site.varies(1):
        return site.emit_rows(site.stacked(0), site.tensor(1), tf.constant(axes, tf.int32))
    if axes.ndim != 0:
        raise NoRule
    value = site.stacked(0)
    extent = tf.shape(value)[int(axes)]
    places = (tf.range(extent)[None, :] - tf.cast(site.tensor(1), tf.int32)[:, None]) % extent
    front = [0, int(axes), *(k for k in range(1, value.shape.rank) if k != int(axes))]
    moved = tf.gather(tf.transpose(value, front), places, axis=1, batch_dims=1)
    return [Stacked(tf.transpose(moved, np.argsort(front)))]


@converts("OneHot", varying="indices on_value off_value")
def one_hot(site: Site) -> list[Value]:
    """The new axis is counted after the rows'."""
    if site.varies(1):
        raise Refused("the number of classes depends on the iteration, so rows would have different shapes")
    axis = site.attr("axis")
    if not (site.varies(2) or site.varies(3)):
        return site.emit_rows(*site.tensors(), axis=axis + 1 if axis >= 0 else axis)
    indices = site.stacked(0)
    (hot,) = site.emit(
        indices, site.tensor(1), tf.constant(True), tf.constant(False), axis=axis + 1 if axis >= 0 else -1
    )
    on, off = (with_axes(site.tensor(k), site.row_rank(0) + 1) if site.varies(k) else site.tensor(k) for k in (2, 3))
    return [Stacked(tf.where(hot, on, off))]


@converts("Range", varying="none")
def counting(site: Site) -> list[Value]:
    """The range's length follows from its ends."""
    raise Refused(
        "the ends of a range depend on the iteration, so rows may have different lengths. Where the length is fixed, "
        "write start + tf.range(length)"
    )


@converts("LinSpace", varying="start stop")
def evenly(site: Site) -> list[Value]:
    """The result has one shape whatever its ends are."""
    count = site.constant(2)
    if count is None:
        raise NoRule
    return [Stacked(tf.linspace(site.stacked(0), site.stacked(1), int(count), axis=1))]


@converts("Diag DiagPart")
def diagonal(site: Site) -> list[Value]:
    """The diagonal of tensors of any rank, made or read as a flat matrix."""
    value = site.tensor(0)
    sizes = shape_of(value)
    count, row = sizes[0], sizes[1:]
    if site.op.type == "Diag":
        flat = reshape(value, [count, -1]) if len(row) != 1 else value
        return [Stacked(reshape(tf.linalg.diag(flat), [count, *row, *row]))]
    half = row[: len(row) // 2]
    extent = 1
    for size in half:
        extent = extent * size
    return [Stacked(reshape(tf.linalg.diag_part(reshape(value, [count, extent, extent])), [count, *half]))]


@converts("InvertPermutation")
def invert_permutation(site: Site) -> list[Value]:
    """The inverse permutation is the order that sorts."""
    return [Stacked(tf.argsort(site.tensor(0), axis=1))]


@converts("BroadcastGradientArgs", varying="none")
def broadcast_gradient(site: Site) -> list[Value]:
    """Shapes must be the same for all rows."""
    raise Refused("a shape depends on the iteration, so rows would have different shapes")
