"""Functions of numbers, which Stan applies to each element of containers."""

from __future__ import annotations

import math

from batchnuts.bridges.stan.functions.numerics import Array, Numerics, StanFunction

LOG_2, LOG_10, LOG_PI, SQRT_2 = math.log(2.0), math.log(10.0), math.log(math.pi), math.sqrt(2.0)
LOG_SQRT_2_PI = 0.5 * math.log(2.0 * math.pi)


def _of_numpy(name: str) -> StanFunction:
    return lambda m, *arguments: getattr(m.np, name)(*arguments)


def _special(name: str) -> StanFunction:
    return lambda m, *arguments: getattr(m.special, name)(*arguments)


def real(m: Numerics, x: Array) -> Array:
    """As a real number: Stan's integers are promoted."""
    return m.np.asarray(x) * 1.0


# ---- logarithms that keep their digits -------------------------------------------------------------------------------


def log1p_exp(m: Numerics, x: Array) -> Array:
    """log(1 + exp(x))."""
    return m.np.logaddexp(0.0, real(m, x))


def log1m(m: Numerics, x: Array) -> Array:
    """log(1 - x)."""
    return m.np.log1p(-real(m, x))


def log1m_exp(m: Numerics, x: Array) -> Array:
    """log(1 - exp(x)) of x <= 0: by expm1 above -log(2), by log1p below (Maechler 2012)."""
    x = real(m, x)
    near = x > -LOG_2
    inside = m.np.where(near, x, -1.0)
    return m.np.where(near, m.np.log(-m.np.expm1(inside)), m.np.log1p(-m.np.exp(m.np.where(near, -1.0, x))))


def log_diff_exp(m: Numerics, x: Array, y: Array) -> Array:
    """log(exp(x) - exp(y))."""
    return x + log1m_exp(m, y - x)


def log_inv_logit(m: Numerics, x: Array) -> Array:
    """log(1 / (1 + exp(-x)))."""
    return -m.np.logaddexp(0.0, -real(m, x))


def log1m_inv_logit(m: Numerics, x: Array) -> Array:
    """log(1 - 1 / (1 + exp(-x)))."""
    return -m.np.logaddexp(0.0, real(m, x))


