"""Expressions (ir/expression.py) as LLVM's instructions for one lane: a table of rules and a short loop.

Elementwise functions (function_table.py) are computed in the loops of their readers. Functions that move elements are
maps of indices. Reductions, products and sums along an axis are loops at their place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.ir.expression import Argument, Constant, Expression, Node, Ref, Slice
from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.native import function_table
from batchnuts.autobatch.native.arrays import Array, Element, Emitter, Index, broadcast, zeros
from batchnuts.autobatch.native.c_calls import emit_c_call
from batchnuts.autobatch.native.materialize import is_flat, materialized
from batchnuts.autobatch.native.matrices import times_constant_matrix
from batchnuts.autobatch.native.sizes import sized_expression
from batchnuts.autobatch.native.types import DTYPES, element_type, integer, is_float, number

Rule = Callable[[Emitter, Node, list[Any]], list[Array]]

SUM = ("reassoc",)
"""The terms of a sum may be added in any order."""


def emit(em: Emitter, expression: Expression, inputs: Sequence[Array]) -> list[Array]:
    """The results of an expression, each a scalar or in memory."""
    values = list(inputs)
    written = materialized(expression, ELEMENTWISE)
    for place, node in enumerate(sized_expression(expression, em.extents).nodes):
        results = emit_node(em, node, [_read(em, argument, values) for argument in node.arguments])
        values += em.in_memory(*results) if place in written else results
    return em.in_memory(*(_read(em, output, values) for output in expression.outputs))


def _read(em: Emitter, argument: Argument, values: Sequence[Array]) -> Any:
    match argument:
        case Ref(number_):
            return values[number_]
        case Constant():
            return em.constant(argument.array)
        case tuple():
            return tuple(_read(em, part, values) for part in argument)
    return argument


def emit_node(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    """The results of one call."""
    if node.function in ELEMENTWISE:
        return [_elementwise(em, node, arguments)]
    return RULES[node.function](em, node, arguments)


def is_emitted(expression: Expression) -> bool:
    """Whether there is a rule for all that it computes."""
    return all(type_.dtype in DTYPES for type_ in expression.types) and all(
        (node.function in ELEMENTWISE or node.function in RULES)
        and all(is_emitted(argument) for argument in node.arguments if isinstance(argument, Expression))
        for node in expression.nodes
    )


def _dtype(type_: TensorType) -> np.dtype[Any]:
    return np.dtype(type_.dtype)


# ---- elementwise -----------------------------------------------------------------------------------------------------


def _element(em: Emitter, node: Node, arguments: Sequence[Any], elements: Sequence[Element]) -> Element:
    """One element of an elementwise call, from those of its arguments."""
    b = em.builder
    match node.function:
        case "where":
            return b.select(*elements)
        case "cast":
            return function_table.cast(b, elements[0], arguments[0].dtype, _dtype(node.types[0]))
        case "bitcast":
            return function_table.bitcast(b, elements[0], arguments[0].dtype, _dtype(node.types[0]))
        case "full_like":
            return elements[-1]
    return function_table.RULES[node.function](b, arguments[0].dtype, *elements)


ELEMENTWISE = frozenset(function_table.RULES) | {"where", "cast", "bitcast", "full_like"}


def _elementwise(em: Emitter, node: Node, arguments: list[Any]) -> Array:
    (type_,) = node.types
    operands = [argument for argument in arguments if isinstance(argument, Array)]
    read = operands[1:] if node.function == "full_like" else operands

    def compute(index: Index) -> Element:
        return _element(em, node, operands, [broadcast(operand, index) for operand in read])

    if type_.size == 1:
        return em.scalar(_dtype(type_), compute(zeros(type_.shape)), type_.shape)
    if is_flat(node):
        return _flat(em, node, operands)
    return _delayed(em, type_, compute)


def _flat(em: Emitter, node: Node, operands: Sequence[Array]) -> Array:
    """All elements in one loop over memory: LLVM vectorizes loops over rows too, but computes what is left of each row
    one by one."""
    (type_,) = node.types
    whole = [
        operand if operand.size == 1 or operand.shape == type_.shape
        else Array(operand.dtype, type_.shape, functools.partial(broadcast, operand))
        for operand in operands
    ]  # fmt: skip
    rows = [
        array if array.size == 1 else em.memory(array.dtype, (type_.size,), array.pointer)
        for array in em.in_memory(*whole)
    ]
    dtype = _dtype(type_)
    pointer = em.allocate(type_.size * dtype.itemsize)
    with em.loop(type_.size) as i:
        elements = [row.element((i,) if row.size > 1 else zeros(row.shape)) for row in rows]
        em.store(_element(em, node, rows, elements), em.at(pointer, em.offset((i,), (type_.size,), dtype)))
    return em.memory(dtype, type_.shape, pointer)


def _delayed(em: Emitter, type_: TensorType, compute: Callable[[Index], Element]) -> Array:
    """The array whose elements are computed where they are read."""
    key = object()
    return Array(_dtype(type_), type_.shape, lambda index: em.once(key, index, lambda: compute(index)))


def _moved(em: Emitter, type_: TensorType, compute: Callable[[Index], Element]) -> Array:
    """As `_delayed`; one element is read at once."""
    if type_.size == 1:
        return em.scalar(_dtype(type_), compute(zeros(type_.shape)), type_.shape)
    return _delayed(em, type_, compute)


def _kernel(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    """A long elementwise expression, computed once: all of its results in one loop."""
    expression, *operands = arguments

    def results_at(index: Index) -> list[Element]:
        values = [em.scalar(operand.dtype, broadcast(operand, index)) for operand in operands]
        for inner in expression.nodes:
            read = [_read(em, argument, values) for argument in inner.arguments]
            given = [part for part in read if isinstance(part, Array)]
            chosen = given[1:] if inner.function == "full_like" else given
            element = _element(em, inner, given, [part.element(()) for part in chosen])
            values.append(em.scalar(_dtype(inner.types[0]), element))
        return [_read(em, output, values).element(()) for output in expression.outputs]

    types = node.types
    if all(type_.size == 1 for type_ in types):
        elements = results_at(zeros(max((type_.shape for type_ in types), key=len)))
        return [em.scalar(_dtype(t), element, t.shape) for t, element in zip(types, elements)]
    shape = types[0].shape
    pointers = [em.allocate(type_.size * _dtype(type_).itemsize) for type_ in types]
    with em.each(shape) as index:
        for type_, pointer, element in zip(types, pointers, results_at(index)):
            em.store(element, em.at(pointer, em.offset(index, shape, _dtype(type_))))
    return [em.memory(_dtype(type_), type_.shape, pointer) for type_, pointer in zip(types, pointers)]


# ---- elements that move ----------------------------------------------------------------------------------------------


def _reshape(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    array, (type_,) = arguments[0], node.types
    if array.size == 1:
        return [em.scalar(array.dtype, array.element(zeros(array.shape)), type_.shape)]
    (array,) = em.in_memory(array)
    return [em.memory(array.dtype, type_.shape, array.pointer)]


def _transpose(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    (array,) = arguments
    return [_moved(em, node.types[0], lambda index: array.element((*index[:-2], index[-1], index[-2])))]


def _parts_of_last_axis(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    array, parts, first = arguments[0], [], 0
    for type_ in node.types:

        def compute(index: Index, first: int = first) -> Element:
            return array.element((*index[:-1], _plus(em, index[-1], first)))

        parts.append(_moved(em, type_, compute))
        first += type_.shape[-1]
    return parts


def _call_c(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    arrays, key = arguments
    results = [em.allocate(type_.size * _dtype(type_).itemsize) for type_ in node.types]
    emit_c_call(em.builder, key, [em.placed(array) for array in arrays], results)
    em.c_functions.append(key)
    return [em.loaded(_dtype(type_), type_.shape, pointer) for type_, pointer in zip(node.types, results)]


def _with_gradient(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    return [arguments[0]]


def _plus(em: Emitter, index: Element, number_: int) -> Element:
    if isinstance(index, ir.Constant):
        return em.size(index.constant + number_)
    return em.builder.add(index, em.size(number_), flags=("nsw",)) if number_ else index


def _concatenate(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    (arrays, axis), (type_,) = arguments, node.types
    axis %= len(type_.shape)
    return [_end_to_end(em, type_, arrays, axis, [array.shape for array in arrays])]


def _stack(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    (arrays, axis), (type_,) = arguments, node.types
    axis %= len(type_.shape)
    shapes = [(*array.shape[:axis], 1, *array.shape[axis:]) for array in arrays]
    return [_end_to_end(em, type_, arrays, axis, shapes)]


def _end_to_end(em: Emitter, type_: TensorType, arrays: Sequence[Array], axis: int, shapes: Sequence[Any]) -> Array:
    """Arrays one after another along an axis; shapes: theirs, in which a stacked one has one more axis."""
    dtype = _dtype(type_)
    pointer, first = em.allocate(type_.size * dtype.itemsize), 0
    for array, shape in zip(arrays, shapes, strict=True):
        with em.each(shape) as index:
            own = index if len(array.shape) == len(shape) else (*index[:axis], *index[axis + 1 :])
            place = (*index[:axis], _plus(em, index[axis], first), *index[axis + 1 :])
            em.store(array.element(own), em.at(pointer, em.offset(place, type_.shape, dtype)))
        first += shape[axis]
    if type_.size == 1:
        return em.scalar(dtype, em.load(pointer, dtype), type_.shape)
    return em.memory(dtype, type_.shape, pointer)


def _item(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    """x[parts]: an integer, a slice, an array of integers, or None for a new axis."""
    array, parts = arguments

    def compute(index: Index) -> Element:
        left, place, axis = list(index), [], 0
        for part in parts:
            if part is None:
                left.pop(0)
                continue
            extent = array.shape[axis]
            match part:
                case Slice(start, stop, step):
                    first, _, stride = slice(start, stop, step).indices(extent)
                    place.append(_plus(em, _times(em, left.pop(0), stride), first))
                case Array():
                    own = (left.pop(0),) if part.shape else ()
                    place.append(_inside(em, part, part.element(own), extent))
                case _:
                    place.append(em.size(part % extent))
            axis += 1
        return array.element(tuple(place))

    return [_moved(em, node.types[0], compute)]


def _gather(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    array, indices, axis = arguments
    axis %= len(array.shape)
    rank = len(indices.shape) if isinstance(indices, Array) else 0

    def compute(index: Index) -> Element:
        if isinstance(indices, Array):
            chosen = _inside(em, indices, indices.element(index[axis : axis + rank]), array.shape[axis])
        else:
            chosen = em.size(indices % array.shape[axis])
        return array.element((*index[:axis], chosen, *index[axis + rank :]))

    return [_moved(em, node.types[0], compute)]


def _scatter_add(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    array, indices, axis, extent = arguments
    (type_,) = node.types
    dtype, axis, b = _dtype(type_), axis % len(type_.shape), em.builder
    pointer = em.allocate(max(type_.size * dtype.itemsize, 1))
    with em.each(type_.shape) as index:
        em.store(number(dtype, 0), em.at(pointer, em.offset(index, type_.shape, dtype)))
    with em.loop(array.shape[axis]) as k:
        chosen = _inside(em, indices, indices.element((k,)), extent)
        with em.each((*type_.shape[:axis], *type_.shape[axis + 1 :])) as around:
            term = array.element((*around[:axis], k, *around[axis:]))
            place = em.at(pointer, em.offset((*around[:axis], chosen, *around[axis:]), type_.shape, dtype))
            em.store(function_table.RULES["add"](b, dtype, em.load(place, dtype), term), place)
    if type_.size == 1:
        return [em.scalar(dtype, em.load(pointer, dtype), type_.shape)]
    return [em.memory(dtype, type_.shape, pointer)]


def _times(em: Emitter, index: Element, number_: int) -> Element:
    if isinstance(index, ir.Constant):
        return em.size(index.constant * number_)
    return em.builder.mul(index, em.size(number_), flags=("nsw",)) if number_ != 1 else index


def _inside(em: Emitter, indices: Array, index: Element, extent: int) -> Element:
    """An index as i64. The contract says that it lies inside; what does not would read foreign memory."""
    b = em.builder
    index = function_table.cast(b, index, indices.dtype, np.dtype("int64"))
    if isinstance(index, ir.Constant):
        return index
    em.require(lambda: b.icmp_unsigned("<", index, em.size(extent)), f"an index outside of {extent} elements")
    last = em.size(extent - 1)
    return b.select(b.icmp_unsigned("<", index, last), index, last)


# ---- loops -----------------------------------------------------------------------------------------------------------


def _start_and_join(name: str, dtype: np.dtype[Any]) -> tuple[Any, Callable[[ir.IRBuilder, Element, Element], Element]]:
    """The value of nothing, and how one more element joins."""
    if name in ("any", "all"):
        return name == "all", lambda b, x, y: b.or_(x, y) if name == "any" else b.and_(x, y)
    if name in ("min", "max"):
        rule = function_table.RULES["minimum" if name == "min" else "maximum"]
        lowest, highest = _bounds(dtype)
        return highest if name == "min" else lowest, lambda b, x, y: rule(b, dtype, x, y)
    if is_float(dtype):
        return 0, lambda b, x, y: b.fadd(x, y, flags=SUM)
    return 0, lambda b, x, y: function_table.RULES["add"](b, dtype, x, y)


def _bounds(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """The lowest and the highest value."""
    if dtype.kind == "b":
        return False, True
    return (-np.inf, np.inf) if is_float(dtype) else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def _reduction(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    array, axis, keepdims = arguments
    (type_,) = node.types
    rank, dtype = len(array.shape), _dtype(type_)
    axes = range(rank) if axis is None else (axis,) if isinstance(axis, int) else axis
    gone = sorted(a % rank for a in axes)
    start, join = _start_and_join(node.function, dtype)
    reduced = tuple(array.shape[a] for a in gone)
    truth = node.function in ("any", "all") and array.dtype.kind != "b"

    def compute(index: Index) -> Element:
        b = em.builder
        kept = iter(i for a, i in enumerate(index) if not (keepdims and a in gone))
        around = {a: next(kept) for a in range(rank) if a not in gone}
        with b.goto_entry_block():
            total = b.alloca(element_type(dtype))
        b.store(number(dtype, start), total)
        with em.each(reduced) as inner:
            place = tuple(around[a] if a in around else inner[gone.index(a)] for a in range(rank))
            element = array.element(place)
            if truth:
                element = function_table.cast(b, element, array.dtype, np.dtype(bool))
            b.store(join(b, b.load(total, typ=element_type(dtype)), element), total)
        result = b.load(total, typ=element_type(dtype))
        if node.function == "mean":
            result = b.fdiv(result, b.sitofp(em.size(math.prod(reduced)), element_type(dtype)))
        return result

    return [_at_once(em, type_, compute)]


def _at_once(em: Emitter, type_: TensorType, compute: Callable[[Index], Element]) -> Array:
    """The array, computed here: a scalar, or in memory."""
    dtype = _dtype(type_)
    if type_.size == 1:
        return em.scalar(dtype, compute(zeros(type_.shape)), type_.shape)
    pointer = em.allocate(type_.size * dtype.itemsize)
    with em.each(type_.shape) as index:
        em.store(compute(index), em.at(pointer, em.offset(index, type_.shape, dtype)))
    return em.memory(dtype, type_.shape, pointer)


def _cumsum(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    array, axis = arguments
    (type_,) = node.types
    dtype, axis = _dtype(type_), axis % len(type_.shape)
    pointer = em.allocate(type_.size * dtype.itemsize)
    b = em.builder
    around = (*type_.shape[:axis], *type_.shape[axis + 1 :])
    with b.goto_entry_block():
        total = b.alloca(element_type(dtype))
    with em.each(around) as index:
        b.store(number(dtype, 0), total)
        with em.loop(type_.shape[axis]) as i:
            place = (*index[:axis], i, *index[axis:])
            so_far = function_table.RULES["add"](b, dtype, b.load(total, typ=element_type(dtype)), array.element(place))
            b.store(so_far, total)
            em.store(so_far, em.at(pointer, em.offset(place, type_.shape, dtype)))
    if type_.size == 1:
        return [em.scalar(dtype, em.load(pointer, dtype), type_.shape)]
    return [em.memory(dtype, type_.shape, pointer)]


def _matmul(em: Emitter, node: Node, arguments: list[Any]) -> list[Array]:
    """As NumPy's; each element of the product is a sum along a row, and with a matrix at the right rows are summed."""
    (type_,) = node.types
    if is_float(_dtype(type_)) and (product := times_constant_matrix(em, node, arguments)) is not None:
        return [product]
    dtype, b = _dtype(type_), em.builder
    x, y = em.in_memory(*arguments)
    inner = x.shape[-1]
    row = len(x.shape) > 1
    add, multiply = (
        (lambda p, q: b.fadd(p, q, flags=SUM)) if is_float(dtype) else b.add,
        function_table.RULES["multiply"],
    )
    if dtype.kind == "b":
        add = b.or_

    def left(lead: Index, i: Index, k: Element) -> Element:
        return broadcast_matrix(x, lead, (*i, k))

    def right(lead: Index, k: Element, j: Index) -> Element:
        return broadcast_matrix(y, lead, (k, *j))

    if len(y.shape) == 1:

        def dot(index: Index) -> Element:
            lead, i = (index[:-1], index[-1:]) if row else (index, ())
            with b.goto_entry_block():
                total = b.alloca(element_type(dtype))
            b.store(number(dtype, 0), total)
            with em.loop(inner) as k:
                term = multiply(b, dtype, left(lead, i, k), right(lead, k, ()))
                b.store(add(b.load(total, typ=element_type(dtype)), term), total)
            return b.load(total, typ=element_type(dtype))

        return [_at_once(em, type_, dot)]
    pointer = em.allocate(type_.size * dtype.itemsize)
    lead_shape = type_.shape[: len(type_.shape) - 1 - row]
    with em.each((*lead_shape, *type_.shape[len(lead_shape) : len(lead_shape) + row])) as outer:
        lead, i = outer[: len(lead_shape)], outer[len(lead_shape) :]

        def place(j: Element, outer: Index = outer) -> Any:
            return em.at(pointer, em.offset((*outer, j), type_.shape, dtype))

        with em.loop(type_.shape[-1]) as j:
            em.store(number(dtype, 0), place(j))
        with em.loop(inner) as k:
            factor = left(lead, i, k)
            with em.loop(type_.shape[-1]) as j:
                term = multiply(b, dtype, factor, right(lead, k, (j,)))
                em.store(add(em.load(place(j), dtype), term), place(j))
    if type_.size == 1:
        return [em.scalar(dtype, em.load(pointer, dtype), type_.shape)]
    return [em.memory(dtype, type_.shape, pointer)]


def broadcast_matrix(array: Array, lead: Index, last: Index) -> Element:
    """An element of one of several matrices, whose leading axes broadcast."""
    own = array.shape[: len(array.shape) - len(last)]
    index = tuple(integer(0) if n == 1 else i for i, n in zip(lead[len(lead) - len(own) :], own))
    return array.element((*index, *last))


RULES: dict[str, Rule] = {
    "kernel": _kernel,
    "reshape": _reshape,
    "split_last_axis": _reshape,
    "parts_of_last_axis": _parts_of_last_axis,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    "item": _item,
    "gather": _gather,
    "scatter_add": _scatter_add,
    **dict.fromkeys(("any", "all", "sum", "mean", "min", "max"), _reduction),
    "cumsum": _cumsum,
    "call_c": _call_c,
    "with_gradient": _with_gradient,
    "matmul": _matmul,
}
"""The other functions; `emit_node` gives the results."""
