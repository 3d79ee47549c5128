"""Log-densities and distribution functions of continuous numbers: Stan's Functions Reference, chapters 18 to 24.

Each is written for one number; Stan's functions sum over the elements of containers that broadcast. Constants are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from batchnuts.bridges.stan.functions.elementwise import (
    LOG_2,
    LOG_PI,
    LOG_SQRT_2_PI,
    lbeta,
    lgamma,
    log1m_exp,
    log_diff_exp,
    real,
)
from batchnuts.bridges.stan.functions.numerics import Array, Numerics, StanFunction

OfNumbers = Callable[..., Array]
INFINITY = math.inf


def summed(density: OfNumbers) -> StanFunction:
    """Over the elements of containers: sum of what is computed of numbers."""
    return lambda m, *arguments: m.np.sum(density(m, *(real(m, x) for x in arguments)))


def _within(m: Numerics, condition: Array, value: Array, outside: float = -INFINITY) -> Array:
    return m.np.where(condition, value, outside)


# ---- on the real line ------------------------------------------------------------------------------------------------


def std_normal(m: Numerics, y: Array) -> Array:
    """N(0, 1)."""
    return -0.5 * m.np.square(y) - LOG_SQRT_2_PI


def normal(m: Numerics, y: Array, mu: Array, sigma: Array) -> Array:
    """N(mu, sigma^2)."""
    return -0.5 * m.np.square((y - mu) / sigma) - m.np.log(sigma) - LOG_SQRT_2_PI


def exp_mod_normal(m: Numerics, y: Array, mu: Array, sigma: Array, rate: Array) -> Array:
    """Of the sum of a normal and an exponential number."""
    tail = m.special.log_ndtr((y - mu) / sigma - rate * sigma)
    return m.np.log(rate) + 0.5 * rate * (2.0 * mu + rate * m.np.square(sigma) - 2.0 * y) + tail


def skew_normal(m: Numerics, y: Array, xi: Array, omega: Array, alpha: Array) -> Array:
    """With location, scale and shape."""
    z = (y - xi) / omega
    return LOG_2 + std_normal(m, z) - m.np.log(omega) + m.special.log_ndtr(alpha * z)


def student_t(m: Numerics, y: Array, nu: Array, mu: Array, sigma: Array) -> Array:
    """With degrees of freedom, location and scale."""
    half = 0.5 * (nu + 1.0)
    constant = lgamma(m, half) - lgamma(m, 0.5 * nu) - 0.5 * (m.np.log(nu) + LOG_PI) - m.np.log(sigma)
    return constant - half * m.np.log1p(m.np.square((y - mu) / sigma) / nu)


def cauchy(m: Numerics, y: Array, mu: Array, sigma: Array) -> Array:
    """With location and scale."""
    return -LOG_PI - m.np.log(sigma) - m.np.log1p(m.np.square((y - mu) / sigma))


def double_exponential(m: Numerics, y: Array, mu: Array, sigma: Array) -> Array:
    """Laplace's."""
    return -LOG_2 - m.np.log(sigma) - m.np.abs(y - mu) / sigma


def skew_double_exponential(m: Numerics, y: Array, mu: Array, sigma: Array, tau: Array) -> Array:
    """Laplace's with an asymmetry between 0 and 1."""
    distance = m.np.where(y < mu, (1.0 - tau) * (mu - y), tau * (y - mu))
    return LOG_2 + m.np.log(tau) + m.np.log1p(-tau) - m.np.log(sigma) - 2.0 / sigma * distance


def logistic(m: Numerics, y: Array, mu: Array, sigma: Array) -> Array:
    """With location and scale."""
    z = (y - mu) / sigma
    return -z - m.np.log(sigma) - 2.0 * m.np.logaddexp(0.0, -z)


def gumbel(m: Numerics, y: Array, mu: Array, beta: Array) -> Array:
    """Of maxima."""
    z = (y - mu) / beta
    return -m.np.log(beta) - z - m.np.exp(-z)


# ---- positive numbers ------------------------------------------------------------------------------------------------


def lognormal(m: Numerics, y: Array, mu: Array, sigma: Array) -> Array:
    """The logarithm is normal."""
    log_y = m.np.log(y)
    return normal(m, log_y, mu, sigma) - log_y


def chi_square(m: Numerics, y: Array, nu: Array) -> Array:
    """Of squares of nu normal numbers."""
    return gamma(m, y, 0.5 * nu, 0.5 + 0.0 * nu)


def inv_chi_square(m: Numerics, y: Array, nu: Array) -> Array:
    """The inverse is chi-square."""
    return inv_gamma(m, y, 0.5 * nu, 0.5 + 0.0 * nu)


def scaled_inv_chi_square(m: Numerics, y: Array, nu: Array, sigma: Array) -> Array:
    """With a scale."""
    return inv_gamma(m, y, 0.5 * nu, 0.5 * nu * m.np.square(sigma))


