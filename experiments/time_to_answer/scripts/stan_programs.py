"""Packaged models as Stan programs, written as its users would, from the mathematics at the top of `models/NAME.py`.

Parameters are called as ours are. A function's arguments are the data and the options of our model of the same name.
Where Stan has a function of C++ for a likelihood, it is taken; the Gaussian is written as is fast in Stan
(`samplers.stan_programs` has the times). The differential equation is solved by our method and steps, which are part of
the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = Any


class StanProgram(NamedTuple):
    """A program, and the data that it takes."""

    code: str
    data: dict[str, Any]


def correlated_gaussian(true_covariance: Array) -> StanProgram:
    """A Gaussian."""
    code = """
data { int<lower=1> n; matrix[n, n] precision; }
parameters { vector[n] x; }
model { target += -0.5 * dot_product(x, precision * x); }
"""
    covariance = np.asarray(true_covariance, np.float64)
    return StanProgram(code, {"n": len(covariance), "precision": np.linalg.inv(covariance)})


def neal_funnel(dimension: int, scale: float) -> StanProgram:
    """The funnel."""
    code = """
data { int<lower=1> n; real<lower=0> scale; }
parameters { real v; vector[n] x; }
model {
  v ~ normal(0, scale);
  x ~ normal(0, exp(v / 2));
}
"""
    return StanProgram(code, {"n": dimension - 1, "scale": scale})


def eight_schools(y: Array, sigma: Array) -> StanProgram:
    """Non-centered."""
    code = """
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
    return StanProgram(code, {"n": len(y), "y": y, "sigma": sigma})


def logistic_regression(x: Array, y: Array) -> StanProgram:
    """A logistic regression of labels 0 and 1."""
    code = """
data { int<lower=1> rows; int<lower=1> columns; matrix[rows, columns] x; array[rows] int<lower=0, upper=1> y; }
parameters { vector[columns] beta; }
model {
  beta ~ std_normal();
  y ~ bernoulli_logit_glm(x, 0, beta);
}
"""
    rows, columns = x.shape
    return StanProgram(code, {"rows": rows, "columns": columns, "x": x, "y": y.astype("int64")})


def radon(y: Array, county_of: Array, first_floor: Array, uranium: Array) -> StanProgram:
    """Houses in counties."""
    code = """
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
    sizes = {"houses": len(y), "counties": len(uranium)}
    county = county_of.astype("int64") + 1
    return StanProgram(code, {**sizes, "y": y, "county": county, "first_floor": first_floor, "uranium": uranium})


def item_response(y: Array, parametrization: str) -> StanProgram:
    """1PL and 2PL."""
    code = """
data { int<lower=1> persons; int<lower=1> items; array[items, persons] int<lower=0, upper=1> y; }
parameters { real mu_b; real<lower=0> sigma_b; vector[persons] theta; vector[items] b; DISCRIMINATIONS }
model {
  mu_b ~ normal(0, 2);
  sigma_b ~ normal(0, 2);
  theta ~ std_normal();
  b ~ normal(mu_b, sigma_b);
  PRIOR
  for (item in 1:items) {
    y[item] ~ bernoulli_logit(LOGITS);
  }
}
"""
    parts = {"DISCRIMINATIONS": "", "PRIOR": "", "LOGITS": "theta - b[item]"}
    if parametrization == "2PL":
        parts = {
            "DISCRIMINATIONS": "vector<lower=0>[items] a;",
            "PRIOR": "a ~ lognormal(0, 0.5);",
            "LOGITS": "a[item] * (theta - b[item])",
        }
    for place, part in parts.items():
        code = code.replace(place, part)
    persons, items = y.shape
    return StanProgram(code, {"persons": persons, "items": items, "y": y.T.astype("int64")})


def stochastic_volatility(y: Array) -> StanProgram:
    """The autoregression step by step."""
    code = """
data { int<lower=2> n; vector[n] y; }
parameters { real mu; real<lower=-1, upper=1> phi; real<lower=0> sigma; real h_1; vector[n - 1] z; }
transformed parameters {
  vector[n] h;
  h[1] = h_1;
  for (t in 2:n) {
    h[t] = mu + phi * (h[t - 1] - mu) + sigma * z[t - 1];
  }
}
model {
  mu ~ normal(0, 5);
  0.5 * (phi + 1) ~ beta(20, 1.5);
  sigma ~ normal(0, 0.5);
  h_1 ~ normal(mu, sigma / sqrt((1 - phi) * (1 + phi)));
  z ~ std_normal();
  y ~ normal(0, exp(h / 2));
}
"""
    return StanProgram(code, {"n": len(y), "y": y})


def gaussian_process(x: Array, y: Array, jitter: float) -> StanProgram:
    """With the same jitter as ours, which is part of the model."""
    code = """
