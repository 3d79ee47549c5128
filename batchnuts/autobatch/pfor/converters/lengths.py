"""Rows of different lengths, padded to one: what `tf.where(mask)`, `tf.boolean_mask`, `tf.unique` and `x[:n]` give.

    made by            Where, Unique, UniqueWithCounts, StridedSlice with an end that differs between rows
    kept by            ops element by element; gathers with such indices; reshapes of what comes after the first axis
    ended by           reductions over the first axis; segment sums; gradients of slices and gathers

The first axis of a row is the one whose length differs. The padding after a row's entries repeats the first one, and no
gradient flows to it, so a logarithm there is finite if those of the entries are. Any other op is refused: its effect on
the padding is not known. Slices are in `indexing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.pfor.converters import elementwise, reductions, slices
from batchnuts.autobatch.pfor.errors import NoRule, Refused
from batchnuts.autobatch.pfor.padding import cut_to, filled, origin_of, real
from batchnuts.autobatch.pfor.registry import REGISTRY, converts, on_lengths
from batchnuts.autobatch.pfor.site import Site, product, reshape, shape_of, with_axes
from batchnuts.autobatch.pfor.values import Invariant, Padded, Stacked, Tensor, Value

# ---- made by ----------------------------------------------------------------------------------------------------


@converts("Where")
def where(site: Site) -> list[Value]:
    """The indices of nonzero entries, in order: [entries, rank of the row]."""
    condition = site.tensor(0) if site.op.inputs[0].dtype == tf.bool else site.tensor(0) != 0
    sizes = shape_of(condition)
    order, lengths = _first(reshape(condition, [sizes[0], product(sizes[1:])]))
    places = []
    for extent in reversed(sizes[1:]):
        places.append(tf.cast(order % extent, tf.int64))
        order = order // extent
    source = site.op.inputs[0]
    while source.op.type in ("Identity", "Reshape"):
        source = source.op.inputs[0]
    return [Padded(tf.stack(places[::-1], -1), lengths, origin_of(site.value_of, "where", source))]


@converts("Unique UniqueWithCounts", no_xla="UniqueWithCounts")
def unique(site: Site) -> list[Value]:
    """The entries of each vector that equal no earlier one, in order, by comparing each entry with each."""
    x = site.tensor(0)
    index = site.attr("out_idx")
    extent = shape_of(x)[1]
    equal = (x[:, :, None] == x[:, None, :]) | tf.eye(extent, dtype=tf.bool)  # a NaN equals no other entry
    earliest = tf.argmax(tf.cast(equal, tf.int32), 2, tf.int32)
    is_first = earliest == tf.range(extent)
    order, lengths = _first(is_first)
    place = tf.cumsum(tf.cast(is_first, tf.int32), 1) - 1
    origin = origin_of(site.value_of, "unique", site.op.inputs[0])
    outputs: list[Value] = [
        Padded(tf.gather(x, order, batch_dims=1), lengths, origin),
        Stacked(tf.cast(tf.gather(place, earliest, batch_dims=1), index)),
    ]
    if len(site.op.outputs) == 3:
        counts = tf.reduce_sum(tf.cast(equal, index), 2)
        outputs.append(Padded(tf.gather(counts, order, batch_dims=1), lengths, origin))
    return outputs


def _first(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The indices [rows, n] int32 of the selected entries of each row [n], padded with the first; and their number."""
    order = tf.argsort(tf.cast(~chosen, tf.int32), stable=True)
    lengths = tf.reduce_sum(tf.cast(chosen, tf.int32), 1)
    return tf.where(real(order, lengths), order, order[:, :1]), lengths


# ---- looking at them --------------------------------------------------------------------------------------------


def _padded_input(site: Site) -> Padded:
    """The first input, padded; raises NoRule where another one is padded, for ops without a rule of their own."""
    value = site.inputs[0]
    if not isinstance(value, Padded):
        raise NoRule
    return value


def _padded(site: Site) -> list[Padded]:
    return [value for value in site.inputs if isinstance(value, Padded)]


def _alike(values: Sequence[Padded]) -> None:
    """Raise Refused where the lengths may not be the same."""
    if len({value.origin for value in values}) > 1:
        raise Refused(
            "it joins tensors whose lengths depend on the iteration each in its own way. Take both by the same mask or "
            "index, or pad them to one shape and mask"
        )


# ---- kept by ----------------------------------------------------------------------------------------------------


@on_lengths(f"{elementwise.UNARY} ZerosLike")
def one_input(site: Site) -> list[Value]:
    """The op works entry by entry."""
    value = _padded_input(site)
    (tensor,) = site.emit(value.tensor)
    return [replace(value, tensor=tensor)]


@on_lengths("Identity Cast")
def passed_on(site: Site) -> list[Value]:
    """The op works entry by entry; a shape stays one."""
    (value,) = site.inputs
    assert isinstance(value, (Stacked, Padded))
    (tensor,) = site.emit(value.tensor)
    return [replace(value, tensor=tensor)]


@on_lengths("IdentityN PartitionedCall StatefulPartitionedCall")
def taken_apart(site: Site) -> list[Value]:
    """The ordinary converters of these look at no tensor."""
    return REGISTRY[site.op.type].convert(site)