def exponential(m: Numerics, y: Array, rate: Array) -> Array:
    """With a rate."""
    return _within(m, y >= 0, m.np.log(rate) - rate * y)


def gamma(m: Numerics, y: Array, alpha: Array, beta: Array) -> Array:
    """With shape and rate."""
    return alpha * m.np.log(beta) - lgamma(m, alpha) + m.special.xlogy(alpha - 1.0, y) - beta * y


def inv_gamma(m: Numerics, y: Array, alpha: Array, beta: Array) -> Array:
    """The inverse is gamma."""
    return alpha * m.np.log(beta) - lgamma(m, alpha) - (alpha + 1.0) * m.np.log(y) - beta / y


def weibull(m: Numerics, y: Array, alpha: Array, sigma: Array) -> Array:
    """With shape and scale."""
    z = y / sigma
    log_z = m.np.log(y) - m.np.log(sigma)
    return m.np.log(alpha) - m.np.log(sigma) + (alpha - 1.0) * log_z - m.np.power(z, alpha)


def frechet(m: Numerics, y: Array, alpha: Array, sigma: Array) -> Array:
    """With shape and scale."""
    log_z = m.np.log(y) - m.np.log(sigma)
    return m.np.log(alpha) - m.np.log(sigma) - (1.0 + alpha) * log_z - m.np.exp(-alpha * log_z)


def rayleigh(m: Numerics, y: Array, sigma: Array) -> Array:
    """With a scale."""
    return m.np.log(y) - 2.0 * m.np.log(sigma) - 0.5 * m.np.square(y / sigma)


def loglogistic(m: Numerics, y: Array, alpha: Array, beta: Array) -> Array:
    """With scale and shape."""
    log_z = beta * (m.np.log(y) - m.np.log(alpha))
    return m.np.log(beta) + log_z - m.np.log(y) - 2.0 * m.np.logaddexp(0.0, log_z)


def pareto(m: Numerics, y: Array, y_min: Array, alpha: Array) -> Array:
    """From y_min on."""
    return _within(m, y >= y_min, m.np.log(alpha) + alpha * m.np.log(y_min) - (alpha + 1.0) * m.np.log(y))


def pareto_type_2(m: Numerics, y: Array, mu: Array, rate: Array, alpha: Array) -> Array:
    """Lomax's, moved by mu."""
    return m.np.log(alpha) - m.np.log(rate) - (alpha + 1.0) * m.np.log1p((y - mu) / rate)


# ---- bounded numbers -------------------------------------------------------------------------------------------------


def beta(m: Numerics, y: Array, alpha: Array, b: Array) -> Array:
    """On (0, 1)."""
    return m.special.xlogy(alpha - 1.0, y) + m.special.xlog1py(b - 1.0, -y) - lbeta(m, alpha, b)


def beta_proportion(m: Numerics, y: Array, mu: Array, kappa: Array) -> Array:
    """With mean and precision."""
    return beta(m, y, mu * kappa, (1.0 - mu) * kappa)


def uniform(m: Numerics, y: Array, low: Array, high: Array) -> Array:
    """Between two numbers."""
    return _within(m, (y >= low) & (y <= high), -m.np.log(high - low))


def von_mises(m: Numerics, y: Array, mu: Array, kappa: Array) -> Array:
    """On the circle."""
    bessel = m.np.log(m.special.i0e(kappa)) + kappa
    return kappa * m.np.cos(mu - y) - math.log(2.0 * math.pi) - bessel


DENSITIES: dict[str, OfNumbers] = {
    function.__name__: function
    for function in (
        *(std_normal, normal, exp_mod_normal, skew_normal, student_t, cauchy, double_exponential),
        *(skew_double_exponential, logistic, gumbel, lognormal, chi_square, inv_chi_square, scaled_inv_chi_square),
        *(exponential, gamma, inv_gamma, weibull, frechet, rayleigh, loglogistic, pareto, pareto_type_2, beta),
        *(beta_proportion, uniform, von_mises),
    )
}


# ---- distribution functions ------------------------------------------------------------------------------------------


def _student_t_below(m: Numerics, y: Array, nu: Array, mu: Array, sigma: Array) -> Array:
    z = (y - mu) / sigma
    tail = 0.5 * m.special.betainc(0.5 * nu, 0.5, nu / (nu + m.np.square(z)))
    return m.np.where(z > 0, 1.0 - tail, tail)


def _student_t_above(m: Numerics, y: Array, nu: Array, mu: Array, sigma: Array) -> Array:
    return _student_t_below(m, 2.0 * mu - y, nu, mu, sigma)


def _laplace_log_below(m: Numerics, y: Array, mu: Array, sigma: Array) -> Array:
    z = (y - mu) / sigma
    low, high = m.np.minimum(z, 0.0), m.np.maximum(z, 0.0)
    return m.np.where(z < 0, low - LOG_2, m.np.log1p(-0.5 * m.np.exp(-high)))


