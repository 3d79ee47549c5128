"""Whole runs on a Gaussian whose moments are known, on both executors, and through the machine's growth and slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mcmc_models import gaussian
from moments import assert_expectations

from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage.draws import Draws

DIMENSION = 10


def moments(position: np.ndarray) -> np.ndarray:
    """Coordinates, squares, and products of neighbours: [chains, draws, 3 * dimension - 1]."""
    return np.concatenate([position, position**2, position[..., 1:] * position[..., :-1]], axis=-1)


@pytest.mark.parametrize(
    "settings",
    [
        {"chains": 64, "warmup": 150, "draws": 200},
        pytest.param(
            {"chains": 12, "warmup": 40, "draws": 60, "expert": {"executor": "stackless"}}, marks=pytest.mark.slow
        ),
    ],
    ids=["virtual_machine", "stackless"],
)
def test_means_variances_and_covariances(settings: dict[str, Any]) -> None:
    model = gaussian(DIMENSION, dtype="float32")
    covariance = model.constant_data["true_covariance"][1]
    draws = run_chains(model, *split_settings({"seed": 3, **settings}))
    expected = np.concatenate([np.zeros(DIMENSION), np.diag(covariance), np.diag(covariance, 1)])
    assert_expectations(moments(draws.position), expected, largest_error=0.1)
    check_energy(draws)


def check_energy(draws: Draws) -> None:
    """Potential energy is half a chi-square, kinetic energy (drawn again each time) another one."""
    energies = np.stack([-draws.stats["lp"], draws.stats["energy"]], axis=-1)
    assert not draws.stats["diverging"].any()
    assert_expectations(energies[..., :1], [DIMENSION / 2], largest_error=0.1)
    kinetic = energies[..., 1] - energies[..., 0]
    assert (kinetic > 0).all()
    # the momentum of the drawn state is again distributed as N(0, M) where the start was drawn from the target
    assert abs(kinetic.mean() - DIMENSION / 2) < 0.25


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"leapfrogs_per_leaf": 4}, {"max_tree_depth": 2}, {"target_acceptance": 0.6},
     {"metric": "unit"}, {"metric": "dense"}, {"metric": "low_rank"}],
    ids=str,
)  # fmt: skip
def test_settings_that_change_trajectories_do_not_change_moments(settings: dict[str, Any]) -> None:
    model = gaussian(DIMENSION)
    covariance = model.constant_data["true_covariance"][1]
    draws = run_chains(model, *split_settings({"seed": 4, "chains": 64, "warmup": 150, "draws": 300, **settings}))
    expected = np.concatenate([np.zeros(DIMENSION), np.diag(covariance), np.diag(covariance, 1)])
    assert_expectations(moments(draws.position), expected, largest_error=0.1)
