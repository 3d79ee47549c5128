"""Eight schools (Rubin 1981, "Estimation in parallel randomized experiments"; Gelman et al., BDA3, section 5.5).

    y_j ~ N(theta_j, sigma_j^2)    theta_j ~ N(mu, tau^2)    mu ~ N(0, 5^2)    tau ~ half-Cauchy(0, 5)

sampled as mu, log tau, and for each school either eta_j with theta_j = mu + tau eta_j (`noncentered`) or theta_j itself
(`centered`, which has a funnel where tau is small).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field

from batchnuts.autobatch import ops
from batchnuts.mcmc.model import DType, Model, Variable
from batchnuts.settings.schema import Settings

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
"""Of coaching on the score of a test, estimated in each school."""
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
"""Their standard errors."""
SCALE = 5.0
"""Of both priors."""


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
    # of y and mu; of the half-Cauchy: log 2 - log(pi scale)
    constant = -np.sum(np.log(ERRORS)) - 0.5 * (len(EFFECTS) * 2 + 1) * math.log(2 * math.pi) - math.log(SCALE)
    constant += math.log(2) - math.log(math.pi * SCALE)

    def log_density(position: Any) -> Any:
        mu, log_tau, schools = position[0], position[1], position[2:]
        tau = ops.exp(log_tau)
        theta = schools if centered else mu + tau * schools
        eta = (schools - mu) / tau if centered else schools
        likelihood = -0.5 * ops.sum(((y - theta) / sigma) ** 2)
        prior = -0.5 * ops.sum(eta**2) - 0.5 * (mu / SCALE) ** 2 - ops.log1p((tau / SCALE) ** 2)
        jacobian = log_tau - (len(EFFECTS) * log_tau if centered else 0.0)  # of tau; of theta's density
        return constant + likelihood + prior + jacobian

    schools = Variable("theta" if centered else "eta", (len(EFFECTS),), ("school",), {"school": list("ABCDEFGH")})
    return Model(
        name="eight_schools",
        log_density=log_density,
        dimension=2 + len(EFFECTS),
        dtype=options.dtype,
        variables=(Variable("mu"), Variable("log_tau"), schools),
        observed_data={"y": (("school",), EFFECTS)},
        constant_data={"sigma": (("school",), ERRORS)},
    )
