"""Eight schools (Rubin 1981, "Estimation in parallel randomized experiments"; Gelman et al., BDA3, section 5.5).

    y_j ~ N(theta_j, sigma_j^2)    theta_j ~ N(mu, tau^2)    mu ~ N(0, 5^2)    tau ~ half-Cauchy(0, 5)

sampled as mu, tau, and for each school either eta_j with theta_j = mu + tau eta_j (`noncentered`, theta generated) or
theta_j itself (`centered`, which has a funnel where tau is small).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field

from batchnuts.autobatch import ops, random
from batchnuts.mcmc.model.declarations import positive, real
from batchnuts.mcmc.model.model import DType, Model
from batchnuts.settings.schema import Settings

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
"""The effect of coaching on the score of a test, as estimated in each school."""
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
"""Standard errors of the effects."""
SCALE = 5.0
"""The scale of both priors."""
_TINY = 2.0**-26
"""Added to a uniform number, which may be 0."""


class EightSchoolsOptions(Settings):
    """Options of `name: eight_schools`."""

    name: Literal["eight_schools"] = Field("eight_schools", description="this model")
    parametrization: Literal["noncentered", "centered"] = Field(
        "noncentered", description="noncentered: eta = (theta - mu) / tau is sampled; centered: theta itself"
    )
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")


def build_eight_schools(options: EightSchoolsOptions) -> Model:
    """Make the model."""
    y, sigma = (values.astype(options.dtype) for values in (EFFECTS, ERRORS))
    centered = options.parametrization == "centered"
    normal = 0.5 * math.log(2 * math.pi)
    # of y, mu and eta; of the half-Cauchy: log 2 - log(pi scale)
    constant = -np.sum(np.log(ERRORS)) - (len(EFFECTS) * 2 + 1) * normal - math.log(SCALE)
    constant = float(constant) + math.log(2) - math.log(math.pi * SCALE)

    def effects(values: dict[str, Any]) -> Any:
        return values["theta"] if centered else values["mu"] + values["tau"] * values["eta"]

    def log_density(values: dict[str, Any]) -> Any:
        mu, tau = values["mu"], values["tau"]
        eta = (values["theta"] - mu) / tau if centered else values["eta"]
        likelihood = -0.5 * ops.sum(((y - effects(values)) / sigma) ** 2)
        prior = -0.5 * ops.sum(eta**2) - 0.5 * (mu / SCALE) ** 2 - ops.log1p((tau / SCALE) ** 2)
        if centered:
            prior = prior - len(EFFECTS) * ops.log(tau)
        return constant + likelihood + prior

    def log_likelihood(values: dict[str, Any]) -> Any:
        return -0.5 * ((y - effects(values)) / sigma) ** 2 - np.log(sigma) - normal

    def predictive(values: dict[str, Any], seed: Any) -> Any:
        return effects(values) + sigma * random.normal(seed, (len(EFFECTS),), options.dtype)

    def prior(seed: Any) -> dict[str, Any]:
        keys = random.split(seed, 3)  # by index: TensorFlow does not iterate over what it traces
        mu = SCALE * random.normal(keys[0], (), options.dtype)
        # the quantile of the half-Cauchy, at a number in (0, 1)
        tau = SCALE * ops.tan(0.5 * math.pi * (random.uniform(keys[1], (), options.dtype) + _TINY))
        eta = random.normal(keys[2], (len(EFFECTS),), options.dtype)
        return {"mu": mu, "tau": tau, **({"theta": mu + tau * eta} if centered else {"eta": eta})}

    schools = "theta" if centered else "eta"
    return Model.from_function(
        log_density,
        name="eight_schools",
        dtype=options.dtype,
        variables={"mu": real(), "tau": positive(), schools: real(len(EFFECTS), dims="school")},
        generated=None if centered else lambda values: {"theta": effects(values)},
        log_likelihood=log_likelihood,
        predictive=predictive,
        prior=prior,
        dims={"theta": ("school",)},
        coords={"school": list("ABCDEFGH")},
        observed_data={"y": (("school",), EFFECTS)},
        constant_data={"sigma": (("school",), ERRORS)},
    )
