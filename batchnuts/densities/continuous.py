"""Densities of numbers on the real line, of positive ones, and of those between 0 and 1."""

from __future__ import annotations

from batchnuts.autobatch import ops
from batchnuts.densities.arithmetic import (
    HALF_LOG_2PI,
    LOG_2,
    LOG_PI,
    Array,
    above,
    either,
    floats,
    log1p_square,
    log_beta,
    log_rising,
    quiet,
    total,
)

# On the real line


@quiet
def normal(x: Array, mu: Array, sigma: Array, pointwise: bool = False) -> Array:
    """Normal with mean `mu` and standard deviation `sigma` > 0."""
    x, mu, sigma = floats(x, mu, sigma)
    sigma, outside = above(sigma)
    return total(-0.5 * ops.square((x - mu) / sigma) - ops.log(sigma) - HALF_LOG_2PI, pointwise, outside)


@quiet
def std_normal(x: Array, pointwise: bool = False) -> Array:
    """Normal with mean 0 and standard deviation 1."""
    (x,) = floats(x)
    return total(-0.5 * ops.square(x) - HALF_LOG_2PI, pointwise)


@quiet
def student_t(x: Array, nu: Array, mu: Array, sigma: Array, pointwise: bool = False) -> Array:
    """Student's t with `nu` > 0 degrees of freedom, location `mu` and scale `sigma` > 0."""
    x, nu, mu, sigma = floats(x, nu, mu, sigma)
    (nu, no_freedom), (sigma, no_scale) = above(nu), above(sigma)
    constant = log_rising(0.5 * nu, 0.5) - 0.5 * (LOG_PI + ops.log(nu)) - ops.log(sigma)
    value = constant - 0.5 * (nu + 1.0) * log1p_square((x - mu) / sigma / ops.sqrt(nu))
    return total(value, pointwise, no_freedom, no_scale)


@quiet
def cauchy(x: Array, mu: Array, sigma: Array, pointwise: bool = False) -> Array:
    """Cauchy with location `mu` and scale `sigma` > 0."""
    x, mu, sigma = floats(x, mu, sigma)
    sigma, outside = above(sigma)
    return total(-log1p_square((x - mu) / sigma) - ops.log(sigma) - LOG_PI, pointwise, outside)


@quiet
def laplace(x: Array, mu: Array, sigma: Array, pointwise: bool = False) -> Array:
    """Laplace (Stan: `double_exponential`) with location `mu` and scale `sigma` > 0."""
    x, mu, sigma = floats(x, mu, sigma)
    sigma, outside = above(sigma)
    return total(-ops.abs(x - mu) / sigma - ops.log(sigma) - LOG_2, pointwise, outside)


double_exponential = laplace


@quiet
def logistic(x: Array, mu: Array, sigma: Array, pointwise: bool = False) -> Array:
    """Logistic with location `mu` and scale `sigma` > 0."""
    x, mu, sigma = floats(x, mu, sigma)
    sigma, outside = above(sigma)
    z = (x - mu) / sigma
    return total(-ops.softplus(z) - ops.softplus(-z) - ops.log(sigma), pointwise, outside)


@quiet
def gumbel(x: Array, mu: Array, beta: Array, pointwise: bool = False) -> Array:
    """Gumbel of largest values with location `mu` and scale `beta` > 0."""
    x, mu, beta = floats(x, mu, beta)
    beta, outside = above(beta)
    z = (x - mu) / beta
    return total(-z - ops.exp(-z) - ops.log(beta), pointwise, outside)


@quiet
def uniform(x: Array, alpha: Array, beta: Array, pointwise: bool = False) -> Array:
    """Uniform from `alpha` to `beta` > `alpha`."""
    x, alpha, beta = floats(x, alpha, beta)
    length, empty = above(beta - alpha)
    return total(0.0 * x - ops.log(length), pointwise, empty, either(x < alpha, x > beta))


# On positive numbers


@quiet
def half_normal(x: Array, sigma: Array, pointwise: bool = False) -> Array:
    """Normal of mean 0 and standard deviation `sigma` > 0, of `x` >= 0 alone."""
    x, sigma = floats(x, sigma)
    return total(normal(x, 0.0, sigma, pointwise=True) + LOG_2, pointwise, x < 0)


@quiet
def half_cauchy(x: Array, sigma: Array, pointwise: bool = False) -> Array:
    """Cauchy of location 0 and scale `sigma` > 0, of `x` >= 0 alone."""
    x, sigma = floats(x, sigma)
    return total(cauchy(x, 0.0, sigma, pointwise=True) + LOG_2, pointwise, x < 0)


@quiet
def half_student_t(x: Array, nu: Array, sigma: Array, pointwise: bool = False) -> Array:
    """Student's t of location 0, scale `sigma` > 0 and `nu` > 0 degrees of freedom, of `x` >= 0 alone."""
    x, nu, sigma = floats(x, nu, sigma)
    return total(student_t(x, nu, 0.0, sigma, pointwise=True) + LOG_2, pointwise, x < 0)