def _exp_mod_normal_below(m: Numerics, y: Array, mu: Array, sigma: Array, rate: Array) -> Array:
    z = (y - mu) / sigma
    shifted = rate * (0.5 * rate * m.np.square(sigma) - (y - mu)) + m.special.log_ndtr(z - rate * sigma)
    return log_diff_exp(m, m.special.log_ndtr(z), shifted)


LOG_BELOW: dict[str, OfNumbers] = {
    "normal": lambda m, y, mu, sigma: m.special.log_ndtr((y - mu) / sigma),
    "std_normal": lambda m, y: m.special.log_ndtr(y),
    "lognormal": lambda m, y, mu, sigma: m.special.log_ndtr((m.np.log(y) - mu) / sigma),
    "student_t": lambda m, *a: m.np.log(_student_t_below(m, *a)),
    "cauchy": lambda m, y, mu, sigma: m.np.log(0.5 + m.np.arctan((y - mu) / sigma) / math.pi),
    "double_exponential": _laplace_log_below,
    "logistic": lambda m, y, mu, sigma: -m.np.logaddexp(0.0, -(y - mu) / sigma),
    "gumbel": lambda m, y, mu, beta: -m.np.exp(-(y - mu) / beta),
    "exponential": lambda m, y, rate: log1m_exp(m, -rate * y),
    "gamma": lambda m, y, alpha, beta: m.np.log(m.special.gammainc(alpha, beta * y)),
    "chi_square": lambda m, y, nu: m.np.log(m.special.gammainc(0.5 * nu, 0.5 * y)),
    "inv_gamma": lambda m, y, alpha, beta: m.np.log(m.special.gammaincc(alpha, beta / y)),
    "inv_chi_square": lambda m, y, nu: m.np.log(m.special.gammaincc(0.5 * nu, 0.5 / y)),
    "weibull": lambda m, y, alpha, sigma: log1m_exp(m, -m.np.power(y / sigma, alpha)),
    "frechet": lambda m, y, alpha, sigma: -m.np.power(y / sigma, -alpha),
    "rayleigh": lambda m, y, sigma: log1m_exp(m, -0.5 * m.np.square(y / sigma)),
    "pareto": lambda m, y, y_min, alpha: log1m_exp(m, alpha * (m.np.log(y_min) - m.np.log(y))),
    "beta": lambda m, y, alpha, b: m.np.log(m.special.betainc(alpha, b, y)),
    "uniform": lambda m, y, low, high: m.np.log(m.np.clip((y - low) / (high - low), 0.0, 1.0)),
    "exp_mod_normal": _exp_mod_normal_below,
}
"""log P(Y <= y)."""

LOG_ABOVE: dict[str, OfNumbers] = {
    "normal": lambda m, y, mu, sigma: m.special.log_ndtr((mu - y) / sigma),
    "std_normal": lambda m, y: m.special.log_ndtr(-y),
    "lognormal": lambda m, y, mu, sigma: m.special.log_ndtr((mu - m.np.log(y)) / sigma),
    "student_t": lambda m, *a: m.np.log(_student_t_above(m, *a)),
    "cauchy": lambda m, y, mu, sigma: m.np.log(0.5 - m.np.arctan((y - mu) / sigma) / math.pi),
    "double_exponential": lambda m, y, mu, sigma: _laplace_log_below(m, 2.0 * mu - y, mu, sigma),
    "logistic": lambda m, y, mu, sigma: -m.np.logaddexp(0.0, (y - mu) / sigma),
    "gumbel": lambda m, y, mu, beta: log1m_exp(m, -m.np.exp(-(y - mu) / beta)),
    "exponential": lambda m, y, rate: -rate * y,
    "gamma": lambda m, y, alpha, beta: m.np.log(m.special.gammaincc(alpha, beta * y)),
    "chi_square": lambda m, y, nu: m.np.log(m.special.gammaincc(0.5 * nu, 0.5 * y)),
    "inv_gamma": lambda m, y, alpha, beta: m.np.log(m.special.gammainc(alpha, beta / y)),
    "inv_chi_square": lambda m, y, nu: m.np.log(m.special.gammainc(0.5 * nu, 0.5 / y)),
    "weibull": lambda m, y, alpha, sigma: -m.np.power(y / sigma, alpha),
    "frechet": lambda m, y, alpha, sigma: log1m_exp(m, -m.np.power(y / sigma, -alpha)),
    "rayleigh": lambda m, y, sigma: -0.5 * m.np.square(y / sigma),
    "pareto": lambda m, y, y_min, alpha: alpha * (m.np.log(y_min) - m.np.log(y)),
    "beta": lambda m, y, alpha, b: m.np.log(m.special.betainc(b, alpha, 1.0 - y)),
    "uniform": lambda m, y, low, high: m.np.log(m.np.clip((high - y) / (high - low), 0.0, 1.0)),
    "exp_mod_normal": lambda m, *a: log1m_exp(m, _exp_mod_normal_below(m, *a)),
}
"""log P(Y > y)."""
