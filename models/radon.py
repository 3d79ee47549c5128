"""A hierarchical regression in the manner of the radon study (Gelman, Hill, "Data Analysis Using Regression and
Multilevel/Hierarchical Models", chapter 12): houses in counties, measured in the basement or on the first floor.

    y_i ~ N(alpha_{c(i)} + beta floor_i, sigma^2)    alpha_j = gamma_0 + gamma_1 u_j + tau eta_j    eta_j ~ N(0, 1)
    gamma, beta ~ N(0, 2^2)    sigma, tau ~ half-normal(0, 1)

y is the logarithm of the radon level, u_j that of the soil's uranium. The data are synthetic, from a seed: counties
have from one house to some hundred, as in the study. alpha is a generated quantity.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from batchnuts.autobatch import ops, random
from batchnuts.mcmc.model.declarations import positive, real
from batchnuts.mcmc.model.model import DType, Model
from batchnuts.models.densities import half_normal, normal
from batchnuts.settings.schema import Settings

GAMMA, BETA, TAU, SIGMA = (1.5, 0.7), -0.65, 0.3, 0.75
"""The parameters from which the synthetic data are made."""


class RadonOptions(Settings):
    """Options of `name: radon`."""

    name: Literal["radon"] = Field("radon", description="this model")
    counties: int = Field(85, ge=2, le=100_000, description="number of counties")
    houses: int = Field(919, ge=2, le=10_000_000, description="number of houses in all")
    data_seed: int = Field(0, ge=0, lt=2**63, description="seed of the synthetic data")
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")


def build_radon(options: RadonOptions) -> Model:
    """Make the model."""
    rng = np.random.default_rng(options.data_seed)
    sizes = rng.dirichlet(np.full(options.counties, 0.7))
    county = np.sort(rng.choice(options.counties, options.houses, p=sizes))
    uranium = rng.normal(0, 0.4, options.counties)
    first_floor = (rng.uniform(size=options.houses) < 0.17).astype("float64")
    alpha = GAMMA[0] + GAMMA[1] * uranium + TAU * rng.normal(size=options.counties)
    level = alpha[county] + BETA * first_floor + SIGMA * rng.normal(size=options.houses)
    y, u, floor = (array.astype(options.dtype) for array in (level, uranium, first_floor))

    def intercepts(p: dict[str, Any]) -> Any:
        return p["gamma"][0] + p["gamma"][1] * u + p["tau"] * p["eta"]

    def means(p: dict[str, Any]) -> Any:
        return ops.take(intercepts(p), county) + p["beta"] * floor

    def log_likelihood(p: dict[str, Any]) -> Any:
        return normal(y, means(p), p["sigma"])

    def log_density(p: dict[str, Any]) -> Any:
        prior = ops.sum(normal(p["gamma"], 0.0, 2.0)) + normal(p["beta"], 0.0, 2.0) + ops.sum(normal(p["eta"]))
        return prior + half_normal(p["tau"]) + half_normal(p["sigma"]) + ops.sum(log_likelihood(p))

    return Model.from_function(
        log_density,
        name="radon",
        dtype=options.dtype,
        variables={
            "gamma": real(2, dims="coefficient", coords={"coefficient": ["intercept", "uranium"]}),
            "beta": real(),
            "tau": positive(),
            "sigma": positive(),
            "eta": real(options.counties, dims="county"),
        },
        generated=lambda p: {"alpha": intercepts(p)},
        dims={"alpha": ("county",)},
        log_likelihood=log_likelihood,
        predictive=lambda p, seed: means(p) + p["sigma"] * random.normal(seed, (options.houses,), options.dtype),
        observed_data={"y": (("house",), level)},
        constant_data={
            "county_of": (("house",), county),
            "first_floor": (("house",), first_floor),
            "uranium": (("county",), uranium),
            "true_alpha": (("county",), alpha),
        },
    )
