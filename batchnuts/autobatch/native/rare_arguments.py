"""Calls for rare arguments of functions, in loops that LLVM vectorizes all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.native.types import I32, element_type, number

Element = Any
Dtype = np.dtype[Any]

_VECTORS = (16, 32, 64)
"""Bytes that a loop may take at once."""


def unless_within(
    b: ir.IRBuilder, name: str, dtype: Dtype, x: Element, low: float, high: float, result: Element, other: Any
) -> Element:
    """`result` where x is within bounds; elsewhere, and for NaN, `other(builder, dtype, x)`: for rare arguments.

    This is a call of a function of its own, so that loops around it have no branches. LLVM takes its versions for
    vectors into loops that it vectorizes. These look at the elements one by one only if one of them is out of bounds.
    """
    type_ = element_type(dtype)
    name, counts = f"{name}.{dtype.name}", [size // dtype.itemsize for size in _VECTORS]
    known = b.module.globals.get(name)
    if known is None:
        known = ir.Function(b.module, ir.FunctionType(type_, [type_, type_]), name)
        known.linkage = "internal"
        inner = ir.IRBuilder(known.append_basic_block("entry"))
        with inner.if_then(inner.not_(_within(inner, known.args[0], number(dtype, low), number(dtype, high)))):
            inner.ret(other(inner, dtype, known.args[0]))
        inner.ret(known.args[1])
        for count in counts:
            _add_version_for_vectors(known, f"{name}.{count}", count, number(dtype, low), number(dtype, high))
        _attribute(known, "noinline", *_PURE)
    call = b.call(known, [x, result])
    versions = ",".join(f"_ZGV_LLVM_N{count}vv_{name}({name}.{count})" for count in counts)
    _attribute(call, f'"vector-function-abi-variant"="{versions}"')  # of these calls, not of those in the versions
    return call


_PURE = ("nounwind", "readnone", "willreturn")


def _attribute(value: ir.Function | ir.CallInstr, *attributes: str) -> None:
    set.update(value.attributes, attributes)  # llvmlite's own method knows not all


def _within(b: ir.IRBuilder, x: Element, low: ir.Constant, high: ir.Constant) -> Element:
    return b.and_(b.fcmp_ordered(">=", x, low), b.fcmp_ordered("<=", x, high))


def _add_version_for_vectors(scalar: ir.Function, name: str, count: int, low: ir.Constant, high: ir.Constant) -> None:
    """It is visible outside: LLVM removes others before it looks for them."""
    type_ = ir.VectorType(low.type, count)
    function = ir.Function(scalar.module, ir.FunctionType(type_, [type_, type_]), name)
    b = ir.IRBuilder(function.append_basic_block("entry"))
    x, result = function.args
    within = _within(b, x, *(ir.Constant(type_, [bound] * count) for bound in (low, high)))
    one_is_not = b.icmp_unsigned("!=", b.bitcast(within, ir.IntType(count)), ir.Constant(ir.IntType(count), -1))
    with b.if_then(one_is_not, likely=False):
        replaced = result
        for i in (ir.Constant(I32, i) for i in range(count)):
            element = b.call(scalar, [b.extract_element(x, i), b.extract_element(result, i)])
            replaced = b.insert_element(replaced, element, i)
        b.ret(replaced)
    b.ret(result)
    _attribute(function, "noinline", *_PURE)
