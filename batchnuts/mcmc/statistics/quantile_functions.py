"""Quantiles of distributions, for the few numbers that a short run asks for.

`scipy.special` has them all, and takes a quarter of a second to import: a tenth of a run that finds its programs on
disk (docs/decisions/0059-short-starts.md).
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HALVINGS = 60
"""Of an interval of logarithms of odds, of length 80: to the last bit of a probability, about."""

_TINY = 1e-300

_Ratio = tuple[tuple[float, ...], tuple[float, ...]]
"""Coefficients of two polynomials, that of the highest power first."""

_CENTRAL: _Ratio = (
    (
        2509.0809287301226727,
        33430.575583588128105,
        67265.770927008700853,
        45921.953931549871457,
        13731.693765509461125,
        1971.5909503065514427,
        133.14166789178437745,
        3.387132872796366608,
    ),
    (
        5226.495278852854561,
        28729.085735721942674,
        39307.89580009271061,
        21213.794301586595867,
        5394.1960214247511077,
        687.1870074920579083,
        42.313330701600911252,
        1.0,
    ),
)
"""Coefficients for probabilities within 0.425 of 1/2."""

_TAIL: _Ratio = (
    (
        7.7454501427834140764e-4,
        0.0227238449892691845833,
        0.24178072517745061177,
        1.27045825245236838258,
        3.64784832476320460504,
        5.7694972214606914055,
        4.6303378461565452959,
        1.42343711074968357734,
    ),
    (
        1.05075007164441684324e-9,
        5.475938084995344946e-4,
        0.0151986665636164571966,
        0.14810397642748007459,
        0.68976733498510000455,
        1.6763848301838038494,
        2.05319162663775882187,
        1.0,
    ),
)
"""Coefficients for others, down to exp(-25)."""

_END: _Ratio = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        0.0012426609473880784386,
        0.026532189526576123093,
        0.29656057182850489123,
        1.7848265399172913358,
        5.4637849111641143699,
        6.6579046435011037772,
    ),
    (
        2.04426310338993978564e-15,
        1.4215117583164458887e-7,
        1.8463183175100546818e-5,
        7.868691311456132591e-4,
        0.0148753612908506148525,
        0.13692988092273580531,
        0.59983220655588793769,
        1.0,
    ),
)
"""Coefficients for those below."""

_STANDARD_NORMAL = NormalDist()


def normal(probabilities: NDArray[Any]) -> NDArray[np.float64]:
    """Quantiles of the standard normal distribution; probabilities in (0, 1), of any shape; float64, to about 1e-15.

    Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Applied Statistics 1988, 37: 477-484.
    """
    p = np.asarray(probabilities, np.float64).ravel()
    q = p - 0.5
    quantiles = q * _ratio(0.180625 - q * q, _CENTRAL)
    tails = np.flatnonzero(np.abs(q) > 0.425)
    side = q[tails]
    r = np.sqrt(-np.log(np.where(side <= 0.0, p[tails], 1.0 - p[tails])))
    quantiles[tails] = np.copysign(np.where(r <= 5.0, _ratio(r - 1.6, _TAIL), _ratio(r - 5.0, _END)), side)
    return quantiles.reshape(np.shape(probabilities))


def _ratio(x: NDArray[np.float64], coefficients: _Ratio) -> NDArray[np.float64]:
    """The ratio of two polynomials, by Horner's rule."""
    top, bottom = (np.full_like(x, row[0]) for row in coefficients)
    for above, below in zip(*(row[1:] for row in coefficients), strict=True):
        for sums, coefficient in ((top, above), (bottom, below)):
            sums *= x
            sums += coefficient
    top /= bottom
    return top


def normal_exceeded(probability: float) -> float:
    """What a standard normal number exceeds with this probability, of (0, 1)."""
    return -_STANDARD_NORMAL.inv_cdf(probability)


def chi_squared_exceeded(probability: float, freedom: int) -> float:
    """What a chi-squared number exceeds with this probability (Wilson and Hilferty 1931, PNAS 17: 684-688).

    Within 3 % of the exact one for seven degrees of freedom and probabilities from 5e-6 to 0.25, and closer for more.
    """
    z = _STANDARD_NORMAL.inv_cdf(1.0 - probability)
    part = 2.0 / (9.0 * freedom)
    return freedom * (1.0 - part + z * math.sqrt(part)) ** 3


@functools.lru_cache(1024)
def f_exceeded(probability: float, first: int, second: int) -> float:
    """What a number of the F distribution with `first` and `second` degrees of freedom exceeds with this probability.

    By bisection of the incomplete beta function: to about 1e-12, and 3e-7 of millions of degrees of freedom. At most
    exp(40) second / first, which matters for one second degree of freedom only.
    """
    low, high = -40.0, 40.0  # log odds of y = second / (second + first x), which falls as x rises
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if _incomplete_beta(second / 2.0, first / 2.0, middle) < probability:
            low = middle
        else:
            high = middle
    return second / first * math.exp(-0.5 * (low + high))


def _incomplete_beta(a: float, b: float, log_odds: float) -> float:
    """The regularized incomplete beta function I_y(a, b) of log(y / (1 - y))."""
    y = 1.0 / (1.0 + math.exp(-log_odds))
    if y > (a + 1.0) / (a + b + 2.0):  # where the fraction would converge slowly
        return 1.0 - _incomplete_beta(b, a, -log_odds)
    log_y, log_rest = -math.log1p(math.exp(-log_odds)), -math.log1p(math.exp(log_odds))
    factor = math.exp(a * log_y + b * log_rest + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) / a
    # the continued fraction 8.17.22 of the DLMF, by the modified method of Lentz
    numerator, denominator = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * y / (a + 1.0))
    fraction, m = denominator, 0
    while True:
        m += 1
        even = m * (b - m) * y / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * y / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            denominator = 1.0 / _away_from_zero(1.0 + term * denominator)
            numerator = _away_from_zero(1.0 + term / numerator)
            fraction *= (change := denominator * numerator)
        if abs(change - 1.0) < 1e-15:
            return factor * fraction


def _away_from_zero(x: float) -> float:
    return x if abs(x) > _TINY else _TINY
