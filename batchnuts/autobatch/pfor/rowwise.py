"""One op of the body run once per row, in a loop over that op alone."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from batchnuts.autobatch.pfor.errors import FallbackWarning, Refused, caller, note_warning, refusal, source_of
from batchnuts.autobatch.pfor.site import Site
from batchnuts.autobatch.pfor.values import ListHandle, OptionalValue, Stacked, Value


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

    def one_row(given: Any) -> Any:
        tensors = site.tensors()
        for k, row in zip(varying, given):
            tensors[k] = row
        found = site.emit(*tensors)
        for tensor, output in zip(found, outputs):
            tensor.set_shape(output.shape)
        return tuple(found)

    signature = tuple(tf.TensorSpec(output.shape, output.dtype) for output in outputs)
    results = tf.map_fn(one_row, tuple(site.tensor(k) for k in varying), fn_output_signature=signature)
    return [Stacked(result) for result in results]


def fall_back(site: Site, why: str) -> list[Value]:
    """`row_by_row`, reported once per line; an error where the loop does not allow it."""
    if not site.loop.fallback:
        raise refusal(site.op, f"{why}, and fallback=False")
    source = source_of(site.op) or caller()
    place = (site.op.type, str(source))
    note_warning(why)
    if place not in site.loop.reported:
        site.loop.reported.add(place)
        warnings.warn(
            f"{'' if source is None else str(source) + chr(10)}pfor runs op {site.op.name!r} ({site.op.type}) once "
            f"for each iteration, one after another: {why}. Register a converter (docs/pfor.md), write it with ops "
            "that have one, or forbid this with fallback=False.",
            FallbackWarning,
            stacklevel=2,
        )
    return row_by_row(site)
