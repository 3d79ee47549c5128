"""The table of elementwise functions of the language: from a name to LLVM's instructions for one element.

    rule ::= (builder, dtype, element*) -> element        (dtype: that of all operands, `where`'s condition aside)

Elements are i1 for bool, and integers or floats of their dtype's width. What a function gives outside its domain is
what IEEE 754 says; integers wrap. Nothing here branches, so that LLVM can vectorize loops over these instructions;
functions that have no instructions of their own are called in the C library (`functions.called`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.native import functions, powers, special_functions, trigonometry
from batchnuts.autobatch.native.types import element_type, is_float, is_signed, number

Element = Any
"""A value of LLVM's."""
Rule = Callable[..., Element]


def _both(integer: str, real: str, boolean: str | None = None) -> Rule:
    """A builder's method for integers, and one for floats; and one for bools."""

    def rule(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element, y: Element) -> Element:
        name = boolean if dtype.kind == "b" and boolean else real if is_float(dtype) else integer
        return getattr(b, name)(x, y)

    return rule


def _integer(name: str) -> Rule:
    return lambda b, dtype, x, y: getattr(b, name)(x, y)


def _comparison(sign: str) -> Rule:
    def rule(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element, y: Element) -> Element:
        if is_float(dtype):
            return b.fcmp_unordered(sign, x, y) if sign == "!=" else b.fcmp_ordered(sign, x, y)
        return b.icmp_signed(sign, x, y) if is_signed(dtype) else b.icmp_unsigned(sign, x, y)

    return rule


def _less(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element, y: Element) -> Element:
    return _comparison("<")(b, dtype, x, y)


def _extremum(sign: str) -> Rule:
    """The smaller or larger; NaN if either is."""

    def rule(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element, y: Element) -> Element:
        chosen = b.select(_comparison(sign)(b, dtype, x, y), x, y)
        if not is_float(dtype):
            return chosen
        return b.select(b.fcmp_unordered("uno", x, x), x, b.select(b.fcmp_unordered("uno", y, y), y, chosen))

    return rule


def _negative(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element) -> Element:
    return b.fneg(x) if is_float(dtype) else b.neg(x)


def _absolute(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element) -> Element:
    if is_float(dtype):
        return functions.intrinsic(b, "fabs", dtype, x)
    return b.select(b.icmp_signed("<", x, number(dtype, 0)), b.neg(x), x) if is_signed(dtype) else x


def _sign(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element) -> Element:
    zero, one = number(dtype, 0), number(dtype, 1)
    if not is_signed(dtype) and not is_float(dtype):
        return b.select(b.icmp_unsigned("!=", x, zero), one, zero)
    below = b.select(_less(b, dtype, x, zero), number(dtype, -1), x if is_float(dtype) else zero)  # NaN, -0: itself
    return b.select(_less(b, dtype, zero, x), one, below)


def _is_finite(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element) -> Element:
    return b.fcmp_ordered("<", functions.intrinsic(b, "fabs", dtype, x), number(dtype, np.inf))


def _is_nan(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element) -> Element:
    return b.fcmp_unordered("uno", x, x)


def _divisor(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element, y: Element) -> Element:
    """An integer divisor that no processor stops at: 1 in place of 0, and of -1 of the lowest number."""
    unfit = b.icmp_unsigned("==", y, number(dtype, 0))
    if is_signed(dtype):
        lowest = b.icmp_signed("==", x, number(dtype, np.iinfo(dtype).min))
        unfit = b.or_(unfit, b.and_(lowest, b.icmp_signed("==", y, number(dtype, -1))))
    return b.select(unfit, number(dtype, 1), y)


def _floor_divide_floats(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element, y: Element) -> Element:
    """From the remainder, as Python's, so that both fit together."""
    zero, one = number(dtype, 0), number(dtype, 1)
    rest, exact = functions.called(b, "fmod", dtype, x, y), b.fdiv(x, y)
    quotient = b.fdiv(b.fsub(x, rest), y)
    differ = b.xor(_less(b, dtype, rest, zero), _less(b, dtype, y, zero))
    down = b.and_(b.fcmp_ordered("!=", rest, zero), differ)
    quotient = b.select(down, b.fsub(quotient, one), quotient)
    whole = functions.intrinsic(b, "floor", dtype, quotient)
    short = b.fcmp_ordered(">", b.fsub(quotient, whole), number(dtype, 0.5))
    whole = b.select(short, b.fadd(whole, one), whole)
    is_zero = b.fcmp_ordered("==", quotient, zero)
    whole = b.select(is_zero, functions.intrinsic(b, "copysign", dtype, zero, exact), whole)
    return b.select(b.fcmp_ordered("==", y, zero), exact, whole)


def _floor_divide(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element, y: Element) -> Element:
    if is_float(dtype):
        return _floor_divide_floats(b, dtype, x, y)
    divisor = _divisor(b, dtype, x, y)
    if not is_signed(dtype):
        return b.udiv(x, divisor)
    quotient, rest = b.sdiv(x, divisor), b.srem(x, divisor)
    zero = number(dtype, 0)
    differ = b.icmp_signed("<", b.xor(rest, divisor), zero)
    down = b.and_(b.icmp_signed("!=", rest, zero), differ)
    return b.select(down, b.sub(quotient, number(dtype, 1)), quotient)


