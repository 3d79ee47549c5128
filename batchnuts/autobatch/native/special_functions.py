"""The error function, its inverse, the logarithm of the gamma function and digamma as LLVM's instructions, unbranched.

Polynomials are minimax in the relative error of the function, fitted by Remez's algorithm with 50 digits, and rounded;
the highest coefficient is first. Their errors before they are rounded are below 2^-27 (4 bytes) and 2^-55 (8 bytes).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir

from batchnuts.autobatch.native.functions import (
    FUSED,
    declared,
    exp,
    exponent_and_mantissa,
    intrinsic,
    log,
    parts_of_log,
    polynomial,
    polynomial_in_halves,
)
from batchnuts.autobatch.native.rare_arguments import unless_within
from batchnuts.autobatch.native.trigonometry import tan
from batchnuts.autobatch.native.types import I32, POINTER, element_type, number

Element = Any
Dtype = np.dtype[Any]


_ERF_NEAR = {
    4: [7.85385e-05, -8.0102024e-04, 5.1883305e-03, -2.6853815e-02, 1.12835854e-01, -3.7612626e-01, 1.2837917e-01],
    8: [
        -7.779462971761597e-10,
        1.3710988704190523e-08,
        -1.6206318752969208e-07,
        1.6447132699786621e-06,
        -1.4924712439534814e-05,
        0.0001205529358693695,
        -0.0008548325929766244,
        0.005223977606130842,
        -0.026866170643113415,
        0.112837916709442,
        -0.3761263890318352,
        0.12837916709551256,
    ],
}
"""erf(x)/x - 1 in x^2, up to 1."""
_ERF_FAR = {
    4: [
        2.1697451e-05,
        -2.8958844e-04,
        2.0120968e-03,
        -1.0046587e-02,
        4.1563552e-02,
        8.4310704e-01,
        2.6389675e00,
        1.8496056e00,
    ],
    8: [
        4.928599618365976e-12,
        -1.2070960545387128e-10,
        1.332616826218373e-09,
        -8.597147930160645e-09,
        3.369232495270865e-08,
        -5.882053833078354e-08,
        -2.0324658645207083e-07,
        2.129726912923588e-06,
        -9.669082349432002e-06,
        2.7197235501432995e-05,
        -2.6295379155418045e-05,
        -0.00023731679908733957,
        0.0019779013110717263,
        -0.010033825195188174,
        0.04156109802668661,
        0.8431072563593301,
        2.6389675142347775,
        1.8496055099332482,
    ],
}
"""-log(1 - erf(x)) in x - 1, from 1 to where erf rounds to 1."""


def erf(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """x + x p(x^2) or 1 - exp(-p(|x| - 1)), with the sign of x."""
    one, end = number(dtype, 1), number(dtype, 4 if dtype.itemsize == 4 else 6)
    size = intrinsic(b, "fabs", dtype, x)
    near = b.fadd(x, b.fmul(x, polynomial_in_halves(b, dtype, b.fmul(x, x), _ERF_NEAR[dtype.itemsize])))
    beyond = b.fsub(b.select(b.fcmp_ordered(">", size, end), end, size), one)
    far = b.fsub(one, exp(b, dtype, b.fneg(polynomial_in_halves(b, dtype, beyond, _ERF_FAR[dtype.itemsize]))))
    return b.select(b.fcmp_ordered(">", size, one), intrinsic(b, "copysign", dtype, far, x), near)


_ERFINV_NEAR = {
    4: [
        9.608102e-08,
        -1.2523919e-06,
        1.7946337e-06,
        4.821552e-05,
        -1.3071246e-04,
        -2.3330366e-03,
        1.1548603e-02,
        2.3201376e-01,
        -1.1377308e-01,
    ],
    8: [
        -1.5337722971480547e-15,
        2.872206415616571e-14,
        -5.290152657576899e-14,
        -2.9756264981064365e-12,
        3.091186650922023e-11,
        -8.20362498743522e-11,
        -3.61128901079165e-10,
        4.5883689533811877e-10,
        2.3190544652938126e-08,
        -3.769068819611054e-08,
        -1.0122653216796854e-06,
        2.0198370585134804e-06,
        4.661149573021715e-05,
        -0.000128043307537374,
        -0.0023351016396812945,
        0.011549342038123713,
        0.2320136665346589,
        -0.113773074547242,
    ],
}
"""erfinv(x)/x - 1 in w = -log(1 - x^2), up to 3.33."""
_ERFINV_FAR = {
    4: [2.4335449e02, 4.5953994e00, -1.5950913e01, -1.036162e01, -4.5312767e00, -1.0220063e00, -8.157595e-02],
    8: [
        5999819.548253976,
        3216167.6282877005,
        -609280.8540990393,
        -310628.8213195626,
        -149994.96538667308,
        -32365.415814354263,
        -4225.394120083336,
        2191.7684318460597,
        1440.5107029620585,
        595.3518635183617,
        139.50676031581318,
        8.577758074056355,
        -15.908966026886764,
        -10.36526975731018,
        -4.531269968890216,
        -1.0220056325504066,
        -0.08157595612323007,
    ],
}
"""erfinv(x)/s - 1 in 1/(s + 2) - 3/16, where s^2 = -log(1 - |x|) is 4 and above."""


def erfinv(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """x + x p(w) or s + s p(1/(s + 2) - 3/16), with the sign of x.

    The logarithms are of 1 - |x|, which is exact beside 1, and of its product with 1 + |x|.
    """
    one = number(dtype, 1)
    size = intrinsic(b, "fabs", dtype, x)
    rest = b.fsub(one, size)
    is_far = b.fcmp_ordered("<", rest, number(dtype, math.exp(-4)))
    w = b.fneg(log(b, dtype, b.select(is_far, rest, b.fmul(rest, b.fadd(one, size)))))
    near = b.fadd(size, b.fmul(size, polynomial_in_halves(b, dtype, w, _ERFINV_NEAR[dtype.itemsize])))
    s = intrinsic(b, "sqrt", dtype, w)
    t = b.fsub(b.fdiv(one, b.fadd(s, number(dtype, 2))), number(dtype, 3 / 16))
    far = b.fadd(s, b.fmul(s, polynomial_in_halves(b, dtype, t, _ERFINV_FAR[dtype.itemsize])))
    far = b.select(b.fcmp_ordered("==", size, one), number(dtype, np.inf), far)
    return intrinsic(b, "copysign", dtype, b.select(is_far, far, near), x)


_GAMMALN_NEAR = {
    4: [
        1.5701193e-04,
        -2.5042312e-04,
        4.8155122e-04,
        -1.1874462e-03,
        2.8955706e-03,
        -7.3859454e-03,
        2.0580461e-02,
        -6.7352295e-02,
        3.2246703e-01,
        4.2278433e-01,
    ],
    8: [
        1.1466071894556928e-07,
        -1.1871454084116624e-07,
        1.4237332745631914e-07,
        -4.4784350886213823e-07,
        9.884042069414364e-07,
        -2.0366559789776184e-06,
        4.3659466261186316e-06,
        -9.440563481296846e-06,
        2.0508654444992143e-05,
        -4.492603898061963e-05,
        9.945737058091852e-05,
        -0.00022315477789677224,
        0.0005096695330503031,
        -0.0011927539106768117,
        0.0028905103304765725,
        -0.007385551028700421,
        0.02058080842778842,
        -0.06735230105319784,
        0.3224670334241132,
        0.42278433509846713,
    ],
}
"""gammaln(2 + d)/d, d in [sqrt(2) - 2, 1/2]."""
_GAMMALN_FAR = {
    4: [7.0022314e-04, -3.0335144e-03, 4.251499e-05, 8.333072e-02],
    8: [
        5.558896835493064e-05,
        -0.0006841360836124407,
        0.0020045310997629886,
        -0.002790492656989989,
        0.0019714225071102145,
        -0.00030664804571220645,
        -0.000536691657273367,
        -7.931452016060718e-06,
        0.0007944025916784129,
        -4.810814450357088e-08,
        -0.0027777758332857565,
        -4.372176340488982e-11,
        0.08333333333373591,
    ],
}
"""x times the remainder of Stirling's formula, in 1/x, from 5/2 on."""


