"""A Gaussian with mean zero and a chosen covariance: the truth is known, so that a sampler can be checked against it.

Choices of `covariance`, all [dimension, dimension]:

- `wishart`: A A^T / dimension + 0.1 I with A ~ N(0, 1) from `covariance_seed`: correlated in no particular pattern;
- `ar1`: correlation ** |i - j|, variances 1;
- `equicorrelated`: `correlation` between any two coordinates, variances 1;
- `diagonal`: independent, variances from 1 to `condition_number`, evenly spaced in their logarithm;
- `rotated`: the same variances, along the axes of a random rotation from `covariance_seed`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from batchnuts.autobatch import ops
from batchnuts.mcmc.model.model import DType, Model, Variable
from batchnuts.settings.schema import Settings

_USED_BY = {
    "covariance_seed": ("wishart", "rotated"),
    "correlation": ("ar1", "equicorrelated"),
    "condition_number": ("diagonal", "rotated"),
}


class CorrelatedGaussianOptions(Settings):
    """Options of `name: correlated_gaussian`."""

    name: Literal["correlated_gaussian"] = Field("correlated_gaussian", description="this model")
    dimension: int = Field(100, ge=1, le=20_000, description="number of coordinates")
    covariance: Literal["wishart", "ar1", "equicorrelated", "diagonal", "rotated"] = Field(
        "wishart",
        description="wishart: A A^T/dimension + 0.1 I with A ~ N(0, 1); ar1: correlation**|i-j|; equicorrelated: the "
        "same correlation everywhere; diagonal: independent with variances from 1 to condition_number; rotated: these "
        "variances along random axes",
    )
    covariance_seed: int = Field(1, ge=0, lt=2**63, description="wishart, rotated: seed of the matrix or the axes")
    correlation: float = Field(0.9, gt=-1.0, lt=1.0, description="ar1, equicorrelated: the correlation")
    condition_number: float = Field(
        100.0, ge=1.0, le=1e30, description="diagonal, rotated: largest variance over smallest"
    )
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")

    def without_effect(self) -> set[str]:
        """Options of the other kinds of covariance."""
        return {key for key, users in _USED_BY.items() if self.covariance not in users}

    @model_validator(mode="after")
    def _consistent(self) -> CorrelatedGaussianOptions:
        self.refuse_without_effect(f"on covariance {self.covariance!r}")
        lowest = -1 / (self.dimension - 1) if self.dimension > 1 else -1.0
        if self.covariance == "equicorrelated" and self.correlation <= lowest:
            raise ValueError(
                f"correlation {self.correlation} is impossible between all of {self.dimension} coordinates; "
                f"expected a number above {lowest:.6g}"
            )
        return self


def covariance_matrix(options: CorrelatedGaussianOptions) -> NDArray[np.float64]:
    """The covariance [dimension, dimension] that the options describe."""
    dimension = options.dimension
    if options.covariance == "wishart":
        root = np.random.default_rng(options.covariance_seed).standard_normal((dimension, dimension))
        return np.asarray(root @ root.T / dimension + 0.1 * np.eye(dimension))
    if options.covariance == "ar1":
        index = np.arange(dimension)
        return np.asarray(np.power(options.correlation, np.abs(index[:, None] - index[None, :])), dtype=np.float64)
    if options.covariance == "equicorrelated":
        return np.full((dimension, dimension), options.correlation) + (1 - options.correlation) * np.eye(dimension)
    if options.covariance == "diagonal":
        return np.diag(variances(options))
    # Q of the QR factorization of a Gaussian matrix, with R's diagonal made positive: uniform over the rotations
    q, r = np.linalg.qr(np.random.default_rng(options.covariance_seed).standard_normal((dimension, dimension)))
    q = q * np.sign(np.diag(r))
    return np.asarray((q * variances(options)) @ q.T)


def variances(options: CorrelatedGaussianOptions) -> NDArray[np.float64]:
    """Variances along the axes [dimension], of `diagonal` and `rotated`."""
    return np.geomspace(1.0, options.condition_number, options.dimension)


def build_correlated_gaussian(options: CorrelatedGaussianOptions) -> Model:
    """Make the model. Its `constant_data` has the truth: `true_mean` [dimension], `true_covariance` [d, d].

    Of independent coordinates it has `true_variance` [d], and no matrix is ever made.
    """
    if options.covariance == "diagonal":
        return _independent(options)
    covariance = covariance_matrix(options)
    # Inverted in float64, then rounded: the density is then exactly symmetric, and its covariance right to rounding.
    inverse = np.linalg.inv(covariance)
    precision = ((inverse + inverse.T) / 2).astype(options.dtype)

    def log_density(x: Any) -> Any:
        return -0.5 * ops.dot(x, ops.matmul(precision, x))

    def batched_value_and_gradient(x: Any) -> tuple[Any, Any]:
        gradient = -ops.matmul(x, precision)  # the precision is symmetric
        return 0.5 * ops.sum(x * gradient, axis=1), gradient

    truth = (("coordinate", "other_coordinate"), covariance)
    return _model(options, log_density, batched_value_and_gradient, {"true_covariance": truth})


def _independent(options: CorrelatedGaussianOptions) -> Model:
    variance = variances(options)
    precision = (1.0 / variance).astype(options.dtype)

    def log_density(x: Any) -> Any:
        return -0.5 * ops.sum(precision * x * x)

    def batched_value_and_gradient(x: Any) -> tuple[Any, Any]:
        gradient = -precision * x
        return 0.5 * ops.sum(x * gradient, axis=1), gradient

    return _model(options, log_density, batched_value_and_gradient, {"true_variance": (("coordinate",), variance)})


def _model(options: CorrelatedGaussianOptions, density: Any, batched: Any, truth: dict[str, Any]) -> Model:
    return Model(
        name="correlated_gaussian",
        log_density=density,
        dimension=options.dimension,
        dtype=options.dtype,
        variables=(Variable("x", (options.dimension,), ("coordinate",)),),
        batched_value_and_gradient=batched,
        constant_data={"true_mean": (("coordinate",), np.zeros(options.dimension)), **truth},
    )
