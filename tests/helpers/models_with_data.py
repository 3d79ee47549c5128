"""Two models whose data can change without a new compilation, with what is known of each posterior by quadrature.

Both are linear and normal given one scale, exp(t), so that a sum over a grid of t gives expectations of the posterior:

    y ~ N(design(t) q + offset, diag(noise(t)^2)),   coefficients q ~ N(0, diag(spread^2)),   t ~ p(t)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from batchnuts.autobatch import Shared, ops, primitive
from batchnuts.mcmc.model.model import Model

GRID = np.linspace(-12.0, 12.0, 1201)
"""Of the logarithm of the scale."""


@dataclass(frozen=True)
class Expectations:
    """Of the quantities of a posterior: means and standard deviations, [quantities] each."""

    mean: np.ndarray
    sd: np.ndarray


@dataclass(frozen=True)
class ModelWithData:
    """A model of positions (t, coefficients), and its joint distribution with the data."""

    model: Model
    """Its density outside of compiled programs is that of some data: only whether it is finite is looked at."""
    density: Any
    """The value and gradient of a position of one lane, given `data`: a primitive."""
    data: Shared
    simulate: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
    """A position [dimension] from the prior, and data from it."""
    quantities: Callable[[np.ndarray], np.ndarray]
    """Of positions [..., dimension]: those whose expectations are known [..., quantities]."""
    expectations: Callable[[np.ndarray], Expectations]
    """Of the posterior, given data."""
    log_likelihood: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """Of positions [..., dimension] and data: [...]."""


def eight_schools() -> ModelWithData:
    """The packaged model, noncentered: positions (log tau, mu, eta); tau half-Cauchy, its quantities t, mu, theta_1."""
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def parts(position: Any) -> tuple[Any, Any, Any, Any]:
        t, mu, eta = position[..., :1], position[..., 1:2], position[..., 2:]
        return ops.exp(t), t, mu, eta

    def value_and_gradient(position: Any, y: Any) -> tuple[Any, Any]:
        tau, t, mu, eta = parts(position)
        residual = (y - mu - tau * eta) / sigma
        square = (tau / 5.0) ** 2
        terms = -0.5 * residual**2 - 0.5 * eta**2
        value = ops.sum(terms, axis=-1) + (t - ops.log1p(square) - 0.5 * (mu / 5.0) ** 2)[..., 0]
        pull = residual / sigma
        of_t = 1.0 - 2.0 * square / (1.0 + square) + tau * ops.sum(pull * eta, axis=-1)[..., None]
        of_mu = ops.sum(pull, axis=-1)[..., None] - mu / 25.0
        return value, ops.concatenate([of_t, of_mu, tau * pull - eta], axis=-1)

    def simulate(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        t, mu, eta = np.log(5.0 * abs(rng.standard_cauchy())), 5.0 * rng.normal(), rng.normal(size=8)
        return np.array([t, mu, *eta]), mu + np.exp(t) * eta + sigma * rng.normal(size=8)

    def expectations(y: np.ndarray) -> Expectations:
        scales = np.exp(GRID)
        log_prior = GRID - np.log1p((scales / 5.0) ** 2)
        prior = np.concatenate([[5.0], np.ones(8)])
        designs = [np.concatenate([np.ones((8, 1)), scale * np.eye(8)], axis=1) for scale in scales]
        first = [np.array([[1.0, *np.zeros(8)], [1.0, scale, *np.zeros(7)]]) for scale in scales]
        return _by_quadrature(y, log_prior, designs, [sigma] * len(scales), prior, first)

    def quantities(position: np.ndarray) -> np.ndarray:
        t, mu = position[..., 0], position[..., 1]
        return np.stack([t, mu, mu + np.exp(t) * position[..., 2]], axis=-1)

    def log_likelihood(position: np.ndarray, y: np.ndarray) -> np.ndarray:
        theta = position[..., 1:2] + np.exp(position[..., :1]) * position[..., 2:]
        return stats.norm.logpdf(y, theta, sigma).sum(axis=-1)

    return _made("eight schools", 10, value_and_gradient, simulate, quantities, expectations, log_likelihood)


def regression() -> ModelWithData:
    """Three coefficients of six observations and their noise exp(t): all N(0, 1); quantities: all of them."""
    design = np.random.default_rng(1).normal(size=(6, 3))
    rows = len(design)

    def value_and_gradient(position: Any, y: Any) -> tuple[Any, Any]:
        t, beta = position[..., :1], position[..., 1:]
        residual = y - ops.sum(design * beta[..., None, :], axis=-1)
        pull = residual * ops.exp(-2.0 * t)
        squares = ops.sum(residual * pull, axis=-1)
        value = -0.5 * (squares + ops.sum(position**2, axis=-1)) - rows * t[..., 0]
        of_t = squares[..., None] - rows - t
        of_beta = ops.sum(pull[..., None] * design, axis=-2) - beta
        return value, ops.concatenate([of_t, of_beta], axis=-1)

    def simulate(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        position = rng.normal(size=4)
        return position, design @ position[1:] + np.exp(position[0]) * rng.normal(size=rows)

    def expectations(y: np.ndarray) -> Expectations:
        count = len(GRID)
        noise = [np.full(rows, scale) for scale in np.exp(GRID)]
        return _by_quadrature(y, -0.5 * GRID**2, [design] * count, noise, np.ones(3), [np.eye(3)] * count)

    def log_likelihood(position: np.ndarray, y: np.ndarray) -> np.ndarray:
        return stats.norm.logpdf(y, position[..., 1:] @ design.T, np.exp(position[..., :1])).sum(axis=-1)

    return _made("regression", 4, value_and_gradient, simulate, lambda q: q, expectations, log_likelihood)


def _made(name: str, dimension: int, value_and_gradient: Any, *rest: Any) -> ModelWithData:
    _, y = rest[0](np.random.default_rng(0))
    data = Shared("data", y)
    model = Model.from_function(
        lambda position: value_and_gradient(position, y)[0], dimension=dimension, dtype="float64", name=name
    )
    density = primitive(value_and_gradient, batched=True, costly=True, shared=(data,))
    return ModelWithData(model, density, data, *rest)


def _by_quadrature(
    y: np.ndarray,
    log_prior: np.ndarray,
    designs: Any,
    noise: Any,
    spread: np.ndarray,
    wanted: Any,
) -> Expectations:
    """Of t and of linear functions of the coefficients, `wanted` [k, coefficients] at each point of GRID.

    At each point: y ~ N(0, A S A' + D), and the coefficients are normal given y with mean K y and covariance S - K A S.
    """
    design, deviation, functions = (np.stack(arrays) for arrays in (designs, noise, wanted))
    prior = np.diag(spread**2)
    covariance = design @ prior @ design.transpose(0, 2, 1) + deviation[:, :, None] ** 2 * np.eye(len(y))
    gain = prior @ design.transpose(0, 2, 1) @ np.linalg.inv(covariance)
    log_weight = log_prior - 0.5 * np.linalg.slogdet(covariance)[1]
    log_weight -= 0.5 * np.einsum("i,gij,j->g", y, np.linalg.inv(covariance), y)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    assert max(weight[0], weight[-1]) < 1e-6, "the grid is wide enough"
    given = np.einsum("gkc,gcy,y->gk", functions, gain, y)
    spread_given = np.einsum("gkc,gcd,gkd->gk", functions, prior - gain @ design @ prior, functions)
    values = np.concatenate([GRID[:, None], given], axis=1)
    variances = np.concatenate([np.zeros((len(GRID), 1)), spread_given], axis=1)
    mean = weight @ values
    return Expectations(mean, np.sqrt(weight @ (variances + (values - mean) ** 2)))