@on_lengths(f"{elementwise.BROADCASTING} {elementwise.SAME_SHAPE} Select")
def several_inputs(site: Site) -> list[Value]:
    """The op works entry by entry: the others have the same lengths, or one entry or none along the first axis."""
    values = _padded(site)
    if not values:
        raise NoRule
    _alike(values)
    rank = max(site.row_rank(k) for k in range(len(site.inputs)))
    tensors = []
    for k, value in enumerate(site.inputs):
        shape = site.row_shape(k)
        if len(shape) == rank and not isinstance(value, Padded) and shape[0] != 1:
            raise Refused(
                f"it joins a tensor whose length depends on the iteration with one of shape {list(shape)}. Pad the "
                "first one, and mask"
            )
        if isinstance(value, Padded) and len(shape) != rank:
            raise Refused("it puts new axes before the one whose length depends on the iteration")
        tensors.append(with_axes(value.tensor, rank) if isinstance(value, Stacked) else value.tensor)  # type: ignore[union-attr]
    if site.op.type == "Select":
        tensors = [site.loop.rows(t) if isinstance(v, Invariant) else t for t, v in zip(tensors, site.inputs)]
    (result,) = site.emit(*tensors)
    return [replace(values[0], tensor=result)]


@on_lengths("Gather GatherV2")
def gather(site: Site) -> list[Value]:
    """Gathers with indices of different lengths from what has one shape."""
    params, indices = site.inputs[:2]
    axis = 0 if site.op.type == "Gather" else site.axis(2, site.row_rank(0))
    if (
        not isinstance(indices, Padded)
        or isinstance(params, Padded)
        or axis
        or (site.op.type == "GatherV2" and (site.attr("batch_dims")))
    ):
        if isinstance(params, Stacked) and not isinstance(indices, Padded):
            raise NoRule
        raise Refused(
            "it takes by index from, or along another axis of, a tensor whose length depends on the iteration"
        )
    assert isinstance(params, (Stacked, Invariant))
    if isinstance(params, Stacked):
        gathered = tf.gather(params.tensor, indices.tensor, axis=1, batch_dims=1)
    else:
        gathered = tf.gather(params.tensor, indices.tensor)
    counting = real(gathered, indices.lengths)
    return [replace(indices, tensor=tf.where(counting, gathered, tf.stop_gradient(gathered)))]


@on_lengths("Squeeze")
def squeeze(site: Site) -> list[Value]:
    """Removes axes after the first one."""
    value = _padded_input(site)
    rank = site.row_rank(0)
    axes = [axis % rank for axis in site.attr("squeeze_dims")]
    if not axes or 0 in axes:
        raise Refused("it may remove the axis whose length depends on the iteration; name the axes that are 1")
    (tensor,) = site.emit(value.tensor, squeeze_dims=[axis + 1 for axis in axes])
    return [replace(value, tensor=tensor)]


@on_lengths("ExpandDims")
def expand(site: Site) -> list[Value]:
    """Adds an axis after the first one."""
    value = _padded_input(site)
    axis = site.axis(1, site.row_rank(0) + 1)
    if axis == 0:
        raise Refused("it puts a new axis before the one whose length depends on the iteration")
    (tensor,) = site.emit(value.tensor, tf.constant(axis + 1))
    return [replace(value, tensor=tensor)]


@on_lengths("Reshape")
def to_shape(site: Site) -> list[Value]:
    """What comes after the first axis; or from one shape to that of rows of different lengths, by name (`tf.shape`)."""
    value, target = _padded_input(site), site.inputs[1]
    static = site.op.outputs[0].shape
    rest = site.row_shape(0)[1:]
    if static.rank is None or static.rank == 0 or None in static[1:] or None in rest:
        raise Refused("the new shape of a tensor whose length depends on the iteration is not known")
    constant = site.constant(1)
    leads = constant is None or constant[0] == -1
    if not leads or product(rest) != product(static[1:]):
        raise Refused("the new shape would cut across the axis whose length depends on the iteration")
    if isinstance(target, Stacked) and target.shape_of is not None:
        _alike([value, target.shape_of])
    new = reshape(value.tensor, [*shape_of(value.tensor)[:2], *static[1:]])
    return [replace(value, tensor=new)]


# ---- their shapes -----------------------------------------------------------------------------------------------


@on_lengths("Shape")
def shape(site: Site) -> list[Value]:
    """The shape of each row."""
    value = _padded_input(site)
    dtype = site.attr("out_type")
    rest = tf.shape(value.tensor, dtype)[2:]
    columns = [tf.cast(value.lengths, dtype)[:, None], site.loop.rows(rest)]
    return [Stacked(tf.concat(columns, 1), shape_of=value)]


@on_lengths("Size")
def size(site: Site) -> list[Value]:
    """The number of elements of each row."""
    value = _padded_input(site)
    dtype = site.attr("out_type")
    return [Stacked(tf.cast(value.lengths, dtype) * tf.reduce_prod(tf.shape(value.tensor, dtype)[2:]))]


