"""Slices, where their places differ between the iterations, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.pfor.affine import known_rows, sum_of
from batchnuts.autobatch.pfor.converters.indexing import first_rows, known_constant
from batchnuts.autobatch.pfor.converters.shapes import fixed
from batchnuts.autobatch.pfor.errors import NoRule, Refused
from batchnuts.autobatch.pfor.graphs import compiled_by_xla
from batchnuts.autobatch.pfor.padding import cut_to, origin_of
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Site, rows_from, static_shape
from batchnuts.autobatch.pfor.values import Invariant, Stacked, Tensor, Value


@converts("Slice", varying="input begin")
def cut(site: Site) -> list[Value]:
    """Where the begin differs between rows, each axis of it is a gather of the places begin, begin + 1, ..."""
    value = site.tensor(0)
    sizes = fixed(site, 2, "the size of a slice")
    if not site.varies(1):
        begin = site.tensor(1)
        begin = tf.concat([tf.zeros(1, begin.dtype), begin], 0)
        size = tf.concat([tf.constant([-1], sizes.dtype), sizes], 0)
        return site.emit_rows(value, begin, size)
    constant = tf.get_static_value(sizes)
    out = static_shape(site.op.outputs[0])
    if None in out or constant is None:
        raise Refused("the slice begins at a place that depends on the iteration, so its size must be a constant")
    begin = site.tensor(1)
    varies = site.varies(0)
    for axis, size in enumerate(out):
        value = _windows(value, begin[:, axis], int(size or 0), axis, varies)
        varies = True
    return [Stacked(value)]


def _windows(value: Tensor, begin: Tensor, size: int, axis: int, varies: bool) -> Tensor:
    """value[..., begin : begin + size, ...] of each row: [rows, ...]."""
    places = begin[:, None] + tf.range(size, dtype=begin.dtype)
    if varies:
        moved = tf.transpose(value, [0, axis + 1, *(k for k in range(1, value.shape.rank) if k != axis + 1)])
        windows = tf.gather(moved, places, axis=1, batch_dims=1)
        back = [0, *range(2, axis + 2), 1, *range(axis + 2, value.shape.rank)]
        return tf.transpose(windows, back)
    windows = tf.gather(value, places, axis=axis)
    return tf.transpose(windows, [axis, *(k for k in range(windows.shape.rank) if k != axis)])


def masks_after_rows(site: Site) -> dict[str, int]:
    """The bit masks of a strided slice, shifted by one axis, and all of the first axis."""
    masks = {name: site.attr(name) << 1 for name in ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")}
    return masks | {name: site.attr(name) << 1 | 1 for name in ("begin_mask", "end_mask")}


@converts("StridedSlice", varying="input begin end")
def strided_slice(site: Site) -> list[Value]:
    """x[a:b:c, i, ...]. Where an index i differs between rows, it is a gather; where it is the loop's own index, no
    gather is needed. Where the end of a slice of the first axis differs, so do the lengths of the results."""
    site.only(0, 1, 2)
    if not (site.varies(1) or site.varies(2)):
        places = (_after_rows(site, 1, 0), _after_rows(site, 2, 0), _after_rows(site, 3, 1))
        return site.emit_rows(site.tensor(0), *places, **masks_after_rows(site))
    out = static_shape(site.op.outputs[0])
    value, lengths, origin = _index_rows(site, site.tensor(0), site.varies(0), site.row_rank(0), out)
    return [Stacked(value) if lengths is None else cut_to(value, lengths, origin)]


def _after_rows(site: Site, k: int, first: int) -> Tensor:
    """Input k, a vector with an entry for each axis, and `first` for that of the rows; with few ops, since slices are
    frequent in loops."""
    vector, constant = site.op.inputs[k], site.constant(k)
    if constant is not None:
        return tf.constant([first, *constant], vector.dtype)
    if vector.op.type == "Pack":
        entries = [site.value_of(entry) for entry in vector.op.inputs]
        return tf.stack([tf.constant(first, vector.dtype), *(entry.tensor for entry in entries)])  # type: ignore[union-attr]
    return tf.concat([tf.constant([first], vector.dtype), site.tensor(k)], 0)


@dataclass(frozen=True)
class Part:
    """What a strided slice does to one axis of a row."""

    begin: Any
    """An int, the value of a scalar, or None: from the start."""
    end: Any
    stride: int
    shrinks: bool
    """Whether it takes one index, `begin`."""
    new: bool = False
    """Whether it is a new axis; the other fields are unused then."""
    entry: int = 0
    """The position of its entry in the op's indices."""


