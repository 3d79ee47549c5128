"""The conversion of a graph: its ops in topological order, each by the converter of its type.

all inputs the same, nothing to call, no effects   the op once, as it was
a converter                                        what it emits
no converter, or none for these inputs             the op row by row, reported; an op with effects is refused
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from batchnuts.autobatch.pfor import converters as _  # noqa: F401  # fills the registry
from batchnuts.autobatch.pfor.errors import NoRule, PforError, Refused, refusal, source_of
from batchnuts.autobatch.pfor.graphs import in_order
from batchnuts.autobatch.pfor.registry import LENGTHS, REGISTRY
from batchnuts.autobatch.pfor.rowwise import fall_back
from batchnuts.autobatch.pfor.site import Loop, Site, static_shape
from batchnuts.autobatch.pfor.values import Deferred, Invariant, Padded, Stacked, Tensor, Value, varies


def convert_graph(graph: Any, inputs: Sequence[Value], loop: Loop) -> list[Value]:
    """The outputs of a graph for all rows, given the values of its inputs. Raises PforError at the user's line."""
    values: dict[Any, Value] = {tensor.ref(): value for tensor, value in zip(graph.inputs, inputs, strict=True)}

    settled: dict[Any, Value] = {}

    def value_of(tensor: Tensor) -> Value:
        value = values[tensor.ref()]
        if not isinstance(value, Deferred):
            return value
        if tensor.ref() not in settled:
            settled[tensor.ref()] = value.rows()
        return settled[tensor.ref()]

    refuse_effects(graph)
    needed = needed_ops(graph)
    for op in in_order(graph):
        if op.name not in needed or (op.outputs and op.outputs[0].ref() in values):
            continue
        operands = [values[tensor.ref()] for tensor in op.inputs]
        if _takes_elements(op, operands):
            outputs = _elements(op, operands, loop, value_of)
        else:
            inputs = operands if op.type in _PASSES_ON else [value_of(tensor) for tensor in op.inputs]
            outputs = convert_op(Site(op, tuple(inputs), loop, value_of, convert_graph))
        for tensor, value in zip(op.outputs, outputs, strict=True):
            values[tensor.ref()] = value
    return [values[tensor.ref()] for tensor in graph.outputs]


def needed_ops(graph: Any) -> set[str]:
    """Names of the ops that the outputs need, or that have effects."""
    todo = [tensor.op for tensor in graph.outputs]
    todo += [op for op in graph.get_operations() if has_effects(op)]
    needed: set[str] = set()
    while todo:
        op = todo.pop()
        if op.name not in needed:
            needed.add(op.name)
            todo.extend(tensor.op for tensor in op.inputs)
    return needed


_PASSES_ON = {"Identity", "PartitionedCall", "StatefulPartitionedCall"}
"""Ops whose converters do not use their inputs' values."""


def _takes_elements(op: Any, inputs: Sequence[Value]) -> bool:
    """Whether an op takes the same part of each row, of all rows of the enclosing loop."""
    if op.type not in ("StridedSlice", "Slice", "Gather", "GatherV2", "GatherNd") or not isinstance(
        inputs[0], Deferred
    ):
        return False
    if op.type == "GatherV2" and op.get_attr("batch_dims"):
        return False
    return not any(varies(value) for value in inputs[1:])


def _elements(op: Any, inputs: Sequence[Value], loop: Loop, value_of: Callable[[Tensor], Value]) -> list[Value]:
    """The part that such an op takes, restricted to the rows of this loop."""
    source, *rest = inputs
    assert isinstance(source, Deferred)
    site = Site(op, (Stacked(source.tensor), *rest), loop.of(source.count), value_of, convert_graph)
    (element,) = convert_op(site)
    assert isinstance(element, Stacked)
    return [replace(source, tensor=element.tensor).rows()]


_NO_EFFECTS = {
    "ReadVariableOp", "VarHandleOp", "VarIsInitializedOp", "VariableShape", "ResourceGather", "ResourceGatherNd",
    "Placeholder", "RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt", "RandomGamma",
    "RandomPoissonV2", "Multinomial", "RandomShuffle", "OptionalFromValue", "OptionalNone", "OptionalGetValue",
    "StatelessRandomGetKeyCounter",
}  # fmt: skip
"""Ops that are stateful according to TensorFlow, but not needed where their outputs are not used."""


def has_effects(op: Any) -> bool:
    """Whether an op must run even if its outputs are not used."""
    return bool(op.op_def.is_stateful) and op.type not in _NO_EFFECTS


def refuse_effects(graph: Any) -> None:
    """Raise for an op with effects that no converter joins, before anything is converted."""
    for op in graph.get_operations():
        if has_effects(op) and op.type not in REGISTRY:
            raise refusal(op, _EFFECTS)


def convert_op(site: Site) -> list[Value]:
    """The outputs of one op."""
    op = site.op
    if op.type == "Const":
        return [Invariant(_constant(op))]
    converter = REGISTRY.get(op.type)
    try:
        if not any(varies(value) for value in site.inputs) and not (converter is not None and converter.always):
            return [Invariant(tensor) for tensor in site.emit(*site.tensors())]
        if any(_of_lengths(value) for value in site.inputs):
            padded = _convert_lengths(site)
            if padded is not None:
                return padded
        if converter is None:
            return fall_back(site, "it has no converter")
        try:
            results = converter.convert(site)
        except NoRule:
            names = [site.op.inputs[k].op.name for k in site.varying()]
            return fall_back(site, f"its converter has no rule for inputs of which these vary: {', '.join(names)}")
        return [_with_static_shape(site, k, value) for k, value in enumerate(results)]
    except Refused as error:
        raise refusal(op, str(error)) from None
    except PforError as error:  # of an op in a function that this one calls; that of a loaded model has no line
        if error.source is not None:
            raise
        raise PforError(error.message, source_of(op)) from None
    except (ValueError, TypeError, tf.errors.InvalidArgumentError, NotImplementedError) as error:
        raise refusal(op, f"TensorFlow rejected what it was converted to: {error}") from error


def _of_lengths(value: Value) -> bool:
    return isinstance(value, Padded) or (isinstance(value, Stacked) and value.shape_of is not None)


def _convert_lengths(site: Site) -> list[Value] | None:
    """The outputs of an op on rows of different lengths; None where the ordinary converter can do it."""
    try:
        if site.op.type in LENGTHS:
            return LENGTHS[site.op.type](site)
    except NoRule:
        pass
    for tensor, value in zip(site.op.inputs, site.inputs, strict=True):
        if isinstance(value, Padded):
            raise Refused(
                f"the length of its input {tensor.name!r} depends on the iteration, and there is no rule for that. "
                "Reduce it first (tf.reduce_sum and the like), or pad to one shape and mask"
            )
    return None


_EFFECTS = (
    "it has effects of its own (it prints, runs Python or changes something outside), which cannot happen for all "
    "iterations at once. Move it out of the loop, or use pfor(..., sequential=True), which runs the iterations "
    "one after another"
)


def _constant(op: Any) -> Tensor:
    return tf.constant(tf.make_ndarray(op.get_attr("value")), op.outputs[0].dtype)


def _with_static_shape(site: Site, k: int, value: Value) -> Value:
    """The value, with the shape that the body's graph knows of it."""
    output = site.op.outputs[k]
    if isinstance(value, Stacked) and output.shape.rank is not None and output.dtype != tf.variant:
        expected = (site.loop.static_count, *static_shape(output))
        if value.tensor.shape.is_compatible_with(expected):  # unrequested outputs (eigenvectors) have none
            value.tensor.set_shape(expected)
    return value