@on_lengths("Rank")
def rank(site: Site) -> list[Value]:
    """The rank, which is the same for all rows."""
    return [Invariant(tf.constant(site.row_rank(0)))]


@on_lengths("Tile BroadcastTo")
def broadcast(site: Site) -> list[Value]:
    """Broadcasts to the shape of rows of different lengths, as the gradient of a sum does."""
    value, target = site.inputs
    if isinstance(value, Padded) or not isinstance(target, Stacked) or target.shape_of is None:
        raise NoRule
    sizes = site.row_shape(0)
    wanted = target.shape_of
    extents = shape_of(wanted.tensor)[1:]
    ones = sizes if site.op.type == "Tile" else sizes[: 1 if len(sizes) == len(extents) else 0]
    if any(extent != 1 for extent in ones):
        raise Refused("it repeats a tensor a number of times that depends on the iteration, and so would its length")
    rows = with_axes(site.stacked(0), len(extents))
    repeated = tf.broadcast_to(rows, tf.stack([shape_of(rows)[0], *extents]))
    return [cut_to(repeated, wanted.lengths, wanted.origin)]


@on_lengths("BroadcastGradientArgs")
def broadcast_gradient(site: Site) -> list[Value]:
    """The axes that broadcasting repeated. A length that differs counts as one that is not 1: where it is 1, a sum over
    that axis is the same as none."""
    different = [value.shape_of for value in site.inputs if isinstance(value, Stacked) and value.shape_of is not None]
    _alike(different)
    shapes = []
    for k, value in enumerate(site.inputs):
        if isinstance(value, Stacked) and value.shape_of is not None:
            shapes.append([-1, *value.shape_of.tensor.shape[2:]])
        else:
            constant = site.constant(k)
            if constant is None:
                raise NoRule
            shapes.append(list(constant))
    rank = max(len(shape) for shape in shapes)
    first, second = ([1] * (rank - len(shape)) + shape for shape in shapes)
    dtype = site.op.outputs[0].dtype
    axes = []
    for mine, theirs, own in ((first, second, len(shapes[0])), (second, first, len(shapes[1]))):
        repeated = [k for k in range(rank) if k < rank - own or (mine[k] == 1 and theirs[k] != 1)]
        axes.append(Invariant(tf.constant(repeated, dtype, shape=(len(repeated),))))
    return [*axes]


# ---- ended by ---------------------------------------------------------------------------------------------------


@on_lengths("Sum Prod Max Min Mean All Any")
def reduction(site: Site) -> list[Value]:
    """Reduces the first axis with the op's own neutral element in place of the padding, other axes as they are."""
    value = _padded_input(site)
    axes = site.constant(1)
    if axes is None:
        raise Refused("the axes that it goes over are not known")
    over = sorted({int(axis) % site.row_rank(0) for axis in np.atleast_1d(axes)})
    shifted = tf.constant([axis + 1 for axis in over], tf.int32)
    if not over:
        return [value]
    if 0 not in over:
        (tensor,) = site.emit(value.tensor, shifted)
        return [replace(value, tensor=tensor)]
    kind = site.op.type
    whole = filled(value, _neutral(kind, value.tensor.dtype))
    if kind != "Mean":
        return site.emit_rows(whole, shifted)
    total = tf.reduce_sum(whole, shifted, keepdims=site.attr("keep_dims"))
    others = product([shape_of(value.tensor)[axis + 1] for axis in over if axis])
    count = tf.reshape(tf.cast(value.lengths * others, total.dtype), [-1, *[1] * (total.shape.rank - 1)])
    return [Stacked(tf.truncatediv(total, count) if total.dtype.is_integer else total / count)]


def _neutral(kind: str, dtype: Any) -> Any:
    if kind in ("All", "Any"):
        return kind == "All"
    if kind in ("Max", "Min"):
        infinite = np.inf if dtype.is_floating else dtype.max
        lowest = -np.inf if dtype.is_floating else dtype.min
        return lowest if kind == "Max" else infinite
    return 1 if kind == "Prod" else 0


@on_lengths("UnsortedSegmentSum UnsortedSegmentProd UnsortedSegmentMax UnsortedSegmentMin")
def segments(site: Site) -> list[Value]:
    """The padding goes to no segment."""
    data, ids, count = site.inputs
    if not (isinstance(data, Padded) and isinstance(ids, Padded)):
        raise Refused("its data or its ids have a length that depends on the iteration, the others have not")
    _alike([data, ids])
    inputs = Stacked(filled(data)), Stacked(filled(ids, -1)), count
    return reductions.segments(replace(site, inputs=inputs))


@on_lengths("StridedSliceGrad")
def slice_gradient(site: Site) -> list[Value]:
    """The gradient of x[a:n]: zeros in the padding, to be put from a to the end of the axis."""
    shape, begin, _, strides, above = site.inputs
    if not isinstance(above, Padded):
        raise NoRule
    rest = begin, strides, shape
    if not all(isinstance(value, Invariant) for value in rest):
        raise Refused("the gradient of this slice, whose length depends on the iteration, is not known")
    return slices.slice_gradient_to_end(site, filled(above))
