"""Packaged models in PyMC, for nutpie, written as its users would, from the mathematics at the top of `models/NAME.py`.

Variables are called as our parameters are. Stochastic volatility, the hidden Markov model and the differential equation
are not written: each needs a loop over times, which PyMC's own random walks and solvers do in another parametrization.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

Array = Any


def correlated_gaussian(true_covariance: Array) -> pm.Model:
    """A Gaussian."""
    with pm.Model() as model:
        pm.MvNormal("x", np.zeros(len(true_covariance)), true_covariance)
    return model


def eight_schools(y: Array, sigma: Array) -> pm.Model:
    """Non-centered."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        eta = pm.Normal("eta", 0, 1, shape=len(y))
        theta = pm.Deterministic("theta", mu + tau * eta)
        pm.Normal("y", theta, sigma, observed=y)
    return model


def logistic_regression(x: Array, y: Array) -> pm.Model:
    """A logistic regression of labels 0 and 1."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=x.shape[1])
        pm.Bernoulli("y", logit_p=pt.dot(x.astype("float64"), beta), observed=y)
    return model


def radon(y: Array, county_of: Array, first_floor: Array, uranium: Array) -> pm.Model:
    """Houses in counties."""
    with pm.Model() as model:
        gamma = pm.Normal("gamma", 0, 2, shape=2)
        beta = pm.Normal("beta", 0, 2)
        tau = pm.HalfNormal("tau", 1)
        sigma = pm.HalfNormal("sigma", 1)
        eta = pm.Normal("eta", 0, 1, shape=len(uranium))
        alpha = pm.Deterministic("alpha", gamma[0] + gamma[1] * uranium + tau * eta)
        pm.Normal("y", alpha[county_of] + beta * first_floor, sigma, observed=y)
    return model


def item_response(y: Array, parametrization: str) -> pm.Model:
    """1PL and 2PL."""
    persons, items = y.shape
    with pm.Model() as model:
        mu_b = pm.Normal("mu_b", 0, 2)
        sigma_b = pm.HalfNormal("sigma_b", 2)
        theta = pm.Normal("theta", 0, 1, shape=persons)
        b = pm.Normal("b", mu_b, sigma_b, shape=items)
        a = pm.LogNormal("a", 0, 0.5, shape=items) if parametrization == "2PL" else 1.0
        pm.Bernoulli("y", logit_p=a * (theta[:, None] - b), observed=y)
    return model


def gaussian_process(x: Array, y: Array, jitter: float) -> pm.Model:
    """With the same jitter as ours, which is part of the model."""
    with pm.Model() as model:
        length = pm.InverseGamma("length", 5, 5)
        amplitude = pm.HalfNormal("amplitude", 2)
        noise = pm.HalfNormal("noise", 1)
        kernel = amplitude**2 * pt.exp(-0.5 * ((x[:, None] - x) / length) ** 2)
        covariance = kernel + (noise**2 + jitter * amplitude**2) * pt.eye(len(x))
        pm.MvNormal("y", np.zeros(len(x)), covariance, observed=y)
    return model


def horseshoe(x: Array, y: Array, relevant: int) -> pm.Model:
    """Regularized."""
    rows, columns = x.shape
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, 2)
        tau = pm.HalfCauchy("tau", relevant / (columns - relevant) * 2 / math.sqrt(rows))
        slab = pm.InverseGamma("slab", 2, 8)
        local = pm.HalfCauchy("lambda", 1, shape=columns)
        z = pm.Normal("z", 0, 1, shape=columns)
        beta = pm.Deterministic("beta", z * tau * local * pt.sqrt(slab / (slab + (tau * local) ** 2)))
        pm.Bernoulli("y", logit_p=intercept + pt.dot(x.astype("float64"), beta), observed=y)
    return model


MODELS: dict[str, Callable[..., pm.Model]] = {
    function.__name__: function
    for function in (
        correlated_gaussian, eight_schools, logistic_regression, radon, item_response, gaussian_process, horseshoe
    )
}  # fmt: skip
"""By the name of the packaged model."""
