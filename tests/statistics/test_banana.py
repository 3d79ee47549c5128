"""A bent density of a user's own, written for one chain: its gradient and its vectorization are the library's."""

from __future__ import annotations

from typing import Any

import numpy as np
from moments import assert_expectations

from batchnuts.autobatch import ops
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings

BEND = 0.5


def banana(q: Any) -> Any:
    """x ~ N(0, 1), y | x ~ N(BEND (x^2 - 1), 1), and z, a Student-t with 10 degrees of freedom."""
    x, y, z = q[0], q[1], q[2]
    return -0.5 * x**2 - 0.5 * (y - BEND * (x**2 - 1)) ** 2 - 5.5 * ops.log1p(z**2 / 10)


def test_moments_of_a_bent_density() -> None:
    model = Model.from_function(banana, dimension=3)
    draws = run_chains(model, *split_settings({"chains": 64, "warmup": 120, "draws": 300, "seed": 1}))
    x, y, z = np.moveaxis(draws.position.astype("float64"), -1, 0)
    quantities = {
        "x": (x, 0.0),
        "x^2": (x**2, 1.0),
        "y": (y, 0.0),
        "y^2": (y**2, 2 * BEND**2 + 1.0),
        "xy": (x * y, 0.0),
        "x^2 y": (x**2 * y, 2 * BEND),
        "z": (z, 0.0),
        "z^2": (z**2, 10 / 8),
        "z > 1": (z > 1, 0.1704465661510300),
        "xz": (x * z, 0.0),
    }
    samples = np.stack([value for value, _ in quantities.values()], axis=-1)
    assert_expectations(samples, [truth for _, truth in quantities.values()], largest_error=0.1)
    assert draws.stats["diverging"].mean() < 0.01
