"""Item response theory (Rasch 1960; Birnbaum 1968): persons of some ability answer items of some difficulty.

    y_ij ~ Bernoulli(sigmoid(a_j (theta_i - b_j)))    theta_i ~ N(0, 1)    b_j ~ N(mu_b, sigma_b^2)
    mu_b ~ N(0, 2^2)    sigma_b ~ half-normal(0, 2)
    1PL: a_j = 1 for all items        2PL: log a_j ~ N(0, 0.5^2), the discriminations

The data are synthetic, from a seed, with the parameters drawn from these distributions (sigma_b = 1).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from batchnuts.autobatch import ops, random
from batchnuts.mcmc.model.declarations import Parameter, positive, real
from batchnuts.mcmc.model.model import DType, Model
from batchnuts.models.densities import bernoulli_logit, half_normal, lognormal, normal
from batchnuts.settings.schema import Settings

SPREAD = 0.5
"""The standard deviation of log a."""


class ItemResponseOptions(Settings):
    """Options of `name: item_response`."""

    name: Literal["item_response"] = Field("item_response", description="this model")
    parametrization: Literal["1PL", "2PL"] = Field("2PL", description="2PL: with a discrimination for each item")
    persons: int = Field(100, ge=2, le=1_000_000, description="number of persons")
    items: int = Field(20, ge=2, le=100_000, description="number of items, each answered by all persons")
    data_seed: int = Field(0, ge=0, lt=2**63, description="seed of the synthetic data")
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")


def build_item_response(options: ItemResponseOptions) -> Model:
    """Make the model."""
    rng = np.random.default_rng(options.data_seed)
    two = options.parametrization == "2PL"
    ability, difficulty = rng.normal(size=options.persons), rng.normal(size=options.items)
    discrimination = np.exp(SPREAD * rng.normal(size=options.items)) if two else np.ones(options.items)
    probability = 1 / (1 + np.exp(-discrimination * (ability[:, None] - difficulty)))
    answers = (rng.uniform(size=probability.shape) < probability).astype(options.dtype)

    def logits(p: dict[str, Any]) -> Any:
        above = p["theta"][:, None] - p["b"][None, :]
        return p["a"] * above if two else above

    def log_likelihood(p: dict[str, Any]) -> Any:
        return bernoulli_logit(answers, logits(p))

    def log_density(p: dict[str, Any]) -> Any:
        prior = normal(p["mu_b"], 0.0, 2.0) + half_normal(p["sigma_b"], 2.0)
        prior = prior + ops.sum(normal(p["theta"])) + ops.sum(normal(p["b"], p["mu_b"], p["sigma_b"]))
        if two:
            prior = prior + ops.sum(lognormal(p["a"], 0.0, SPREAD))
        return prior + ops.sum(log_likelihood(p))

    variables: dict[str, Parameter] = {
        "mu_b": real(),
        "sigma_b": positive(),
        "theta": real(options.persons, dims="person"),
        "b": real(options.items, dims="item"),
    }
    if two:
        variables["a"] = positive(options.items, dims="item")
    return Model.from_function(
        log_density,
        name="item_response",
        dtype=options.dtype,
        variables=variables,
        log_likelihood=log_likelihood,
        predictive=lambda p, seed: ops.cast(random.bernoulli(seed, ops.sigmoid(logits(p)), answers.shape), "int32"),
        observed_data={"y": (("person", "item"), answers)},
        constant_data={
            "true_theta": (("person",), ability),
            "true_b": (("item",), difficulty),
            "true_a": (("item",), discrimination),
        },
    )