def inv_logit(m: Numerics, x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return m.special.expit(real(m, x))


def logit(m: Numerics, x: Array) -> Array:
    """log(x / (1 - x))."""
    x = real(m, x)
    return m.np.log(x) - m.np.log1p(-x)


def inv_cloglog(m: Numerics, x: Array) -> Array:
    """1 - exp(-exp(x))."""
    return -m.np.expm1(-m.np.exp(real(m, x)))


def log_mix(m: Numerics, theta: Array, first: Array, second: Array) -> Array:
    """log(theta exp(first) + (1 - theta) exp(second)), of numbers."""
    return m.np.logaddexp(m.np.log(theta) + first, m.np.log1p(-theta) + second)


def multiply_log(m: Numerics, x: Array, y: Array) -> Array:
    """x log(y), 0 where x and y are."""
    return m.special.xlogy(real(m, x), real(m, y))


# ---- special functions -----------------------------------------------------------------------------------------------


def phi(m: Numerics, x: Array) -> Array:
    """The distribution function of the standard normal."""
    return m.special.ndtr(real(m, x))


def phi_approx(m: Numerics, x: Array) -> Array:
    """A logistic approximation of it."""
    x = real(m, x)
    return m.special.expit(0.07056 * x**3 + 1.5976 * x)


def lgamma(m: Numerics, x: Array) -> Array:
    """The logarithm of the absolute value of the gamma function."""
    return m.special.gammaln(real(m, x))


def tgamma(m: Numerics, x: Array) -> Array:
    """The gamma function."""
    x = real(m, x)
    if m.is_known:
        return m.special.gamma(x)
    sign = m.np.where((x < 0) & (m.np.floor(x) % 2 != 0), -1.0, 1.0)
    return sign * m.np.exp(m.special.gammaln(x))


def lbeta(m: Numerics, x: Array, y: Array) -> Array:
    """The logarithm of the beta function."""
    x, y = real(m, x), real(m, y)
    return m.special.gammaln(x) + m.special.gammaln(y) - m.special.gammaln(x + y)


def lchoose(m: Numerics, n: Array, k: Array) -> Array:
    """The logarithm of the binomial coefficient."""
    n, k = real(m, n), real(m, k)
    return m.special.gammaln(n + 1.0) - m.special.gammaln(k + 1.0) - m.special.gammaln(n - k + 1.0)


def log_rising_factorial(m: Numerics, x: Array, n: Array) -> Array:
    """log(x (x + 1) ... (x + n - 1))."""
    return lgamma(m, x + n) - lgamma(m, x)


def log_falling_factorial(m: Numerics, x: Array, n: Array) -> Array:
    """log(x (x - 1) ... (x - n + 1))."""
    return lgamma(m, x + 1.0) - lgamma(m, x - n + 1.0)


def lmgamma(m: Numerics, n: Array, x: Array) -> Array:
    """The logarithm of the multivariate gamma function of dimension n, which is known."""
    x = real(m, x)
    return n * (n - 1) / 4.0 * LOG_PI + sum(m.special.gammaln(x - 0.5 * i) for i in range(int(n)))


def trigamma(m: Numerics, x: Array) -> Array:
    """The second derivative of lgamma."""
    return m.special.polygamma(1, real(m, x))


def power(m: Numerics, x: Array, y: Array) -> Array:
    """x^y; a small whole exponent that is known is a product."""
    try:
        whole = int(y)
    except (TypeError, ValueError):
        return m.np.power(real(m, x), real(m, y))
    if whole == y and 0 <= whole <= 4 and not m.is_known:
        base = real(m, x)
        return {0: lambda: m.np.ones_like(base), 1: lambda: base, 2: lambda: base * base,
                3: lambda: base * base * base, 4: lambda: (base * base) * (base * base)}[whole]()  # fmt: skip
    return m.np.power(real(m, x), real(m, y))


def int_divide(m: Numerics, x: Array, y: Array) -> Array:
    """Of integers, rounded towards zero as in C."""
    return m.np.trunc(real(m, x) / y).astype(int)


def modulus(m: Numerics, x: Array, y: Array) -> Array:
    """The remainder with the sign of x, as in C."""
    return m.np.fmod(x, y)


def step(m: Numerics, x: Array) -> Array:
    """1 where x >= 0, else 0."""
    return m.np.where(m.np.asarray(x) >= 0, 1.0, 0.0)


UNARY: dict[str, StanFunction] = {
    **{name: _of_numpy(name) for name in ("exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sqrt", "cbrt")},
    **{name: _of_numpy(name) for name in ("square", "sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: _of_numpy(name) for name in ("floor", "ceil", "trunc")},
    **{name: _of_numpy(f"arc{name[1:]}") for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
    "abs": _of_numpy("abs"),
    "round": lambda m, x: m.np.where(real(m, x) >= 0, m.np.floor(real(m, x) + 0.5), m.np.ceil(real(m, x) - 0.5)),
    "inv": lambda m, x: 1.0 / real(m, x),
    "inv_sqrt": lambda m, x: 1.0 / m.np.sqrt(real(m, x)),
    "inv_square": lambda m, x: 1.0 / m.np.square(real(m, x)),
    "log1p_exp": log1p_exp,
    "log1m": log1m,
    "log1m_exp": log1m_exp,
    "logit": logit,
    "inv_logit": inv_logit,
    "log_inv_logit": log_inv_logit,
    "log1m_inv_logit": log1m_inv_logit,
    "inv_cloglog": inv_cloglog,
    "Phi": phi,
    "Phi_approx": phi_approx,
    "inv_Phi": lambda m, x: m.special.ndtri(real(m, x)),
    "std_normal_qf": lambda m, x: m.special.ndtri(real(m, x)),
    "erf": lambda m, x: m.special.erf(real(m, x)),
    "erfc": lambda m, x: m.special.erfc(real(m, x)),
    "inv_erfc": lambda m, x: -m.special.ndtri(0.5 * real(m, x)) / SQRT_2,
    "lgamma": lgamma,
    "tgamma": tgamma,
    "digamma": lambda m, x: m.special.digamma(real(m, x)),
    "trigamma": trigamma,
    "step": step,
    "is_inf": lambda m, x: m.np.where(m.np.isinf(x), 1, 0),
    "is_nan": lambda m, x: m.np.where(m.np.isnan(x), 1, 0),
    "PMinus__": lambda m, x: -m.np.asarray(x),
    "PPlus__": lambda m, x: m.np.asarray(x),
    "PNot__": lambda m, x: m.np.where(m.np.asarray(x) == 0, 1, 0),
}
"""Of one number."""


def _compared(name: str) -> StanFunction:
    return lambda m, x, y: m.np.where(getattr(m.np, name)(x, y), 1, 0)


BINARY: dict[str, StanFunction] = {
    "Plus__": _of_numpy("add"),
    "add": _of_numpy("add"),
    "Minus__": _of_numpy("subtract"),
    "subtract": _of_numpy("subtract"),
    "EltTimes__": _of_numpy("multiply"),
    "elt_multiply": _of_numpy("multiply"),
    "EltDivide__": _of_numpy("divide"),
    "elt_divide": _of_numpy("divide"),
    "EltPow__": power,
    "Pow__": power,
    "pow": power,
    "IntDivide__": int_divide,
    "Modulo__": modulus,
    "Equals__": _compared("equal"),
    "NEquals__": _compared("not_equal"),
    "Less__": _compared("less"),
    "Leq__": _compared("less_equal"),
    "Greater__": _compared("greater"),
    "Geq__": _compared("greater_equal"),
    "fmin": _of_numpy("fmin"),
    "fmax": _of_numpy("fmax"),
    "fmod": lambda m, x, y: m.np.fmod(real(m, x), real(m, y)),
    "fdim": lambda m, x, y: m.np.maximum(real(m, x) - y, 0.0),
    "hypot": lambda m, x, y: m.np.hypot(real(m, x), real(m, y)),
    "atan2": lambda m, x, y: m.np.arctan2(real(m, x), real(m, y)),
    "ldexp": lambda m, x, y: real(m, x) * m.np.power(2.0, y),
    "lbeta": lbeta,
    "beta": lambda m, x, y: m.np.exp(lbeta(m, x, y)),
    "lchoose": lchoose,
    "choose": lambda m, n, k: m.np.rint(m.np.exp(lchoose(m, n, k))).astype(int),
    "lmultiply": multiply_log,
    "log_diff_exp": log_diff_exp,
    "log_rising_factorial": log_rising_factorial,
    "rising_factorial": lambda m, x, n: m.np.exp(log_rising_factorial(m, x, n)),
    "log_falling_factorial": log_falling_factorial,
    "falling_factorial": lambda m, x, n: m.np.exp(log_falling_factorial(m, x, n)),
    "gamma_p": lambda m, a, x: m.special.gammainc(real(m, a), real(m, x)),
    "gamma_q": lambda m, a, x: m.special.gammaincc(real(m, a), real(m, x)),
    "lmgamma": lmgamma,
}
"""Of two numbers; containers of one shape, or one of them a number."""

TERNARY: dict[str, StanFunction] = {
    "log_mix": log_mix,
    "fma": lambda m, x, y, z: real(m, x) * y + z,
}
"""Of three."""
