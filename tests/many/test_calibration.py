"""Simulation-based calibration: right models pass, wrong ones do not; bands hold what they promise."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from fitted_models import mean_model, schools_model, simulated_schools
from scipy import stats

import batchnuts
from batchnuts.autobatch import ops, random
from batchnuts.many.uniformity import Uniformity
from batchnuts.mcmc.model.model import ModelError


def test_bands_hold_uniform_ranks_as_often_as_they_say() -> None:
    uniformity, rng = Uniformity(200, 99), np.random.default_rng(0)
    band = uniformity.band(0.05)
    ranks = rng.integers(0, 100, (2000, 200))
    differences = np.array([uniformity.differences(row) for row in ranks])
    inside = ((differences >= band.low - 1e-12) & (differences <= band.high + 1e-12)).all(axis=1).mean()
    assert abs(inside - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 2000) + 0.01  # ranks are discrete: a little more are inside
    p = np.array([uniformity.p_value(row) for row in ranks])
    for level in (0.01, 0.1, 0.5):
        assert (p <= level).mean() < level + 4 * np.sqrt(level * (1 - level) / 2000)


@pytest.mark.parametrize("shape", [(0.7, 0.7), (1.4, 1.4), (1.3, 0.8)])
def test_ranks_that_are_not_uniform_are_seen(shape: tuple[float, float]) -> None:
    uniform = stats.beta(*shape).rvs(1000, random_state=0)
    assert Uniformity(1000, 99).p_value((uniform * 100).astype(int)) < 1e-3


def simulated_means(rng: np.random.Generator, sd: float = 1.0, label: str = "mu") -> tuple[dict[str, Any], Any]:
    mu = rng.normal(0, sd)
    return {label: mu}, {"y": rng.normal(mu, 1, 5), "mask": np.ones(5)}


def test_a_right_model_passes_and_a_wrong_prior_does_not() -> None:
    right = batchnuts.sbc(mean_model(), simulated_means, fits=150, processes=2)
    assert right.ok, right
    assert set(right.table.index) == {"mu", "log_density"}
    assert right.ranks["mu"].shape == (150,)
    assert repr(right).startswith("OK: 150 fits, 2 coefficients")
    assert right.plot().axes
    wrong = batchnuts.sbc(mean_model(), functools.partial(simulated_means, sd=3.0), fits=150, processes=2)
    assert not wrong.ok
    assert "Ranks that are not uniform: " in repr(wrong)


@pytest.mark.slow
def test_eight_schools_pass_and_a_wrong_scale_of_the_prior_does_not() -> None:
    right = batchnuts.sbc(schools_model(), simulated_schools, fits=500, target_acceptance=0.95)
    assert right.ok, right
    wrong = batchnuts.sbc(
        schools_model(), functools.partial(simulated_schools, scale=10.0), fits=500, target_acceptance=0.95
    )
    assert not wrong.ok


def test_the_models_own_prior_and_predictions_simulate() -> None:
    def predictive(p: Any, seed: Any, data: Any) -> Any:
        return {"y": p["mu"] + random.normal(seed, (5,), "float64")}

    model = mean_model(prior=lambda seed, data: {"mu": random.normal(seed, (), "float64")}, predictive=predictive)
    calibration = batchnuts.sbc(model, fits=60, processes=1)
    assert calibration.table.loc["mu", "p"] > 1e-3
    with pytest.raises(ModelError, match="give simulate, a function of a generator"):
        batchnuts.sbc(mean_model(), fits=10)


def test_the_prior_of_a_numpyro_model_simulates() -> None:
    numpyro = pytest.importorskip("numpyro")

    def spread(y: Any = None) -> None:
        sd = numpyro.sample("sd", numpyro.distributions.HalfNormal(1.0))
        with numpyro.plate("rows", 5):
            observed = numpyro.sample("y", numpyro.distributions.Normal(0, sd), obs=y)
        numpyro.deterministic("largest", abs(observed).max())

    model = batchnuts.Model.from_numpyro(spread, y=np.ones(5), dtype="float64")
    calibration = batchnuts.sbc(model, fits=60, processes=1)
    assert calibration.table.index.tolist() == ["sd"]
    assert calibration.table.loc["sd", "p"] > 1e-3
    with pytest.raises(ModelError, match="returned 'd', which is no parameter of the model; did you mean 'sd'"):
        batchnuts.sbc(model, lambda rng: ({"d": 1.0}, {"y": rng.normal(size=5)}), fits=10, processes=1)


def test_wrong_simulations_are_refused() -> None:
    model = mean_model()
    with pytest.raises(ModelError, match="simulate returned 'm', which is no parameter"):
        batchnuts.sbc(model, functools.partial(simulated_means, label="m"), fits=10, processes=1)
    with pytest.raises(ModelError, match="expected a pair"):
        batchnuts.sbc(model, lambda rng: {"mu": 0.0}, fits=10, processes=1)  # type: ignore[arg-type,return-value]
    with pytest.raises(ModelError, match=r"'mu' of shape \(2,\); the model has \(\)"):
        batchnuts.sbc(model, lambda rng: ({"mu": [0.0, 1.0]}, simulated_means(rng)[1]), fits=10, processes=1)
    derived = mean_model(generated=lambda p, data: {"twice": 2 * p["mu"]})
    with pytest.raises(ModelError, match="returned 'twise', which is no parameter of the model; did you mean 'twice'"):
        batchnuts.sbc(derived, lambda rng: ({"twise": 0.0}, simulated_means(rng)[1]), fits=10, processes=1)


def test_many_failures_are_no_calibration() -> None:
    def simulate(rng: np.random.Generator) -> tuple[dict[str, Any], Any]:
        parameters, data = simulated_means(rng)
        return parameters, {**data, "y": data["y"] * (np.nan if abs(parameters["mu"]) > 1 else 1.0)}

    calibration = batchnuts.sbc(mean_model(), simulate, fits=40, processes=1)
    assert not calibration.ok
    assert "fits failed, first" in repr(calibration)


def test_a_density_with_a_bug_is_seen_by_the_log_density() -> None:
    """A posterior that is the prior: each parameter's ranks are uniform."""
    model = batchnuts.Model.from_function(
        lambda p, data: -0.5 * p["mu"] ** 2 + 0.0 * ops.sum(data["y"]),
        variables={"mu": []},
        data={"y": np.zeros(5), "mask": np.ones(5)},
        dtype="float64",
    )
    calibration = batchnuts.sbc(model, simulated_means, fits=100, processes=1)
    assert calibration.table.loc["mu", "uniform"]
