"""Simulation-based calibration of the whole procedure: an ensemble start, windows of NUTS, draws.

    python docs/results/ensemble_calibration.py [--fits 1000] [--start ensemble] [--chains 64]

Two models whose parameters come from their priors: the non-centered eight schools, and a logistic regression of 40 rows
with an unknown scale of its coefficients. Each data set is fitted with
64 chains, a warmup that ends by itself, and 10 draws: too few to hide a bias of where they start.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import batchnuts
from batchnuts import Model, positive
from batchnuts.autobatch import ops

SIGMA = np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)
FEATURES = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)


def schools(values: dict[str, Any], data: dict[str, Any]) -> Any:
    """mu ~ N(0, 5), tau ~ HalfNormal(5), eta ~ N(0, 1), y ~ N(mu + tau eta, SIGMA)."""
    mu, tau, eta = values["mu"], values["tau"], values["eta"]
    prior = -0.02 * mu * mu - 0.02 * tau * tau - 0.5 * ops.sum(eta * eta)
    residual = (data["y"] - mu - tau * eta) / SIGMA
    return prior - 0.5 * ops.sum(residual * residual)


def simulate_schools(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters from the prior, and data from these."""
    mu, tau, eta = rng.normal() * 5, abs(rng.normal()) * 5, rng.normal(size=8)
    y = mu + tau * eta + SIGMA * rng.normal(size=8)
    return {"mu": mu, "tau": tau, "eta": eta}, {"y": y.astype(np.float32)}


def regression(values: dict[str, Any], data: dict[str, Any]) -> Any:
    """scale ~ HalfNormal(1), z ~ N(0, 1), y ~ Bernoulli(logistic(FEATURES z scale)). With coefficients in place of z it
    has the neck of a funnel, and is calibrated with neither start."""
    scale, z = values["scale"], values["z"]
    prior = -0.5 * scale * scale - 0.5 * ops.sum(z * z)
    logits = scale * ops.matmul(FEATURES, z)
    return prior + ops.sum(data["y"] * logits - ops.softplus(logits))


def simulate_regression(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters from the prior, and data from these."""
    scale, z = abs(rng.normal()), rng.normal(size=4)
    y = rng.random(40) < 1 / (1 + np.exp(-scale * FEATURES @ z))
    return {"scale": scale, "z": z}, {"y": y.astype(np.float32)}


MODELS: dict[str, tuple[Callable[..., Any], dict[str, Any], Callable[..., Any], dict[str, Any]]] = {
    "eight schools": (
        schools,
        {"mu": [], "tau": positive(), "eta": [8]},
        simulate_schools,
        {"y": np.zeros(8, np.float32)},
    ),
    "logistic regression": (
        regression,
        {"scale": positive(), "z": [4]},
        simulate_regression,
        {"y": np.zeros(40, np.float32)},
    ),
}


def main() -> None:
    """Calibrate both models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--start", default="ensemble")
    parser.add_argument("--chains", type=int, default=64)
    asked = parser.parse_args()
    for name, (density, variables, simulate, data) in MODELS.items():
        model = Model.from_function(density, variables=variables, data=data)
        settings: dict[str, Any] = {"chains": asked.chains, "draws": 10, "start": asked.start}
        print(name)
        print(batchnuts.sbc(model, simulate, fits=asked.fits, **settings))


if __name__ == "__main__":
    main()