_SHIFT = {4: 6, 8: 12}
"""Steps of the recurrence of digamma, after which the terms of its asymptotic series are below the unit of rounding."""
_BERNOULLI = [1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12]
"""B(2n)/2n of that series, n from 1 on (Abramowitz and Stegun, 6.3.18)."""


def digamma(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """log(y) - 1/2y - sum of B(2n)/(2n y^2n) at y = x + m, and from there 1/x + ... + 1/(x + m - 1) less (6.3.6).

    Below 1/2 by reflection, psi(1 - x) - pi / tan(pi x) (6.3.7). NaN at the poles of negative numbers and at
    -infinity. Close to its zero at 1.46 the error is one of the terms, not of the sum.
    """
    zero, one, steps = number(dtype, 0), number(dtype, 1), _SHIFT[dtype.itemsize]
    below = b.fcmp_ordered("<", x, number(dtype, 0.5))
    given = b.select(below, b.fsub(one, x), x)
    small = b.fcmp_ordered("<", given, number(dtype, steps))
    less: Element = zero
    for step in range(steps):
        less = b.fadd(less, b.fdiv(one, b.fadd(given, number(dtype, step))))
    y = b.select(small, b.fadd(given, number(dtype, steps)), given)
    inverse = b.fdiv(one, y)
    z = b.fmul(inverse, inverse)
    terms = _BERNOULLI[: 4 if dtype.itemsize == 4 else 7]
    series = b.fmul(z, polynomial(b, dtype, z, terms[::-1]))
    result = b.fsub(b.fsub(log(b, dtype, y), b.fmul(number(dtype, 0.5), inverse)), series)
    result = b.fsub(result, b.select(small, less, zero))
    # tan has the period pi: of the fraction alone
    fraction = b.fsub(x, intrinsic(b, "rint", dtype, x))
    at_pole = b.and_(b.fcmp_ordered("==", fraction, zero), below)
    angle = b.fmul(number(dtype, math.pi), fraction)
    reflected = b.fsub(result, b.fdiv(number(dtype, math.pi), tan(b, dtype, angle)))
    reflected = b.select(at_pole, number(dtype, np.nan), reflected)
    result = b.select(below, reflected, result)
    is_zero = b.fcmp_ordered("==", x, zero)
    infinite = b.fneg(intrinsic(b, "copysign", dtype, number(dtype, np.inf), x))
    result = b.select(is_zero, infinite, result)
    largest = b.fcmp_ordered("==", x, number(dtype, np.inf))
    return b.select(largest, x, result)


def gammaln(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """Below 5/2: gammaln(2 + d) - log(y), y = x (x + 1), x or 1 where 2 + d is x + 2, x + 1 or x. Above: Stirling's
    formula, (x - 1/2) (log(x) - 1) + c + p(1/x)/x.

    Of negative numbers the C library's.
    """
    zero, one, half = (number(dtype, value) for value in (0, 1, 0.5))
    below_half, below_root = b.fcmp_ordered("<", x, half), b.fcmp_ordered("<", x, number(dtype, math.sqrt(2)))
    is_far = b.fcmp_ordered(">=", x, number(dtype, 2.5))
    y = b.select(below_half, b.fmul(x, b.fadd(x, one)), b.select(below_root, x, one))
    k, m = exponent_and_mantissa(b, dtype, b.select(is_far, x, y))
    f = b.fsub(m, one)
    high, rest = parts_of_log(b, dtype, k, f)

    d = b.fsub(x, b.select(below_half, zero, b.select(below_root, one, number(dtype, 2))))  # exact
    slope = polynomial_in_halves(b, dtype, d, _GAMMALN_NEAR[dtype.itemsize][:-1])
    last = _GAMMALN_NEAR[dtype.itemsize][-1]
    # beside 1 the logarithm is d - rest, of which d is taken from the polynomial: both would cancel
    beside_one = b.and_(b.and_(below_root, b.not_(below_half)), b.fcmp_ordered("==", k, zero))
    constant = b.select(beside_one, number(dtype, last - 1), number(dtype, last))
    near = b.fmul(d, b.fadd(b.fmul(slope, d, flags=FUSED), constant, flags=FUSED), flags=FUSED)
    near = b.fadd(near, b.select(beside_one, rest, b.fsub(b.fsub(rest, f), high)), flags=FUSED)

    t = b.fdiv(one, x)
    start = b.fadd(
        number(dtype, 0.5 * math.log(2 * math.pi) - 0.5),
        b.fmul(t, polynomial_in_halves(b, dtype, t, _GAMMALN_FAR[dtype.itemsize])),
    )
    log_less_one = b.fsub(b.fsub(high, one), b.fsub(rest, f))
    far = b.fadd(b.fmul(b.fsub(x, half), log_less_one), start)
    tiny, largest = float(np.finfo(dtype).smallest_subnormal), float(np.finfo(dtype).max)
    result = b.select(is_far, far, near)
    return unless_within(b, "lgamma.negative", dtype, x, tiny, largest, result, _gammaln_in_c)


def _gammaln_in_c(b: ir.IRBuilder, dtype: Dtype, x: Element) -> Element:
    """The function that gives the sign apart, and so can be called by threads."""
    with b.goto_entry_block():
        sign = b.alloca(I32)
    type_ = element_type(dtype)
    return b.call(declared(b, "lgamma" + "f" * (dtype.itemsize == 4) + "_r", type_, type_, POINTER), [x, sign])