def _parts(site: Site, rank: int) -> list[Part]:
    """Axis by axis of a row of this rank, with the ellipsis written out. NoRule where they cannot be determined."""
    strides = site.constant(3)
    begins, ends = _entries(site, 1), _entries(site, 2)
    if strides is None or begins is None or ends is None:
        raise NoRule

    def masked(name: str, k: int) -> bool:
        return bool(site.attr(name) & (1 << k))

    parts: list[Part] = []
    new = sum(masked("new_axis_mask", k) for k in range(len(begins)))
    for k, (begin, end, stride) in enumerate(zip(begins, ends, strides)):
        if masked("ellipsis_mask", k):
            skipped = rank - (len(begins) - 1 - new)
            parts += [Part(None, None, 1, shrinks=False)] * skipped
        elif masked("new_axis_mask", k):
            parts.append(Part(None, None, 1, shrinks=False, new=True))
        else:
            low = None if masked("begin_mask", k) else begin
            high = None if masked("end_mask", k) else end
            shrinks = masked("shrink_axis_mask", k)
            parts.append(Part(begin if shrinks else low, high, int(stride), shrinks, entry=k))
    return parts


def _index_rows(
    site: Site, value: Tensor, varies: bool, rank: int, out: tuple[int | None, ...]
) -> tuple[Tensor, Tensor | None, str]:
    """The slice of a value, whose rows (`varies`) have this rank, into rows of shape `out`.

    Axis by axis, from the first: what differs between rows is an index (x[i]), the start of a slice of fixed length,
    or the end of a slice of the first axis; then the rows' lengths are returned second, and their origin third."""
    lengths: Tensor | None = None
    origin = ""
    axis = 0  # of the remaining row
    for part in _parts(site, rank):
        begin, end, shrinks = part.begin, part.end, part.shrinks
        if part.new:
            value = tf.expand_dims(value, axis + varies)
        elif isinstance(begin, Stacked):
            index = begin.tensor
            extent = tf.cast(tf.shape(value)[axis + varies], index.dtype)
            inside: Tensor | None = None
            size = 1 if shrinks else out[axis]
            strided = size is None and part.stride > 1
            if size is None and part.stride >= 1:
                size = _length(site, part)  # from the first entry that is taken to the last one
                inside = None if size is None else _inside(site, part, index, size, value.shape[axis + varies], extent)
            if size is None or (part.stride != 1 and not strided):
                raise Refused(_NO_SIZE if part.stride > 0 else _BACKWARDS)
            if shrinks and begin.counts and not varies:
                value = first_rows(site, rows_from(value, axis))
                varies = True
                continue
            if inside is not None and not compiled_by_xla():
                with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(inside), [_LEAVES])]):
                    index = tf.identity(index)
            value = _windows(value, tf.where(index < 0, index + extent, index), size, axis, varies)
            if inside is not None and compiled_by_xla() and value.dtype.is_floating:
                inside = tf.reshape(inside, [-1, *[1] * (value.shape.rank - 1)])
                value = tf.where(inside, value, tf.constant(np.nan, value.dtype))
            varies = True
            if strided:
                value = value[(slice(None),) * (axis + 1) + (slice(None, None, part.stride),)]
            if shrinks:
                value = tf.squeeze(value, axis + 1)
                continue
        elif isinstance(end, Stacked) and not shrinks:
            if axis or part.stride != 1:
                raise Refused(
                    "the end of a slice depends on the iteration, so rows would have different shapes: only for the "
                    "first axis, with stride 1, there is a rule"
                )
            value = value if varies else site.loop.rows(value)
            varies = True
            extent = tf.shape(value)[1]
            start = _place(0 if begin is None else _tensor(begin), extent)
            value = value if begin is None else value[:, begin if isinstance(begin, int) else start :]
            lengths = tf.maximum(_place(end.tensor, extent) - start, 0)
            origin = _origin(site)
        else:
            low, high = _tensor(begin), _tensor(end)
            picked: Any = low if shrinks else slice(low, high, part.stride)
            value = value[(slice(None),) * (axis + varies) + (picked,)]
            if shrinks:
                continue
        axis += 1
    return value, lengths, origin