def _remainder(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element, y: Element) -> Element:
    """With the divisor's sign, a zero too."""
    zero = number(dtype, 0)
    if is_float(dtype):
        rest = functions.called(b, "fmod", dtype, x, y)
        differ = b.xor(_less(b, dtype, rest, zero), _less(b, dtype, y, zero))
        moved = b.select(differ, b.fadd(rest, y), rest)
        is_zero = b.fcmp_ordered("==", rest, zero)
        return b.select(is_zero, functions.intrinsic(b, "copysign", dtype, zero, y), moved)
    divisor = _divisor(b, dtype, x, y)
    if not is_signed(dtype):
        return b.urem(x, divisor)
    rest = b.srem(x, divisor)
    differ = b.icmp_signed("<", b.xor(rest, divisor), zero)
    return b.select(b.and_(b.icmp_signed("!=", rest, zero), differ), b.add(rest, divisor), rest)


def _power(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element, y: Element) -> Element:
    return powers.power(b, dtype, x, y) if is_float(dtype) else powers.integer_power(b, dtype, x, y)


def _bitwise_not(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element) -> Element:
    return b.not_(x)


def _shift_right(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element, y: Element) -> Element:
    return b.ashr(x, y) if is_signed(dtype) else b.lshr(x, y)


def _intrinsic(name: str) -> Rule:
    return lambda b, dtype, x: functions.intrinsic(b, name, dtype, x)


def _rounded(name: str) -> Rule:
    """Of an integer, itself."""
    return lambda b, dtype, x: functions.intrinsic(b, name, dtype, x) if is_float(dtype) else x


def _square(b: ir.IRBuilder, dtype: np.dtype[Any], x: Element) -> Element:
    return b.fmul(x, x) if is_float(dtype) else b.mul(x, x)


_CHEAP: dict[str, Rule] = {
    "add": _both("add", "fadd", "or_"),
    "subtract": _both("sub", "fsub"),
    "multiply": _both("mul", "fmul", "and_"),
    "divide": lambda b, dtype, x, y: b.fdiv(x, y),
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "negative": _negative,
    "square": _square,
    "abs": _absolute,
    "sign": _sign,
    "minimum": _extremum("<"),
    "maximum": _extremum(">"),
    "floor": _rounded("floor"),
    "ceil": _rounded("ceil"),
    "round": _rounded("rint"),
    "equal": _comparison("=="),
    "not_equal": _comparison("!="),
    "less": _comparison("<"),
    "less_equal": _comparison("<="),
    "greater": _comparison(">"),
    "greater_equal": _comparison(">="),
    "isfinite": _is_finite,
    "isnan": _is_nan,
    "bitwise_and": _integer("and_"),
    "bitwise_or": _integer("or_"),
    "bitwise_xor": _integer("xor"),
    "left_shift": _integer("shl"),
    "right_shift": _shift_right,
    "logical_not": _bitwise_not,
    "logical_and": _integer("and_"),
    "logical_or": _integer("or_"),
    "sqrt": _intrinsic("sqrt"),
}

_COSTLY: dict[str, Rule] = {
    "power": _power,
    "exp": functions.exp,
    "expm1": functions.expm1,
    "log": functions.log,
    "log1p": functions.log1p,
    "logaddexp": functions.logaddexp,
    "sigmoid": functions.sigmoid,
    "softplus": functions.softplus,
    "tanh": functions.tanh,
    "sin": trigonometry.sin,
    "cos": trigonometry.cos,
    "tan": trigonometry.tan,
    "erf": special_functions.erf,
    "erfinv": special_functions.erfinv,
    "gammaln": special_functions.gammaln,
    "digamma": special_functions.digamma,
}
"""Functions that take tens of instructions."""

RULES = _CHEAP | _COSTLY
"""What is computed of each element; the result of a comparison and of `is...` is i1."""

COSTLY = frozenset(_COSTLY)
"""Functions whose results are rather kept than computed twice (materialize.py)."""


def cast(b: ir.IRBuilder, x: Element, source: np.dtype[Any], target: np.dtype[Any]) -> Element:
    """An element in another dtype: a fraction is dropped, integers wrap; a float beyond an integer's range gives the
    nearest integer there is, and NaN zero."""
    if source == target:
        return x
    if target.kind == "b":
        return (
            b.fcmp_unordered("!=", x, number(source, 0))
            if is_float(source)
            else b.icmp_unsigned("!=", x, number(source, 0))
        )
    to = element_type(target)
    if is_float(source):
        if is_float(target):
            return b.fptrunc(x, to) if target.itemsize < source.itemsize else b.fpext(x, to)
        name = f"llvm.fpto{'s' if is_signed(target) else 'u'}i.sat.{to}.f{8 * source.itemsize}"
        return b.call(functions.declared(b, name, to, element_type(source)), [x])
    if is_float(target):
        return b.sitofp(x, to) if is_signed(source) else b.uitofp(x, to)
    if source.kind == "b" or target.itemsize > source.itemsize:
        return b.sext(x, to) if is_signed(source) else b.zext(x, to)
    return b.trunc(x, to) if target.itemsize < source.itemsize else x


def bitcast(b: ir.IRBuilder, x: Element, source: np.dtype[Any], target: np.dtype[Any]) -> Element:
    """The bits of an element read as another dtype of the same size."""
    return b.bitcast(x, element_type(target)) if is_float(source) != is_float(target) else x
