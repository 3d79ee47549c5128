"""Log-densities of vectors and matrices: Stan's Functions Reference, chapters 25 to 28."""

from __future__ import annotations

import math

import numpy as np

from batchnuts.bridges.stan.functions.elementwise import LOG_2, LOG_PI, lgamma, lmgamma
from batchnuts.bridges.stan.functions.linear import cholesky, inverse_spd, log_determinant_spd, solve_lower
from batchnuts.bridges.stan.functions.numerics import Array, Numerics, StanFunction

LOG_2_PI = math.log(2.0 * math.pi)


def _rows(m: Numerics, y: Array, mu: Array) -> Array:
    """Differences [n, dimension] of vectors, or arrays of vectors, that broadcast."""
    return m.np.atleast_2d(m.np.asarray(y) - m.np.asarray(mu))


def multi_normal_cholesky(m: Numerics, y: Array, mu: Array, factor: Array) -> Array:
    """By the factor of the covariance."""
    rows = _rows(m, y, mu)
    whitened = solve_lower(m, factor, rows.T)
    log_scale = m.np.sum(m.np.log(m.np.diagonal(factor)))
    return -0.5 * m.np.sum(m.np.square(whitened)) - rows.shape[0] * (log_scale + 0.5 * rows.shape[1] * LOG_2_PI)


def multi_normal(m: Numerics, y: Array, mu: Array, covariance: Array) -> Array:
    """By the covariance."""
    return multi_normal_cholesky(m, y, mu, cholesky(m, covariance))


def multi_normal_prec(m: Numerics, y: Array, mu: Array, precision: Array) -> Array:
    """By the precision."""
    rows = _rows(m, y, mu)
    log_scale = 0.5 * log_determinant_spd(m, precision)
    quadratic = m.np.sum(rows * (rows @ precision))
    return -0.5 * quadratic + rows.shape[0] * (log_scale - 0.5 * rows.shape[1] * LOG_2_PI)


def multi_gp_cholesky(m: Numerics, y: Array, factor: Array, w: Array) -> Array:
    """Rows of y are normal with mean 0 and covariances factor factor' / w."""
    whitened = solve_lower(m, factor, y.T)
    k, n = y.shape
    quadratic = m.np.sum(m.np.square(whitened) * w[None, :])
    log_scale = m.np.sum(m.np.log(m.np.diagonal(factor)))
    return 0.5 * n * m.np.sum(m.np.log(w)) - 0.5 * quadratic - k * (log_scale + 0.5 * n * LOG_2_PI)


def multi_student_t_cholesky(m: Numerics, y: Array, nu: Array, mu: Array, factor: Array) -> Array:
    """By the factor of the scale matrix."""
    rows = _rows(m, y, mu)
    count, d = rows.shape
    squares = m.np.sum(m.np.square(solve_lower(m, factor, rows.T)), axis=0)
    constant = lgamma(m, 0.5 * (nu + d)) - lgamma(m, 0.5 * nu) - 0.5 * d * (m.np.log(nu) + LOG_PI)
    constant = constant - m.np.sum(m.np.log(m.np.diagonal(factor)))
    return count * constant - 0.5 * (nu + d) * m.np.sum(m.np.log1p(squares / nu))


def dirichlet(m: Numerics, theta: Array, alpha: Array) -> Array:
    """On simplexes."""
    theta, alpha = m.np.atleast_2d(m.np.asarray(theta)), m.np.atleast_2d(m.np.asarray(alpha) * 1.0)
    constant = lgamma(m, m.np.sum(alpha, axis=-1)) - m.np.sum(lgamma(m, alpha), axis=-1)
    terms = constant[:, None] + 0.0 * theta[:, :1]
    return m.np.sum(terms) + m.np.sum(m.special.xlogy(alpha - 1.0, theta))


def _lkj_constant(m: Numerics, eta: Array, k: int) -> Array:
    """The logarithm of the constant that divides (Lewandowski, Kurowicka and Joe 2009, equations 16 and 17)."""
    total = 0.0
    for i in range(1, k):
        d = k - i
        b = eta + 0.5 * (d - 1)
        total = total + (2.0 * eta - 2.0 + d) * d * LOG_2 + d * (2.0 * lgamma(m, b) - lgamma(m, 2.0 * b))
    return total


def lkj_corr_cholesky(m: Numerics, factor: Array, eta: Array) -> Array:
    """By the factor of the correlations."""
    k = factor.shape[-1]
    powers = k - np.arange(2, k + 1) + 2.0 * (m.np.asarray(eta) * 1.0) - 2.0
    return m.np.sum(powers * m.np.log(m.np.diagonal(factor)[1:])) - _lkj_constant(m, m.np.asarray(eta) * 1.0, k)


def lkj_corr(m: Numerics, correlation: Array, eta: Array) -> Array:
    """Of correlations."""
    eta = m.np.asarray(eta) * 1.0
    return (eta - 1.0) * log_determinant_spd(m, correlation) - _lkj_constant(m, eta, correlation.shape[-1])


def wishart(m: Numerics, w: Array, nu: Array, scale: Array) -> Array:
    """Of sums of products of normal vectors."""
    k = w.shape[-1]
    nu = m.np.asarray(nu) * 1.0
    constant = -0.5 * nu * (k * LOG_2 + log_determinant_spd(m, scale)) - lmgamma(m, k, 0.5 * nu)
    trace = m.np.sum(inverse_spd(m, scale) * w)
    return constant + 0.5 * (nu - k - 1.0) * log_determinant_spd(m, w) - 0.5 * trace


def inv_wishart(m: Numerics, w: Array, nu: Array, scale: Array) -> Array:
    """The inverse is Wishart."""
    k = w.shape[-1]
    nu = m.np.asarray(nu) * 1.0
    constant = 0.5 * nu * (log_determinant_spd(m, scale) - k * LOG_2) - lmgamma(m, k, 0.5 * nu)
    trace = m.np.sum(inverse_spd(m, w) * scale)
    return constant - 0.5 * (nu + k + 1.0) * log_determinant_spd(m, w) - 0.5 * trace


MULTIVARIATE: dict[str, StanFunction] = {
    "multi_normal_lpdf": multi_normal,
    "multi_normal_prec_lpdf": multi_normal_prec,
    "multi_normal_cholesky_lpdf": multi_normal_cholesky,
    "multi_gp_lpdf": lambda m, y, covariance, w: multi_gp_cholesky(m, y, cholesky(m, covariance), w),
    "multi_gp_cholesky_lpdf": multi_gp_cholesky,
    "multi_student_t_lpdf": lambda m, y, nu, mu, scale: multi_student_t_cholesky(m, y, nu, mu, cholesky(m, scale)),
    "multi_student_t_cholesky_lpdf": multi_student_t_cholesky,
    "dirichlet_lpdf": dirichlet,
    "lkj_corr_lpdf": lkj_corr,
    "lkj_corr_cholesky_lpdf": lkj_corr_cholesky,
    "wishart_lpdf": wishart,
    "inv_wishart_lpdf": inv_wishart,
}
