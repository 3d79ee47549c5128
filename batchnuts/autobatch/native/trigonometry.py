"""Sine, cosine and tangent as LLVM's instructions, without branches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.native.functions import (
    ROUNDED_TO,
    bits,
    called,
    intrinsic,
    polynomial,
    whole,
)
from batchnuts.autobatch.native.rare_arguments import unless_within
from batchnuts.autobatch.native.types import I32, element_type, number

Element = Any
Dtype = np.dtype[Any]

_HALF_PI = {
    4: (1.5707963267341256, 6.077100506506192e-11),
    8: (1.5707963267923333, 2.5633441515839558e-12, 1.0562999066987428e-23),
}
"""pi/2 in parts of 33 (4 bytes) and 37 bits and the rest: up to _FAR, products of the first parts with q are exact."""
_FAR = {4: 1e6, 8: 1e5}
"""Up to here the reduction leaves an error below u/4 of the result, beside zeros too."""


def _sine_and_cosine(b: ir.IRBuilder, dtype: Dtype, x: Element) -> tuple[Element, Element, Element]:
    """(q, sin(r), cos(r)) with |x| = q pi/2 + r and |r| <= pi/4, up to _FAR. The lowest bits of q are right.

    Cody and Waite's reduction, in double precision. r is the sum of two numbers.
    """
    wide = np.dtype("float64")
    size = intrinsic(b, "fabs", dtype, x)
    if dtype.itemsize == 4:
        size = b.fpext(size, element_type(wide))
    shifted = b.fadd(b.fmul(size, number(wide, 2 / math.pi)), number(wide, ROUNDED_TO))
    q = b.fsub(shifted, number(wide, ROUNDED_TO))
    first, *middle, last = (b.fmul(q, number(wide, part)) for part in _HALF_PI[dtype.itemsize])
    rest = b.fsub(size, first)  # exact
    pattern = bits(b, wide, shifted)
    if dtype.itemsize == 4:
        pattern = b.trunc(pattern, I32)
        r = b.fsub(rest, last)
        high = b.fptrunc(r, element_type(dtype))
        low = b.fptrunc(b.fsub(r, b.fpext(high, element_type(wide))), element_type(dtype))
    else:
        less = b.fsub(rest, middle[0])
        moved = b.fsub(less, rest)
        lost = b.fsub(b.fsub(rest, b.fsub(less, moved)), b.fadd(middle[0], moved))
        tail = b.fsub(lost, last)
        high = b.fadd(less, tail)
        low = b.fadd(b.fsub(less, high), tail)
    return pattern, *_series_of_sine_and_cosine(b, dtype, high, low)


def _series_of_sine_and_cosine(b: ir.IRBuilder, dtype: Dtype, high: Element, low: Element) -> tuple[Element, Element]:
    """Of high + low, within pi/4: the remainders are below u/10."""
    last_sine, last_cosine = (9, 10) if dtype.itemsize == 4 else (17, 16)
    one, square = number(dtype, 1), b.fmul(high, high)
    series = [(-1) ** (n // 2) / math.factorial(n) for n in range(18)]
    sines = polynomial(b, dtype, square, series[last_sine:2:-2])
    cosines = polynomial(b, dtype, square, series[last_cosine:3:-2])
    half = b.fmul(number(dtype, 0.5), square)
    start = b.fsub(one, half)
    sine = b.fadd(high, b.fadd(b.fmul(b.fmul(high, square), sines), b.fmul(low, start)))
    rest = b.fsub(b.fmul(b.fmul(square, square), cosines), b.fmul(high, low))
    return sine, b.fadd(start, b.fadd(b.fsub(b.fsub(one, start), half), rest))


def _with_sign(b: ir.IRBuilder, dtype: Dtype, x: Element, *signs: Element) -> Element:
    """x with its sign changed where the highest bit of each integer says so."""
    flips = whole(dtype, 0)
    for sign in signs:
        flips = b.xor(flips, sign)
    flips = b.and_(flips, whole(dtype, 1 << (8 * dtype.itemsize - 1)))
    return b.bitcast(b.xor(bits(b, dtype, x), flips), element_type(dtype))


def _is_odd(b: ir.IRBuilder, dtype: Dtype, q: Element) -> Element:
    return b.icmp_unsigned("!=", b.and_(q, whole(dtype, 1)), whole(dtype, 0))


def _within_reach(b: ir.IRBuilder, name: str, dtype: Dtype, x: Element, result: Element) -> Element:
    """The C library's where |x| is too large for the reduction."""
    far = _FAR[dtype.itemsize]
    return unless_within(b, f"{name}.far", dtype, x, -far, far, result, lambda b, d, x: called(b, name, d, x))


def sin(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """Above 10^5 (4 bytes: 10^6) the C library's."""
    q, sine, cosine = _sine_and_cosine(b, dtype, x)
    result = b.select(_is_odd(b, dtype, q), cosine, sine)
    half_turns = b.shl(q, whole(dtype, 8 * dtype.itemsize - 2))
    return _within_reach(b, "sin", dtype, x, _with_sign(b, dtype, result, half_turns, bits(b, dtype, x)))


def cos(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """Above 10^5 (4 bytes: 10^6) the C library's."""
    q, sine, cosine = _sine_and_cosine(b, dtype, x)
    result = b.select(_is_odd(b, dtype, q), sine, cosine)
    half_turns = b.shl(b.add(q, whole(dtype, 1)), whole(dtype, 8 * dtype.itemsize - 2))
    return _within_reach(b, "cos", dtype, x, _with_sign(b, dtype, result, half_turns))


def tan(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """sin(r)/cos(r), or -cos(r)/sin(r); above 10^5 (4 bytes: 10^6) the C library's."""
    q, sine, cosine = _sine_and_cosine(b, dtype, x)
    odd = _is_odd(b, dtype, q)
    result = b.fdiv(b.select(odd, cosine, sine), b.select(odd, sine, cosine))
    odd_sign = b.shl(q, whole(dtype, 8 * dtype.itemsize - 1))
    return _within_reach(b, "tan", dtype, x, _with_sign(b, dtype, result, odd_sign, bits(b, dtype, x)))
