"""Functions of floats as LLVM's instructions, without branches.

Each reduces its argument to a short interval, and takes enough terms of a series there that the error of the series is
below that of rounding. `u` in the comments is the unit of rounding: 2^-24, 2^-53.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.native.types import element_type, number

Element = Any
Dtype = np.dtype[Any]

_MANTISSA = {4: 23, 8: 52}
_BIAS = {4: 127, 8: 1023}
_LN2 = {4: (0.693359375, -2.12194440e-4), 8: (6.93147180369123816490e-01, 1.90821492927058770002e-10)}
"""The logarithm of 2 in two parts; a product of the first with an exponent is exact."""
ROUNDED_TO = 1.5 * 2.0**52
"""A sum of a double with it is an integer plus it, of which the lowest bits are that integer's."""
FUSED = ("contract",)
"""Of polynomials: a product and a sum may be rounded once."""

C_FUNCTIONS = tuple(
    name.replace("_r", "") + suffix + "_r" * name.endswith("_r")
    for name in ("fmod", "sin", "cos", "tan", "lgamma_r")
    for suffix in ("", "f")
)
"""What is called in the C library, all but fmod for rare arguments alone. A function that is not there would end the
process when code is loaded."""


def declared(b: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
    """A function from outside of the module, declared once."""
    module = b.module
    known = module.globals.get(name)
    if known is None:
        known = ir.Function(module, ir.FunctionType(result, arguments), name)
    return known


def intrinsic(b: ir.IRBuilder, name: str, dtype: Dtype, *x: Element) -> Element:
    """One of LLVM's, of floats of one dtype."""
    type_ = element_type(dtype)
    return b.call(declared(b, f"llvm.{name}.f{8 * dtype.itemsize}", type_, *[type_] * len(x)), x)


def called(b: ir.IRBuilder, name: str, dtype: Dtype, *x: Element) -> Element:
    """One of the C library's."""
    type_ = element_type(dtype)
    return b.call(declared(b, name + "f" * (dtype.itemsize == 4), type_, *[type_] * len(x)), x)


def bits(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """The bits of a float as an integer."""
    return b.bitcast(x, ir.IntType(8 * dtype.itemsize))


def whole(dtype: Dtype, value: int) -> ir.Constant:
    """An integer as wide as a float."""
    return ir.Constant(ir.IntType(8 * dtype.itemsize), value)


def polynomial(b: ir.IRBuilder, dtype: Dtype, x: Element, coefficients: list[float]) -> Element:
    """The sum of coefficients times powers of x, the highest first (Horner's scheme)."""
    total: Element = number(dtype, coefficients[0])
    for coefficient in coefficients[1:]:
        total = b.fadd(b.fmul(total, x, flags=FUSED), number(dtype, coefficient), flags=FUSED)
    return total


def polynomial_in_halves(b: ir.IRBuilder, dtype: Dtype, x: Element, coefficients: list[float]) -> Element:
    """The same, of even and odd powers apart: a processor computes both at a time. For long polynomials."""
    square = b.fmul(x, x)
    odd = polynomial(b, dtype, square, coefficients[-2::-2][::-1])
    return b.fadd(b.fmul(odd, x, flags=FUSED), polynomial(b, dtype, square, coefficients[::-2][::-1]), flags=FUSED)


def _clipped(b: ir.IRBuilder, dtype: Dtype, x: Element, low: float, high: float) -> Element:
    """x within bounds; NaN stays."""
    low_, high_ = number(dtype, low), number(dtype, high)
    x = b.select(b.fcmp_ordered("<", x, low_), low_, x)
    return b.select(b.fcmp_ordered(">", x, high_), high_, x)


def power_of_two(b: ir.IRBuilder, dtype: Dtype, exponent: Element) -> Element:
    """2^exponent of an integer, where that is a normal number."""
    shifted = b.shl(b.add(exponent, whole(dtype, _BIAS[dtype.itemsize])), whole(dtype, _MANTISSA[dtype.itemsize]))
    return b.bitcast(shifted, element_type(dtype))


def _reduced(b: ir.IRBuilder, dtype: Dtype, x: Element) -> tuple[Element, Element]:
    """(k, r) with x = k ln 2 + r, k an integer and |r| <= ln(2)/2; of a finite x, of moderate size."""
    k = intrinsic(b, "rint", dtype, b.fmul(x, number(dtype, 1 / math.log(2))))
    high, low = _LN2[dtype.itemsize]
    r = b.fsub(b.fsub(x, b.fmul(k, number(dtype, high))), b.fmul(k, number(dtype, low)))
    return b.fptosi(k, ir.IntType(8 * dtype.itemsize)), r


def exponential_terms(dtype: Dtype, first: int) -> list[float]:
    """1/n! from the last term on that counts for |r| <= ln(2)/2 to `first`: the remainder is below u/16."""
    last = 7 if dtype.itemsize == 4 else 13
    return [1 / math.factorial(n) for n in range(last, first - 1, -1)]


def _number_or_zero(b: ir.IRBuilder, dtype: Dtype, x: Element) -> tuple[Element, Element]:
    """Whether x is NaN, and x or 0 in its place: its conversion to an integer is not defined."""
    is_nan = b.fcmp_unordered("uno", x, x)
    return is_nan, b.select(is_nan, number(dtype, 0), x)


def exp(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """2^k exp(r), the power in two steps, so that subnormal results are rounded once."""
    is_nan, given = _number_or_zero(b, dtype, x)
    low, high = (-104.0, 89.0) if dtype.itemsize == 4 else (-746.0, 710.0)
    k, r = _reduced(b, dtype, _clipped(b, dtype, given, low, high))
    half = b.ashr(k, whole(dtype, 1))
    scaled = b.fmul(polynomial(b, dtype, r, exponential_terms(dtype, 0)), power_of_two(b, dtype, half))
    return b.select(is_nan, x, b.fmul(scaled, power_of_two(b, dtype, b.sub(k, half))))


def expm1(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """2^k (exp(r) - 1) + (2^k - 1); from 40 on, exp(x)."""
    is_nan, given = _number_or_zero(b, dtype, x)
    k, r = _reduced(b, dtype, _clipped(b, dtype, given, -40.0, 40.0))
    square = b.fmul(r, r)
    less_one = b.fadd(r, b.fmul(square, polynomial(b, dtype, r, exponential_terms(dtype, 2))))
    power = power_of_two(b, dtype, k)
    small = b.fadd(b.fmul(power, less_one), b.fsub(power, number(dtype, 1)))
    small = b.select(b.fcmp_ordered("==", x, number(dtype, 0)), x, small)  # -0
    large = b.fcmp_ordered(">", x, number(dtype, 40.0))
    return b.select(is_nan, x, b.select(large, exp(b, dtype, given), small))


def exponent_and_mantissa(b: ir.IRBuilder, dtype: Dtype, x: Element) -> tuple[Element, Element]:
    """(k, m) with x = 2^k m and m in [sqrt(1/2), sqrt(2)); of a positive number, subnormal ones too. k is a float."""
    mantissa = _MANTISSA[dtype.itemsize]
    small = b.fcmp_ordered("<", x, number(dtype, np.finfo(dtype).tiny))
    x = b.select(small, b.fmul(x, number(dtype, 2.0**mantissa)), x)
    pattern = bits(b, dtype, x)
    # what is added makes the exponent's field grow by one from sqrt(2) on
    root = int(np.array(math.sqrt(0.5), dtype).view(f"u{dtype.itemsize}"))
    moved = b.sub(pattern, whole(dtype, root))
    k = b.ashr(moved, whole(dtype, mantissa))
    m = b.bitcast(b.sub(pattern, b.shl(k, whole(dtype, mantissa))), element_type(dtype))
    k = b.sub(k, b.select(small, whole(dtype, mantissa), whole(dtype, 0)))
    return b.sitofp(k, element_type(dtype)), m


def parts_of_log(
    b: ir.IRBuilder, dtype: Dtype, k: Element, f: Element, correction: Element | None = None
) -> tuple[Element, Element]:
    """(h, r) with h + (f - r) = k ln 2 + log(1 + f) + correction, for 1 + f in [sqrt(1/2), sqrt(2)]; h is exact.

    With s = f/(2 + f): log(1 + f) = f - f^2/2 + s (f^2/2 + R), R = 2/3 s^2 + 2/5 s^4 + ...
    """
    high, low = _LN2[dtype.itemsize]
    s = b.fdiv(f, b.fadd(number(dtype, 2), f))
    z = b.fmul(s, s)
    terms = 5 if dtype.itemsize == 4 else 11
    r = b.fmul(z, polynomial(b, dtype, z, [2 / (2 * n + 1) for n in range(terms, 0, -1)]))
    half = b.fmul(number(dtype, 0.5), b.fmul(f, f))
    rest = b.fadd(b.fmul(s, b.fadd(half, r)), b.fmul(k, number(dtype, low)))
    if correction is not None:
        rest = b.fadd(rest, correction)
    return b.fmul(k, number(dtype, high)), b.fsub(half, rest)


def _at_the_ends_of_log(b: ir.IRBuilder, dtype: Dtype, x: Element, result: Element, zero: float) -> Element:
    """-infinity at `zero`, NaN below and for NaN, infinity there."""
    infinity, at = number(dtype, np.inf), number(dtype, zero)
    result = b.select(b.fcmp_ordered("==", x, infinity), infinity, result)
    result = b.select(b.fcmp_ordered("==", x, at), number(dtype, -np.inf), result)
    return b.select(b.fcmp_ordered(">=", x, at), result, number(dtype, np.nan))


def log(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """k ln 2 + log(m)."""
    k, m = exponent_and_mantissa(b, dtype, x)
    f = b.fsub(m, number(dtype, 1))
    high, rest = parts_of_log(b, dtype, k, f)
    result = b.fsub(high, b.fsub(rest, f))
    return _at_the_ends_of_log(b, dtype, x, result, 0.0)


def log1p(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """log of u = 1 + x, with what rounding u has lost; where u is in the middle interval, of x itself."""
    one, zero = number(dtype, 1), number(dtype, 0)
    u = b.fadd(one, x)
    k, m = exponent_and_mantissa(b, dtype, u)
    in_middle = b.fcmp_ordered("==", k, zero)
    f = b.select(in_middle, x, b.fsub(m, one))
    above = b.fcmp_ordered(">", x, one)
    lost = b.fdiv(b.select(above, b.fsub(one, b.fsub(u, x)), b.fsub(x, b.fsub(u, one))), u)
    high, rest = parts_of_log(b, dtype, k, f, b.select(in_middle, zero, lost))
    result = b.fsub(high, b.fsub(rest, f))
    result = b.select(b.fcmp_ordered("==", x, zero), x, result)  # -0
    return _at_the_ends_of_log(b, dtype, x, result, -1.0)


def logaddexp(b: ir.IRBuilder, dtype: Dtype, x: Element, y: Element) -> Element:
    """max + log1p(exp(-|x - y|)); equal infinities too."""
    largest = b.select(b.fcmp_ordered(">", x, y), x, y)
    apart = b.fneg(intrinsic(b, "fabs", dtype, b.fsub(x, y)))
    both = b.fadd(largest, log1p(b, dtype, exp(b, dtype, apart)))
    equal = b.fcmp_ordered("==", x, y)
    return b.select(equal, b.fadd(x, number(dtype, math.log(2))), both)


def sigmoid(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """1 / (1 + e) or e / (1 + e) with e = exp(-|x|)."""
    one = number(dtype, 1)
    e = exp(b, dtype, b.fneg(intrinsic(b, "fabs", dtype, x)))
    return b.fdiv(b.select(b.fcmp_ordered("<", x, number(dtype, 0)), e, one), b.fadd(one, e))


def softplus(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """max(x, 0) + log1p(exp(-|x|))."""
    e = exp(b, dtype, b.fneg(intrinsic(b, "fabs", dtype, x)))
    positive = b.select(b.fcmp_ordered(">", x, number(dtype, 0)), x, number(dtype, 0))
    return b.fadd(positive, log1p(b, dtype, e))


def tanh(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """t / (t + 2) with t = expm1(2 |x|), and the sign of x; 1 from 20 on."""
    size = _clipped(b, dtype, intrinsic(b, "fabs", dtype, x), 0.0, 20.0)
    t = expm1(b, dtype, b.fadd(size, size))
    return intrinsic(b, "copysign", dtype, b.fdiv(t, b.fadd(t, number(dtype, 2))), x)
