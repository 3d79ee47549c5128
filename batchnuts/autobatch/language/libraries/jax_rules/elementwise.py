"""Elementwise functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax import lax

from batchnuts.autobatch.language.libraries.jax_rules.values import Array, Equation, Rule, number
from batchnuts.autobatch.language.libraries.recording import FUNCTIONS as F
from batchnuts.autobatch.language.libraries.recording import LIBRARY
from batchnuts.autobatch.language.libraries.type_rules import NotTyped


def _elementwise(function: str) -> Rule:
    """Of arrays of one dtype, which broadcast."""
    return lambda equation, *arguments: getattr(F, function)(*arguments)


def _of_floats(function: str) -> Rule:
    """Where integers have another meaning."""

    def rule(equation: Equation, *arguments: Array) -> Array:
        if LIBRARY.dtype_of(arguments[0]).kind != "f":
            raise NotTyped("quotients of integers")
        return getattr(F, function)(*arguments)

    return rule


def _bits(of_bools: str, of_integers: str) -> Rule:
    return lambda equation, *arguments: getattr(
        F, of_bools if LIBRARY.dtype_of(arguments[0]).kind == "b" else of_integers
    )(*arguments)


def _not(equation: Equation, x: Array) -> Array:
    return F.logical_not(x) if LIBRARY.dtype_of(x).kind == "b" else F.bitwise_xor(x, number(-1, x))


def _round(equation: Equation, x: Array) -> Array:
    if equation.params["rounding_method"] != lax.RoundingMethod.TO_NEAREST_EVEN:
        raise NotTyped("rounding away from zero")
    return F.round(x)


def _integer_pow(equation: Equation, x: Array) -> Array:
    exponent = equation.params["y"]
    if exponent in (2, 3, 4):
        square = F.square(x)
        return {2: lambda: square, 3: lambda: F.multiply(square, x), 4: lambda: F.square(square)}[exponent]()
    if LIBRARY.dtype_of(x).kind != "f":
        raise NotTyped("powers of integers")
    if exponent == -1:
        return F.divide(number(1, x), x)
    return F.power(x, number(exponent, x))


def _pow(equation: Equation, x: Array, y: Array) -> Array:
    if LIBRARY.dtype_of(x).kind != "f":
        raise NotTyped("powers of integers")
    return F.power(x, F.cast(y, LIBRARY.dtype_of(x)))


def _sinh(equation: Equation, x: Array) -> Array:
    """(e + e / (e + 1)) / 2 with e = exp(x) - 1, of the absolute value: near 0 nothing is lost."""
    positive = F.abs(x)
    e = F.expm1(positive)
    half = F.multiply(number(0.5, x), F.add(e, F.divide(e, F.add(e, number(1, x)))))
    large = F.exp(F.subtract(positive, number(math.log(2), x)))
    return F.multiply(F.sign(x), F.where(F.less(positive, number(30, x)), half, large))


def _cosh(equation: Equation, x: Array) -> Array:
    """(e + 1/e) / 2 with e = exp(|x|), halved before it overflows."""
    half = F.exp(F.subtract(F.abs(x), number(math.log(2), x)))
    return F.add(half, F.divide(number(0.25, x), half))


def _asinh(equation: Equation, x: Array) -> Array:
    """log1p(a + a^2 / (1 + sqrt(1 + a^2))) of a = |x|; of large ones log(a) + log(2)."""
    a, one = F.abs(x), number(1, x)
    is_large = F.greater(a, number(1e9, x))
    bounded = F.minimum(a, number(1e9, x))
    square = F.square(bounded)
    small = F.log1p(F.add(bounded, F.divide(square, F.add(one, F.sqrt(F.add(one, square))))))
    large = F.add(F.log(F.maximum(a, one)), number(math.log(2), x))
    return F.multiply(F.sign(x), F.where(is_large, large, small))


def _atanh(equation: Equation, x: Array) -> Array:
    one = number(1, x)
    return F.multiply(number(0.5, x), F.log1p(F.divide(F.add(x, x), F.subtract(one, x))))


def _rsqrt(equation: Equation, x: Array) -> Array:
    return F.divide(number(1, x), F.sqrt(x))


_ERFC = [
    *(-0.6513268598908547, 0.6419697923564902, 0.019476473204185836, -0.009561514786808632, -0.0009465953444820369),
    *(0.00036683949785276145, 4.252332480690777e-05, -2.0278578112534242e-05, -1.6242900046470256e-06),
    *(1.3036558355805232e-06, 1.5626441722066142e-08, -8.523809591492654e-08, 6.5290544390988515e-09),
    *(5.059343495551469e-09, -9.91364156493033e-10, -2.273651222931836e-10, 9.646791102015527e-11),
    *(2.3940380830391146e-12, -6.886027526497553e-12, 8.944879273090725e-13, 3.130921399342958e-13),
    *(-1.1270822361367252e-13, 3.810905255189232e-16, 7.106097613609237e-15, -1.5230282014571043e-15),
    *(-9.457494571291233e-17, 1.210237189224279e-16, -2.816663087747177e-17),
]
"""log(erfc(x) exp(x^2) / t) of t = 2 / (2 + x) and x >= 0, in Chebyshev's polynomials of 2 t - 1."""


