"""An op of the body during its conversion: what its converter can query, and how it emits ops for all rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.pfor.errors import NoRule, Refused
from batchnuts.autobatch.pfor.values import Invariant, Padded, Stacked, Tensor, Value


@dataclass(frozen=True)
class Loop:
    """The iterations that a conversion is for."""

    count: Tensor
    """The number of rows: scalar int32."""
    static: bool
    """Whether shapes must be known and branches masked, because XLA compiles this."""
    fallback: bool = True
    """Whether an op without a converter may run row by row; else it is an error."""
    mask: Tensor | None = None
    """[rows] bool: the rows whose effects count, in a masked branch or loop; None: all of them."""
    partial: bool = False
    """Whether only some iterations get here: these are the rows of a branch or a loop that not all take."""
    reported: set[tuple[str, str]] = field(default_factory=set)
    """(op type, line) of the fallbacks that were reported already."""
    touched: dict[int, tuple[Tensor, str]] = field(default_factory=dict)
    """Variables by the id of their handle: the handle, and whether the body reads, updates or assigns it."""

    @property
    def static_count(self) -> int | None:
        """The number of rows, if it is known before running."""
        value = tf.get_static_value(self.count)
        return None if value is None else int(value)

    def rows(self, tensor: Tensor) -> Tensor:
        """A tensor repeated for every row."""
        sizes = (self.static_count, *static_shape(tensor))
        shape = sizes if None not in sizes else tf.concat([self.count[None], tf.shape(tensor)], 0)
        return with_shape(tf.broadcast_to(tensor, shape), sizes)

    def masked(self, mask: Tensor) -> Loop:
        """The same rows where only some of them count."""
        return replace(self, mask=mask if self.mask is None else mask & self.mask, partial=True)

    def subset(self, count: Tensor) -> Loop:
        """Fewer rows: those that take a branch, or are still in a loop. Not for masked rows."""
        assert self.mask is None
        return replace(self, count=count, partial=True)

    def of(self, count: Tensor) -> Loop:
        """The loop around, with its rows, whichever of them are in this one. For ops without effects."""
        return replace(self, count=count, mask=None)


@dataclass(frozen=True)
class Site:
    """One op of the body, the values of its inputs, and the loop."""

    op: tf.Operation
    inputs: tuple[Value, ...]
    loop: Loop
    value_of: Callable[[Tensor], Value]
    """The value of any tensor of the body's graph that was converted before."""
    convert_graph: Callable[[Any, Sequence[Value], Loop], list[Value]]
    """Convert a function that the op calls: its graph, the values of its inputs, the loop it runs in."""

    def convert_part(self, graph: Any, inputs: Sequence[Value], loop: Loop) -> list[Value]:
        """Convert a branch, or a part of a loop. Raises Refused where it gives rows of different lengths."""
        outputs = self.convert_graph(graph, inputs, loop)
        for tensor, value in zip(graph.outputs, outputs, strict=True):
            if isinstance(value, Padded):
                raise Refused(
                    f"the length of {tensor.op.name!r}, which a branch or the body of a loop gives, depends on the "
                    "iteration. Reduce it there (tf.reduce_sum and the like), or pad to one shape and mask"
                )
        return outputs

    @property
    def static(self) -> bool:
        """Whether shapes must be known and branches masked, because XLA compiles the loop."""
        return self.loop.static

    def varies(self, k: int) -> bool:
        """Whether input k has rows."""
        return isinstance(self.inputs[k], Stacked)

    def varying(self) -> list[int]:
        """The numbers of the inputs that have rows."""
        return [k for k in range(len(self.inputs)) if self.varies(k)]

    def only(self, *ks: int) -> None:
        """Raise NoRule unless no input but these has rows."""
        if set(self.varying()) - set(ks):
            raise NoRule

    def tensor(self, k: int) -> Tensor:
        """Input k as it is, with or without rows."""
        value = self.inputs[k]
        assert isinstance(value, (Invariant, Stacked))
        return value.tensor

    def tensors(self) -> list[Tensor]:
        """All inputs as they are."""
        return [self.tensor(k) for k in range(len(self.inputs))]

    def stacked(self, k: int) -> Tensor:
        """Input k with rows, repeated if it is the same for all."""
        return self.tensor(k) if self.varies(k) else self.loop.rows(self.tensor(k))

    def row_shape(self, k: int) -> tuple[int | None, ...]:
        """Static shape of one row of input k. Raises Refused if not even its rank is known."""
        return static_shape(self.op.inputs[k])

    def row_rank(self, k: int) -> int:
        """Rank of one row of input k."""
        return len(self.row_shape(k))

    def constant(self, k: int) -> np.ndarray | None:
        """The value of input k where it is a constant, else None."""
        value = self.inputs[k]
        return tf.get_static_value(value.tensor) if isinstance(value, Invariant) else None

    def axis(self, k: int, rank: int) -> int:
        """Input k, an axis (or a list of one) of a tensor whose rows have this rank, counted from 0. Raises NoRule if
        not constant."""
        value = self.constant(k)
        if value is None:
            raise NoRule
        return int(value.item()) % rank if rank else 0

    def attr(self, name: str) -> Any:
        """An attribute of the op."""
        return self.op.get_attr(name)

    def emit(self, *tensors: Tensor, **attributes: Any) -> list[Tensor]:
        """The same op on other inputs, with other attributes where given; its outputs."""
        return emit_like(self.op, tensors, attributes)

    def emit_rows(self, *tensors: Tensor, **attributes: Any) -> list[Value]:
        """The op on inputs of which some have rows; so do all its outputs."""
        return [Stacked(tensor) for tensor in self.emit(*tensors, **attributes)]


