"""Many fits of models of other libraries, which are made again for other data."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import batchnuts
from batchnuts import Model
from batchnuts.many import fit
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


PREPARED = {"stan": 3, "numpyro": 1, "pymc": 1, "tfp": 3}
"""How many models are compiled for three data sets of the same types."""


@pytest.mark.parametrize("library", CASES)
def test_each_data_set_has_its_posterior(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, make, name = CASES[library]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    model, calls, prepare = make(), [], fit.prepare
    monkeypatch.setattr(fit, "prepare", lambda *arguments: calls.append(1) or prepare(*arguments))
    many = batchnuts.sample_many(model, {name: Y}, draws=200, processes=1)
    assert not many.failed, many.failed
    assert len(calls) == PREPARED[library]
    for number, y in enumerate(Y):
        mean = float(many[number].posterior["mu"].mean())
        assert abs(mean - y.sum() / 4.01) < 5 * 0.5 / np.sqrt(200)
    with pytest.raises(ModelError, match="data has 'z', which is none of its data"):
        model.with_data({"z": Y[0]})
    again = float(batchnuts.sample_chains(model, chains=4, draws=100).posterior["mu"].mean())
    assert abs(again - Y[0].sum() / 4.01) < 0.3, "the model itself has its own data"


def numpyro_regression(x: Any, y: Any, group: Any) -> None:
    import numpyro
    import numpyro.distributions as dist

    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Normal(0.0, scale))
    slope = numpyro.deterministic("slope", scale * x.mean())
    numpyro.sample("y", dist.Poisson(numpyro.util.jnp.exp(level[group] + slope * x)), obs=y)


def pymc_regression(x: Any, y: Any, group: Any) -> Any:
    import pymc

    with pymc.Model(coords={"groups": ["a", "b", "c"]}) as model:
        x, y, group = pymc.Data("x", x), pymc.Data("y", y), pymc.Data("group", group)
        scale = pymc.HalfNormal("scale", 2.0)
        level = pymc.Normal("level", 0.0, scale, dims="groups")
        slope = pymc.Deterministic("slope", scale * x.mean())
        pymc.Poisson("counts", pymc.math.exp(level[group] + slope * x), observed=y)
    return model


REGRESSIONS = {
    "numpyro": lambda data: Model.from_numpyro(numpyro_regression, **data, dtype="float64"),
    "numpyro with a dict": lambda data: Model.from_numpyro(
        lambda data: numpyro_regression(**data), data, dtype="float64"
    ),
    "pymc": lambda data: Model.from_pymc(pymc_regression(**data)),
}


@pytest.mark.parametrize("library", REGRESSIONS)
def test_functions_that_take_data_are_those_of_a_model_of_these(library: str) -> None:
    pytest.importorskip(library.partition(" ")[0])
    jax = pytest.importorskip("jax")
    from batchnuts.autobatch.language.libraries.jax_flags import enable_x64

    rng = np.random.default_rng(0)
    first, second = (
        {"x": rng.normal(size=5), "y": rng.poisson(2.0, 5), "group": rng.integers(0, 3, 5)} for _ in range(2)
    )
    model = REGRESSIONS[library](first)
    made = model.with_data(second)
    whole = model.remade.whole("", second)
    taking = model.remade.of_argument(model.remade.example).with_data(whole)
    values = {variable.name: rng.normal(size=variable.shape) for variable in model.variables}
    seed = np.array([1, 2], "uint32")
    with enable_x64(True):
        for role, arguments in {
            "log_density": (values,),
            "generated": (values,),
            "log_likelihood": (values,),
            "predictive": (values, seed),
        }.items():
            found, expected = getattr(taking, role)(*arguments, taking.data), getattr(made, role)(*arguments)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, expected)


def test_models_that_decide_by_numbers_of_their_data_are_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numpyro")
    import numpyro
    import numpyro.distributions as dist

    def sign(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        numpyro.sample("y", dist.Normal(mu if y.sum() > 0 else -mu, 1), obs=y)

    many = batchnuts.sample_many(Model.from_numpyro(sign, Y[0]), {"y": Y}, draws=200, processes=1)
    assert not many.failed, many.failed
    said = capsys.readouterr().err
    assert said.count("Model 'sign' is made and compiled again for each data set, since ") == 1
    assert "test_other_libraries.py" in said
    for number, mean in enumerate((5.0 / 4.01, 21.0 / 4.01, 13.0 / 4.01)):
        assert abs(float(many[number].posterior["mu"].mean()) - mean) < 5 * 0.5 / np.sqrt(200)


def test_containers_that_are_lengths_are_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    pymc = pytest.importorskip("pymc")
    with pymc.Model() as model:
        n = pymc.Data("n", 2).astype("int64")
        z = pymc.Normal("z", 0.0, 1.0, shape=n)
        pymc.Normal("y", z.sum(), 1.0, observed=1.0)
    many = batchnuts.sample_many(Model.from_pymc(model), [{"n": 1}, {"n": 3}], draws=100, processes=1)
    assert not many.failed, many.failed
    assert [many[number].posterior["z"].shape[2] for number in (0, 1)] == [1, 3]
    assert "since shapes of its random variables depend on values of data containers" in capsys.readouterr().err


def test_masked_arrays_are_refused() -> None:
    pytest.importorskip("numpyro")
    masked = np.ma.masked_array(Y[0], mask=[True, False, False, False])
    many = batchnuts.sample_many(of_numpyro(), [{"y": masked}], draws=100, processes=1)
    assert "data.y is a masked array, whose mask would be ignored" in many.failed[0]


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