def _erfc(equation: Equation, x: Array) -> Array:
    """t exp(-x^2 + p(t)) of |x|, with x^2 in two parts, of which the first is exact; 2 less that below 0."""
    size, two = F.abs(x), number(2, x)
    coefficients = _ERFC[:12] if LIBRARY.dtype_of(x).itemsize == 4 else _ERFC
    t = F.divide(two, F.add(two, size))
    u = F.subtract(F.multiply(two, t), number(1, x))
    twice, last, before = F.multiply(two, u), number(coefficients[-1], x), number(0, x)
    for coefficient in coefficients[-2:0:-1]:  # Clenshaw's recurrence
        last, before = F.add(F.subtract(F.multiply(twice, last), before), number(coefficient, x)), last
    p = F.add(F.subtract(F.multiply(u, last), before), number(coefficients[0], x))
    size = F.minimum(size, number(30, x))
    head = F.multiply(F.floor(F.multiply(size, number(16, x))), number(1 / 16, x))
    rest = F.multiply(F.subtract(size, head), F.add(size, head))
    tail = F.multiply(F.multiply(t, F.exp(F.negative(F.square(head)))), F.exp(F.subtract(p, rest)))
    return F.where(F.less(x, number(0, x)), F.subtract(two, tail), tail)


def _select(equation: Equation, which: Array, *cases: Array) -> Array:
    if len(cases) == 2 and LIBRARY.dtype_of(which).kind == "b":
        return F.where(which, cases[1], cases[0])
    if isinstance(which, np.ndarray) and not which.shape:
        return cases[int(which)]
    chosen = cases[0]
    for place, case in enumerate(cases[1:], 1):
        chosen = F.where(F.equal(which, number(place, which)), case, chosen)
    return chosen


def _convert(equation: Equation, x: Array) -> Array:
    dtype = np.dtype(equation.params["new_dtype"])
    if dtype.kind not in "biuf" or dtype.name in ("float16", "bfloat16"):
        raise NotTyped(f"numbers of {dtype.name}")
    return x.astype(dtype) if isinstance(x, np.ndarray) else F.cast(x, dtype)


def _same(equation: Equation, *arguments: Array) -> Any:
    return list(arguments) if equation.primitive.multiple_results else arguments[0]


RULES: dict[str, Rule] = {
    **{
        name: _elementwise(name)
        for name in ("exp", "log", "log1p", "expm1", "sqrt", "sin", "cos", "tan", "tanh", "erf", "digamma")
    },
    **{name: _elementwise(name) for name in ("square", "abs", "sign", "floor", "ceil")},
    "logistic": _elementwise("sigmoid"),
    "erf_inv": _elementwise("erfinv"),
    "lgamma": _elementwise("gammaln"),
    "is_finite": _elementwise("isfinite"),
    "neg": _elementwise("negative"),
    "round": _round,
    "erfc": _erfc,
    "rsqrt": _rsqrt,
    "exp2": lambda equation, x: F.exp(F.multiply(x, number(math.log(2), x))),
    "sinh": _sinh,
    "cosh": _cosh,
    "asinh": _asinh,
    "atanh": _atanh,
    "add": _elementwise("add"),
    "add_any": _elementwise("add"),
    "sub": _elementwise("subtract"),
    "mul": _elementwise("multiply"),
    "div": _of_floats("divide"),
    "max": _elementwise("maximum"),
    "min": _elementwise("minimum"),
    "pow": _pow,
    "integer_pow": _integer_pow,
    "eq": _elementwise("equal"),
    "ne": _elementwise("not_equal"),
    "lt": _elementwise("less"),
    "le": _elementwise("less_equal"),
    "gt": _elementwise("greater"),
    "ge": _elementwise("greater_equal"),
    "and": _bits("logical_and", "bitwise_and"),
    "or": _bits("logical_or", "bitwise_or"),
    "xor": _bits("not_equal", "bitwise_xor"),
    "not": _not,
    "clamp": lambda equation, low, x, high: F.minimum(F.maximum(x, low), high),
    "select_n": _select,
    "convert_element_type": _convert,
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "optimization_barrier", "name"), _same),
}
"""By the names of primitives."""