def emit_like(op: tf.Operation, tensors: Sequence[Tensor], attributes: dict[str, Any]) -> list[Tensor]:
    """An op of the same type; attributes that do not follow from its inputs are those of `op` unless given."""
    names = _python_names(op.op_def)
    arguments: dict[str, Any] = {}
    inferred: set[str] = set()
    rest = iter(tensors)
    for argument in op.op_def.input_arg:
        inferred |= {argument.type_attr, argument.number_attr, argument.type_list_attr}
        if argument.number_attr:
            value: Any = [next(rest) for _ in range(op.get_attr(argument.number_attr))]
        elif argument.type_list_attr:
            value = [next(rest) for _ in op.get_attr(argument.type_list_attr)]
        else:
            value = next(rest)
        arguments[names[argument.name]] = value
    for attribute in op.op_def.attr:
        if attribute.name not in inferred:
            name = attribute.name
            arguments[names[name]] = attributes[name] if name in attributes else op.get_attr(name)
    result = getattr(tf.raw_ops, op.type)(**arguments)
    if result is None or isinstance(result, tf.Operation):
        return []
    if not isinstance(result, (list, tuple)):
        return [result]
    flat: list[Tensor] = []
    for part in result:
        flat.extend(part if isinstance(part, (list, tuple)) else [part])
    return flat


_NAMES: dict[str, dict[str, str]] = {}


def _python_names(definition: Any) -> dict[str, str]:
    """What tf.raw_ops calls the inputs and attributes of an op. A few have other names there, in the same order."""
    if definition.name in _NAMES:
        return _NAMES[definition.name]
    inferred = {a for arg in definition.input_arg for a in (arg.type_attr, arg.number_attr, arg.type_list_attr)}
    names = [arg.name for arg in definition.input_arg]
    names += [attribute.name for attribute in definition.attr if attribute.name not in inferred]
    parameters = list(inspect.signature(getattr(tf.raw_ops, definition.name)).parameters)[:-1]  # the last is its name
    renamed = iter([name for name in parameters if name not in names])
    _NAMES[definition.name] = {name: name if name in parameters else next(renamed) for name in names}
    return _NAMES[definition.name]


def static_shape(tensor: Tensor) -> tuple[int | None, ...]:
    """The static shape. Raises Refused where the rank is unknown."""
    if tensor.shape.rank is None:
        raise Refused(
            f"tensor {tensor.name!r} has unknown rank; pfor must know where the axes of a row are. Give it a rank with "
            "tf.ensure_shape before the loop"
        )
    return tuple(tensor.shape)


