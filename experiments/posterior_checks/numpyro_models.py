"""The packaged models in NumPyro, written as its users would, from the mathematics at the top of each `models/NAME.py`.

Sites are called as our parameters are. A function's arguments are the data and the options of our model of the same
name: `arguments` finds them. This module imports NumPyro, and nothing of ours, so that a process that samples with it
starts as soon as a user's would.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

sample, deterministic, plate = numpyro.sample, numpyro.deterministic, numpyro.plate
Array = Any


def correlated_gaussian(true_covariance: Array) -> None:
    """A Gaussian."""
    sample("x", dist.MultivariateNormal(jnp.zeros(len(true_covariance)), true_covariance))


def neal_funnel(dimension: int, scale: float) -> None:
    """The funnel."""
    v = sample("v", dist.Normal(0, scale))
    sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([dimension - 1]).to_event(1))


def eight_schools(y: Array, sigma: Array) -> None:
    """Non-centered."""
    mu = sample("mu", dist.Normal(0, 5))
    tau = sample("tau", dist.HalfCauchy(5))
    with plate("school", len(y)):
        eta = sample("eta", dist.Normal(0, 1))
        theta = deterministic("theta", mu + tau * eta)
        sample("y", dist.Normal(theta, sigma), obs=y)


def logistic_regression(x: Array, y: Array) -> None:
    """A logistic regression of labels 0 and 1."""
    beta = sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    sample("y", dist.Bernoulli(logits=x @ beta).to_event(1), obs=y)


def radon(y: Array, county_of: Array, first_floor: Array, uranium: Array) -> None:
    """Houses in counties."""
    gamma = sample("gamma", dist.Normal(0, 2).expand([2]).to_event(1))
    beta = sample("beta", dist.Normal(0, 2))
    tau = sample("tau", dist.HalfNormal(1))
    sigma = sample("sigma", dist.HalfNormal(1))
    with plate("county", len(uranium)):
        eta = sample("eta", dist.Normal(0, 1))
        alpha = deterministic("alpha", gamma[0] + gamma[1] * uranium + tau * eta)
    with plate("house", len(y)):
        sample("y", dist.Normal(alpha[county_of] + beta * first_floor, sigma), obs=y)


def item_response(y: Array, parametrization: str) -> None:
    """1PL and 2PL."""
    persons, items = y.shape
    mu_b = sample("mu_b", dist.Normal(0, 2))
    sigma_b = sample("sigma_b", dist.HalfNormal(2))
    theta = sample("theta", dist.Normal(0, 1).expand([persons]).to_event(1))
    b = sample("b", dist.Normal(mu_b, sigma_b).expand([items]).to_event(1))
    a = 1.0
    if parametrization == "2PL":
        a = sample("a", dist.LogNormal(0, 0.5).expand([items]).to_event(1))
    sample("y", dist.Bernoulli(logits=a * (theta[:, None] - b)).to_event(2), obs=y)


def stochastic_volatility(y: Array) -> None:
    """The autoregression step by step."""
    mu = sample("mu", dist.Normal(0, 5))
    half = dist.TransformedDistribution(
        dist.Beta(20, 1.5), dist.transforms.AffineTransform(-1, 2, constraints.unit_interval)
    )
    phi = sample("phi", half)
    sigma = sample("sigma", dist.HalfNormal(0.5))
    h_1 = sample("h_1", dist.Normal(mu, sigma / jnp.sqrt(1 - phi**2)))
    z = sample("z", dist.Normal(0, 1).expand([len(y) - 1]).to_event(1))

    def step(h: Array, z: Array) -> tuple[Array, Array]:
        h = mu + phi * (h - mu) + sigma * z
        return h, h

    _, later = jax.lax.scan(step, h_1, z)
    h = deterministic("h", jnp.concatenate([h_1[None], later]))
    sample("y", dist.Normal(0, jnp.exp(h / 2)).to_event(1), obs=y)


def gaussian_process(x: Array, y: Array, jitter: float) -> None:
    """With the same jitter as ours, which is part of the model."""
    length = sample("length", dist.InverseGamma(5, 5))
    amplitude = sample("amplitude", dist.HalfNormal(2))
    noise = sample("noise", dist.HalfNormal(1))
    kernel = amplitude**2 * jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2)
    covariance = kernel + (noise**2 + jitter * amplitude**2) * jnp.eye(len(x))
    sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)


def hidden_markov(y: Array, states: int) -> None:
    """The forward algorithm, time by time."""
    moves = sample("moves", dist.Dirichlet(1 + 4 * jnp.eye(states)).to_event(1))
    mean = sample("mean", dist.ImproperUniform(constraints.ordered_vector, (), (states,)))
    numpyro.factor("of the mean", dist.Normal(0, 3).log_prob(mean).sum())
    sigma = sample("sigma", dist.LogNormal(0, 0.5).expand([states]).to_event(1))
    emission = dist.Normal(mean, sigma).log_prob(y[:, None])

    def forward(alpha: Array, emitted: Array) -> tuple[Array, None]:
        return jax.nn.logsumexp(alpha[:, None] + jnp.log(moves), axis=0) + emitted, None

    alpha, _ = jax.lax.scan(forward, emission[0] - math.log(states), emission[1:])
    numpyro.factor("y", jax.nn.logsumexp(alpha))


def horseshoe(x: Array, y: Array, relevant: int) -> None:
    """Regularized."""
    rows, columns = x.shape
    intercept = sample("intercept", dist.Normal(0, 2))
    tau = sample("tau", dist.HalfCauchy(relevant / (columns - relevant) * 2 / math.sqrt(rows)))
    slab = sample("slab", dist.InverseGamma(2, 8))
    with plate("feature", columns):
        local = sample("lambda", dist.HalfCauchy(1))
        z = sample("z", dist.Normal(0, 1))
        beta = deterministic("beta", z * tau * local * jnp.sqrt(slab / (slab + (tau * local) ** 2)))
    sample("y", dist.Bernoulli(logits=intercept + x @ beta).to_event(1), obs=y)


def lotka_volterra(pelts: Array, steps: int) -> None:
    """Solved for the logarithms, by the same method and steps as ours, which are part of the model."""
    alpha = sample("alpha", dist.TruncatedNormal(1, 0.5, low=0))
    beta = sample("beta", dist.TruncatedNormal(0.05, 0.05, low=0))
    gamma = sample("gamma", dist.TruncatedNormal(1, 0.5, low=0))
    delta = sample("delta", dist.TruncatedNormal(0.05, 0.05, low=0))
    sigma = sample("sigma", dist.LogNormal(-1, 1).expand([2]).to_event(1))
    start = sample("start", dist.LogNormal(math.log(10), 1).expand([2]).to_event(1))
    dt = 1 / steps

    def slope(z: Array) -> Array:
        u, v = jnp.exp(z)
        return jnp.stack([alpha - beta * v, delta * u - gamma])

    def advance(z: Array, _: None) -> tuple[Array, Array]:
        k1 = slope(z)
        k2 = slope(z + dt / 2 * k1)
        k3 = slope(z + dt / 2 * k2)
        k4 = slope(z + dt * k3)
        z = z + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return z, z

    _, path = jax.lax.scan(advance, jnp.log(start), length=(len(pelts) - 1) * steps)
    years = jnp.concatenate([jnp.log(start)[None], path[steps - 1 :: steps]])
    sample("y", dist.LogNormal(years, sigma).to_event(2), obs=pelts)


MODELS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        correlated_gaussian,
        neal_funnel,
        eight_schools,
        logistic_regression,
        radon,
        item_response,
        stochastic_volatility,
        gaussian_process,
        hidden_markov,
        horseshoe,
        lotka_volterra,
    )
}
"""Models by the name of the packaged model."""


def arguments(function: Callable[..., None], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a function of this module is called with, of what `model_inputs.inputs_of` gives."""
    return {name: inputs[name] for name in inspect.signature(function).parameters}
