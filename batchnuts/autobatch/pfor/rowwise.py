"""One op of the body run once per row, in a loop over that op alone."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from batchnuts.autobatch.pfor.errors import FallbackWarning, Refused, caller, note_warning, refusal, source_of
from batchnuts.autobatch.pfor.site import Site
from batchnuts.autobatch.pfor.values import ListHandle, OptionalValue, Stacked, Value

_OF_ANY_LENGTH = {
    "DynamicPartition": "tf.where(partitions == k, x, 0), or tf.math.unsorted_segment_sum(x, partitions, count)",
    **dict.fromkeys(
        ("DenseToDenseSetOperation", "DenseToSparseSetOperation", "SparseToSparseSetOperation"),
        "a comparison of all pairs, tf.reduce_any(a[:, None] == b, 1), which says what of a is in b",
    ),
}
"""Ops whose outputs have a length that depends on values, and what to write in place of them."""


def row_by_row(site: Site) -> list[Value]:
    """The op's outputs, row after row; all rows must give the same shapes."""
    if any(isinstance(value, (ListHandle, OptionalValue)) for value in site.inputs):
        raise Refused("its lists cannot be taken apart; write the loop with tf.map_fn")
    varying = site.varying()
    outputs = site.op.outputs
    for output in outputs:
        if output.shape.rank is None or (site.static and None in output.shape):
            raise Refused(
                f"the shape {output.shape} of its output is not known, and rows of different shapes cannot be stacked. "
                "Fix it with tf.ensure_shape, or pad"
            )
        if output.dtype == tf.variant:
            raise Refused("its output, a variant, cannot be stacked")

    def one_row(rows: Any) -> Any:
        tensors = site.tensors()
        for k, row in zip(varying, rows):
            tensors[k] = row
        results = site.emit(*tensors)
        for tensor, output in zip(results, outputs):
            tensor.set_shape(output.shape)
        return tuple(results)

    inputs = tuple(site.tensor(k) for k in varying)
    if all(output.shape.is_fully_defined() for output in outputs):
        signature = tuple(tf.TensorSpec(output.shape, output.dtype) for output in outputs)
        return [Stacked(result) for result in tf.map_fn(one_row, inputs, fn_output_signature=signature)]
    return [Stacked(result) for result in _of_one_shape(site, one_row, inputs)]


def _of_one_shape(site: Site, one_row: Any, inputs: Any) -> list[Any]:
    """`tf.map_fn` for rows whose shapes are known only when it runs; an error at the user's line where they differ."""
    outputs, count = site.op.outputs, site.loop.count
    rows = [tf.TensorArray(o.dtype, count, element_shape=o.shape, infer_shape=False) for o in outputs]
    shapes = [tf.TensorArray(tf.int32, count, element_shape=[o.shape.rank]) for o in outputs]

    def one_more(i: Any, rows: Any, shapes: Any) -> Any:
        results = one_row([tf.gather(tensor, i) for tensor in inputs])
        written = [array.write(i, tensor) for array, tensor in zip(rows, results)]
        return i + 1, written, [array.write(i, tf.shape(tensor)) for array, tensor in zip(shapes, results)]

    _, rows, shapes = tf.while_loop(lambda i, *_: i < count, one_more, (0, rows, shapes))
    where = source_of(site.op) or caller()
    message = (
        f"{where}\npfor cannot stack the outputs of op {site.op.name!r} ({site.op.type}): their shapes depend on the "
        "iteration. Pad them to one shape in the body, or loop with tf.map_fn"
    )
    stacked = []
    for array, of_rows in zip(rows, shapes):
        extents = of_rows.stack()
        with tf.control_dependencies([tf.debugging.assert_equal(extents, extents[:1], message)]):
            stacked.append(array.stack())
    return stacked


def fall_back(site: Site, why: str) -> list[Value]:
    """`row_by_row`, reported once per line; an error where the loop does not allow it."""
    if site.op.type in _OF_ANY_LENGTH:
        raise Refused(
            "the lengths of its outputs depend on values that differ between iterations, so rows cannot be stacked. "
            f"Write {_OF_ANY_LENGTH[site.op.type]}"
        )
    if not site.loop.fallback:
        raise refusal(site.op, f"{why}, and fallback=False")
    source = source_of(site.op) or caller()
    place = (site.op.type, str(source))
    note_warning(why)
    if place not in site.loop.reported:
        site.loop.reported.add(place)
        warnings.warn(
            f"{'' if source is None else str(source) + chr(10)}pfor runs op {site.op.name!r} ({site.op.type}) once "
            f"for each iteration, one after another: {why}. Register a converter (docs/add_a_converter.md), write it "
            "with ops that have one, or forbid this with fallback=False.",
            FallbackWarning,
            stacklevel=2,
        )
    return row_by_row(site)
