"""Stan programs for tests, each with what it shows of loops, branches and functions, and their data."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

SCHOOLS = """
data {
  int<lower=0> J;
  array[J] real y;
  array[J] real<lower=0> sigma;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[J] eta;
}
transformed parameters {
  vector[J] theta = mu + tau * eta;
}
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  eta ~ std_normal();
  y ~ normal(theta, sigma);
}
generated quantities {
  array[J] real y_rep = normal_rng(theta, sigma);
  array[2, J] int count_rep = {poisson_rng(exp(0.1 * eta)), poisson_rng(exp(-0.1 * eta))};
  vector[J] log_lik;
  matrix[2, 3] table = [[mu, tau, 1], [2, 3, 4]];
  for (j in 1 : J) log_lik[j] = normal_lpdf(y[j] | theta[j], sigma[j]);
}
"""
SCHOOLS_DATA: dict[str, Any] = {
    "J": 8,
    "y": [28.0, 8, -3, 7, -1, 1, 18, 12],
    "sigma": [15.0, 10, 16, 11, 9, 11, 10, 18],
}


class Case(NamedTuple):
    """A program's blocks after its data, and how its loops are to be translated: the most equations of its jaxpr."""

    text: str
    equations: int


DATA: dict[str, Any] = {
    "N": 40,
    "K": 3,
    "G": 4,
    "y": np.linspace(-1.5, 2.0, 40),
    "n": [3, 1, 4, 0],
    "g": np.arange(40) % 4 + 1,
    "x": np.arange(120.0).reshape(40, 3) / 60 - 1,
    "b": (np.arange(40) % 3 == 0).astype(int),
}
DECLARED = """
data {
  int N; int K; int G; vector[N] y; array[G] int n; array[N] int g; matrix[N, K] x; array[N] int b;
}
"""
PARAMETERS = "parameters { real a; vector[K] beta; real<lower=0> s; vector[G] u; }\n"

LOOPS: dict[str, Case] = {
    "one loop": Case("model { for (i in 1 : N) y[i] ~ normal(a + x[i] * beta + u[g[i]], s); }", 120),
    "two loops": Case(
        """model { for (i in 1 : N) {
             real eta = a; for (k in 1 : K) eta += x[i, k] * beta[k]; y[i] ~ normal(eta, s); } }""",
        120,
    ),
    "ragged": Case(
        "model { for (j in 1 : G) for (i in 1 : n[j]) target += normal_lpdf(y[i] | u[j], s) * i; a ~ normal(0, 1); }",
        120,
    ),
    "shapes differ": Case(
        """model { for (j in 1 : G) if (n[j] > 0)
             target += normal_lpdf(segment(y, 1, n[j]) | u[j], s) + sum(head(y, n[j]));
           a ~ normal(0, 1); beta ~ normal(0, 1); }""",
        200,
    ),
    "elements": Case(
        """transformed parameters { vector[N] mu; matrix[N, K] m;
             for (i in 1 : N) { mu[i] = a + u[g[i]]; for (k in 1 : K) m[i, k] = mu[i] * beta[k]; } }
           model { y ~ normal(mu + m * beta, s); }""",
        150,
    ),
    "sums by group": Case(
        """model { vector[G] total = rep_vector(0, G);
             for (i in 1 : N) total[g[i]] += y[i] * a; total ~ normal(u, s); }""",
        120,
    ),
    "branches of data": Case(
        "model { for (i in 1 : N) { if (b[i] == 1) y[i] ~ normal(a, s); else y[i] ~ normal(u[g[i]], s); } }", 150
    ),
    "outside of a domain": Case(
        """model { for (i in 1 : N) if (y[i] > 0) target += log(y[i] * s) + lognormal_lpdf(y[i] | a, s);
           beta ~ normal(0, 1); }""",
        150,
    ),
    "branch of a parameter": Case("model { if (a > 0) target += -a ^ 2; else target += a; y ~ normal(a, s); }", 100),
    "branches of parameters": Case(
        "model { for (i in 1 : N) { real m = u[g[i]]; if (m > 0) m = 2 * m; y[i] ~ normal(m, s); } }", 120
    ),
    "sums by branches of parameters": Case(
        "model { for (i in 1 : N) { if (u[g[i]] > a) target += -square(y[i] - a); else target += u[g[i]] * y[i]; } }",
        200,
    ),
    "places written twice": Case(
        """model { vector[N + 1] f; for (i in 1 : N) { f[i] = a * y[i]; f[i + 1] = u[g[i]]; }
           f ~ normal(0, s); }""",
        250,
    ),
    "places written twice within": Case(
        """model { vector[N + 2] f = rep_vector(0, N + 2);
             for (i in 1 : N) for (k in 0 : 2) f[i + k] = a * y[i] + beta[k + 1] * i;
           f ~ normal(0, s); }""",
        1500,
    ),
    "private": Case(
        "model { real m; for (i in 1 : N) { m = a * y[i]; m = m + u[g[i]]; target += -square(m) / s; } }", 120
    ),
    "few dependent passes": Case(
        "model { vector[5] f; f[1] = a; for (t in 2 : 5) f[t] = f[t - 1] * s + y[t]; f ~ normal(0, 1); }", 200
    ),
    "many dependent passes": Case(
        "model { vector[N] f; f[1] = a; for (t in 2 : N) f[t] = f[t - 1] * inv_logit(s) + y[t]; y ~ normal(f, s); }",
        150,
    ),
    "a recurrence in each group": Case(
        """model { for (j in 1 : G) {
             real f = u[j]; for (t in 1 : n[j]) { f = 0.5 * f + a; y[t] ~ normal(f, s); } } }""",
        250,
    ),
    "positions of data": Case(
        "model { int at = 1; for (j in 1 : G) { segment(y, at, n[j]) ~ normal(u[j], s); at = at + n[j]; } }", 250
    ),
    "a function": Case(
        """model { for (i in 1 : N) target += own_lpdf(y[i] | a, s); target += twice(beta)[2]; }""", 150
    ),
    "a recursive function": Case("model { target += power_of(a, 4); y ~ normal(a, s); }", 150),
    "returns by lanes": Case("model { for (i in 1 : N) target += sign_of(y[i], a); s ~ normal(0, 1); }", 200),
    "while": Case("model { int i = 1; while (i < 4) { target += -square(a - i); i += 1; } s ~ normal(0, 1); }", 100),
    "rejected": Case('model { if (a > 10) reject("too large", a); y ~ normal(a, s); }', 100),
    "no pass": Case("model { for (i in 1 : 0) target += a; y ~ normal(a, s); }", 100),
    "target": Case("model { y ~ normal(a, s); target += 0.1 * target(); }", 100),
    "rows and slices": Case(
        """model { matrix[K, K] m = x[1 : K] * 0.1; m[2] = beta'; m[1 : 2, 3] = [a, s]'; m[, 1] += 1;
           target += sum(m * m);
           y[{1, 3, 5}] ~ normal(u[{1, 2, 2}], s); }""",
        150,
    ),
    "sums": Case("model { target += reduce_sum(part_lpdf, to_array_1d(y), 5, a, s); }", 100),
}
FUNCTIONS = """
functions {
  real own_lpdf(real y, real m, real s) { real z = (y - m) / s; return -0.5 * z ^ 2 - log(s); }
  vector twice(vector v) { vector[rows(v)] w; for (i in 1 : rows(v)) w[i] = 2 * v[i]; return w; }
  real power_of(real x, int n) { if (n == 0) return 1; return x * power_of(x, n - 1); }
  real sign_of(real y, real a) { if (y > 0) return a * y; return -square(a * y); }
  real part_lpdf(array[] real ys, int from, int to, real a, real s) { return normal_lpdf(ys | a, s) + 0 * from * to; }
}
"""


