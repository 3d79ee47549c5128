"""Gathering and scattering elements by index. Gathering by the loop's own index gives the tensor itself, or its first
rows."""

from __future__ import annotations

import tensorflow as tf

from batchnuts.autobatch.pfor.converters.shapes import fixed
from batchnuts.autobatch.pfor.converters.state import touch
from batchnuts.autobatch.pfor.errors import NoRule, Refused
from batchnuts.autobatch.pfor.graphs import put_in_place
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Site, rows_from, rows_to, shape_of
from batchnuts.autobatch.pfor.values import Invariant, Stacked, Tensor, Value


def first_rows(site: Site, tensor: Tensor) -> Tensor:
    """The result of indexing by 0, 1, 2, ...: the tensor, or as many of its rows as there are iterations."""
    count, have = site.loop.static_count, tensor.shape[0]
    if count is not None and count == have:
        return tensor
    if count is not None and have is not None and count > have:
        raise Refused(f"the loop's index goes up to {count - 1}, but the axis it is used on has only {have} entries")
    if count is not None and have is not None:
        return tensor[:count]
    # unlike tensor[:count], this fails where there are fewer
    size = tf.concat([site.loop.count[None], tf.fill([tensor.shape.rank - 1], -1)], 0)
    return tf.slice(tensor, tf.zeros_like(size), size)


# ---- gather -----------------------------------------------------------------------------------------------------


@converts("Gather", varying="params indices")
def gather_v1(site: Site) -> list[Value]:
    """Gathers along the first axis."""
    return [_gather(site, axis=0, batch_dims=0)]


@converts("GatherV2", varying="params indices")
def gather(site: Site) -> list[Value]:
    """Gathers along an axis that is the same for all rows."""
    site.only(0, 1)
    return [_gather(site, site.axis(2, site.row_rank(0)), site.attr("batch_dims"))]


def _gather(site: Site, axis: int, batch_dims: int) -> Value:
    batch_dims = batch_dims % site.row_rank(1) if batch_dims < 0 else batch_dims
    params, indices = site.tensor(0), site.tensor(1)
    if site.varies(0) and site.varies(1):
        return Stacked(tf.gather(params, indices, axis=axis + 1, batch_dims=batch_dims + 1))
    if site.varies(0):
        if batch_dims:
            return Stacked(tf.gather(params, site.stacked(1), axis=axis + 1, batch_dims=batch_dims + 1))
        return Stacked(tf.gather(params, indices, axis=axis + 1))
    counted = site.inputs[1]
    if isinstance(counted, Stacked) and counted.counts and site.row_rank(1) == 0:
        return Stacked(first_rows(site, rows_from(params, axis)))
    if batch_dims:
        return Stacked(tf.gather(site.stacked(0), indices, axis=axis + 1, batch_dims=batch_dims + 1))
    gathered = tf.gather(params, indices, axis=axis)
    return Stacked(rows_from(gathered, axis))


@converts("GatherNd", varying="params indices")
def gather_nd(site: Site) -> list[Value]:
    """Where both have rows, the row's number is one more index; where only the params have, rows lie side by side."""
    if site.varies(0) and not site.varies(1):
        places = site.row_shape(1)
        if places[-1] is None:
            raise NoRule
        (gathered,) = site.emit(rows_to(site.tensor(0), places[-1]), site.tensor(1))
        return [Stacked(rows_from(gathered, len(places) - 1))]
    if site.varies(0):
        return [Stacked(tf.gather_nd(site.tensor(0), site.stacked(1), batch_dims=1))]
    return [Stacked(tf.gather_nd(site.tensor(0), site.tensor(1)))]


@converts("ResourceGather", varying="indices", always=True)
def gather_from_variable(site: Site) -> list[Value]:
    """Gathers slices of a variable that is the same for all rows."""
    touch(site, "read")
    if not site.varies(1):
        return [Invariant(tensor) for tensor in site.emit(*site.tensors())]
    if site.attr("batch_dims"):
        raise NoRule
    return site.emit_rows(*site.tensors())


@converts("ResourceGatherNd", varying="indices", always=True, no_xla="ResourceGatherNd")
def gather_nd_from_variable(site: Site) -> list[Value]:
    """Gathers elements or slices, by lists of indices, of a variable that is the same for all rows."""
    touch(site, "read")
    if not site.varies(1):
        return [Invariant(tensor) for tensor in site.emit(*site.tensors())]
    return site.emit_rows(*site.tensors())


