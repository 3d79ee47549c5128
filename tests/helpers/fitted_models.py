"""Small models whose data are an argument, for tests of many fits."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchnuts import Model, positive
from batchnuts.autobatch import ops


def normal_mean(p: Any, data: Any) -> Any:
    """Observations with a standard normal prior of their mean."""
    return -0.5 * p["mu"] ** 2 - 0.5 * ops.sum(data["mask"] * (data["y"] - p["mu"]) ** 2)


def each_log_density(p: Any, data: Any) -> Any:
    """Of each observation."""
    return {"y": -0.5 * (data["y"] - p["mu"]) ** 2 - 0.5 * float(np.log(2 * np.pi))}


def mean_model(n: int = 5, **fields: Any) -> Model:
    """The model of a mean; its posterior is normal with mean sum(y) / (n + 1) and variance 1 / (n + 1)."""
    data = {"y": np.zeros(n), "mask": np.ones(n)}
    return Model.from_function(
        normal_mean,
        variables={"mu": []},
        data=data,
        observed_data=["y"],
        dtype="float64",
        name="mean",
        log_likelihood=each_log_density,
        **fields,
    )


def scale_log_density(p: Any, data: Any) -> Any:
    """Schools with a scale."""
    return (
        -0.5 * (p["mu"] / 5.0) ** 2
        - 0.5 * (p["tau"] / data["scale"]) ** 2
        - 0.5 * ops.sum(p["eta"] ** 2)
        - 0.5 * ops.sum(((data["y"] - p["mu"] - p["tau"] * p["eta"]) / data["sigma"]) ** 2)
    )


SIGMA = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
SCHOOLS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])


def schools_model() -> Model:
    """Eight schools; the scale of tau's half-normal prior is among the data."""
    return Model.from_function(
        scale_log_density,
        variables={"mu": [], "tau": positive(), "eta": [8]},
        data={"y": SCHOOLS, "sigma": SIGMA, "scale": 5.0},
        observed_data=["y"],
        dims={"eta": ["school"], "y": ["school"], "sigma": ["school"]},
        coords={"school": list("ABCDEFGH")},
        dtype="float64",
        name="schools",
    )


def simulated_schools(rng: np.random.Generator, scale: float = 5.0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of the prior, and schools with them. scale: of tau's prior; the model's is 5."""
    mu, tau, eta = rng.normal(0, 5), abs(rng.normal(0, scale)), rng.normal(size=8)
    y = rng.normal(mu + tau * eta, SIGMA)
    return {"mu": mu, "tau": tau, "eta": eta}, {"y": y, "sigma": SIGMA, "scale": 5.0}