def loop_program(case: Case) -> str:
    """A whole program."""
    return FUNCTIONS + DECLARED + PARAMETERS + case.text


# ---- functions that call functions of the program's ------------------------------------------------------------------

_EQUATIONS = """
functions {
  vector decay(real time, vector y, vector rates, data real source) {
    return [-rates[1] * y[1] + source, rates[1] * y[1] - rates[2] * y[2]]';
  }
  array[] real decay_of_arrays(real time, array[] real y, array[] real rates, data array[] real x, data array[] int n) {
    return {-rates[1] * y[1] + x[1], rates[1] * y[1] - rates[2] * y[2] * n[1]};
  }
}
parameters { vector<lower=0>[2] rates; vector<lower=0>[2] first; }
model {
  %s y = %s(%s, 0.0, {0.5, 1.0, 2.0}, %s);
  for (k in 1:3) target += normal_lpdf(y[k] | k, 0.5);
}
"""
_TIGHT = "1e-9, 1e-9, 100000"


def _equations(name: str, tolerances: str = "") -> str:
    if name.startswith("integrate"):
        arguments = ", ".join(filter(None, ["to_array_1d(rates), {0.3}, {1}", tolerances]))
        return _EQUATIONS % ("array[3, 2] real", name, "decay_of_arrays, to_array_1d(first)", arguments)
    return _EQUATIONS % (
        "array[3] vector[2]",
        name,
        "decay, first",
        ", ".join(filter(None, [tolerances, "rates, 0.3"])),
    )


EQUATIONS = {
    **{name: _equations(name) for name in ("ode_rk45", "ode_bdf", "ode_adams", "ode_ckrk", "integrate_ode_rk45")},
    **{name: _equations(name, _TIGHT) for name in ("ode_rk45_tol", "ode_bdf_tol", "integrate_ode_bdf")},
    "ode_adjoint_tol_ctl": _equations(
        "ode_adjoint_tol_ctl",
        "1e-9, rep_vector(1e-9, 2), 1e-9, rep_vector(1e-9, 2), 1e-9, 1e-9, 10000, 100, 1, 2, 2",
    ),
}
"""Programs with an ordinary differential equation, by the function that solves it."""

_SHARDS = """
functions {
  real part(array[] real slice, int start, int end, real mean, data vector weights) {
    return dot_product(weights[start:end], square(to_vector(slice) - mean)) * -0.5;
  }
  vector shard(vector shared, vector own, data array[] real x, data array[] int n) {
    return [normal_lpdf(x | shared[1] + own[1], n[1]), own[1]]';
  }
}
data { int N; array[N] real y; vector[N] weights; }
parameters { real mean; array[2] vector[1] own; }
model { mean ~ normal(0, 1); target += %s; }
"""
SHARDS = {
    "reduce_sum": _SHARDS % "reduce_sum(part, y, 2, mean, weights)",
    "reduce_sum_static": _SHARDS % "reduce_sum_static(part, y, 2, mean, weights)",
    "map_rect": _SHARDS % "sum(map_rect(shard, [mean]', own, {y[1:3], y[4:6]}, {{1}, {2}}))",
}
SHARDS_DATA: dict[str, Any] = {"N": 6, "y": [1.0, 2.0, -1.0, 0.5, 3.0, 1.5], "weights": [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]}
"""Programs whose sums Stan can compute in parallel, by the function that does."""
