"""Hares and lynxes: an ordinary differential equation with noise of measurement (Carpenter 2018, "Predator-Prey
Population Dynamics: the Lotka-Volterra model in Stan").

    du/dt = (alpha - beta v) u    dv/dt = (-gamma + delta u) v
    log y_t,k ~ N(log z_k(t), sigma_k^2)    z(t) = (u, v)(t), from z(0) at the first year
    alpha, gamma ~ N(1, 0.5^2)    beta, delta ~ N(0.05, 0.05^2), all positive
    sigma_k ~ lognormal(-1, 1)    z_k(0) ~ lognormal(log 10, 1)

The data are the pelts, in thousands, that the Hudson's Bay Company collected from 1900 to 1920 (Howard 2009). The
equation is solved for log u and log v by the classical Runge-Kutta method of fourth order, with fixed steps.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field

from batchnuts.autobatch import ops, random
from batchnuts.mcmc.model.declarations import positive
from batchnuts.mcmc.model.model import DType, Model
from batchnuts.models.densities import lognormal, normal
from batchnuts.settings.schema import Settings

HARES = [
    30,
    47.2,
    70.2,
    77.4,
    36.3,
    20.6,
    18.1,
    21.4,
    22,
    25.4,
    27.1,
    40.3,
    57,
    76.6,
    52.3,
    19.5,
    11.2,
    7.6,
    14.6,
    16.2,
]
HARES.append(24.7)
LYNXES = [4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4, 8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6]


class LotkaVolterraOptions(Settings):
    """Options of `name: lotka_volterra`."""

    name: Literal["lotka_volterra"] = Field("lotka_volterra", description="this model")
    steps: int = Field(8, ge=1, le=10_000, description="steps of the solver in each year")
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")


def build_lotka_volterra(options: LotkaVolterraOptions) -> Model:
    """Make the model."""
    pelts = np.array([HARES, LYNXES]).T  # [years, 2]
    years, dtype = len(pelts), options.dtype
    log_pelts = np.log(pelts).astype(dtype)
    step = 1 / options.steps

    def log_populations(p: dict[str, Any]) -> Any:
        """[years, 2]."""
        growth = ops.stack([p["alpha"], -p["gamma"]])
        meeting = ops.stack([-p["beta"], p["delta"]])

        def slope(z: Any) -> Any:  # of (log u, log v)
            partner = ops.exp(ops.take(z, [1, 0]))
            return growth + meeting * partner

        def advance(z: Any, _: Any) -> tuple[Any, None]:
            first = slope(z)
            second = slope(z + 0.5 * step * first)
            third = slope(z + 0.5 * step * second)
            fourth = slope(z + step * third)
            return z + step / 6 * (first + 2 * second + 2 * third + fourth), None

        def year(z: Any, _: Any) -> tuple[Any, Any]:
            end, _ = ops.scan(advance, z, length=options.steps)
            return end, end

        start = ops.log(p["start"])
        _, later = ops.scan(year, start, length=years - 1)
        return ops.concatenate([start[None, :], later])

    def log_likelihood(p: dict[str, Any]) -> Any:
        return normal(log_pelts, log_populations(p), p["sigma"][None, :]) - log_pelts

    def log_density(p: dict[str, Any]) -> Any:
        prior = normal(p["alpha"], 1.0, 0.5) + normal(p["gamma"], 1.0, 0.5)
        prior = prior + normal(p["beta"], 0.05, 0.05) + normal(p["delta"], 0.05, 0.05)
        prior = prior + ops.sum(lognormal(p["sigma"], -1.0, 1.0)) + ops.sum(lognormal(p["start"], math.log(10), 1.0))
        return prior + ops.sum(log_likelihood(p))

    def predictive(p: dict[str, Any], seed: Any) -> Any:
        noise = random.normal(seed, (years, 2), dtype)
        return ops.exp(log_populations(p) + p["sigma"][None, :] * noise)

    species = {"species": ["hare", "lynx"]}
    return Model.from_function(
        log_density,
        name="lotka_volterra",
        dtype=dtype,
        variables={
            "alpha": positive(),
            "beta": positive(),
            "gamma": positive(),
            "delta": positive(),
            "sigma": positive(2, dims="species", coords=species),
            "start": positive(2, dims="species", coords=species),
        },
        initializer=_near_some_solution,
        log_likelihood=log_likelihood,
        predictive=predictive,
        observed_data={"pelts": (("year", "species"), pelts)},
        coords={"year": list(range(1900, 1900 + years))},
    )


def _near_some_solution(rng: np.random.Generator, chains: int) -> dict[str, Any]:
    """Rates spread widely about values for which populations stay within reason over twenty years."""

    def about(value: float, *shape: int) -> Any:
        return value * np.exp(0.3 * rng.uniform(-1, 1, (chains, *shape)))

    return {
        "alpha": about(0.7),
        "beta": about(0.03),
        "gamma": about(0.8),
        "delta": about(0.03),
        "sigma": about(0.5, 2),
        "start": about(1.0, 2) * np.array([30.0, 5.0]),
    }
