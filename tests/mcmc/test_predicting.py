"""`predict`: of new rows, beside closed forms; of models of NumPyro; and what bad data get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import batchnuts
from batchnuts import Model, positive
from batchnuts.autobatch import BatchnutsError, ops, random

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
DATA = {"x": X, "y": X @ [1.0, -1.0, 0.5] + 0.3 * RNG.normal(size=40), "scale": np.array([1.0, 2.0, 3.0])}
NEW = np.eye(3)[:2]


def log_density(p: Any, data: Any) -> Any:
    residual = (data["y"] - ops.matmul(data["x"], p["beta"])) / p["sigma"]
    prior = -0.5 * ops.sum((p["beta"] / data["scale"]) ** 2) - p["sigma"]
    return prior - 0.5 * ops.sum(residual * residual) - 40.0 * ops.log(p["sigma"])


def regression(**functions: Any) -> Model:
    given: dict[str, Any] = {
        "generated": lambda p, data: {"mean": ops.matmul(data["x"], p["beta"])},
        "predictive": lambda p, key, data: {
            "y": ops.matmul(data["x"], p["beta"]) + p["sigma"] * random.normal(key, data["y"].shape, "float64")
        },
        "log_likelihood": lambda p, data: {
            "y": -0.5 * ((data["y"] - ops.matmul(data["x"], p["beta"])) / p["sigma"]) ** 2
        },
    }
    variables = {"beta": [3], "sigma": positive()}
    return Model.from_function(
        log_density, variables=variables, data=DATA, observed_data=["y"], dtype="float64", **(given | functions)
    )


@pytest.fixture(scope="module")
def fitted() -> Any:
    return batchnuts.sample_chains(regression(), chains=4, draws=250, warmup=200, seed=1)


def test_new_rows_have_predictions_of_each_draw(fitted: Any) -> None:
    predicted = batchnuts.predict(fitted, {"x": NEW})
    groups = predicted.groups() if callable(predicted.groups) else predicted.groups
    assert {name.strip("/") for name in groups} - {""} == {"predictions", "predictions_constant_data"}
    assert set(predicted.predictions.data_vars) == {"mean", "y"}
    expected = fitted.posterior["beta"].values @ NEW.T
    np.testing.assert_allclose(predicted.predictions["mean"].values, expected, rtol=1e-12)
    noise = (predicted.predictions["y"].values - expected) / fitted.posterior["sigma"].values[..., None]
    assert abs(noise.mean()) < 4 / np.sqrt(noise.size)
    assert abs(noise.var() - 1) < 4 * np.sqrt(2 / noise.size)
    np.testing.assert_array_equal(predicted.predictions_constant_data["x"], NEW)
    assert set(predicted.predictions_constant_data.data_vars) == {"x", "scale"}


def test_seeds_differ_and_known_outcomes_have_a_likelihood(fitted: Any) -> None:
    one, again = (batchnuts.predict(fitted, {"x": NEW, "y": [1.0, -1.0]}, seed=3) for _ in range(2))
    other = batchnuts.predict(fitted, {"x": NEW, "y": None})
    np.testing.assert_array_equal(one.predictions["y"], again.predictions["y"])
    assert np.abs(one.predictions["y"].values - other.predictions["y"].values).max() > 0.1
    residual = np.array([1.0, -1.0]) - fitted.posterior["beta"].values @ NEW.T
    expected = -0.5 * (residual / fitted.posterior["sigma"].values[..., None]) ** 2
    np.testing.assert_allclose(one.log_likelihood["y"].values, expected, rtol=1e-10)
    assert "log_likelihood" not in other


def test_a_file_or_a_part_of_a_result_needs_the_model(fitted: Any) -> None:
    part = {"posterior": fitted.posterior.isel(draw=slice(10, 20))}
    with pytest.raises(BatchnutsError, match=r"give model=\.\.\., the model that was fitted"):
        batchnuts.predict(part, {"x": NEW})
    predicted = batchnuts.predict(part, {"x": NEW}, model=regression())
    np.testing.assert_array_equal(predicted.predictions["draw"], range(10, 20))
    expected = part["posterior"]["beta"].values @ NEW.T
    np.testing.assert_allclose(predicted.predictions["mean"].values, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"z": NEW}, "data has 'z', which the data that the model was made with lack"),
        (3, r"data is 3; expected some of x, y, scale by name\."),
        ("new.json", "by name; read a file first: json.loads"),
        ({"x": NEW, "y": np.ones(3)}, r"data\.y has 3 rows, and others 2; the fit had equally many"),
        ({"y": np.ones(5)}, r"data lack 'x', which had 40 rows in the fit, as others that now have 5\. Give it too"),
        ({"x": np.ones((2, 4))}, "its function generated, given one draw, failed"),
        ({"x": np.ones(2)}, "with 2 axes"),
    ],
)
def test_data_that_do_not_fit(fitted: Any, data: Any, message: str) -> None:
    with pytest.raises(BatchnutsError, match=message):
        batchnuts.predict(fitted, data)


def test_models_and_results_that_predict_nothing(fitted: Any) -> None:
    nothing = regression(generated=None, predictive=None)
    with pytest.raises(BatchnutsError, match="neither a function `predictive` nor generated quantities"):
        batchnuts.predict(fitted, {"x": NEW}, model=nothing)
    without = Model.from_function(lambda x: -0.5 * ops.sum(x * x), dimension=2, generated=lambda x: {"s": x * 2.0})
    with pytest.raises(BatchnutsError, match="its functions take no data"):
        batchnuts.predict(fitted, {"x": NEW}, model=without)
    with pytest.raises(BatchnutsError, match="found none with the group posterior"):
        batchnuts.predict({}, {"x": NEW}, model=regression())
    with pytest.raises(BatchnutsError, match="seed: found -1"):
        batchnuts.predict(fitted, {"x": NEW}, seed=-1)


def test_without_new_data_what_was_generated_is_there(fitted: Any) -> None:
    predicted = batchnuts.predict(fitted, {}, model=regression(predictive=None))
    np.testing.assert_allclose(predicted.predictions["mean"], fitted.posterior["beta"].values @ X.T, rtol=1e-10)
    assert "y" in predicted.predictions_constant_data


@pytest.mark.parametrize("data", [{"x": NEW, "outcome": None}, {"x": NEW, "outcome": np.zeros(2)}])
def test_models_of_numpyro(data: dict[str, Any]) -> None:
    """What is not known is nowhere among the data, by the name of the site neither."""
    numpyro = pytest.importorskip("numpyro")
    import numpyro.distributions as dist

    def model(x: Any, outcome: Any = None) -> None:
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        mean = numpyro.deterministic("mean", x @ beta)
        numpyro.sample("y", dist.Normal(mean, sigma), obs=outcome)

    result = batchnuts.sample_chains(Model.from_numpyro(model, X, DATA["y"]), chains=4, draws=50, warmup=100)
    predicted = batchnuts.predict(result, data)
    assert set(predicted.predictions.data_vars) == {"mean", "y"}
    expected = result.posterior["beta"].values @ NEW.T
    np.testing.assert_allclose(predicted.predictions["mean"].values, expected, rtol=1e-4, atol=1e-5)
    known = {"x"} if data["outcome"] is None else {"x", "outcome", "y"}
    assert set(predicted.predictions_constant_data.data_vars) == known
    fewer = batchnuts.sample_chains(Model.from_numpyro(model, X, DATA["y"]), chains=2, draws=20, warmup=50)
    shorter = fewer["posterior"].isel(draw=slice(5))
    if hasattr(shorter, "to_dataset"):  # a DataTree, of ArviZ 1
        fewer["posterior"] = shorter
    else:
        fewer.posterior = shorter
    part = batchnuts.predict(fewer, data, model=Model.from_numpyro(model, X, DATA["y"]))
    expected = fewer["posterior"]["beta"].values @ NEW.T
    np.testing.assert_allclose(part.predictions["mean"].values, expected, rtol=1e-4, atol=1e-5)
    assert expected.shape[:2] == (2, 5)