_NO_SIZE = (
    "the slice begins at a place that depends on the iteration, so its size must be known, as that of x[i : i + 2] is: "
    "write its end as its start plus a number, or use tf.slice. (Rows of a RaggedTensor have different lengths: take "
    "them as row[:length] of its to_tensor())"
)
_BACKWARDS = "the slice goes backwards from a place that depends on the iteration: write tf.gather(x, i - tf.range(n))"
_LEAVES = "a slice x[a : a + n] in the body of a pfor goes past an end of its axis, so rows would differ in length"


def _length(site: Site, part: Part) -> int | None:
    """Of a slice whose ends depend on the iteration, where it does not: 2 of x[i : i + 2], 3 of x[i : i + 4 : 2]."""
    begin, end = _entry(site, 1, part.entry), _entry(site, 2, part.entry)
    if part.end is None or begin is None or end is None:
        return None
    length = sum_of(end, site.value_of).plus(sum_of(begin, site.value_of), -1)
    if length.factors:
        return None
    return max((length.constant - 1) // part.stride * part.stride + 1, 0)


def _inside(site: Site, part: Part, index: Tensor, size: int, length: int | None, extent: Tensor) -> Tensor | None:
    """Which rows' slices x[index : index + size] have `size` entries: [rows], or None where all are known to.

    Raises Refused where some are known not to have.
    """
    if size == 0:
        return None
    begin = _entry(site, 1, part.entry)
    assert begin is not None
    rows = known_rows(sum_of(begin, site.value_of), site.value_of, site.loop.static_count)
    if rows is not None and length is not None and not site.loop.partial:
        bad = np.flatnonzero(~_fits(rows, size, length))
        if len(bad):
            start = rows[bad[0]]
            raise Refused(
                f"iteration {bad[0]} takes entries {start} to {start + size - 1} of an axis that has only {length}, so "
                "rows would have different shapes"
            )
        return None
    inside = _fits(index, size, extent)
    return inside if site.loop.mask is None else inside | ~site.loop.mask


def _fits(start: Any, size: int, extent: Any) -> Any:
    """x[start : start + size] has `size` entries, of an axis with this extent; Python counts from its end below 0."""
    return ((start >= 0) & (start + size <= extent)) | ((start + size < 0) & (start + extent >= 0))


def _entry(site: Site, k: int, place: int) -> Tensor | None:
    """The body's tensor of an entry of the vector that is input k, if it is one."""
    vector = site.op.inputs[k]
    return vector.op.inputs[place] if vector.op.type == "Pack" else None


def _origin(site: Site) -> str:
    """The origin of the lengths of a slice: the same for slices from one place to one end of axes of one extent."""
    k = _varying_end(site)
    ends, begins = site.op.inputs[2], site.op.inputs[1]

    def entry(vector: Tensor) -> str:
        parts = (vector.op.inputs[k],) if vector.op.type == "Pack" else (vector, k)
        return origin_of(site.value_of, *parts)

    begin = "" if site.attr("begin_mask") >> k & 1 else entry(begins)
    extent = site.row_shape(0)[0]
    return origin_of(site.value_of, begin, entry(ends), site.op.name if extent is None else extent)


def _place(index: Any, extent: Tensor) -> Tensor:
    """The end of a slice, or its start, counted from the front of an axis and within it."""
    index = tf.cast(index, tf.int32)
    return tf.clip_by_value(tf.where(index < 0, index + extent, index), 0, extent)


def _tensor(entry: Any) -> Any:
    return entry if entry is None or isinstance(entry, int) else entry.tensor


def _entries(site: Site, k: int) -> list[Any] | None:
    """The entries of a vector of indices: an int, or the value of a scalar. None if they cannot be determined."""
    constant = site.constant(k)
    if constant is not None:
        return [int(entry) for entry in constant]
    vector = site.op.inputs[k]
    if vector.op.type == "Pack":
        return [site.value_of(entry) for entry in vector.op.inputs]
    length = vector.shape[0]
    if length is None:
        return None
    tensor = site.tensor(k)
    value = site.inputs[k]
    if isinstance(value, Stacked):
        return [Stacked(tensor[:, entry], value.counts and length == 1) for entry in range(length)]
    return [Invariant(tensor[entry]) for entry in range(length)]


@converts("StridedSliceGrad", varying="begin dy")
def strided_slice_gradient(site: Site) -> list[Value]:
    """The gradient of a slice, put into zeros. Where places differ between rows, the slice is differentiated."""
    if site.varies(1) or site.varies(2) or site.varies(3):
        return [Stacked(_backward(site))]
    return _into_zeros(site, site.tensor(2), site.stacked(4), masks_after_rows(site))


def _backward(site: Site) -> Tensor:
    shape, above = fixed(site, 0, "the shape"), site.stacked(4)
    rank = shape.shape[0]
    if rank is None or not above.dtype.is_floating:
        raise NoRule
    zeros = tf.zeros(known_constant(tf.concat([tf.cast(site.loop.count, shape.dtype)[None], shape], 0)), above.dtype)
    with tf.GradientTape() as tape:
        tape.watch(zeros)
        sliced, lengths, _ = _index_rows(site, zeros, True, rank, static_shape(site.op.inputs[4]))
        if lengths is not None:
            raise NoRule
    return tape.gradient(sliced, zeros, above, tf.UnconnectedGradients.ZERO)


def slice_gradient_to_end(site: Site, above: Tensor) -> list[Value]:
    """The gradient of a slice whose end differs between rows, as if it went to the end of its axis, a row's first."""
    k = _varying_end(site)
    masks = masks_after_rows(site)
    masks["end_mask"] |= 1 << (k + 1)
    begin = site.tensor(1)
    return _into_zeros(site, tf.zeros_like(begin), above, masks)


def _varying_end(site: Site) -> int:
    """The position among the entries of a slice of the one whose end has rows."""
    ends = _entries(site, 2) or []
    varying = [
        k for k, end in enumerate(ends) if isinstance(end, Stacked) and not (site.attr("end_mask") >> k & 1)
        and not (site.attr("shrink_axis_mask") >> k & 1)
    ]  # fmt: skip
    if len(varying) != 1:
        raise Refused("the ends of more than one slice depend on the iteration")
    return varying[0]


def _into_zeros(site: Site, end: Tensor, above: Tensor, masks: dict[str, int]) -> list[Value]:
    shape = fixed(site, 0, "the shape")
    begin, strides = site.tensor(1), site.tensor(3)
    zero, one = tf.zeros(1, begin.dtype), tf.ones(1, begin.dtype)
    return site.emit_rows(
        tf.concat([tf.cast(site.loop.count, shape.dtype)[None], shape], 0),
        tf.concat([zero, begin], 0),
        tf.concat([zero, end], 0),
        tf.concat([one, strides], 0),
        above,
        **masks,
    )
