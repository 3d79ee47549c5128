"""TensorLists (used by TensorArrays and gradients of loops) and Optionals (used by gradients of branches).

A list that rows are put into has elements [rows, *shape of one row]. All iterations share it; where they stop at
different times, `realign` moves what each has pushed to the list's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.pfor.errors import Refused
from batchnuts.autobatch.pfor.graphs import compiled_by_xla, ops_on_list
from batchnuts.autobatch.pfor.registry import converts
from batchnuts.autobatch.pfor.site import Loop, Site, with_shape
from batchnuts.autobatch.pfor.values import Invariant, ListHandle, OptionalValue, Stacked, Tensor, Value, varies

_raw = tf.raw_ops


def element_shape(loop: Loop, of_row: Tensor) -> Tensor:
    """The shape [rows, *of_row]; what is unknown stays unknown."""
    constant = tf.get_static_value(of_row)
    if constant is not None and constant.ndim == 0:
        return of_row
    if constant is not None:
        rows = loop.static_count
        return tf.constant([-1 if rows is None else rows, *constant], of_row.dtype)
    return tf.concat([tf.cast(loop.count, of_row.dtype)[None], of_row], 0)


def to_rows(site: Site, k: int, dtype: tf.DType, of_row: Sequence[int | None] | None = None) -> ListHandle:
    """Input k, a list, with elements that have rows, where it is the same for all rows so far.

    of_row: the shape of an element of a row, for a list that does not know it. XLA cannot read from a list whose
    element shape is unknown before the first write.
    """
    value = site.inputs[k]
    if isinstance(value, ListHandle):
        return value
    assert isinstance(value, Invariant)
    if dtype == tf.variant:
        return ListHandle(value.tensor)
    made_by = site.op.inputs[k].op
    if made_by.type in ("EmptyTensorList", "TensorListReserve"):
        row_shape, size = (site.value_of(tensor) for tensor in made_by.inputs)
        if isinstance(row_shape, Invariant) and isinstance(size, Invariant):
            constant = tf.get_static_value(row_shape.tensor)
            if of_row is not None and None not in of_row and (constant is None or np.any(constant < 0)):
                row_shape = Invariant(tf.constant(list(of_row), tf.int32, [len(of_row)]))
            shape = element_shape(site.loop, row_shape.tensor)
            if made_by.type == "EmptyTensorList":
                empty = _raw.EmptyTensorList(element_shape=shape, max_num_elements=size.tensor, element_dtype=dtype)
                return ListHandle(empty)
            return ListHandle(
                _raw.TensorListReserve(element_shape=shape, num_elements=size.tensor, element_dtype=dtype)
            )
    if compiled_by_xla() and _is_a_stack(site.op.inputs[k]):
        raise Refused(
            "XLA does not tell which elements this list has so far, as the second derivative of a loop needs inside of "
            "the body of pfor. Leave out jit_compile"
        )
    of_element = tf.constant(-1 if of_row is None or None in of_row else [*of_row], tf.int32)
    elements = _raw.TensorListStack(input_handle=value.tensor, element_shape=of_element, element_dtype=dtype)
    tiled = _tiled(site.loop, elements)
    return ListHandle(_raw.TensorListFromTensor(tensor=tiled, element_shape=tf.shape(tiled)[1:]))


def _is_a_stack(tensor: Tensor) -> bool:
    """Elements are pushed and popped, so that under XLA the list is longer than what it holds; or nobody wrote any."""
    pushing = ("EmptyTensorList", "TensorListPushBack", "TensorListPopBack")
    return tensor.op.type in ("ZerosLike", "AddN", "AddV2") or any(op.type in pushing for op in ops_on_list(tensor))


def _tiled(loop: Loop, elements: Tensor) -> Tensor:
    sizes = tf.shape(elements)
    target = tf.concat([sizes[:1], loop.count[None], sizes[1:]], 0)
    return tf.broadcast_to(elements[:, None], target)


def realign(handle: ListHandle, dtype: tf.DType) -> ListHandle:
    """Each row's elements moved to the end of the list: row r has lengths[r] of them, so it moves down by what it
    lacks.

    Under XLA a list is as long as it may get, and so is what its elements are stacked to.
    """
    if handle.lengths is None or dtype == tf.variant:
        return handle
    elements = _raw.TensorListStack(input_handle=handle.tensor, element_shape=tf.constant(-1), element_dtype=dtype)
    sizes = tf.shape(elements)
    count, rows = sizes[0], sizes[1]
    places = tf.range(count)[:, None] - (count - handle.lengths)[None, :]  # [elements, rows]
    flat = tf.reshape(elements, tf.concat([[count * rows], sizes[2:]], 0))  # not gather_nd: an element may be empty
    moved = tf.gather(flat, tf.maximum(places, 0) * rows + tf.range(rows))
    return ListHandle(_raw.TensorListFromTensor(tensor=moved, element_shape=tf.shape(moved)[1:]), handle.lengths)


def _own_list(site: Site, dtype: tf.DType, of_row: Sequence[int | None] | None = None) -> ListHandle:
    return to_rows(site, 0, dtype, of_row)


def _item(site: Site, k: int) -> Tensor:
    """The element for a list of rows: a tensor of rows, or a variant for all of them."""
    value = site.inputs[k]
    if isinstance(value, OptionalValue):
        return unpacked(site.loop, value).tensor
    if isinstance(value, ListHandle):
        if value.lengths is not None:
            raise Refused("a list whose length depends on the iteration cannot be put into another")
        return value.tensor
    if site.op.inputs[k].dtype == tf.variant:
        return site.tensor(k)
    return site.stacked(k)


def _element_value(site: Site, tensor: Tensor, dtype: tf.DType, row_shape: Any) -> Value:
    if dtype == tf.variant:
        return ListHandle(tensor)
    return Stacked(with_shape(tensor, (site.loop.static_count, *row_shape)) if row_shape is not None else tensor)


def _row_shape(tensor: Tensor) -> Any:
    return None if tensor.shape.rank is None else tuple(tensor.shape)


def _refuse_ragged(handle: ListHandle) -> None:
    if handle.lengths is not None:
        raise Refused(
            "how many elements it has depends on the iteration, so rows would have different shapes. Write into a "
            "TensorArray of fixed size, or pad"
        )


# ---- lists ------------------------------------------------------------------------------------------------------


@converts("EmptyTensorList TensorListReserve", varying="none")
def new_list(site: Site) -> list[Value]:
    """A new list, whose size and shape of elements must be the same for all rows.

    In the gradient of a loop both are those of a list of the loop, noted at each trip: rows have the same in truth.
    """
    if not all(_was_noted(tensor) for tensor, value in zip(site.op.inputs, site.inputs) if varies(value)):
        raise Refused("the size of a list, or the shape of its elements, depends on the iteration")
    uniform = [tf.reduce_max(site.tensor(k), 0) if site.varies(k) else site.tensor(k) for k in (0, 1)]
    return [ListHandle(*site.emit(element_shape(site.loop, uniform[0]), uniform[1]))]


def _was_noted(tensor: Tensor) -> bool:
    """Whether it is the length of a list, or the shape of its elements, which a loop has kept for its gradient."""
    if tensor.op.type != "TensorListPopBack":
        return False
    pushed = [op.inputs[1] for op in ops_on_list(tensor.op.inputs[0]) if op.type == "TensorListPushBack"]
    return bool(pushed) and all(item.op.type in ("TensorListLength", "TensorListElementShape") for item in pushed)


@converts("TensorListPushBack", varying="input_handle tensor")
def push(site: Site) -> list[Value]:
    """All rows push, also masked ones, which do not use the element."""
    dtype = site.attr("element_dtype")
    handle = _own_list(site, dtype)
    (pushed,) = site.emit(handle.tensor, _item(site, 1))
    lengths = handle.lengths
    if site.loop.mask is not None and dtype != tf.variant:
        if lengths is None:
            raise Refused("whether an element is added to this list depends on the iteration")
        lengths = lengths + tf.cast(site.loop.mask, tf.int32)
    return [ListHandle(pushed, lengths)]


@converts("TensorListPopBack", varying="input_handle")
def pop(site: Site) -> list[Value]:
    """Takes the last element of each row."""
    handle = site.inputs[0]
    assert isinstance(handle, ListHandle)
    dtype = site.attr("element_dtype")
    shape = site.tensor(1) if dtype == tf.variant else element_shape(site.loop, site.tensor(1))
    rest, last = site.emit(handle.tensor, shape)
    lengths = handle.lengths
    if lengths is not None:
        lengths = tf.maximum(lengths - (1 if site.loop.mask is None else tf.cast(site.loop.mask, tf.int32)), 0)
    return [ListHandle(rest, lengths), _element_value(site, last, dtype, _row_shape(site.op.outputs[1]))]


@converts("TensorListGetItem", varying="input_handle index")
def get_item(site: Site) -> list[Value]:
    """By an index that is the same for all rows, takes one element; by others, takes from all elements stacked."""
    dtype = site.attr("element_dtype")
    row_shape = _row_shape(site.op.outputs[0])
    handle = site.inputs[0]
    if not site.varies(1):
        assert isinstance(handle, ListHandle)
        _refuse_ragged(handle)
        shape = site.tensor(2) if dtype == tf.variant else element_shape(site.loop, site.tensor(2))
        return [_element_value(site, site.emit(handle.tensor, site.tensor(1), shape)[0], dtype, row_shape)]
    if dtype == tf.variant:
        raise Refused("which list it takes depends on the iteration")
    index = site.tensor(1)
    if isinstance(handle, Invariant):
        elements = _raw.TensorListStack(input_handle=handle.tensor, element_shape=site.tensor(2), element_dtype=dtype)
        return [_element_value(site, tf.gather(elements, index), dtype, row_shape)]
    assert isinstance(handle, ListHandle)
    _refuse_ragged(handle)
    shape = element_shape(site.loop, site.tensor(2))
    elements = _raw.TensorListStack(input_handle=handle.tensor, element_shape=shape, element_dtype=dtype)
    where = tf.stack([index, tf.range(site.loop.count)], -1)
    return [_element_value(site, tf.gather_nd(elements, where), dtype, row_shape)]


@converts("TensorListSetItem", varying="input_handle index item", always=True)
def set_item(site: Site) -> list[Value]:
    """Each row sets its own element. Rows that do not count keep what they have."""
    if site.attr("resize_if_index_out_of_bounds"):
        _refuse_growing_under_xla(site)
    if not any(map(varies, site.inputs)):
        return [Invariant(tensor) for tensor in site.emit(*site.tensors())]
    dtype = site.attr("element_dtype")
    handle = _own_list(site, dtype, _row_shape(site.op.inputs[2]))
    item = _item(site, 2)
    mask = site.loop.mask
    if mask is not None and site.attr("resize_if_index_out_of_bounds"):
        raise Refused(
            "a TensorArray of dynamic size gets as many elements as an iteration writes, so rows would have different "
            "lengths. Give it its largest size"
        )
    if dtype != tf.variant and mask is not None:
        if site.varies(1):
            old = _elements_at(site, handle, dtype, item)
        else:
            shape = tf.shape(item)
            old = _raw.TensorListGetItem(
                input_handle=handle.tensor, index=site.tensor(1), element_shape=shape, element_dtype=dtype
            )
        item = tf.where(tf.reshape(mask, [-1, *[1] * (item.shape.rank - 1)]), item, old)
    if not site.varies(1):
        attributes = {"resize_if_index_out_of_bounds": site.attr("resize_if_index_out_of_bounds")}
        (changed,) = site.emit(handle.tensor, site.tensor(1), item, **attributes)
        return [ListHandle(changed, handle.lengths)]
    if dtype == tf.variant:
        raise Refused("where it puts a list depends on the iteration")
    elements = _stack(handle, dtype, item)
    where = tf.stack([site.tensor(1), tf.range(site.loop.count)], -1)
    changed = tf.tensor_scatter_nd_update(elements, where, item)
    return [ListHandle(_raw.TensorListFromTensor(tensor=changed, element_shape=tf.shape(item)), handle.lengths)]


def _refuse_growing_under_xla(site: Site) -> None:
    """XLA drops what is written past the size that a list began with, without a word; so no such list may get there."""
    if not compiled_by_xla():
        return
    op = site.op
    while op.type in ("TensorListSetItem", "Identity"):
        op = op.inputs[0].op
    size = tf.get_static_value(op.inputs[1]) if op.type == "TensorListReserve" else None
    index = site.constant(1)
    if size is None or index is None or not 0 <= index < size:
        raise Refused(
            "XLA has no lists that grow: it would drop what is written past the size that this TensorArray began with. "
            "Give it its largest size, and leave out dynamic_size=True"
        )


def _stack(handle: ListHandle, dtype: tf.DType, like: Tensor) -> Tensor:
    return _raw.TensorListStack(input_handle=handle.tensor, element_shape=tf.shape(like), element_dtype=dtype)


def _elements_at(site: Site, handle: ListHandle, dtype: tf.DType, like: Tensor) -> Tensor:
    where = tf.stack([site.tensor(1), tf.range(site.loop.count)], -1)
    return tf.gather_nd(_stack(handle, dtype, like), where)


@converts("TensorListStack", varying="input_handle")
def stack(site: Site) -> list[Value]:
    """The elements [elements, rows, ...] turned to [rows, elements, ...]."""
    handle = site.inputs[0]
    assert isinstance(handle, ListHandle)
    _refuse_ragged(handle)
    (elements,) = site.emit(handle.tensor, element_shape(site.loop, site.tensor(1)))
    return [Stacked(_rows_first(site, elements))]


def _rows_first(site: Site, elements: Tensor) -> Tensor:
    """[elements, rows, ...] turned to [rows, elements, ...], with the shape that the body's graph knows."""
    output = site.op.outputs[0]
    if elements.shape.rank is None and output.shape.rank is not None:
        elements = with_shape(elements, [None] * (output.shape.rank + 1))
    if elements.shape.rank is None:
        raise Refused("the rank of a list's elements is not known before running; give element_shape")
    turned = tf.transpose(elements, [1, 0, *range(2, elements.shape.rank)])
    return with_shape(
        turned, (site.loop.static_count, *(output.shape if output.shape.rank is not None else turned.shape[1:]))
    )