def with_shape(tensor: Tensor, shape: Sequence[int | None]) -> Tensor:
    """The tensor, with what is known about its shape; nothing is checked at run time."""
    if not tf.executing_eagerly():
        tensor.set_shape(shape)
    return tensor


def dense(value: Any) -> Any:
    """IndexedSlices, which the gradient of a gather is, as the tensor that they stand for: slices of one index add up.
    Anything else as it is, but a variable as its value. Raises ValueError where the shape is not known."""
    if isinstance(value, tf.Variable):
        return tf.convert_to_tensor(value)
    if not isinstance(value, tf.IndexedSlices):
        return value
    if value.dense_shape is None:
        raise ValueError("found IndexedSlices without the dense_shape of the tensor that they stand for")
    constant = tf.get_static_value(value.dense_shape)
    count = value.dense_shape[0] if constant is None else int(constant[0])
    tensor = tf.math.unsorted_segment_sum(value.values, value.indices, count)
    return tensor if constant is None else with_shape(tensor, constant)


def shape_of(tensor: Tensor) -> list[Any]:
    """The dimensions of a tensor: ints where known, else scalars."""
    sizes = static_shape(tensor)
    if None not in sizes:
        return list(sizes)
    running = tf.shape(tensor)
    return [running[axis] if size is None else size for axis, size in enumerate(sizes)]


def product(sizes: Sequence[Any]) -> Any:
    """The product of dimensions."""
    result: Any = 1
    for size in sizes:
        result = size if isinstance(result, int) and result == 1 else result * size
    return result


def reshape(tensor: Tensor, sizes: Sequence[Any]) -> Tensor:
    """The tensor reshaped to dimensions of which some may be scalars; nothing is emitted where it changes nothing."""
    if all(isinstance(size, int) for size in sizes) and tuple(sizes) == tuple(tensor.shape):
        return tensor
    return tf.reshape(tensor, tf.stack(sizes) if sizes and not all(isinstance(s, int) for s in sizes) else list(sizes))


def broadcast(tensor: Tensor, sizes: Sequence[Any]) -> Tensor:
    """The tensor broadcast to dimensions of which some may be scalars."""
    return tf.broadcast_to(tensor, tf.stack(sizes) if not all(isinstance(s, int) for s in sizes) else list(sizes))


def merge(tensor: Tensor, axes: int) -> Tensor:
    """The tensor with its first `axes` axes merged: the one that was split so, where there is one."""
    sizes = shape_of(tensor)
    target = [product(sizes[:axes]), *sizes[axes:]]
    source = unsplit(tensor)
    return source if source is not None and list(source.shape) == target else reshape(tensor, target)


def unsplit(tensor: Tensor) -> Tensor | None:
    """The tensor [a b, *rest] of which a reshape made this one [a, b, *rest], if so."""
    if not tf.is_symbolic_tensor(tensor) or tensor.op.type != "Reshape":
        return None
    source, shape, split = tensor.op.inputs[0], tensor.op.inputs[0].shape, tensor.shape
    if not (shape.is_fully_defined() and split.is_fully_defined() and split.rank == shape.rank + 1 > 1):
        return None
    return source if split[2:] == shape[1:] else None


def rows_to(tensor: Tensor, axis: int) -> Tensor:
    """The axis of the rows, which is the first, moved to this place."""
    order = [*range(1, axis + 1), 0, *range(axis + 1, tensor.shape.rank)]
    return tensor if axis == 0 else tf.transpose(tensor, order)


def rows_from(tensor: Tensor, axis: int) -> Tensor:
    """The axis of the rows, which is at this place, moved to the front."""
    order = [axis, *(k for k in range(tensor.shape.rank) if k != axis)]
    return tensor if axis == 0 else tf.transpose(tensor, order)


def with_axes(tensor: Tensor, rank: int) -> Tensor:
    """Rows of lower rank, with unit axes before the axes of a row until it has this rank: what broadcasting means."""
    sizes = shape_of(tensor)
    return reshape(tensor, [sizes[0], *[1] * (rank + 1 - len(sizes)), *sizes[1:]])
