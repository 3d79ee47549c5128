"""Log-densities of common distributions, elementwise, written with `ops`; constants included."""

from __future__ import annotations

import math
from typing import Any

from batchnuts.autobatch import ops

Array = Any

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def normal(x: Array, mean: Array = 0.0, deviation: Array = 1.0) -> Array:
    """Normal distribution."""
    return -0.5 * ((x - mean) / deviation) ** 2 - ops.log(deviation) - _HALF_LOG_2PI


def half_normal(x: Array, scale: Array = 1.0) -> Array:
    """Absolute value of a normal number of mean 0, for x > 0."""
    return normal(x, 0.0, scale) + math.log(2)


def half_cauchy(x: Array, scale: Array = 1.0) -> Array:
    """Absolute value of a Cauchy number of location 0, for x > 0."""
    return math.log(2 / math.pi) - ops.log(scale) - ops.log1p((x / scale) ** 2)


def lognormal(x: Array, mean: Array = 0.0, deviation: Array = 1.0) -> Array:
    """Exponential of a normal number, for x > 0."""
    log_x = ops.log(x)
    return normal(log_x, mean, deviation) - log_x


def inverse_gamma(x: Array, shape: float, scale: float) -> Array:
    """One over a gamma number, for x > 0."""
    return -(shape + 1) * ops.log(x) - scale / x + (shape * math.log(scale) - math.lgamma(shape))


def beta(x: Array, a: float, b: float) -> Array:
    """Beta distribution, for 0 < x < 1."""
    constant = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return (a - 1) * ops.log(x) + (b - 1) * ops.log1p(-x) + constant


def bernoulli_logit(y: Array, logits: Array) -> Array:
    """The log-density of labels 0 and 1, of which 1 has the probability sigmoid(logits)."""
    return y * logits - ops.softplus(logits)