@converts("TensorListGather", varying="input_handle")
def gather_elements(site: Site) -> list[Value]:
    """Gathers at indices that are the same for all rows."""
    handle = site.inputs[0]
    site.only(0)
    assert isinstance(handle, ListHandle)
    _refuse_ragged(handle)
    (elements,) = site.emit(handle.tensor, site.tensor(1), element_shape(site.loop, site.tensor(2)))
    return [Stacked(_rows_first(site, elements))]


@converts("TensorListFromTensor", varying="tensor")
def from_tensor(site: Site) -> list[Value]:
    """Turns the tensor first: the elements' axis goes before the rows'."""
    value = site.tensor(0)
    turned = tf.transpose(value, [1, 0, *range(2, value.shape.rank)])
    return [ListHandle(*site.emit(turned, element_shape(site.loop, site.tensor(1))))]


@converts("TensorListScatterIntoExistingList", varying="input_handle tensor", always=True)
def scatter_elements(site: Site) -> list[Value]:
    """Writes at indices that are the same for all rows, none past the list's end. Rows that do not count
    keep what they have. XLA lacks the op: there, and for such rows, a list is made of the stacked elements."""
    site.only(1)
    if not (site.static or site.varies(1) or isinstance(site.inputs[0], ListHandle)):
        return [Invariant(tensor) for tensor in site.emit(*site.tensors())]
    dtype, value = site.attr("element_dtype"), site.stacked(1)
    shape = _row_shape(site.op.inputs[1])
    handle = _own_list(site, dtype, None if shape is None else shape[1:])
    turned = tf.transpose(value, [1, 0, *range(2, value.shape.rank)])
    mask, indices = site.loop.mask, site.tensor(2)
    if mask is None and not site.static:
        (changed,) = site.emit(handle.tensor, turned, indices)
        return [ListHandle(changed, handle.lengths)]
    of_element = tf.shape(turned)[1:]
    elements = _raw.TensorListStack(input_handle=handle.tensor, element_shape=of_element, element_dtype=dtype)
    if mask is not None:
        turned = tf.where(
            tf.reshape(mask, [1, -1, *[1] * (turned.shape.rank - 2)]), turned, tf.gather(elements, indices)
        )
    changed = tf.tensor_scatter_nd_update(elements, indices[:, None], turned)
    return [ListHandle(_raw.TensorListFromTensor(tensor=changed, element_shape=of_element), handle.lengths)]