# ---- scatter ----------------------------------------------------------------------------------------------------


@converts("ScatterNd", varying="indices updates")
def scatter_nd(site: Site) -> list[Value]:
    """Scatters into zeros; the row's number is one more index. With the same indices for all, rows lie side by side."""
    shape = fixed(site, 2, "the shape")
    depth = site.row_shape(0)[-1]
    if not site.varies(0) and depth is not None:
        updates = rows_to(site.tensor(1), site.row_rank(0) - 1)
        count = tf.cast(site.loop.count, shape.dtype)[None]
        shape = known_constant(tf.concat([shape[:depth], count, shape[depth:]], 0))
        (result,) = site.emit(site.tensor(0), updates, shape)
        return [Stacked(rows_from(result, depth))]
    shape = tf.concat([tf.cast(site.loop.count, shape.dtype)[None], shape], 0)
    return site.emit_rows(_with_row_numbers(site, 0), site.stacked(1), known_constant(shape))


def known_constant(tensor: Tensor) -> Tensor:
    """The tensor, as a constant where its value is static."""
    constant = tf.get_static_value(tensor)
    return tensor if constant is None else tf.constant(constant, tensor.dtype)


@converts(
    "TensorScatterUpdate TensorScatterAdd TensorScatterSub TensorScatterMax TensorScatterMin",
    varying="tensor indices updates",
)
def scatter_into(site: Site) -> list[Value]:
    """Scatters into a tensor of each row, as `scatter_nd` does into zeros."""
    depth = site.row_shape(1)[-1]
    if not site.varies(1) and depth is not None:
        updates = rows_to(site.stacked(2), site.row_rank(1) - 1)
        (result,) = site.emit(rows_to(site.stacked(0), depth), site.tensor(1), updates)
        return [Stacked(rows_from(result, depth))]
    return site.emit_rows(site.stacked(0), _with_row_numbers(site, 1), site.stacked(2))


def _with_row_numbers(site: Site, k: int) -> Tensor:
    """Indices [rows, ..., 1 + d] with the rows' numbers, of indices [..., d]."""
    indices = site.stacked(k)
    sizes = shape_of(indices)
    numbers = tf.range(tf.cast(site.loop.count, indices.dtype))
    numbers = tf.reshape(numbers, [-1, *[1] * (len(sizes) - 1)])
    numbers = tf.broadcast_to(numbers, tf.stack([*sizes[:-1], 1]))
    return tf.concat([numbers, indices], -1)


@converts("DynamicStitch", varying="data")
def stitch(site: Site) -> list[Value]:
    """Stitches with indices that are the same for all rows; the axis that is stitched goes first, then back."""
    half = len(site.inputs) // 2
    site.only(*range(half, 2 * half))
    ranks = [site.row_rank(k) for k in range(half)]
    parts = []
    for k, rank in enumerate(ranks):
        data = site.stacked(half + k)
        order = [*range(1, rank + 1), 0, *range(rank + 1, data.shape.rank)]
        parts.append(tf.transpose(data, order))
    (result,) = site.emit(*site.tensors()[:half], *parts)
    return [Stacked(tf.transpose(result, [1, 0, *range(2, result.shape.rank)]))]


@converts("XlaDynamicUpdateSlice", varying="input update indices", always=True)
def put_part(site: Site) -> list[Value]:
    """The gradient of `tf.slice` under XLA. Where the places differ between rows, it is a scatter."""
    if not site.varying():
        return [Invariant(put_in_place(*site.tensors()))]
    if not site.varies(2):
        begin = tf.concat([tf.zeros(1, site.tensor(2).dtype), site.tensor(2)], 0)
        return [Stacked(put_in_place(site.stacked(0), site.stacked(1), begin))]
    sizes = site.row_shape(1)
    grid = tf.stack(tf.meshgrid(*(tf.range(size) for size in sizes), indexing="ij"), -1)
    begin = tf.cast(tf.reshape(site.tensor(2), [-1, *[1] * len(sizes), len(sizes)]), tf.int32)
    numbers = tf.reshape(tf.range(site.loop.count), [-1, *[1] * (len(sizes) + 1)])
    places = grid + begin
    numbers = tf.broadcast_to(numbers, tf.concat([tf.shape(places)[:-1], [1]], 0))
    return [Stacked(tf.tensor_scatter_nd_update(site.stacked(0), tf.concat([numbers, places], -1), site.stacked(1)))]
