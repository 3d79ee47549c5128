"""Powers as LLVM's instructions: those of floats without branches, of integers by a loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.native.functions import (
    ROUNDED_TO,
    bits,
    exponent_and_mantissa,
    exponential_terms,
    intrinsic,
    polynomial_in_halves,
    power_of_two,
    whole,
)
from batchnuts.autobatch.native.types import element_type, is_signed, number

Element = Any
Dtype = np.dtype[Any]

_WIDE = np.dtype("float64")
"""In which all is computed, of both dtypes."""
_LN2 = (0.6931471675634384, 1.2996506893889889e-08)
_LOG2_FACTOR = (0.9617966860532761, 7.872699542894897e-09)
"""ln 2 and 2/(3 ln 2), each as a number of 26 bits and the rest."""
_LARGEST = 1100.0
"""Beyond it, 2^x is infinite or zero."""


def power(b: ir.IRBuilder, dtype: Dtype, x: Element, y: Element) -> Element:
    """2^(y log2 |x|), with the sign of x where y is odd. Powers that are numbers of the dtype are exact.

    Where y is known, and 1, 2, 3, -1 or 1/2: products, a quotient, a root.
    """
    known = y.constant if isinstance(y, ir.Constant) else None
    if known in (1.0, 2.0, 3.0):
        return x if known == 1.0 else b.fmul(x, x) if known == 2.0 else b.fmul(b.fmul(x, x), x)
    if known == -1.0:
        return b.fdiv(number(dtype, 1), x)
    if known == 0.5:
        root = intrinsic(b, "sqrt", dtype, b.fadd(x, number(dtype, 0)))  # of -0 it is 0
        return b.select(b.fcmp_ordered("==", x, number(dtype, -np.inf)), number(dtype, np.inf), root)
    zero, one, infinity = (number(dtype, value) for value in (0, 1, np.inf))
    size = intrinsic(b, "fabs", dtype, x)
    large, small = _times_log2(b, dtype, size, y)
    result = _power_of_two_of(b, dtype, large, small)

    # where the logarithm or the product is infinite, and beyond the largest and smallest numbers
    total = intrinsic(b, "fabs", _WIDE, b.fadd(large, small))
    is_extreme = b.fcmp_ordered(">", total, number(_WIDE, _LARGEST))
    for at in (
        b.fcmp_ordered("==", size, zero),
        b.fcmp_ordered("==", size, infinity),
        b.fcmp_ordered("==", intrinsic(b, "fabs", dtype, y), infinity),
    ):
        is_extreme = b.or_(is_extreme, at)
    shrinks = b.xor(b.fcmp_ordered(">", size, one), b.fcmp_ordered(">", y, zero))
    result = b.select(is_extreme, b.select(shrinks, zero, infinity), result)
    result = b.select(b.fcmp_ordered("==", size, one), one, result)

    half = b.fmul(y, number(dtype, 0.5))
    is_whole = b.fcmp_ordered("==", intrinsic(b, "floor", dtype, y), y)
    is_odd = b.and_(is_whole, b.fcmp_ordered("!=", intrinsic(b, "floor", dtype, half), half))
    result = intrinsic(b, "copysign", dtype, result, b.select(is_odd, x, one))
    below_zero = b.and_(b.fcmp_ordered("<", x, zero), b.fcmp_ordered(">", x, number(dtype, -np.inf)))
    has_none = b.or_(b.fcmp_unordered("uno", x, y), b.and_(below_zero, b.not_(is_whole)))
    result = b.select(has_none, number(dtype, np.nan), result)
    is_one = b.or_(b.fcmp_ordered("==", y, zero), b.fcmp_ordered("==", x, one))
    return b.select(is_one, one, result)


def _first_half(b: ir.IRBuilder, x: Element) -> Element:
    """The first 26 bits of a double: products of two such numbers are exact."""
    return b.bitcast(b.and_(bits(b, _WIDE, x), whole(_WIDE, -1 << 27)), element_type(_WIDE))


def _log2_terms(b: ir.IRBuilder, s: Element, count: int) -> Element:
    """3/5 z^2 + 3/7 z^3 + ... with z = s^2: log2(m) is 2/(3 ln 2) s (3 + z + this), s = (m - 1)/(m + 1)."""
    z = b.fmul(s, s)
    terms = [3 / (2 * n + 1) for n in range(count + 1, 1, -1)]
    return b.fmul(b.fmul(z, z), polynomial_in_halves(b, _WIDE, z, terms))


def _times_log2(b: ir.IRBuilder, dtype: Dtype, x: Element, y: Element) -> tuple[Element, Element]:
    """y log2(x) of x > 0 as a sum of two doubles: to 2^-62 where the dtype is double, else to 2^-38."""
    if dtype.itemsize == 4:
        x, y = (b.fpext(value, element_type(_WIDE)) for value in (x, y))
    k, m = exponent_and_mantissa(b, _WIDE, x)
    one, three, factor = (number(_WIDE, value) for value in (1, 3, sum(_LOG2_FACTOR)))
    f, t = b.fsub(m, one), b.fadd(m, one)
    if dtype.itemsize == 4:
        s = b.fdiv(f, t)
        h = b.fadd(three, b.fadd(b.fmul(s, s), _log2_terms(b, s, 5)))
        return b.fmul(y, b.fadd(k, b.fmul(factor, b.fmul(s, h)))), number(_WIDE, 0)
    # each number as its first half and a remainder: s, t, h, their product, the logarithm, y
    inverse = b.fdiv(one, t)
    s1, t1 = _first_half(b, b.fmul(f, inverse)), _first_half(b, t)
    t2 = b.fsub(m, b.fsub(t1, one))
    s2 = b.fmul(b.fsub(b.fsub(f, b.fmul(s1, t1)), b.fmul(s1, t2)), inverse)
    s = b.fadd(s1, s2)
    z1 = b.fmul(s1, s1)
    rest = b.fadd(b.fmul(s2, b.fadd(s, s1)), _log2_terms(b, s, 11))
    h1 = _first_half(b, b.fadd(b.fadd(three, z1), rest))
    h2 = b.fsub(rest, b.fsub(b.fsub(h1, three), z1))
    product, lost = b.fmul(s1, h1), b.fadd(b.fmul(s2, h1), b.fmul(s, h2))
    p1 = _first_half(b, b.fadd(product, lost))
    p2 = b.fsub(lost, b.fsub(p1, product))
    first, second = (number(_WIDE, part) for part in _LOG2_FACTOR)
    product = b.fmul(first, p1)
    lost = b.fadd(b.fmul(second, p1), b.fmul(factor, p2))
    log1 = _first_half(b, b.fadd(b.fadd(product, lost), k))
    log2 = b.fsub(lost, b.fsub(b.fsub(log1, k), product))
    y1 = _first_half(b, y)
    return b.fmul(y1, log1), b.fadd(b.fmul(b.fsub(y, y1), log1), b.fmul(y, log2))


def _power_of_two_of(b: ir.IRBuilder, dtype: Dtype, large: Element, small: Element) -> Element:
    """2^(large + small), at most _LARGEST in size."""
    shift = number(_WIDE, ROUNDED_TO)
    shifted = b.fadd(b.fadd(large, small), shift)
    n = b.fsub(shifted, shift)
    exponent = b.sub(bits(b, _WIDE, shifted), bits(b, _WIDE, shift))
    rest = b.fsub(large, n)  # exact
    ln2 = number(_WIDE, math.log(2))
    if dtype.itemsize == 4:
        r = b.fmul(rest, ln2)
        result = polynomial_in_halves(b, _WIDE, r, [1 / math.factorial(n) for n in range(8, -1, -1)])
        return b.fptrunc(b.fmul(result, power_of_two(b, _WIDE, exponent)), element_type(dtype))
    first = _first_half(b, b.fadd(rest, small))
    lost = b.fsub(small, b.fsub(first, rest))
    r1 = b.fmul(first, number(_WIDE, _LN2[0]))
    r2 = b.fadd(b.fmul(lost, ln2), b.fmul(first, number(_WIDE, _LN2[1])))
    r = b.fadd(r1, r2)
    terms = b.fmul(b.fmul(r, r), polynomial_in_halves(b, _WIDE, r, exponential_terms(_WIDE, 2)))
    result = b.fadd(number(_WIDE, 1), b.fadd(r1, b.fadd(r2, terms)))
    half = b.ashr(exponent, whole(_WIDE, 1))  # in two steps, so that subnormal results are rounded once
    return b.fmul(b.fmul(result, power_of_two(b, _WIDE, half)), power_of_two(b, _WIDE, b.sub(exponent, half)))


def integer_power(b: ir.IRBuilder, dtype: Dtype, x: Element, y: Element) -> Element:
    """By squaring; the exponent is not negative."""
    type_ = element_type(dtype)
    name = f"power.{dtype.name}"
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(type_, [type_, type_]), name)
        function.linkage = "internal"
        entry, head, body, end = (function.append_basic_block(n) for n in ("entry", "head", "body", "end"))
        ir.IRBuilder(entry).branch(head)
        inner = ir.IRBuilder(head)
        result, base, left = (inner.phi(type_) for _ in range(3))
        zero, one = number(dtype, 0), number(dtype, 1)
        more = inner.icmp_signed(">", left, zero) if is_signed(dtype) else inner.icmp_unsigned(">", left, zero)
        inner.cbranch(more, body, end)
        inner.position_at_end(body)
        odd = inner.icmp_unsigned("!=", inner.and_(left, one), zero)
        new = inner.select(odd, inner.mul(result, base), result)
        square, rest = inner.mul(base, base), inner.lshr(left, one)
        inner.branch(head)
        for phi, first, later in ((result, one, new), (base, function.args[0], square), (left, function.args[1], rest)):
            phi.add_incoming(first, entry)
            phi.add_incoming(later, body)
        ir.IRBuilder(end).ret(result)
    return b.call(function, [x, y])