@converts("TensorListLength", varying="input_handle")
def length(site: Site) -> list[Value]:
    """The list's length; each row's own where they differ."""
    handle = site.inputs[0]
    assert isinstance(handle, ListHandle)
    if handle.lengths is not None:
        return [Stacked(handle.lengths)]
    return [Invariant(tensor) for tensor in site.emit(handle.tensor)]


@converts("TensorListElementShape", varying="input_handle")
def shape_of_elements(site: Site) -> list[Value]:
    """The shape of an element, without the rows."""
    handle = site.inputs[0]
    assert isinstance(handle, ListHandle)
    (shape,) = site.emit(handle.tensor)
    return [Invariant(shape[1:])]


@converts("TensorListResize", varying="input_handle", no_xla="TensorListResize")
def resize(site: Site) -> list[Value]:
    """Resizes to a size that is the same for all rows."""
    handle = site.inputs[0]
    if site.varies(1):
        raise Refused("how many elements it has would depend on the iteration")
    assert isinstance(handle, ListHandle)
    _refuse_ragged(handle)
    return [ListHandle(*site.emit(handle.tensor, site.tensor(1)))]


# ---- Optionals --------------------------------------------------------------------------------------------------


@converts("OptionalFromValue", varying="components", always=True, no_xla="OptionalFromValue")
def some(site: Site) -> list[Value]:
    """The Optional is kept as it is: it is opened again below, or put into a list."""
    return [OptionalValue((site.inputs,))]


