"""Log-probabilities and distribution functions of integers: Stan's Functions Reference, chapters 14 to 17.

Each univariate one is written for one number; Stan's functions sum over the elements of containers that broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from batchnuts.bridges.stan.functions.elementwise import lbeta, lchoose, lgamma, log1m_exp
from batchnuts.bridges.stan.functions.linear import log_softmax
from batchnuts.bridges.stan.functions.numerics import Array, Numerics, StanFunction

OfNumbers = Callable[..., Array]


def bernoulli(m: Numerics, y: Array, theta: Array) -> Array:
    """0 or 1."""
    return m.special.xlogy(y, theta) + m.special.xlog1py(1.0 - y, -theta)


def bernoulli_logit(m: Numerics, y: Array, alpha: Array) -> Array:
    """By the log-odds."""
    return -m.np.logaddexp(0.0, (1.0 - 2.0 * y) * alpha)


def binomial(m: Numerics, y: Array, n: Array, theta: Array) -> Array:
    """Of n trials."""
    return lchoose(m, n, y) + m.special.xlogy(y, theta) + m.special.xlog1py(n - y, -theta)


def binomial_logit(m: Numerics, y: Array, n: Array, alpha: Array) -> Array:
    """By the log-odds."""
    return lchoose(m, n, y) - y * m.np.logaddexp(0.0, -alpha) - (n - y) * m.np.logaddexp(0.0, alpha)


def beta_binomial(m: Numerics, y: Array, n: Array, alpha: Array, beta: Array) -> Array:
    """Whose probability is of a beta distribution."""
    return lchoose(m, n, y) + lbeta(m, y + alpha, n - y + beta) - lbeta(m, alpha, beta)


def hypergeometric(m: Numerics, y: Array, draws: Array, a: Array, b: Array) -> Array:
    """Of a of one kind and b of another."""
    return lchoose(m, a, y) + lchoose(m, b, draws - y) - lchoose(m, a + b, draws)


def poisson(m: Numerics, y: Array, rate: Array) -> Array:
    """With a rate."""
    return m.special.xlogy(y, rate) - rate - lgamma(m, y + 1.0)


def poisson_log(m: Numerics, y: Array, alpha: Array) -> Array:
    """By the logarithm of the rate."""
    return y * alpha - m.np.exp(alpha) - lgamma(m, y + 1.0)


def neg_binomial(m: Numerics, y: Array, alpha: Array, beta: Array) -> Array:
    """With shape and inverse scale."""
    log_beta, log_one = m.np.log(beta) - m.np.log1p(beta), m.np.log1p(beta)
    return lchoose(m, y + alpha - 1.0, y) + alpha * log_beta - y * log_one


def neg_binomial_2(m: Numerics, y: Array, mu: Array, phi: Array) -> Array:
    """With mean and precision."""
    total = m.np.log(mu + phi)
    return lchoose(m, y + phi - 1.0, y) + m.special.xlogy(y, mu) - y * total + phi * (m.np.log(phi) - total)


def neg_binomial_2_log(m: Numerics, y: Array, eta: Array, phi: Array) -> Array:
    """By the logarithm of the mean."""
    total = m.np.logaddexp(eta, m.np.log(phi))
    return lchoose(m, y + phi - 1.0, y) + y * (eta - total) + phi * (m.np.log(phi) - total)


def discrete_range(m: Numerics, y: Array, low: Array, high: Array) -> Array:
    """Equally likely integers."""
    return m.np.where((y >= low) & (y <= high), -m.np.log(high - low + 1.0), -math.inf)


PROBABILITIES: dict[str, OfNumbers] = {
    function.__name__: function
    for function in (
        *(bernoulli, bernoulli_logit, binomial, binomial_logit, beta_binomial, hypergeometric, poisson, poisson_log),
        *(neg_binomial, neg_binomial_2, neg_binomial_2_log, discrete_range),
    )
}

LOG_BELOW: dict[str, OfNumbers] = {
    "bernoulli": lambda m, y, theta: m.np.where(y >= 1, 0.0, m.np.log1p(-theta)),
    "binomial": lambda m, y, n, theta: m.np.where(
        y >= n, 0.0, m.np.log(m.special.betainc(m.np.maximum(n - y, 1.0), y + 1.0, 1.0 - theta))
    ),
    "poisson": lambda m, y, rate: m.np.log(m.special.gammaincc(y + 1.0, rate)),
    "neg_binomial": lambda m, y, alpha, beta: m.np.log(m.special.betainc(alpha, y + 1.0, beta / (1.0 + beta))),
    "neg_binomial_2": lambda m, y, mu, phi: m.np.log(m.special.betainc(phi, y + 1.0, phi / (phi + mu))),
}
"""log P(Y <= y)."""

LOG_ABOVE: dict[str, OfNumbers] = {
    "bernoulli": lambda m, y, theta: m.np.where(y >= 1, -math.inf, m.np.log(theta)),
    "binomial": lambda m, y, n, theta: m.np.where(
        y >= n, -math.inf, m.np.log(m.special.betainc(y + 1.0, m.np.maximum(n - y, 1.0), theta))
    ),
    "poisson": lambda m, y, rate: m.np.log(m.special.gammainc(y + 1.0, rate)),
    "neg_binomial": lambda m, y, alpha, beta: m.np.log(m.special.betainc(y + 1.0, alpha, 1.0 / (1.0 + beta))),
    "neg_binomial_2": lambda m, y, mu, phi: m.np.log(m.special.betainc(y + 1.0, phi, mu / (phi + mu))),
}
"""log P(Y > y)."""


# ---- categories, from 1 ----------------------------------------------------------------------------------------------


def _chosen(m: Numerics, log_probabilities: Array, y: Array) -> Array:
    """The sum of log-probabilities [..., k] at places, from 1."""
    places = m.np.asarray(y) - 1
    table = m.np.asarray(log_probabilities)
    if table.ndim == 1:
        return m.np.sum(table[places])
    rows = m.np.broadcast_to(places, table.shape[:-1])
    return m.np.sum(m.np.take_along_axis(table, rows[..., None], axis=-1))


def categorical(m: Numerics, y: Array, theta: Array) -> Array:
    """By probabilities."""
    return _chosen(m, m.np.log(theta), y)


def categorical_logit(m: Numerics, y: Array, beta: Array) -> Array:
    """By logits."""
    return _chosen(m, log_softmax(m, m.np.asarray(beta) * 1.0), y)


def categorical_logit_glm(m: Numerics, y: Array, x: Array, alpha: Array, beta: Array) -> Array:
    """Logits alpha + x beta, one row for each observation."""
    return categorical_logit(m, y, alpha + x @ beta)


def _ordered(m: Numerics, y: Array, eta: Array, cuts: Array, log_below: Callable[[Array], Array]) -> Array:
    """log(F(c_y - eta) - F(c_{y-1} - eta)); log_below: log F, of a symmetric distribution."""
    y, eta, cuts = m.np.asarray(y), m.np.asarray(eta) * 1.0, m.np.asarray(cuts) * 1.0
    count = cuts.shape[-1]
    low, high = m.np.clip(y - 2, 0, count - 1), m.np.clip(y - 1, 0, count - 1)

    def cut(places: Array) -> Array:
        return cuts[places] if cuts.ndim == 1 else m.np.take_along_axis(cuts, places[..., None], axis=-1)[..., 0]

    above, below = cut(high) - eta, cut(low) - eta
    first, last = y == 1, y == count + 1
    upper, lower = m.np.where(last, 1.0, above), m.np.where(first, -1.0, below)
    between = m.np.where(first | last, -1.0, log_below(lower) - log_below(upper))
    inner = log_below(upper) + log1m_exp(m, between)
    return m.np.sum(m.np.where(first, log_below(above), m.np.where(last, log_below(-below), inner)))


def ordered_logistic(m: Numerics, y: Array, eta: Array, cuts: Array) -> Array:
    """Ordered categories by a logistic variable and cut points."""
    return _ordered(m, y, eta, cuts, lambda x: -m.np.logaddexp(0.0, -x))


def ordered_probit(m: Numerics, y: Array, eta: Array, cuts: Array) -> Array:
    """By a normal variable."""
    return _ordered(m, y, eta, cuts, m.special.log_ndtr)


def multinomial(m: Numerics, y: Array, theta: Array) -> Array:
    """Counts by probabilities."""
    y = m.np.asarray(y) * 1.0
    return lgamma(m, m.np.sum(y) + 1.0) - m.np.sum(lgamma(m, y + 1.0)) + m.np.sum(m.special.xlogy(y, theta))


def multinomial_logit(m: Numerics, y: Array, gamma: Array) -> Array:
    """Counts by logits."""
    y = m.np.asarray(y) * 1.0
    constant = lgamma(m, m.np.sum(y) + 1.0) - m.np.sum(lgamma(m, y + 1.0))
    return constant + m.np.sum(y * log_softmax(m, gamma))


def dirichlet_multinomial(m: Numerics, y: Array, alpha: Array) -> Array:
    """Counts whose probabilities are of a Dirichlet distribution."""
    y = m.np.asarray(y) * 1.0
    n, total = m.np.sum(y), m.np.sum(alpha)
    each = lgamma(m, y + alpha) - lgamma(m, alpha) - lgamma(m, y + 1.0)
    return lgamma(m, n + 1.0) + lgamma(m, total) - lgamma(m, n + total) + m.np.sum(each)


# ---- generalized linear models ---------------------------------------------------------------------------------------


def _glm(of_eta: OfNumbers) -> StanFunction:
    """y | x, alpha, beta, ...: eta = alpha + x beta."""

    def density(m: Numerics, y: Array, x: Array, alpha: Array, beta: Array, *others: Array) -> Array:
        x = m.np.asarray(x)
        eta = alpha + (x @ m.np.asarray(beta) if x.ndim == 2 else m.np.sum(x * beta))
        return m.np.sum(of_eta(m, m.np.asarray(y) * 1.0, eta, *others))

    return density


def _binomial_logit_glm(m: Numerics, y: Array, n: Array, x: Array, alpha: Array, beta: Array) -> Array:
    eta = alpha + m.np.asarray(x) @ m.np.asarray(beta)
    return m.np.sum(binomial_logit(m, m.np.asarray(y) * 1.0, m.np.asarray(n) * 1.0, eta))


def _ordered_logistic_glm(m: Numerics, y: Array, x: Array, beta: Array, cuts: Array) -> Array:
    return ordered_logistic(m, y, m.np.asarray(x) @ m.np.asarray(beta), cuts)


def normal_id_glm(m: Numerics, y: Array, x: Array, alpha: Array, beta: Array, sigma: Array) -> Array:
    """A linear regression."""
    residuals = (m.np.asarray(y) - alpha - m.np.asarray(x) @ m.np.asarray(beta)) / sigma
    scale = m.np.log(m.np.asarray(sigma) * 1.0) + 0.5 * math.log(2.0 * math.pi)
    return -0.5 * m.np.sum(m.np.square(residuals)) - m.np.sum(m.np.broadcast_to(scale, residuals.shape))


LOG_PROBABILITIES: dict[str, StanFunction] = {
    "categorical_lpmf": categorical,
    "categorical_logit_lpmf": categorical_logit,
    "categorical_logit_glm_lpmf": categorical_logit_glm,
    "ordered_logistic_lpmf": ordered_logistic,
    "ordered_probit_lpmf": ordered_probit,
    "ordered_logistic_glm_lpmf": _ordered_logistic_glm,
    "multinomial_lpmf": multinomial,
    "multinomial_logit_lpmf": multinomial_logit,
    "dirichlet_multinomial_lpmf": dirichlet_multinomial,
    "bernoulli_logit_glm_lpmf": _glm(bernoulli_logit),
    "binomial_logit_glm_lpmf": _binomial_logit_glm,
    "poisson_log_glm_lpmf": _glm(poisson_log),
    "neg_binomial_2_log_glm_lpmf": _glm(neg_binomial_2_log),
    "normal_id_glm_lpdf": normal_id_glm,
}
"""Of whole containers."""
