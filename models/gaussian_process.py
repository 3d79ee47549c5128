"""Gaussian-process regression (Rasmussen, Williams, "Gaussian Processes for Machine Learning", section 2.2), with its
hyperparameters sampled and the function integrated out.

    y ~ N(0, K + noise^2 I)    K_ij = amplitude^2 exp(-(x_i - x_j)^2 / (2 length^2))
    length ~ inverse-gamma(5, 5)    amplitude ~ half-normal(0, 2)    noise ~ half-normal(0, 1)

The data are synthetic, from a seed: a smooth function at random places, with noise. Predictions are of the function at
places of a grid, from its conditional distribution (eqs. 2.23 and 2.24), one draw of the function for each.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from pydantic import Field

from batchnuts.autobatch import ops, random
from batchnuts.mcmc.model.declarations import positive
from batchnuts.mcmc.model.model import DType, Model
from batchnuts.models.densities import half_normal, inverse_gamma
from batchnuts.settings.schema import Settings

NOISE = 0.3
GRID = 30
JITTER = {"float32": 1e-4, "float64": 1e-8}
"""Added to a diagonal, relative to the variance: a grid's covariance is singular after rounding."""


class GaussianProcessOptions(Settings):
    """Options of `name: gaussian_process`."""

    name: Literal["gaussian_process"] = Field("gaussian_process", description="this model")
    points: int = Field(
        40, ge=2, le=5_000, description="number of observations; the cost of a gradient grows with its cube"
    )
    data_seed: int = Field(0, ge=0, lt=2**63, description="seed of the synthetic data")
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")


def build_gaussian_process(options: GaussianProcessOptions) -> Model:
    """Make the model."""
    rng = np.random.default_rng(options.data_seed)
    points, dtype = options.points, options.dtype
    places = np.sort(rng.uniform(-4, 4, points))
    observed = np.sin(places) + 0.3 * places + NOISE * rng.normal(size=points)
    grid = np.linspace(-4, 4, GRID)
    y = observed.astype(dtype)
    apart, to_grid, in_grid = (
        ((first[:, None] - second) ** 2).astype(dtype)
        for first, second in ((places, places), (grid, places), (grid, grid))
    )
    unit, grid_unit = np.eye(points, dtype=dtype), np.eye(GRID, dtype=dtype)

    def kernel(p: dict[str, Any], squares: Any) -> Any:
        return p["amplitude"] ** 2 * ops.exp(-0.5 * squares / p["length"] ** 2)

    def factor(p: dict[str, Any]) -> Any:
        jitter = JITTER[dtype] * p["amplitude"] ** 2
        return ops.cholesky(kernel(p, apart) + (p["noise"] ** 2 + jitter) * unit)

    def log_density(p: dict[str, Any]) -> Any:
        lower = factor(p)
        white = ops.solve_triangular(lower, y)
        # eq. 2.30: y' C^-1 y = |L^-1 y|^2, log |C| = 2 sum log diag L
        evidence = -0.5 * ops.sum(white**2) - ops.sum(ops.log(ops.sum(lower * unit, axis=-1)))
        prior = inverse_gamma(p["length"], 5.0, 5.0) + half_normal(p["amplitude"], 2.0) + half_normal(p["noise"], 1.0)
        return prior + evidence - 0.5 * points * math.log(2 * math.pi)

    def predictive(p: dict[str, Any], seed: Any) -> Any:
        lower = factor(p)
        white = ops.solve_triangular(lower, y)
        cross = ops.solve_triangular(lower, kernel(p, to_grid.T))  # L^-1 K(x, grid)
        jitter = 10 * JITTER[dtype] * p["amplitude"] ** 2
        covariance = kernel(p, in_grid) + jitter * grid_unit - ops.matmul(ops.transpose(cross), cross)
        noise = random.normal(seed, (GRID,), dtype)
        return {"f": ops.matmul(white, cross) + ops.matmul(ops.cholesky(covariance), noise)}

    return Model.from_function(
        log_density,
        name="gaussian_process",
        dtype=dtype,
        variables={"length": positive(), "amplitude": positive(), "noise": positive()},
        predictive=predictive,
        dims={"f": ("grid",)},
        observed_data={"y": (("point",), observed)},
        constant_data={"x": (("point",), places), "grid_x": (("grid",), grid)},
    )
