"""Bayesian logistic regression: y ~ Bernoulli(sigmoid(X beta)), with independent N(0, 1) priors on all coefficients.

The data are synthetic by default, or come from the user's CSV or NumPy file. Written twice, as the same function: once
for one chain, and once for many by hand, where each gradient is one pass of two matrix products over the data.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from batchnuts.autobatch import ops
from batchnuts.mcmc.model.model import DType, Model, Variable
from batchnuts.mcmc.settings.run_settings import MOST_NUMBERS
from batchnuts.models.tables import existing_file, read_labelled
from batchnuts.process.memory import machine_memory
from batchnuts.settings.schema import Settings


class LogisticRegressionOptions(Settings):
    """Options of `name: logistic_regression`. `rows`, `columns` and `data_seed` are of the synthetic data only."""

    name: Literal["logistic_regression"] = Field("logistic_regression", description="this model")
    rows: int = Field(10_000, ge=1, le=1_000_000_000, description="synthetic data: number of observations")
    columns: int = Field(100, ge=1, le=MOST_NUMBERS, description="synthetic data: number of features")
    data_seed: int = Field(
        0, ge=0, lt=2**63, description="synthetic data: seed of features, true coefficients and labels"
    )
    data: Annotated[str | None, AfterValidator(existing_file)] = Field(
        None, description="a .csv, .npy or .npz file to use in place of synthetic data, relative to the current folder"
    )
    label: str | int | None = Field(
        None,
        description="data: the column of 0/1 labels (a name in .csv, an index in .npy; in .npz the label array's "
        "name); default: the last column, or y in .npz",
    )
    features: list[str | int] | None = Field(
        None, description="data: the columns to use as features; default: all but the label (in .npz: of the array X)"
    )
    intercept: bool = Field(False, description="add a constant column, whose coefficient is called intercept")
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")

    def without_effect(self) -> set[str]:
        """Options of the other source of data."""
        return {"label", "features"} if self.data is None else {"rows", "columns", "data_seed"}

    @model_validator(mode="after")
    def _one_source(self) -> LogisticRegressionOptions:
        self.refuse_without_effect("on synthetic data" if self.data is None else f"where data is {self.data!r}")
        if self.data is None and self.rows * self.columns * 8 > machine_memory():
            raise ValueError(
                f"rows x columns: {self.rows} x {self.columns} numbers do not fit into this machine's memory "
                f"({machine_memory() / 1e9:.3g} GB); lower rows or columns"
            )
        return self


def build_logistic_regression(options: LogisticRegressionOptions) -> Model:
    """Make the model. Raises DataError where the user's file does not hold what it must."""
    if options.data is None:
        features, labels = synthetic(options.rows, options.columns, options.data_seed)
        names = [str(column) for column in range(options.columns)]
    else:
        table = read_labelled(options.data, options.label, options.features, options.dtype)
        features, labels, names = table.features, table.labels, list(table.names)
    if options.intercept:
        features = np.concatenate([np.ones((len(features), 1)), features], axis=1)
        names = ["intercept", *names]
    return from_arrays(features, labels, names, options.dtype)


def synthetic(rows: int, columns: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Features [rows, columns] ~ N(0, 1) and 0/1 labels [rows], drawn from true coefficients ~ N(0, 0.1**2)."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((rows, columns))
    truth = rng.standard_normal(columns) / 10
    probability = 1 / (1 + np.exp(-features @ truth))
    return features, (rng.random(rows) < probability).astype(np.float64)


def from_arrays(features: NDArray[Any], labels: NDArray[Any], names: list[str], dtype: DType = "float32") -> Model:
    """The model of features [rows, columns], 0/1 labels [rows] and one name per column."""
    features, labels = features.astype(dtype), labels.astype(dtype)
    x, y, x_transposed = features, labels, np.ascontiguousarray(features.T)

    def log_density(beta: Any) -> Any:
        logits = ops.matmul(x, beta)
        # log Bernoulli(y | logits) = y logits - log(1 + exp(logits)). One exponential serves the gradient too, and
        # log(1 + e) costs less than log1p(e): it is off by a rounding of 1, in a sum of thousands of such.
        # (z + |z|) / 2 is max(z, 0), and its derivative at zero is the 1/2 that the softplus has there.
        size = ops.abs(logits)
        softplus = 0.5 * (logits + size) + ops.log(1 + ops.exp(-size))
        return ops.sum(y * logits - softplus) - 0.5 * ops.sum(beta * beta)

    def batched_value_and_gradient(beta: Any) -> tuple[Any, Any]:
        logits = ops.matmul(beta, x_transposed)  # [lanes, rows]
        small = ops.exp(-ops.abs(logits))
        softplus = ops.maximum(logits, 0) + ops.log(1 + small)
        value = ops.sum(y * logits - softplus, axis=1) - 0.5 * ops.sum(beta * beta, axis=1)
        sigmoid = ops.where(logits >= 0, ops.ones_like(small), small) / (1 + small)
        return value, ops.matmul(y - sigmoid, x) - beta

    return Model(
        name="logistic_regression",
        log_density=log_density,
        dimension=features.shape[1],
        dtype=dtype,
        variables=(Variable("beta", (features.shape[1],), ("feature",), {"feature": names}),),
        batched_value_and_gradient=batched_value_and_gradient,
        observed_data={"y": (("observation",), labels)},
        constant_data={"x": (("observation", "feature"), features)},
    )
