"""Many fits of models of other libraries, which are made again for other data."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import batchnuts
from batchnuts import Model
from batchnuts.mcmc.model.model import ModelError

Y = np.array([[0.5, 1.5, 1.0, 2.0], [5.0, 6.0, 5.5, 4.5], [-3.0, -2.0, -4.0, -3.5]])


def of_stan() -> Model:
    program = "data { int n; vector[n] y; } parameters { real mu; } model { mu ~ normal(0, 10); y ~ normal(mu, 1); }"
    return Model.from_stan(program, data={"n": 4, "y": Y[0]})


def of_numpyro() -> Model:
    import numpyro
    import numpyro.distributions as dist

    def mean(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        numpyro.sample("y", dist.Normal(mu, 1), obs=y)

    return Model.from_numpyro(mean, Y[0].astype("float32"))


def of_pymc() -> Model:
    import pymc

    with pymc.Model() as model:
        y = pymc.Data("y_data", Y[0])
        mu = pymc.Normal("mu", 0, 10)
        pymc.Normal("y", mu, 1, observed=y)
    return Model.from_pymc(model)


def of_tfp() -> Model:
    from tensorflow_probability import distributions as tfd

    joint = tfd.JointDistributionNamedAutoBatched(
        {"mu": tfd.Normal(0.0, 10.0), "y": lambda mu: tfd.Sample(tfd.Normal(mu, 1.0), 4)}
    )
    return Model.from_joint_distribution(joint, y=Y[0].astype("float32"))


CASES: dict[str, tuple[str, Callable[[], Model], str]] = {
    "stan": ("stanli", of_stan, "y"),
    "numpyro": ("numpyro", of_numpyro, "y"),
    "pymc": ("pymc", of_pymc, "y_data"),
    "tfp": ("tensorflow_probability", of_tfp, "y"),
}


@pytest.mark.parametrize("library", CASES)
def test_each_data_set_has_its_posterior(library: str) -> None:
    package, make, name = CASES[library]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    model = make()
    many = batchnuts.sample_many(model, {name: Y}, draws=200, processes=1)
    assert not many.failed, many.failed
    for number, y in enumerate(Y):
        mean = float(many[number].posterior["mu"].mean())
        assert abs(mean - y.sum() / 4.01) < 5 * 0.5 / np.sqrt(200)
    with pytest.raises(ModelError, match="data has 'z', which is none of its data"):
        model.with_data({"z": Y[0]})
    again = float(batchnuts.sample_chains(model, chains=4, draws=100).posterior["mu"].mean())
    assert abs(again - Y[0].sum() / 4.01) < 0.3, "the model itself has its own data"


def test_integers_are_not_rounded() -> None:
    pymc = pytest.importorskip("pymc")
    with pymc.Model() as counts:
        y = pymc.Data("y_data", np.array([1, 2, 3]))
        pymc.Poisson("y", pymc.Exponential("rate", 1), observed=y)
    model = Model.from_pymc(counts, name="counts")
    assert model.with_data({"y_data": [4.0, 5.0, 6.0]}).observed_data["y"][1].tolist() == [4, 5, 6]
    with pytest.raises(ModelError, match=r"Model 'counts': data.y_data has 4.5; expected int"):
        model.with_data({"y_data": [4.5, 5.0, 6.0]})
    assert model.with_data({}).observed_data["y"][1].tolist() == [1, 2, 3]


def test_a_stan_program_is_calibrated() -> None:
    pytest.importorskip("stanli")

    def simulate(rng: np.random.Generator) -> tuple[dict[str, Any], Any]:
        mu = rng.normal(0, 10)
        return {"mu": mu}, {"y": rng.normal(mu, 1, 4)}

    calibration = batchnuts.sbc(of_stan(), simulate, fits=30, processes=1)
    assert set(calibration.table.index) == {"mu", "log_density"}
    assert (calibration.table["p"] > 1e-3).all(), calibration
