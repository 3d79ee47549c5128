"""Probabilities of counts and categories."""

from __future__ import annotations

import numpy as np

from batchnuts.autobatch import ops
from batchnuts.densities.arithmetic import (
    Array,
    above,
    between,
    either,
    floats,
    log1m_exp,
    log_choose,
    log_rising,
    not_count,
    quiet,
    total,
    x_log_y,
)

# Counts


@quiet
def bernoulli(x: Array, theta: Array, pointwise: bool = False) -> Array:
    """Whether, 0 or 1, with probability 0 <= `theta` <= 1 of 1."""
    return binomial(x, 1, theta, pointwise)


@quiet
def bernoulli_logit(x: Array, alpha: Array, pointwise: bool = False) -> Array:
    """Whether, 0 or 1, with log odds `alpha` of 1."""
    x, alpha = floats(x, alpha)
    return total(-ops.softplus((1.0 - 2.0 * x) * alpha), pointwise, either(not_count(x), x > 1))


@quiet
def binomial(x: Array, n: Array, theta: Array, pointwise: bool = False) -> Array:
    """How many of `n` trials succeed, with probability 0 <= `theta` <= 1 each."""
    x, n, theta = floats(x, n, theta)
    theta, no_probability = between(theta, 0.0, 1.0)
    x, n, outside = _successes(x, n)
    value = log_choose(n, x) + x_log_y(x, theta) + (n - x) * ops.log1p(-ops.where(n == x, 0, theta))
    return total(value, pointwise, outside, no_probability)


@quiet
def binomial_logit(x: Array, n: Array, alpha: Array, pointwise: bool = False) -> Array:
    """How many of `n` trials succeed, with log odds `alpha` each."""
    x, n, alpha = floats(x, n, alpha)
    x, n, outside = _successes(x, n)
    value = log_choose(n, x) - x * ops.softplus(-alpha) - (n - x) * ops.softplus(alpha)
    return total(value, pointwise, outside)


@quiet
def beta_binomial(x: Array, n: Array, alpha: Array, beta: Array, pointwise: bool = False) -> Array:
    """How many of `n` trials succeed, whose probability has the density `beta` with `alpha` > 0 and `beta` > 0."""
    x, n, alpha, beta = floats(x, n, alpha, beta)
    (alpha, no_alpha), (beta, no_beta) = above(alpha), above(beta)
    x, n, outside = _successes(x, n)
    value = log_choose(n, x) + log_rising(alpha, x) + log_rising(beta, n - x) - log_rising(alpha + beta, n)
    return total(value, pointwise, outside, no_alpha, no_beta)


def _successes(x: Array, n: Array) -> tuple[Array, Array, Array]:
    """Successes and trials, 0 where they are impossible, and where that is."""
    outside = either(not_count(x), not_count(n), x > n)
    return ops.where(outside, 0, x), ops.where(outside, 0, n), outside


@quiet
def poisson(x: Array, rate: Array, pointwise: bool = False) -> Array:
    """A count with mean `rate` >= 0 (Stan: `lambda`)."""
    x, rate = floats(x, rate)
    no_rate, outside = rate < 0, not_count(x)
    rate, x = ops.where(no_rate, 1, rate), ops.where(outside, 0, x)
    return total(x_log_y(x, rate) - rate - ops.gammaln(x + 1.0), pointwise, outside, no_rate)


@quiet
def poisson_log(x: Array, alpha: Array, pointwise: bool = False) -> Array:
    """A count whose mean has the logarithm `alpha`."""
    x, alpha = floats(x, alpha)
    outside = not_count(x)
    x = ops.where(outside, 0, x)
    return total(x * alpha - ops.exp(alpha) - ops.gammaln(x + 1.0), pointwise, outside)


@quiet
def neg_binomial_2(x: Array, mu: Array, phi: Array, pointwise: bool = False) -> Array:
    """A count with mean `mu` > 0 and variance `mu` + `mu`**2 / `phi`, `phi` > 0."""
    x, mu, phi = floats(x, mu, phi)
    mu, outside = above(mu)
    return total(neg_binomial_2_log(x, ops.log(mu), phi, pointwise=True), pointwise, outside)


@quiet
def neg_binomial_2_log(x: Array, eta: Array, phi: Array, pointwise: bool = False) -> Array:
    """A count whose mean has the logarithm `eta`; the variance is mean + mean**2 / `phi`, `phi` > 0."""
    x, eta, phi = floats(x, eta, phi)
    (phi, no_precision), outside = above(phi), not_count(x)
    x = ops.where(outside, 0, x)
    z = eta - ops.log(phi)
    value = log_rising(phi, x) - ops.gammaln(x + 1.0) - phi * ops.softplus(z) - x * ops.softplus(-z)
    return total(value, pointwise, outside, no_precision)


# Categories


def _chosen(x: Array, values: Array) -> Array:
    """The element of `values` [..., k] that `x` [...] counts to, 0 where it is none."""
    categories = np.arange((ops.static_shape(values) or (0,))[-1] or 0).astype(ops.dtype_of(values))
    return ops.sum(ops.where(x[..., None] == categories, values, 0), -1)


@quiet
def categorical(x: Array, theta: Array, pointwise: bool = False) -> Array:
    """A category from 0 to k - 1 with probabilities `theta` [..., k], which sum to 1."""
    x, theta = floats(x, theta)
    chosen, outside = above(_chosen(x, theta))
    return total(ops.log(chosen), pointwise, outside, ops.any(theta < 0, -1))


@quiet
def categorical_logit(x: Array, beta: Array, pointwise: bool = False) -> Array:
    """A category from 0 to k - 1 whose probabilities are the softmax of `beta` [..., k]."""
    x, beta = floats(x, beta)
    outside = either(not_count(x), x >= (ops.static_shape(beta) or (0,))[-1])
    return total(_chosen(x, beta) - ops.logsumexp(beta, -1), pointwise, outside)


@quiet
def ordered_logistic(x: Array, eta: Array, c: Array, pointwise: bool = False) -> Array:
    """A category from 0 to k - 1: how many of the increasing cutpoints `c` [k - 1] `eta` and logistic noise exceed."""
    x, eta, c = floats(x, eta, c)
    cutpoints = (ops.static_shape(c) or (0,))[-1] or 0
    unordered = ops.any(c[1:] <= c[:-1]) if cutpoints > 1 else c[0] != c[0]
    c = ops.where(unordered, np.arange(cutpoints).astype(ops.dtype_of(c)), c)
    below, above = _chosen(x - 1.0, c), _chosen(x, c)
    has_below, has_above = x >= 1, x < cutpoints
    between = ops.where(ops.logical_and(has_below, has_above), above - below, 1)
    value = ops.where(ops.logical_and(has_below, has_above), log1m_exp(between), 0)
    value = value - ops.where(has_below, ops.softplus(below - eta), 0)
    value = value - ops.where(has_above, ops.softplus(eta - above), 0)
    return total(value, pointwise, either(not_count(x), x > cutpoints), unordered)


@quiet
def multinomial(x: Array, theta: Array, pointwise: bool = False) -> Array:
    """Counts `x` [..., k] of categories with probabilities `theta` [..., k], which sum to 1."""
    x, theta = floats(x, theta)
    outside, improbable = not_count(x), theta < 0
    x, theta = ops.where(outside, 0, x), ops.where(improbable, 1, theta)
    value = ops.gammaln(ops.sum(x, -1) + 1.0) + ops.sum(x_log_y(x, theta) - ops.gammaln(x + 1.0), -1)
    return total(value, pointwise, ops.any(outside, -1), ops.any(improbable, -1))
