"""Special functions with their exact values and slopes by mpmath, at arguments over their whole range.

An error is counted in units of the dtype's rounding, of the exact number, or of what rounding of the arguments changes
where that is more: next to a zero that is no float, say. Results below the smallest normal number may be 0, as XLA has
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import scipy.special
from mpmath import mpf

DIGITS = 60
"""Of the exact numbers. More than the largest cancellation takes."""


@dataclass(frozen=True)
class Special:
    """A function with what every library's errors stay within."""

    name: str
    value: Callable[..., Any]
    """Of mpmath's numbers."""
    slopes: tuple[Callable[..., Any], ...]
    """For each argument."""
    points: np.ndarray
    """Arguments [points, arguments]; in each dtype those that it holds."""
    within: tuple[float, float] = (4, 8)
    """Errors of value and slopes, in units of rounding."""
    floor: tuple[float, float] = (0, 0)
    """What value and slope are compared to, where they are smaller: their absolute precision."""


def _far(smallest: float, largest: float, count: int = 11) -> np.ndarray:
    """Numbers of every size, of both signs."""
    sizes = np.logspace(np.log10(smallest), np.log10(largest), count)
    return np.concatenate([-sizes[::-1], sizes])


_ALL = np.concatenate(
    [_far(1e-30, 1e30), np.linspace(-40, 40, 17), [-745.0, -709.5, -104.0, -88.0, 88.5, 104.0, 709.5]]
)
_MODERATE = np.concatenate([_far(1e-30, 1e3), np.linspace(-12, 12, 25)])
_POSITIVE = np.abs(_ALL[_ALL != 0])
_PROBABILITIES = np.concatenate([_far(1e-30, 0.1), np.linspace(-0.99, 0.99, 23), [0.999999, 1 - 2**-20, -0.999999]])
_POLES = np.array([-0.5, -0.999, -1.001, -1.5, -2.0005, -2.457, -3.9, -10.3, -33.7])
_PAIRS = np.array([
    (0.0, 0.0), (1.0, 2.0), (-3.0, 5.0), (800.0, 1.0), (1.0, 800.0), (-800.0, -801.0), (1e30, 1e30), (-1e30, 1e30),
    (1e-20, -1e-20), (-40.0, 0.0), (0.0, -40.0), (30.0, 29.9),
])  # fmt: skip


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def _softplus(x: Any) -> Any:
    return mpmath.log1p(mpmath.exp(x)) if x < 0 else x + mpmath.log1p(mpmath.exp(-x))


def _log_gamma(x: Any) -> Any:
    return mpmath.log(abs(mpmath.gamma(x))) if x < 1e6 else mpmath.loggamma(x)


def _unary(name: str, value: Any, slope: Any, points: Any, **more: Any) -> Special:
    return Special(name, value, (slope,), np.unique(points)[:, None], **more)


def _erf_slope(x: Any) -> Any:
    return 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-x * x)


OF_OPS = [
    _unary("exp", mpmath.exp, mpmath.exp, _ALL[_ALL < 800]),
    _unary("log", mpmath.log, lambda x: 1 / x, np.concatenate([_POSITIVE, 1 + _far(1e-7, 0.5)])),
    _unary("log1p", mpmath.log1p, lambda x: 1 / (1 + x), np.concatenate([_POSITIVE, _PROBABILITIES])),
    _unary("expm1", mpmath.expm1, mpmath.exp, _ALL[_ALL < 800]),
    _unary("sqrt", mpmath.sqrt, lambda x: 1 / (2 * mpmath.sqrt(x)), _POSITIVE),
    _unary("sin", mpmath.sin, mpmath.cos, _MODERATE),
    _unary("cos", mpmath.cos, lambda x: -mpmath.sin(x), _MODERATE),
    _unary("tan", mpmath.tan, lambda x: 1 / mpmath.cos(x) ** 2, _MODERATE),
    _unary("tanh", mpmath.tanh, lambda x: 1 / mpmath.cosh(x) ** 2, _MODERATE, floor=(0, 1)),  # 1 - y^2
    _unary("sigmoid", _sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x), _ALL, floor=(0, 1)),  # y (1 - y)
    _unary("softplus", _softplus, _sigmoid, _ALL),
    _unary("erf", mpmath.erf, _erf_slope, _MODERATE),
    _unary("erfinv", mpmath.erfinv, lambda x: 1 / _erf_slope(mpmath.erfinv(x)), _PROBABILITIES),
    _unary("gammaln", _log_gamma, mpmath.digamma,
           np.concatenate([_POSITIVE, _POLES, 1 + _far(1e-6, 0.4), 2 + _far(1e-6, 0.4)]),
           within=(128, 8)),  # XLA's between 1 and 2
    Special("logaddexp", lambda x, y: max(x, y) + _softplus(-abs(x - y)),
            (lambda x, y: _sigmoid(x - y), lambda x, y: _sigmoid(y - x)), _PAIRS),
]  # fmt: skip


def _erfcx(x: Any) -> Any:
    return mpmath.exp(x * x) * mpmath.erfc(x)


def _erfcinv(x: Any) -> Any:
    return mpmath.findroot(lambda y: mpmath.log(mpmath.erfc(y) / x), float(scipy.special.erfcinv(float(x))))


def _slope_of_erfcinv(x: Any) -> Any:
    return -1 / _erf_slope(_erfcinv(x))


def _lower_gamma(a: Any, x: Any) -> Any:
    return mpmath.gammainc(a, 0, x, regularized=True)


def _upper_gamma(a: Any, x: Any) -> Any:
    return mpmath.gammainc(a, x, mpmath.inf, regularized=True)


