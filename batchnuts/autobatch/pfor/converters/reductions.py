"""Ops along axes: sums and their like, running sums, softmax, segments. Axes are counted after the rows'."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.pfor.errors import NoRule, Refused
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Site, broadcast, merge, reshape, rows_from, rows_to, shape_of
from batchnuts.autobatch.pfor.values import Stacked, Tensor, Value


@converts("All Any EuclideanNorm Max Mean Min Prod Sum", varying="input", no_xla="EuclideanNorm")
def reduction(site: Site) -> list[Value]:
    """Reduces the same axes of each row."""
    site.only(0)
    axes = site.constant(1)
    rank = site.row_rank(0)
    if axes is None:
        axes_of_rows = site.tensor(1) % rank + 1
    else:
        axes_of_rows = tf.constant(np.atleast_1d(axes) % rank + 1, tf.int32)
    return site.emit_rows(site.tensor(0), axes_of_rows)


@converts("ArgMax ArgMin Cumsum Cumprod CumulativeLogsumexp", varying="first")
def along_one_axis(site: Site) -> list[Value]:
    """Runs along the same axis of each row."""
    site.only(0)
    return site.emit_rows(site.tensor(0), tf.constant(site.axis(1, site.row_rank(0)) + 1))


@converts("L2Loss")
def half_sum_of_squares(site: Site) -> list[Value]:
    """Half the sum of each row's squares: the op itself would sum over the rows, too."""
    value = site.tensor(0)
    return [Stacked(tf.reduce_sum(value * value, axis=list(range(1, value.shape.rank))) / 2)]


@converts("Softmax LogSoftmax")
def softmax(site: Site) -> list[Value]:
    """The softmax along the last axis, on matrices."""
    value = site.tensor(0)
    if site.row_rank(0) == 1:
        return site.emit_rows(value)
    (result,) = site.emit(merge(value, 2))
    return [Stacked(reshape(result, shape_of(value)))]


@converts("SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits")
def cross_entropy(site: Site) -> list[Value]:
    """Rows of all iterations are one batch: loss and gradient. Logits and dense labels broadcast against each other."""
    operands = [site.stacked(k) for k in range(2)]
    sizes = shape_of(operands[0])
    if site.op.type == "SoftmaxCrossEntropyWithLogits" and site.row_shape(0) != site.row_shape(1):
        sizes = shape_of(operands[0] + operands[1])
        operands = [broadcast(tensor, sizes) for tensor in operands]
    loss, gradient = site.emit(*(merge(tensor, 2) for tensor in operands))
    return [Stacked(reshape(loss, sizes[:2])), Stacked(reshape(gradient, sizes))]


# ---- biases: a vector along the channels ------------------------------------------------------------------------


def _channels_first(site: Site) -> bool:
    return bool(site.attr("data_format") == b"NCHW")


@converts("BiasAdd")
def bias_add(site: Site) -> list[Value]:
    """A sum, with the bias along the channels."""
    value, bias = site.tensor(0), site.tensor(1)
    if _channels_first(site):
        trailing = site.row_rank(0) - 2
        lead = shape_of(bias)[:1] if site.varies(1) else []
        bias = reshape(bias, [*lead, *([1] if site.varies(1) else []), shape_of(bias)[-1], *[1] * trailing])
    elif site.varies(1):
        sizes = shape_of(bias)
        bias = reshape(bias, [sizes[0], *[1] * (site.row_rank(0) - 1), sizes[1]])
    return [Stacked(value + bias)]


@converts("BiasAddGrad")
def bias_gradient(site: Site) -> list[Value]:
    """A sum over all axes but the channels'."""
    rank = site.row_rank(0)
    channels = 2 if _channels_first(site) else rank
    return [Stacked(tf.reduce_sum(site.tensor(0), axis=[axis for axis in range(1, rank + 1) if axis != channels]))]


# ---- segments ---------------------------------------------------------------------------------------------------


@converts("UnsortedSegmentSum UnsortedSegmentProd UnsortedSegmentMax UnsortedSegmentMin", varying="data segment_ids")
def segments(site: Site) -> list[Value]:
    """With the same ids for all, the rows lie side by side. Else every row has segments of its own: those of row r are
    numbered from r times their count; negative ones, which are left out, stay so."""
    site.only(0, 1)
    if not site.varies(1):
        (result,) = site.emit(rows_to(site.tensor(0), site.row_rank(1)), *site.tensors()[1:])
        return [Stacked(rows_from(result, 1))]
    data, segment_ids, count = site.stacked(0), site.stacked(1), tf.cast(site.tensor(2), site.tensor(1).dtype)
    ids_rank = site.row_rank(1)
    first = tf.cast(tf.range(site.loop.count), segment_ids.dtype) * count
    first = tf.reshape(first, [-1, *[1] * ids_rank])
    total = count * tf.cast(site.loop.count, count.dtype)
    # one that is too large must not get into the next row's segments: it stays too large
    placed = tf.where(segment_ids < count, segment_ids + first, total + segment_ids)
    (result,) = site.emit(data, tf.where(segment_ids < 0, segment_ids, placed), total)
    return [_rows_of_segments(site, result)]


SORTED = "SegmentSum SegmentMean SegmentProd SegmentMax SegmentMin"


@converts(SORTED, varying="data", no_xla=SORTED)
def sorted_segments(site: Site) -> list[Value]:
    """With the ids the same for all rows: the axis of the segments goes first, then back."""
    site.only(0)
    (result,) = site.emit(rows_to(site.tensor(0), 1), site.tensor(1))
    return [Stacked(rows_from(result, 1))]


def _rows_of_segments(site: Site, result: Tensor) -> Stacked:
    sizes = shape_of(result)
    count = site.constant(2)
    static_count = site.loop.static_count
    rows = static_count if static_count is not None else site.loop.count
    each = int(count) if count is not None else tf.cast(site.tensor(2), tf.int32)
    return Stacked(reshape(result, [rows, each, *sizes[1:]]))


# ---- sorting ----------------------------------------------------------------------------------------------------


@converts("TopKV2", varying="input")
def top_k(site: Site) -> list[Value]:
    """The largest along the last axis. Their number cannot differ between rows."""
    if site.varies(1):
        raise Refused(
            "how many entries it takes depends on the iteration, so rows would have different lengths. Take the "
            "largest number for all, top_k(x, most), and mask the excess: tf.where(tf.range(most) < k, values, 0)"
        )
    return site.emit_rows(*site.tensors())


@converts("LowerBound UpperBound", varying="sorted_inputs values")
def search(site: Site) -> list[Value]:
    """Searches matrices, each row in its own sequence."""
    sizes = shape_of(site.stacked(1))
    (result,) = site.emit(*(merge(site.stacked(k), 2) for k in range(2)))
    return [Stacked(reshape(result, sizes))]


@converts("InTopKV2", varying="predictions targets")
def in_top_k(site: Site) -> list[Value]:
    """Rows of all iterations are one batch."""
    if site.varies(2):
        raise NoRule
    (result,) = site.emit(merge(site.stacked(0), 2), merge(site.stacked(1), 2), site.tensor(2))
    return [Stacked(reshape(result, shape_of(site.stacked(1))))]
