"""Quantiles of distributions, for the few numbers that a short run asks for.

`scipy.special` has them all, and takes a quarter of a second to import: a tenth of a run that finds its programs on
disk (docs/decisions/0059-short-starts.md). Where many numbers are asked for at once it is imported.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

FEW = 2**17
"""As many normal quantiles are found one by one sooner than SciPy is imported."""

_HALVINGS = 60
"""Of an interval of logarithms of odds, of length 80: to the last bit of a probability, about."""

_TINY = 1e-300
_STANDARD_NORMAL = NormalDist()


def normal(probabilities: NDArray[Any]) -> NDArray[np.float64]:
    """Quantiles of the standard normal distribution; probabilities in (0, 1), of any shape; float64, to about 1e-15."""
    if probabilities.size > FEW:
        from scipy.special import ndtri

        many: NDArray[np.float64] = ndtri(probabilities)
        return many
    found = map(_STANDARD_NORMAL.inv_cdf, probabilities.ravel().tolist())
    return np.fromiter(found, np.float64, probabilities.size).reshape(probabilities.shape)


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


def f_exceeded(probability: float, first: int, second: int) -> float:
    """What a number of the F distribution with `first` and `second` degrees of freedom exceeds with this probability.

    To about 1e-12, by bisection of the incomplete beta function.
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
