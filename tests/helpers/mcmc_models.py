"""Densities for tests of the sampler, written with `ops` so that every executor and backend can run them."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchnuts.autobatch import ops, primitive
from batchnuts.mcmc.model.model import Model
from batchnuts.models.correlated_gaussian import (
    CorrelatedGaussianOptions,
    build_correlated_gaussian,
    covariance_matrix,
)


def gaussian(dimension: int = 10, **options: Any) -> Model:
    """The packaged Gaussian in float64, for ten coordinates by default."""
    return build_correlated_gaussian(CorrelatedGaussianOptions(dimension=dimension, **{"dtype": "float64", **options}))


def gaussian_primitive(dimension: int = 10, dtype: str = "float64") -> tuple[Any, np.ndarray]:
    """Log-density and gradient of one lane as a costly primitive of any backend, and the covariance."""
    covariance = covariance_matrix(CorrelatedGaussianOptions(dimension=dimension))
    precision = np.linalg.inv(covariance).astype(dtype)

    @primitive(costly=True)
    def value_and_gradient(position, data=()):
        gradient = -ops.sum(precision * position, axis=-1)
        return 0.5 * ops.sum(position * gradient), gradient

    return value_and_gradient, covariance


@primitive(costly=True)
def quartic(position, data=()):
    """A density with no symmetry between its coordinates and no linear gradient: -q^4/4 - q^2/2 - q0 sin(q1)."""
    q0, q1 = position[0], position[1]
    value = -0.25 * ops.sum(position * position * position * position) - 0.5 * ops.sum(position * position)
    mixed = ops.stack([ops.sin(q1), q0 * ops.cos(q1)])
    return value - q0 * ops.sin(q1), -(position * position * position) - position - mixed


def quartic_alone(position: np.ndarray) -> tuple[float, np.ndarray]:
    """`quartic` again, in NumPy alone."""
    q0, q1 = position
    value = -0.25 * np.sum(position**4) - 0.5 * np.sum(position**2) - q0 * np.sin(q1)
    return float(value), -(position**3) - position - np.array([np.sin(q1), q0 * np.cos(q1)])


@primitive(costly=True)
def stiff(position):
    """A Gaussian with precisions 1 and 60: where trajectories turn does not follow from the longest doubling alone."""
    gradient = -np.array([1.0, 60.0]) * position
    return 0.5 * ops.sum(position * gradient), gradient


def stiff_alone(position: np.ndarray) -> tuple[float, np.ndarray]:
    """`stiff` again, in NumPy alone."""
    q0, q1 = position
    return float(-(q0**2 + 60 * q1**2) / 2), np.array([-q0, -60 * q1])
