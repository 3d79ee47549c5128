"""Stochastic volatility (Kim, Shephard, Chib 1998, "Stochastic Volatility: Likelihood Inference and Comparison with
ARCH Models"): returns whose log-variance is an autoregression.

    y_t ~ N(0, exp(h_t))    h_1 ~ N(mu, sigma^2 / (1 - phi^2))    h_t ~ N(mu + phi (h_{t-1} - mu), sigma^2)
    mu ~ N(0, 5^2)    (phi + 1) / 2 ~ beta(20, 1.5)    sigma ~ half-normal(0, 0.5)

sampled as h_1, which the data determine even where phi is nearly 1 and mu is hardly determined, and the innovations
z_t ~ N(0, 1) of the others. h is made of them in log2(T) steps on whole vectors: x_t = phi x_{t-1} + e_t is the sum of
phi^k e_{t-k}, and after n steps each element has the terms with k < 2^n (a scan by doubling: Hillis, Steele 1986). The
data are synthetic, from a seed.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from batchnuts.autobatch import ops, random
from batchnuts.mcmc.model.declarations import interval, positive, real
from batchnuts.mcmc.model.model import DType, Model
from batchnuts.models.densities import beta, half_normal, normal
from batchnuts.settings.schema import Settings

TRUE = {"mu": -1.0, "phi": 0.95, "sigma": 0.25}


class StochasticVolatilityOptions(Settings):
    """Options of `name: stochastic_volatility`."""

    name: Literal["stochastic_volatility"] = Field("stochastic_volatility", description="this model")
    length: int = Field(200, ge=2, le=1_000_000, description="number of time points")
    data_seed: int = Field(0, ge=0, lt=2**63, description="seed of the synthetic data")
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")


def build_stochastic_volatility(options: StochasticVolatilityOptions) -> Model:
    """Make the model."""
    rng = np.random.default_rng(options.data_seed)
    truth = np.empty(options.length)
    truth[0] = TRUE["mu"] + TRUE["sigma"] / np.sqrt(1 - TRUE["phi"] ** 2) * rng.normal()
    for t in range(1, options.length):
        truth[t] = TRUE["mu"] + TRUE["phi"] * (truth[t - 1] - TRUE["mu"]) + TRUE["sigma"] * rng.normal()
    returns = np.exp(truth / 2) * rng.normal(size=options.length)
    y = returns.astype(options.dtype)

    def log_variance(p: dict[str, Any]) -> Any:
        phi = p["phi"]
        h = ops.concatenate([(p["h_1"] - p["mu"])[None], p["sigma"] * p["z"]])
        shift, power = 1, phi
        while shift < options.length:
            h = h + power * ops.concatenate([ops.zeros_like(h[:shift]), h[:-shift]])
            shift, power = 2 * shift, power * power
        return p["mu"] + h

    def log_likelihood(p: dict[str, Any]) -> Any:
        return normal(y, 0.0, ops.exp(0.5 * log_variance(p)))

    def log_density(p: dict[str, Any]) -> Any:
        prior = normal(p["mu"], 0.0, 5.0) + beta(0.5 * (p["phi"] + 1), 20.0, 1.5) + half_normal(p["sigma"], 0.5)
        stationary = p["sigma"] / ops.sqrt((1 - p["phi"]) * (1 + p["phi"]))
        prior = prior + normal(p["h_1"], p["mu"], stationary) + ops.sum(normal(p["z"]))
        return prior + ops.sum(log_likelihood(p))

    return Model.from_function(
        log_density,
        name="stochastic_volatility",
        dtype=options.dtype,
        variables={
            "mu": real(),
            "phi": interval(-1, 1),
            "sigma": positive(),
            "h_1": real(),
            "z": real(options.length - 1, dims="later"),
        },
        generated=lambda p: {"h": log_variance(p)},
        dims={"h": ("time",)},
        log_likelihood=log_likelihood,
        predictive=lambda p, seed: (
            ops.exp(0.5 * log_variance(p)) * random.normal(seed, (options.length,), options.dtype)
        ),
        observed_data={"y": (("time",), returns)},
        constant_data={"true_h": (("time",), truth)},
    )
