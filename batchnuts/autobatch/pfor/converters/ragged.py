"""Ragged tensors made dense: `tf.RaggedTensor.to_tensor`.

A ragged tensor is its values and row partitions, one for each axis whose lengths differ: list k of a partition is
`x[start:end]` of the values, or of the lists of the next partition. An entry of the dense tensor is found by following
its indices through the partitions; where a list is too short, it is the default.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from batchnuts.autobatch.pfor.errors import NoRule, Refused
from batchnuts.autobatch.pfor.registry import converts, on_lengths
from batchnuts.autobatch.pfor.site import Site, shape_of, with_axes
from batchnuts.autobatch.pfor.values import Invariant, Padded, Stacked, Tensor, Value

SHAPE, VALUES, DEFAULT, PARTITIONS = 0, 1, 2, 3
"""Inputs of the op. The partitions are the rest: each the ends of its lists ("splits"), or for each entry the number of
its list ("ids"); in the second case how many lists the first has comes before it."""


@on_lengths("RaggedTensorToTensor")
@converts("RaggedTensorToTensor", no_xla="RaggedTensorToTensor")
def to_tensor(site: Site) -> list[Value]:
    """The values, with the default after them, gathered by the index of each entry."""
    if any(isinstance(value, Padded) for k, value in enumerate(site.inputs) if k != VALUES):
        raise NoRule
    partitions_vary = any(site.varies(k) for k in range(PARTITIONS, len(site.inputs)))
    if isinstance(site.inputs[VALUES], Invariant) and not site.varies(DEFAULT):
        entries = _with_default(site.tensor(VALUES)[None], site.tensor(DEFAULT)[None])
        return [Stacked(tf.gather(entries[0], _indices(site, shape_of(entries)[1] - 1)))]
    entries = _with_default(_rows(site, VALUES), site.stacked(DEFAULT))
    indices = _indices(site, shape_of(entries)[1] - 1)
    if partitions_vary:
        return [Stacked(tf.gather(entries, indices, axis=1, batch_dims=1))]
    return [Stacked(tf.gather(entries, indices[0], axis=1))]


def _rows(site: Site, k: int) -> Tensor:
    value = site.inputs[k]
    return value.tensor if isinstance(value, Padded) else site.stacked(k)


def _with_default(values: Tensor, default: Tensor) -> Tensor:
    """The values with the default after them: [rows, entries + 1, *shape of an entry]."""
    rows, _, *entry = shape_of(values)
    last = tf.broadcast_to(with_axes(default, len(entry)), tf.stack([rows, *entry]))
    return tf.concat([values, last[:, None]], 1)


def _indices(site: Site, default: Any) -> Tensor:
    """Indices [rows, *first axes of the result] into the values, `default` where there is none; one row where all
    iterations have the same partitions."""
    kinds = [kind.decode() for kind in site.attr("row_partition_types")]
    numbers = range(PARTITIONS, len(site.inputs))
    same = not any(site.varies(k) for k in numbers)
    partitions = [site.tensor(k)[None] if same else site.stacked(k) for k in numbers]
    sizes = _sizes(site, len([kind for kind in kinds if kind != "FIRST_DIM_SIZE"]))

    if kinds[0] == "FIRST_DIM_SIZE":
        count, kinds, partitions = partitions[0], kinds[1:], partitions[1:]
        natural = count[0] if not site.varies(PARTITIONS) else None
    else:
        natural = shape_of(partitions[0])[1] - 1
        count = tf.fill(tf.shape(partitions[0])[:1], natural)
    dtype = partitions[0].dtype
    index = tf.range(tf.cast(_size(sizes[0], natural, "how many lists it has"), dtype))[None]
    exists = index < tf.cast(count, dtype)[:, None]
    for kind, partition, size in zip(kinds, partitions, sizes[1:], strict=True):
        bounds = _by_splits if kind == "ROW_SPLITS" else _by_ids
        start, end, longest = bounds(partition, tf.where(exists, index, 0))
        width = _size(size, longest if same else None, "how long its longest list is")
        column = tf.range(tf.cast(width, dtype))
        index = start[..., None] + column
        exists = exists[..., None] & (index < end[..., None])
    return tf.where(exists, index, tf.cast(default, dtype))


def _by_splits(splits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For lists given by their indices [rows, ...]: where they start and end, and the length of the longest of all."""
    last = shape_of(splits)[1] - 1
    start = tf.gather(splits, index, axis=1, batch_dims=1)
    end = tf.gather(splits, tf.minimum(index + 1, tf.cast(last, index.dtype)), axis=1, batch_dims=1)
    return start, end, _longest(splits[:, 1:] - splits[:, :-1])


def _by_ids(ids: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`_by_splits` for lists given by ids, which are in order."""

    def bounds(wanted: Tensor) -> tuple[Tensor, Tensor]:
        flat = tf.reshape(wanted, tf.stack([tf.shape(ids)[0], -1]))
        positions = (tf.searchsorted(ids, flat, side=side, out_type=ids.dtype) for side in ("left", "right"))
        first, after = (tf.reshape(places, tf.shape(wanted)) for places in positions)
        return first, after

    start, end = bounds(index)
    first, after = bounds(ids)
    return start, end, _longest(after - first)


def _longest(lengths: Tensor) -> Tensor:
    """The length of the longest of lists [rows, lists]; 0 where there are none."""
    return tf.maximum(tf.reduce_max(lengths), 0)


def _sizes(site: Site, ragged: int) -> list[Any]:
    """The sizes of the result's first axes, as the shape that is asked for gives them: None where it does not."""
    if site.varies(SHAPE):
        raise Refused("the shape that it is given depends on the iteration; give one that is the same for all")
    constant = site.constant(SHAPE)
    if constant is None:
        return list(tf.unstack(site.tensor(SHAPE), num=site.row_shape(SHAPE)[0])[: ragged + 1])
    if constant.ndim == 0:
        return [None] * (ragged + 1)
    return [int(size) if size >= 0 else None for size in constant[: ragged + 1]]


def _size(asked: Any, natural: Any, cause: str) -> Any:
    """The size of an axis. natural: without a size asked for; None where that differs between iterations."""
    if tf.is_tensor(asked) and natural is not None:  # -1 where none is asked for
        return tf.where(asked < 0, tf.cast(natural, asked.dtype), asked)
    if asked is None and natural is None:
        raise Refused(
            f"the shape of its result depends on the iteration, by {cause}. Give it one for all: "
            "x.to_tensor(shape=[lists, longest])"
        )
    return natural if asked is None else asked
