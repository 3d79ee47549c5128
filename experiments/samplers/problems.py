"""The targets that samplers are compared on: batchnuts' packaged models, with what a foreign library needs to know.

A problem is plain arrays and a way to start chains in its typical set, so that a run of a few transitions with a fixed
step size already has trajectories of the usual length. Each library writes the density in its own words
(`samplers/jax_densities.py`, `samplers/stan_programs.py`); a test compares them all with ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model.model import Model
from batchnuts.models import ModelOptions, build
from batchnuts.models.correlated_gaussian import CorrelatedGaussianOptions, covariance_matrix, variances
from batchnuts.models.eight_schools import EFFECTS, ERRORS, EightSchoolsOptions
from batchnuts.models.logistic_regression import LogisticRegressionOptions, synthetic
from batchnuts.models.neal_funnel import NealFunnelOptions
from batchnuts.settings.schema import Settings

Start = Literal["typical", "wide"]
"""Where chains begin: draws of the target itself (or near it, see `Facts`), or N(0, 10**2) as in [D]."""

WIDE_SCALE = 10.0

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Facts:
    """What a library other than TensorFlow needs to know of a target."""

    dimension: int
    typical: Callable[[Array], Array]
    """Standard normals [chains, dimension] to positions in the typical set."""
    data: dict[str, Array] = field(default_factory=dict)
    """What the density is made of, by name."""


@dataclass(frozen=True)
class Normal:
    """A normal distribution: `mean` [dimension], `covariance` [dimension, dimension]."""

    mean: Array
    covariance: Array

    def draw(self, normal: Array) -> Array:
        """Draws [chains, dimension] made of standard ones."""
        return np.asarray(self.mean + normal @ np.linalg.cholesky(self.covariance).T)


@dataclass(frozen=True)
class Problem:
    """A target distribution."""

    options: ModelOptions

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: the rest is made from it there."""
        return {"options": self.options}

    @cached_property
    def model(self) -> Model:
        """The Model of batchnuts. Imports TensorFlow."""
        return build(self.options)

    @property
    def name(self) -> str:
        """The packaged model's name."""
        return self.options.name

    @property
    def dtype(self) -> str:
        """The dtype of positions and density: float32 or float64."""
        return self.options.dtype

    @cached_property
    def facts(self) -> Facts:
        """What is known of the target."""
        return _FACTS[type(self.options)](self.options)

    @property
    def dimension(self) -> int:
        """Length of the flat position."""
        return self.facts.dimension

    @property
    def data(self) -> dict[str, Array]:
        """What the density is made of, by name."""
        return self.facts.data

    def starts(self, start: Start, chains: int, seed: int) -> NDArray[np.floating]:
        """First positions [chains, dimension] of dtype `dtype`."""
        normal = np.random.default_rng(seed).standard_normal((chains, self.dimension))
        positions = WIDE_SCALE * normal if start == "wide" else self.facts.typical(normal)
        return positions.astype(self.dtype)


def is_centered(problem: Problem) -> bool:
    """Eight schools with each school's own effect as a coordinate."""
    return isinstance(problem.options, EightSchoolsOptions) and problem.options.parametrization == "centered"


def is_target(options: Any) -> bool:
    """Whether every sampler has the target: the peers' densities are written for some of the packaged models."""
    return type(options) in _FACTS


def _gaussian(options: CorrelatedGaussianOptions) -> Facts:
    """Its precision [dimension, dimension], of independent coordinates [dimension]; draws of it."""
    if options.covariance == "diagonal":
        variance = variances(options)
        return Facts(options.dimension, lambda normal: np.sqrt(variance) * normal, {"precision": 1.0 / variance})
    covariance = covariance_matrix(options)
    inverse = np.linalg.inv(covariance)
    target = Normal(np.zeros(options.dimension), covariance)
    return Facts(options.dimension, target.draw, {"precision": (inverse + inverse.T) / 2})


def _regression(options: LogisticRegressionOptions) -> Facts:
    """x [rows, columns] and y [rows]; draws of the Laplace approximation."""
    x, y = synthetic(options.rows, options.columns, options.data_seed)
    return Facts(options.columns, lambda normal: laplace_approximation(x, y).draw(normal), {"x": x, "y": y})


def laplace_approximation(x: Array, y: Array) -> Normal:
    """Laplace approximation of the regression's posterior with a standard normal prior; its mode by Newton's method."""
    mode = np.zeros(x.shape[1])
    for _ in range(100):
        probability = 1 / (1 + np.exp(-x @ mode))
        gradient = x.T @ (y - probability) - mode
        hessian = (x * (probability * (1 - probability))[:, None]).T @ x + np.eye(x.shape[1])
        step = np.linalg.solve(hessian, gradient)
        mode = mode + step
        if np.max(np.abs(step)) < 1e-10:
            return Normal(mode, np.asarray(np.linalg.inv(hessian), np.float64))
    raise ArithmeticError("Newton's method did not find the mode of the logistic regression in 100 steps")


def _funnel(options: NealFunnelOptions) -> Facts:
    """Nothing but its scale []; draws of it."""

    def typical(normal: Array) -> Array:
        v = options.scale * normal[:, :1]
        return np.concatenate([v, np.exp(v / 2) * normal[:, 1:]], axis=1)

    return Facts(options.dimension, typical, {"scale": np.array(options.scale)})


def _schools(options: EightSchoolsOptions) -> Facts:
    """y and sigma [8]; mu, log tau and eta independent, with about the posterior's means and standard deviations."""

    def typical(normal: Array) -> Array:
        mu, log_tau, eta = 4.4 + 3.3 * normal[:, :1], 0.9 + 1.1 * normal[:, 1:2], normal[:, 2:]
        schools = mu + np.exp(log_tau) * eta if options.parametrization == "centered" else eta
        return np.concatenate([mu, log_tau, schools], axis=1)

    return Facts(2 + len(EFFECTS), typical, {"y": EFFECTS, "sigma": ERRORS})


_FACTS: dict[type[Settings], Callable[[Any], Facts]] = {
    CorrelatedGaussianOptions: _gaussian,
    LogisticRegressionOptions: _regression,
    NealFunnelOptions: _funnel,
    EightSchoolsOptions: _schools,
}

TARGETS = tuple(options.model_fields["name"].default for options in _FACTS)
"""Names of the packaged models that are targets."""
