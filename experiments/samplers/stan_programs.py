"""Each problem as a Stan program, with its data, for PyStan and stanli.

The parameter is called `position`; Stan computes in float64.

Written in the way that is fast in Stan. For the Gaussian of 100 dimensions, 92,552 leapfrogs took 1.6 s with a product
of a matrix and a vector, 2.8 s with `quad_form_sym` and 8.9 s with `multi_normal_prec` (Stan's own sampling time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.experiments.samplers.problems import Problem, is_centered
from batchnuts.models.eight_schools import SCALE

LOGISTIC_REGRESSION = """
data {
  int<lower=1> rows;
  int<lower=1> columns;
  matrix[rows, columns] x;
  array[rows] int<lower=0, upper=1> y;
}
parameters {
  vector[columns] position;
}
model {
  position ~ std_normal();
  y ~ bernoulli_logit_glm(x, 0, position);
}
"""

CORRELATED_GAUSSIAN = """
data {
  int<lower=1> dimension;
  matrix[dimension, dimension] precision;
}
parameters {
  vector[dimension] position;
}
model {
  target += -0.5 * dot_product(position, precision * position);
}
"""

NEAL_FUNNEL = """
data {
  int<lower=2> dimension;
  real<lower=0> scale;
}
parameters {
  vector[dimension] position;
}
model {
  position[1] ~ normal(0, scale);
  position[2:] ~ normal(0, exp(position[1] / 2));
}
"""

EIGHT_SCHOOLS = """
data {
  vector[8] y;
  vector<lower=0>[8] sigma;
  int<lower=0, upper=1> centered;
  real<lower=0> scale;
}
parameters {
  vector[10] position;
}
transformed parameters {
  real mu = position[1];
  real tau = exp(position[2]);
  vector[8] theta = centered ? position[3:] : mu + tau * position[3:];
}
model {
  mu ~ normal(0, scale);
  tau ~ cauchy(0, scale);
  target += position[2];
  if (centered) {
    theta ~ normal(mu, tau);
  } else {
    position[3:] ~ std_normal();
  }
  y ~ normal(theta, sigma);
}
"""


@dataclass(frozen=True)
class StanProgram:
    """What Stan needs to know of a problem."""

    code: str
    data: dict[str, Any]


def program(problem: Problem) -> StanProgram:
    """The problem for Stan. The regression's likelihood and its gradient are one function written in C++."""
    data = problem.data
    match problem.name:
        case "correlated_gaussian":
            precision = data["precision"] if data["precision"].ndim == 2 else np.diag(data["precision"])
            return StanProgram(CORRELATED_GAUSSIAN, {"dimension": problem.dimension, "precision": precision})
        case "neal_funnel":
            return StanProgram(NEAL_FUNNEL, {"dimension": problem.dimension, "scale": float(data["scale"])})
        case "eight_schools":
            return StanProgram(EIGHT_SCHOOLS, {**data, "centered": int(is_centered(problem)), "scale": SCALE})
    rows, columns = data["x"].shape
    sizes = {"rows": rows, "columns": columns}
    return StanProgram(LOGISTIC_REGRESSION, {**sizes, "x": data["x"], "y": data["y"].astype("int64")})