@converts("OptionalNone", varying="none", always=True, no_xla="OptionalNone")
def none(site: Site) -> list[Value]:
    """An Optional without contents, which is kept as it is, too."""
    return [OptionalValue((None,))]


@converts("OptionalGetValue", varying="optional", always=True, no_xla="OptionalGetValue")
def value_of_optional(site: Site) -> list[Value]:
    """The contents of an Optional. In a branch that no row takes there are none: zeros, which no row uses."""
    optional = site.inputs[0]
    if isinstance(optional, OptionalValue):
        if len(optional.contents) != 1:
            raise Refused("a value stored by a branch for its gradient is read outside that branch")
        if optional.contents[0] is not None:
            return list(optional.contents[0])
    if isinstance(optional, ListHandle):
        shapes = [
            tf.TensorShape(shape) if dtype == tf.variant else tf.TensorShape([None]).concatenate(tf.TensorShape(shape))
            for dtype, shape in zip(site.attr("output_types"), site.attr("output_shapes"))
        ]
        contents = site.emit(optional.tensor, output_shapes=shapes)
        return [_element_value(site, t, t.dtype, _row_shape(out)) for t, out in zip(contents, site.op.outputs)]
    if isinstance(optional, Invariant):
        return [Invariant(tensor) for tensor in site.emit(optional.tensor)]
    outputs = site.op.outputs
    if any(None in (output.shape if output.shape.rank is not None else (None,)) for output in outputs):
        raise Refused("a value stored by a branch for its gradient has no static shape")
    return [Invariant(tf.zeros(output.shape, output.dtype)) for output in outputs]