data { int<lower=1> n; array[n] real x; vector[n] y; real<lower=0> jitter; }
parameters { real<lower=0> length; real<lower=0> amplitude; real<lower=0> noise; }
model {
  real nugget = square(noise) + jitter * square(amplitude);
  matrix[n, n] covariance = add_diag(gp_exp_quad_cov(x, amplitude, length), nugget);
  length ~ inv_gamma(5, 5);
  amplitude ~ normal(0, 2);
  noise ~ std_normal();
  y ~ multi_normal_cholesky(rep_vector(0, n), cholesky_decompose(covariance));
}
"""
    return StanProgram(code, {"n": len(x), "x": x, "y": y, "jitter": jitter})


def hidden_markov(y: Array, states: int) -> StanProgram:
    """The forward algorithm, scaled at each time, since stanli has no `hmm_marginal`. With `log_sum_exp`, as the user's
    guide has it, a gradient takes stanli twice as long."""
    code = """
data { int<lower=1> n; int<lower=2> states; vector[n] y; array[states] vector<lower=0>[states] alpha; }
parameters { array[states] simplex[states] moves; ordered[states] mean; vector<lower=0>[states] sigma; }
model {
  matrix[states, n] emission;
  matrix[states, states] transition;
  vector[states] forward = rep_vector(1.0 / states, states);
  for (k in 1:states) {
    emission[k] = -0.5 * square((y' - mean[k]) / sigma[k]) - log(sigma[k]);
    transition[k] = moves[k]';
    moves[k] ~ dirichlet(alpha[k]);
  }
  mean ~ normal(0, 3);
  sigma ~ lognormal(0, 0.5);
  for (t in 1:n) {
    real largest = max(emission[:, t]);
    if (t > 1) {
      forward = transition' * forward;
    }
    forward = forward .* exp(emission[:, t] - largest);
    real scale = sum(forward);
    target += log(scale) + largest;
    forward /= scale;
  }
}
"""
    return StanProgram(code, {"n": len(y), "states": states, "y": y, "alpha": 1 + 4 * np.eye(states)})


def horseshoe(x: Array, y: Array, relevant: int) -> StanProgram:
    """Regularized."""
    code = """
data {
  int<lower=1> rows; int<lower=1> columns;
  matrix[rows, columns] x; array[rows] int<lower=0, upper=1> y;
  real<lower=0> scale;
}
parameters {
  real intercept; real<lower=0> tau; real<lower=0> slab; vector<lower=0>[columns] lambda; vector[columns] z;
}
transformed parameters { vector[columns] beta = tau * z .* lambda .* sqrt(slab ./ (slab + square(tau * lambda))); }
model {
  intercept ~ normal(0, 2);
  tau ~ cauchy(0, scale);
  slab ~ inv_gamma(2, 8);
  lambda ~ cauchy(0, 1);
  z ~ std_normal();
  y ~ bernoulli_logit_glm(x, intercept, beta);
}
"""
    rows, columns = x.shape
    scale = relevant / (columns - relevant) * 2 / math.sqrt(rows)
    return StanProgram(code, {"rows": rows, "columns": columns, "x": x, "y": y.astype("int64"), "scale": scale})


def lotka_volterra(pelts: Array, steps: int) -> StanProgram:
    """Solved for the logarithms u and v by the method of Runge and Kutta, each with slopes at four places. In stanli
    scalars take a third of the time of vectors of two, and half of that of `ode_rk45`."""
    code = """
data { int<lower=1> years; int<lower=1> steps; array[years] vector<lower=0>[2] pelts; }
parameters {
  real<lower=0> alpha; real<lower=0> beta; real<lower=0> gamma; real<lower=0> delta;
  vector<lower=0>[2] sigma; vector<lower=0>[2] start;
}
model {
  real u = log(start[1]);
  real v = log(start[2]);
  real step = 1.0 / steps;
  alpha ~ normal(1, 0.5);
  gamma ~ normal(1, 0.5);
  beta ~ normal(0.05, 0.05);
  delta ~ normal(0.05, 0.05);
  sigma ~ lognormal(-1, 1);
  start ~ lognormal(log(10), 1);
  for (year in 1:years) {
    pelts[year] ~ lognormal([u, v]', sigma);
    if (year < years) {
      for (part in 1:steps) {
        real u1 = alpha - beta * exp(v);
        real v1 = delta * exp(u) - gamma;
        real u2 = alpha - beta * exp(v + step / 2 * v1);
        real v2 = delta * exp(u + step / 2 * u1) - gamma;
        real u3 = alpha - beta * exp(v + step / 2 * v2);
        real v3 = delta * exp(u + step / 2 * u2) - gamma;
        real u4 = alpha - beta * exp(v + step * v3);
        real v4 = delta * exp(u + step * u3) - gamma;
        u += step / 6 * (u1 + 2 * u2 + 2 * u3 + u4);
        v += step / 6 * (v1 + 2 * v2 + 2 * v3 + v4);
      }
    }
  }
}
"""
    return StanProgram(code, {"years": len(pelts), "steps": steps, "pelts": pelts})


MODELS: dict[str, Callable[..., StanProgram]] = {
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
"""By the name of the packaged model."""
