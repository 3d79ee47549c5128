"""The targets that samplers are compared on: batchnuts' packaged models, with what a foreign library needs to know.

A problem is plain arrays and a way to start chains in its typical set, so that a run of a few transitions with a fixed
step size already has trajectories of the usual length. Each library writes the density in its own words
(`samplers/jax_densities.py`, `samplers/stan_programs.py`); a test compares them all with ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model import Model
from batchnuts.models import ModelOptions, build
from batchnuts.models.correlated_gaussian import CorrelatedGaussianOptions, covariance_matrix
from batchnuts.models.logistic_regression import synthetic

Start = Literal["typical", "wide"]
"""Where chains begin: draws of the target itself (of its normal approximation), or N(0, 10**2) as in [D]."""

WIDE_SCALE = 10.0


@dataclass(frozen=True)
class Normal:
    """A normal distribution: `mean` [dimension], `covariance` [dimension, dimension], both float64."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A target distribution."""

    options: ModelOptions

    @cached_property
    def model(self) -> Model:
        """As batchnuts has it. Imports TensorFlow."""
        return build(self.options)

    @property
    def name(self) -> str:
        """The packaged model's name."""
        return self.options.name

    @property
    def dtype(self) -> str:
        """Of positions and density: float32 or float64."""
        return self.options.dtype

    @property
    def dimension(self) -> int:
        """Length of the flat position."""
        return self.options.dimension if isinstance(self.options, CorrelatedGaussianOptions) else self.options.columns

    @cached_property
    def data(self) -> dict[str, NDArray[np.float64]]:
        """What the density is made of: x [rows, columns] and y [rows]; or precision [dimension, dimension]."""
        if isinstance(self.options, CorrelatedGaussianOptions):
            inverse = np.linalg.inv(covariance_matrix(self.options))
            return {"precision": (inverse + inverse.T) / 2}
        x, y = synthetic(self.options.rows, self.options.columns, self.options.data_seed)
        return {"x": x, "y": y}

    @cached_property
    def approximation(self) -> Normal:
        """The Gaussian itself, or the regression's Laplace approximation (mode by Newton's method)."""
        if isinstance(self.options, CorrelatedGaussianOptions):
            return Normal(np.zeros(self.dimension), covariance_matrix(self.options))
        x, y = self.data["x"], self.data["y"]
        mode = np.zeros(self.dimension)
        for _ in range(100):
            probability = 1 / (1 + np.exp(-x @ mode))
            gradient = x.T @ (y - probability) - mode
            hessian = (x * (probability * (1 - probability))[:, None]).T @ x + np.eye(self.dimension)
            step = np.linalg.solve(hessian, gradient)
            mode = mode + step
            if np.max(np.abs(step)) < 1e-10:
                return Normal(mode, np.asarray(np.linalg.inv(hessian), np.float64))
        raise ArithmeticError("Newton's method did not find the mode of the logistic regression in 100 steps")

    def starts(self, start: Start, chains: int, seed: int) -> NDArray[np.floating]:
        """First positions [chains, dimension] of dtype `dtype`."""
        normal = np.random.default_rng(seed).standard_normal((chains, self.dimension))
        if start == "wide":
            return (WIDE_SCALE * normal).astype(self.dtype)
        root = np.linalg.cholesky(self.approximation.covariance)
        return (self.approximation.mean + normal @ root.T).astype(self.dtype)
