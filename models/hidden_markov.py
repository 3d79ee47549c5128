"""A hidden Markov model with normal emissions; the states are summed out by the forward algorithm (Rabiner 1989, "A
Tutorial on Hidden Markov Models and Selected Applications in Speech Recognition", section III.A).

    s_1 ~ uniform    s_t ~ Categorical(A[s_{t-1}])    y_t ~ N(mean[s_t], sigma[s_t]^2)
    A[k] ~ Dirichlet(1 + 4 [k = l])    mean ascending, each N(0, 3^2)    sigma ~ lognormal(0, 0.5)

The means are ordered, or the states could change places. The forward algorithm,

    alpha_t[l] = sum_k alpha_{t-1}[k] A[k, l] p(y_t | l),

is scaled at each time to a sum of one (section V.A), and the evidence is the sum of the logarithms of the scales: one
logarithm for each time, where logsumexp takes an exponential for each pair of states. The densities p(y_t | l) are
divided by the largest at that time. The data are synthetic, from a seed.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field

from batchnuts.autobatch import ops
from batchnuts.mcmc.model.declarations import ordered, positive, simplex
from batchnuts.mcmc.model.model import DType, Model
from batchnuts.models.densities import lognormal, normal
from batchnuts.settings.schema import Settings

STAYING = 4.0
"""Added to the Dirichlet's parameter of staying in a state."""


class HiddenMarkovOptions(Settings):
    """Options of `name: hidden_markov`."""

    name: Literal["hidden_markov"] = Field("hidden_markov", description="this model")
    states: int = Field(3, ge=2, le=50, description="number of states")
    length: int = Field(200, ge=2, le=1_000_000, description="number of time points")
    data_seed: int = Field(0, ge=0, lt=2**63, description="seed of the synthetic data")
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")


def build_hidden_markov(options: HiddenMarkovOptions) -> Model:
    """Make the model."""
    rng = np.random.default_rng(options.data_seed)
    k, length = options.states, options.length
    stay = 0.85
    moves = np.full((k, k), (1 - stay) / (k - 1)) + (stay - (1 - stay) / (k - 1)) * np.eye(k)
    means = 2.5 * (np.arange(k) - (k - 1) / 2)
    path = np.empty(length, int)
    path[0] = rng.integers(k)
    for t in range(1, length):
        path[t] = rng.choice(k, p=moves[path[t - 1]])
    observed = means[path] + rng.normal(size=length)
    y = observed.astype(options.dtype)
    alpha = (1 + STAYING * np.eye(k)).astype(options.dtype)
    dirichlet = k * (math.lgamma(k + STAYING) - math.lgamma(1 + STAYING))

    def log_density(p: dict[str, Any]) -> Any:
        emission = normal(y[:, None], p["mean"][None, :], p["sigma"][None, :])  # [length, states]
        largest = ops.max(emission, axis=1)
        weights = ops.exp(emission - largest[:, None])

        def advance(carry: Any, weight: Any) -> Any:
            forward, evidence = carry
            forward = ops.sum(forward[:, None] * p["moves"], axis=0) * weight
            scale = ops.sum(forward)
            return (forward / scale, evidence + ops.log(scale)), None

        (forward, evidence), _ = ops.scan(advance, (weights[0], ops.sum(largest) - math.log(k)), weights[1:])
        evidence = evidence + ops.log(ops.sum(forward))
        prior = ops.sum((alpha - 1) * ops.log(p["moves"])) + dirichlet
        prior = prior + ops.sum(normal(p["mean"], 0.0, 3.0)) + math.lgamma(k + 1)  # of all orders one
        return prior + ops.sum(lognormal(p["sigma"], 0.0, 0.5)) + evidence

    return Model.from_function(
        log_density,
        name="hidden_markov",
        dtype=options.dtype,
        variables={
            "moves": simplex(k, k, dims=["state", "next_state"]),
            "mean": ordered(k, dims="state"),
            "sigma": positive(k, dims="state"),
        },
        observed_data={"y": (("time",), observed)},
        constant_data={
            "true_state": (("time",), path),
            "true_moves": (("state", "next_state"), moves),
            "true_mean": (("state",), means),
        },
    )