@converts("OptionalHasValue", varying="optional", always=True, no_xla="OptionalHasValue")
def has_value(site: Site) -> list[Value]:
    """Whether it has a value, which is static where the op that made it is known."""
    optional = site.inputs[0]
    if not isinstance(optional, OptionalValue):
        assert isinstance(optional, (Invariant, ListHandle))
        return [Invariant(tensor) for tensor in site.emit(optional.tensor)]
    if len(optional.contents) != 1:
        raise Refused("whether an Optional has a value depends on the iteration")
    return [Invariant(tf.constant(optional.contents[0] is not None))]


def unpacked(loop: Loop, box: OptionalValue, vary: bool = True) -> ListHandle:
    """A real Optional, for a place that needs a tensor: of rows if it may vary, else of the values themselves."""
    if len(box.contents) != 1:
        raise Refused(
            "values that branches store for their gradients, where iterations take different branches, cannot be put "
            "into a list, or carried through a loop or branch"
        )
    if box.contents[0] is None:
        return ListHandle(_raw.OptionalNone())
    parts = []
    for value in box.contents[0]:
        if isinstance(value, OptionalValue) or (isinstance(value, Invariant) and value.tensor.dtype == tf.variant):
            raise Refused(
                "an Optional that contains a list or an Optional cannot be put into a list, or carried through a loop "
                "or branch"
            )
        assert isinstance(value, (Invariant, Stacked, ListHandle))
        if not vary and not isinstance(value, Invariant):
            raise Refused(
                "one branch stores a value for its gradient that differs per iteration, another one that does not"
            )
        parts.append(loop.rows(value.tensor) if vary and isinstance(value, Invariant) else value.tensor)
    return ListHandle(_raw.OptionalFromValue(components=parts))
