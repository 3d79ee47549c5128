"""Packaged models as Stan programs, with the names of our parameters.

The Gaussian is written as is fast in Stan (`samplers.stan_programs` has the times), and the regression's likelihood is
one function of C++. The others of our models are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class StanProgram(NamedTuple):
    """A program, its parameters, and the data that it takes."""

    code: str
    parameters: tuple[str, ...]
    data: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Makes the data of the program from those of `model_inputs.inputs_of`."""


CORRELATED_GAUSSIAN = """
data { int<lower=1> n; matrix[n, n] precision; }
parameters { vector[n] x; }
model { target += -0.5 * dot_product(x, precision * x); }
"""

EIGHT_SCHOOLS = """
data { int<lower=1> n; vector[n] y; vector<lower=0>[n] sigma; }
parameters { real mu; real<lower=0> tau; vector[n] eta; }
transformed parameters { vector[n] theta = mu + tau * eta; }
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  eta ~ std_normal();
  y ~ normal(theta, sigma);
}
"""

LOGISTIC_REGRESSION = """
data { int<lower=1> rows; int<lower=1> columns; matrix[rows, columns] x; array[rows] int<lower=0, upper=1> y; }
parameters { vector[columns] beta; }
model {
  beta ~ std_normal();
  y ~ bernoulli_logit_glm(x, 0, beta);
}
"""

RADON = """
data {
  int<lower=1> houses; int<lower=1> counties;
  vector[houses] y; array[houses] int<lower=1, upper=counties> county; vector[houses] first_floor;
  vector[counties] uranium;
}
parameters { vector[2] gamma; real beta; real<lower=0> tau; real<lower=0> sigma; vector[counties] eta; }
transformed parameters { vector[counties] alpha = gamma[1] + gamma[2] * uranium + tau * eta; }
model {
  gamma ~ normal(0, 2);
  beta ~ normal(0, 2);
  tau ~ std_normal();
  sigma ~ std_normal();
  eta ~ std_normal();
  y ~ normal(alpha[county] + beta * first_floor, sigma);
}
"""


def _of_gaussian(inputs: Mapping[str, Any]) -> dict[str, Any]:
    covariance = np.asarray(inputs["true_covariance"], np.float64)
    return {"n": len(covariance), "precision": np.linalg.inv(covariance)}


def _of_schools(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"n": len(inputs["y"]), "y": inputs["y"], "sigma": inputs["sigma"]}


def _of_regression(inputs: Mapping[str, Any]) -> dict[str, Any]:
    rows, columns = inputs["x"].shape
    return {"rows": rows, "columns": columns, "x": inputs["x"], "y": inputs["y"].astype("int64")}


def _of_radon(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "houses": len(inputs["y"]),
        "counties": len(inputs["uranium"]),
        "y": inputs["y"],
        "county": inputs["county_of"].astype("int64") + 1,
        "first_floor": inputs["first_floor"],
        "uranium": inputs["uranium"],
    }


MODELS: dict[str, StanProgram] = {
    "correlated_gaussian": StanProgram(CORRELATED_GAUSSIAN, ("x",), _of_gaussian),
    "eight_schools": StanProgram(EIGHT_SCHOOLS, ("mu", "tau", "eta", "theta"), _of_schools),
    "logistic_regression": StanProgram(LOGISTIC_REGRESSION, ("beta",), _of_regression),
    "radon": StanProgram(RADON, ("gamma", "beta", "tau", "sigma", "eta", "alpha"), _of_radon),
}
"""By the name of the packaged model."""
