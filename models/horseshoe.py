"""Logistic regression with a regularized horseshoe prior (Piironen, Vehtari 2017, "Sparsity information and
regularization in the horseshoe and other shrinkage priors", section 2.3): few coefficients matter, most are nearly 0.

    y_i ~ Bernoulli(sigmoid(intercept + x_i beta))    intercept ~ N(0, 2^2)
    beta_j = z_j tau lambda~_j    lambda~_j^2 = c^2 lambda_j^2 / (c^2 + tau^2 lambda_j^2)    z_j ~ N(0, 1)
    lambda_j ~ half-Cauchy(0, 1)    tau ~ half-Cauchy(0, tau_0)    c^2 ~ inverse-gamma(2, 8)

with tau_0 = p_0 / (p - p_0) 2 / sqrt(n), where p_0 coefficients are expected to matter (eq. 3.12; the pseudo standard
deviation of a logistic regression with balanced labels is 2). beta is a generated quantity. The data are synthetic.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from batchnuts.autobatch import ops, random
from batchnuts.mcmc.model.declarations import positive, real
from batchnuts.mcmc.model.model import DType, Model
from batchnuts.models.densities import bernoulli_logit, half_cauchy, inverse_gamma, normal
from batchnuts.settings.schema import Settings, shown


class HorseshoeOptions(Settings):
    """Options of `name: horseshoe`."""

    name: Literal["horseshoe"] = Field("horseshoe", description="this model")
    rows: int = Field(200, ge=2, le=10_000_000, description="number of observations")
    columns: int = Field(50, ge=2, le=100_000, description="number of features")
    relevant: int = Field(4, ge=1, le=100_000, description="how many features matter, in the data and in the prior")
    data_seed: int = Field(0, ge=0, lt=2**63, description="seed of the synthetic data")
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")

    @model_validator(mode="after")
    def _some_do_not_matter(self) -> HorseshoeOptions:
        if self.relevant >= self.columns:
            raise ValueError(f"relevant: found {shown(self.relevant)}; expected fewer than the columns, {self.columns}")
        return self


def build_horseshoe(options: HorseshoeOptions) -> Model:
    """Make the model."""
    rng = np.random.default_rng(options.data_seed)
    features = rng.normal(size=(options.rows, options.columns))
    truth = np.zeros(options.columns)
    truth[: options.relevant] = 2.0 * np.where(np.arange(options.relevant) % 2, -1, 1)
    labels = (rng.uniform(size=options.rows) < 1 / (1 + np.exp(-features @ truth))).astype("float64")
    x, y = features.astype(options.dtype), labels.astype(options.dtype)
    scale = options.relevant / (options.columns - options.relevant) * 2 / math.sqrt(options.rows)

    def coefficients(p: dict[str, Any]) -> Any:
        wide = (p["tau"] * p["lambda"]) ** 2
        return p["z"] * ops.sqrt(p["slab"] * wide / (p["slab"] + wide))  # slab is c^2

    def logits(p: dict[str, Any]) -> Any:
        return p["intercept"] + ops.matmul(x, coefficients(p))

    def log_likelihood(p: dict[str, Any]) -> Any:
        return bernoulli_logit(y, logits(p))

    def log_density(p: dict[str, Any]) -> Any:
        prior = normal(p["intercept"], 0.0, 2.0) + ops.sum(normal(p["z"])) + ops.sum(half_cauchy(p["lambda"]))
        prior = prior + half_cauchy(p["tau"], scale) + inverse_gamma(p["slab"], 2.0, 8.0)
        return prior + ops.sum(log_likelihood(p))

    return Model.from_function(
        log_density,
        name="horseshoe",
        dtype=options.dtype,
        variables={
            "intercept": real(),
            "tau": positive(),
            "slab": positive(),
            "lambda": positive(options.columns, dims="feature"),
            "z": real(options.columns, dims="feature"),
        },
        generated=lambda p: {"beta": coefficients(p)},
        dims={"beta": ("feature",)},
        log_likelihood=log_likelihood,
        predictive=lambda p, seed: ops.cast(random.bernoulli(seed, ops.sigmoid(logits(p)), y.shape), "int32"),
        observed_data={"y": (("row",), labels)},
        constant_data={"x": (("row", "feature"), features), "true_beta": (("feature",), truth)},
    )