def _gamma_density(a: Any, x: Any) -> Any:
    return mpmath.exp((a - 1) * mpmath.log(x) - x - mpmath.loggamma(a))


def _beta(a: Any, b: Any, x: Any) -> Any:
    return mpmath.betainc(a, b, 0, x, regularized=True)


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    return x ** (a - 1) * (1 - x) ** (b - 1) / mpmath.beta(a, b)


def _partial(function: Any, k: int) -> Any:
    return lambda *place: mpmath.diff(_along(function, list(place), k), place[k])


_SHAPES = np.array([
    (0.5, 0.1), (0.5, 3.0), (1e-3, 0.2), (2.0, 1e-6), (2.0, 30.0), (7.5, 7.0), (30.0, 2.0), (30.0, 60.0),
    (150.0, 140.0),
])  # fmt: skip
_BETA_SHAPES = np.array([
    (2.0, 3.0, 0.4), (0.5, 0.5, 0.9), (1e-3, 5.0, 0.2), (2.0, 3.0, 1e-6), (30.0, 2.0, 0.2), (5.0, 1e-2, 0.999),
    (1.0, 1.0, 0.3), (300.0, 200.0, 0.61), (300.0, 200.0, 0.5),
])  # fmt: skip

OF_PYMC = [
    _unary("erfcx", _erfcx, lambda x: 2 * x * _erfcx(x) - _erf_slope(mpf(0)),
           np.concatenate([-_far(1e-30, 26.0), _far(1e-30, 1e15), np.linspace(-12, 12, 49)]),
           within=(4, 256)),  # of a difference, up to where the asymptotic series begins
    _unary("erfcinv", _erfcinv, _slope_of_erfcinv,
           np.concatenate([_far(1e-30, 1.0, 9)[9:], np.linspace(0.05, 1.95, 20)])),
    _unary("erfc", mpmath.erfc, lambda x: -_erf_slope(x), _MODERATE),
    _unary("log1mexp", lambda x: mpmath.log(-mpmath.expm1(x)), lambda x: mpmath.exp(x) / mpmath.expm1(x),
           -_POSITIVE, within=(8, 8)),
    _unary("psi", mpmath.digamma, lambda x: mpmath.polygamma(1, x),
           np.concatenate([_POSITIVE[(_POSITIVE > 1e-15) & (_POSITIVE < 1e15)], _POLES])),
    _unary("tri_gamma", lambda x: mpmath.polygamma(1, x), lambda x: mpmath.polygamma(2, x),
           np.concatenate([_POSITIVE[(_POSITIVE > 1e-8) & (_POSITIVE < 1e15)], _POLES]), within=(16, 16)),
    Special("gammainc", _lower_gamma, (_partial(_lower_gamma, 0), _gamma_density), _SHAPES, within=(64, 128)),
    Special("gammaincc", _upper_gamma, (_partial(_upper_gamma, 0), lambda a, x: -_gamma_density(a, x)), _SHAPES,
            within=(64, 128), floor=(1, 0)),  # JAX has 1 - gammainc for x < 1
    Special("betainc", _beta, (_partial(_beta, 0), _partial(_beta, 1), _beta_density), _BETA_SHAPES,
            within=(256, 1024)),  # JAX's
]  # fmt: skip
"""Of PyTensor's alone; it has some of `OF_OPS` too."""


@dataclass(frozen=True)
class Exact:
    """In one dtype: arguments [points] each, and there numbers [points], infinite beyond the dtype."""

    arguments: list[np.ndarray]
    value: np.ndarray
    slopes: list[np.ndarray]
    scales: list[np.ndarray]
    """What one unit of rounding is of the value and of each slope, without the dtype's eps."""


def exact(special: Special, dtype: Any) -> Exact:
    """Computed with mpmath at arguments rounded to a dtype."""
    with np.errstate(over="ignore"):
        points = np.unique(special.points.astype(dtype), axis=0)
    points = points[np.isfinite(points).all(1)]
    limits = np.finfo(dtype)

    def rounded(y: Any) -> float:
        return float(mpmath.sign(y)) * np.inf if abs(y) > float(limits.max) else float(y)

    def numbers(function: Callable[..., Any], floor: float) -> tuple[np.ndarray, np.ndarray]:
        values, scales = [], []
        for point in points:
            place = [mpf(float(x)) for x in point]
            y = function(*place)
            moved = [abs(x * mpmath.diff(_along(function, place, k), x)) for k, x in enumerate(place)]
            values.append(rounded(y))
            scales.append(min(float(limits.max), max(abs(y), floor, float(limits.tiny), *moved)))
        return np.array(values), np.array(scales, "float64")

    with mpmath.workdps(DIGITS):
        found = [numbers(special.value, special.floor[0]), *(numbers(f, special.floor[1]) for f in special.slopes)]
    return Exact(list(points.T), found[0][0], [slope for slope, _ in found[1:]], [scale for _, scale in found])


def _along(function: Callable[..., Any], place: list[Any], k: int) -> Callable[[Any], Any]:
    return lambda x: function(*place[:k], x, *place[k + 1 :])


def ulps(found: Any, expected: np.ndarray, scale: np.ndarray, dtype: Any) -> np.ndarray:
    """Errors of each result in units of rounding; infinite for NaN, and for an infinity in place of a number."""
    found, limits = np.asarray(found, "float64"), np.finfo(dtype)
    same = (found == expected) | ((np.abs(found) <= limits.tiny) & (np.abs(expected) <= limits.tiny))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(found - expected) / scale / float(limits.eps)
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