@quiet
def lognormal(x: Array, mu: Array, sigma: Array, pointwise: bool = False) -> Array:
    """Of `x` > 0 whose logarithm is normal with mean `mu` and standard deviation `sigma` > 0."""
    x, mu, sigma = floats(x, mu, sigma)
    (x, outside), (sigma, no_scale) = above(x), above(sigma)
    logarithm = ops.log(x)
    value = -0.5 * ops.square((logarithm - mu) / sigma) - ops.log(sigma) - logarithm - HALF_LOG_2PI
    return total(value, pointwise, outside, no_scale)


@quiet
def exponential(x: Array, beta: Array, pointwise: bool = False) -> Array:
    """Exponential of `x` >= 0 with rate `beta` > 0: the mean is 1 / `beta`."""
    x, beta = floats(x, beta)
    beta, outside = above(beta)
    return total(ops.log(beta) - beta * x, pointwise, outside, x < 0)


@quiet
def gamma(x: Array, alpha: Array, beta: Array, pointwise: bool = False) -> Array:
    """Gamma of `x` > 0 with shape `alpha` > 0 and rate `beta` > 0: the mean is `alpha` / `beta`."""
    x, alpha, beta = floats(x, alpha, beta)
    (x, outside), (alpha, no_shape), (beta, no_rate) = above(x), above(alpha), above(beta)
    value = alpha * ops.log(beta) - ops.gammaln(alpha) + (alpha - 1.0) * ops.log(x) - beta * x
    return total(value, pointwise, outside, no_shape, no_rate)


@quiet
def inv_gamma(x: Array, alpha: Array, beta: Array, pointwise: bool = False) -> Array:
    """Inverse gamma of `x` > 0 with shape `alpha` > 0 and scale `beta` > 0: the mean is `beta` / (`alpha` - 1)."""
    x, alpha, beta = floats(x, alpha, beta)
    (x, outside), (alpha, no_shape), (beta, no_scale) = above(x), above(alpha), above(beta)
    value = alpha * ops.log(beta) - ops.gammaln(alpha) - (alpha + 1.0) * ops.log(x) - beta / x
    return total(value, pointwise, outside, no_shape, no_scale)


@quiet
def chi_square(x: Array, nu: Array, pointwise: bool = False) -> Array:
    """Chi-square of `x` > 0 with `nu` > 0 degrees of freedom."""
    x, nu = floats(x, nu)
    return gamma(x, 0.5 * nu, 0.5, pointwise)


@quiet
def weibull(x: Array, alpha: Array, sigma: Array, pointwise: bool = False) -> Array:
    """Weibull of `x` > 0 with shape `alpha` > 0 and scale `sigma` > 0."""
    x, alpha, sigma = floats(x, alpha, sigma)
    (x, outside), (alpha, no_shape), (sigma, no_scale) = above(x), above(alpha), above(sigma)
    z = ops.log(x) - ops.log(sigma)
    return total(ops.log(alpha) - ops.log(x) + alpha * z - ops.exp(alpha * z), pointwise, outside, no_shape, no_scale)


@quiet
def pareto(x: Array, y_min: Array, alpha: Array, pointwise: bool = False) -> Array:
    """Pareto of `x` >= `y_min` > 0 with shape `alpha` > 0."""
    x, y_min, alpha = floats(x, y_min, alpha)
    (y_min, no_least), (alpha, no_shape), below = above(y_min), above(alpha), x < y_min
    x = ops.where(below, y_min, x)
    return total(ops.log(alpha) - ops.log(x) - alpha * ops.log(x / y_min), pointwise, no_least, no_shape, below)


# Between 0 and 1


@quiet
def beta(x: Array, alpha: Array, beta: Array, pointwise: bool = False) -> Array:
    """Beta of 0 < `x` < 1 with `alpha` > 0 and `beta` > 0."""
    x, alpha, beta = floats(x, alpha, beta)
    (alpha, no_alpha), (beta, no_beta), outside = above(alpha), above(beta), either(x <= 0, x >= 1)
    x = ops.where(outside, 0.5, x)
    value = (alpha - 1.0) * ops.log(x) + (beta - 1.0) * ops.log1p(-x) - log_beta(alpha, beta)
    return total(value, pointwise, outside, no_alpha, no_beta)


@quiet
def beta_proportion(x: Array, mu: Array, kappa: Array, pointwise: bool = False) -> Array:
    """Beta of 0 < `x` < 1 by its mean 0 < `mu` < 1 and precision `kappa` > 0."""
    x, mu, kappa = floats(x, mu, kappa)
    return beta(x, mu * kappa, (1.0 - mu) * kappa, pointwise)
