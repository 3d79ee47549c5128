"""Models whose functions take data as an argument: what they accept, and that data sets share compiled programs."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from fitted_models import mean_model, schools_model

import batchnuts
from batchnuts import Model
from batchnuts.autobatch import ops
from batchnuts.mcmc.model.model import ModelError

Pair = namedtuple("Pair", "x y")


def test_data_are_arrays_of_the_models_dtype_and_are_stored_by_name() -> None:
    model = Model.from_function(
        lambda p, data: -0.5 * ops.sum((p["m"] - data["y"]) ** 2),
        variables={"m": []},
        data={"y": [1, 2.5], "n": 3, "flag": [True, False]},
        observed_data=["y"],
    )
    assert [leaf.dtype.name for leaf in model.data.values()] == ["float32", "int32", "bool"]
    assert list(model.observed_data) == ["y"]
    assert list(model.constant_data) == ["n", "flag"]
    other = model.with_data({"n": 4, "flag": [False, False], "y": [0.0, 1.0]})
    assert list(other.data) == ["y", "n", "flag"]
    np.testing.assert_array_equal(other.observed_data["y"][1], [0, 1])
    assert other.constant_data["n"][1] == 4
    assert other.cache is model.cache
    longer = model.with_data({"n": 4, "flag": [False], "y": [0.0, 1.0, 2.0]})
    assert longer.cache is not model.cache


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"y": np.zeros(5)}, "data lacks 'mask'"),
        ({"y": np.zeros(5), "mask": np.ones(5), "z": 1}, "data has 'z', which the data that the model was made with"),
        ({"y": np.zeros((5, 1)), "mask": np.ones(5)}, r"data.y is float64\[5, 1\]; expected float64 with 1 axes"),
        ({"y": ["a"] * 5, "mask": np.ones(5)}, "data.y is .*; expected an array of numbers"),
        ([np.zeros(5), np.ones(5)], "data is a list; expected dict"),
    ],
)
def test_other_data_are_refused(data: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        mean_model().with_data(data)


def test_numbers_are_those_that_were_given() -> None:
    """Integers may come as floats, of a table with missing values say; none is rounded."""
    model = Model.from_function(
        lambda p, data: -0.5 * (p["m"] - data["n"]) ** 2, variables={"m": []}, data={"n": 3, "flag": True}
    )
    other = model.with_data({"n": 4.0, "flag": 0})
    assert (other.data["n"].dtype, other.data["n"]) == (np.int32, 4)
    assert other.data["flag"].dtype == bool
    for data, message in (
        ({"n": 4.5, "flag": True}, r"data\.n has 4\.5; expected int32"),
        ({"n": np.nan, "flag": True}, r"data\.n has nan; expected int32"),
        ({"n": 4, "flag": 2}, r"data\.flag has 2; expected bool"),
    ):
        with pytest.raises(ModelError, match=message):
            model.with_data(data)


def test_models_without_data_and_wrong_names_are_refused() -> None:
    with pytest.raises(ModelError, match="its functions take no data; make it with data="):
        Model.from_function(lambda x: -ops.sum(x * x), dimension=1).with_data([1.0])
    with pytest.raises(ModelError, match="observed_data names 'z', which its data do not have"):
        Model.from_function(lambda p, d: 0.0, variables={"m": []}, data={"y": [1.0]}, observed_data=["z"])
    with pytest.raises(ModelError, match=r"data is None|expected an array"):
        Model.from_function(lambda p, d: 0.0, variables={"m": []}, data={"y": object()})
    with pytest.raises(ModelError, match="which int32 does not hold; the model is of float32"):
        Model.from_function(lambda p, d: 0.0, variables={"m": []}, data={"y": [2**40]})


@pytest.mark.parametrize("backend", ["auto", "native", "jax", "tensorflow", "numpy"])
def test_data_sets_of_one_type_share_programs_and_have_their_own_posteriors(backend: str) -> None:
    model = mean_model()
    programs = []
    for mean in (0.0, 3.0):
        other = model.with_data({"y": np.full(5, mean), "mask": np.ones(5)})
        result = batchnuts.sample_chains(other, chains=4, draws=150, warmup=100, backend=backend, groups=[])
        mu = result.posterior["mu"].values
        assert abs(mu.mean() - 5 * mean / 6) < 5 * np.sqrt(1 / 6) / np.sqrt(150)
        programs.append([kept.runner for kept in model.cache.programs.values()])
    assert programs[0] == programs[1]
    assert len(programs[0]) == 1


@pytest.mark.parametrize("transition", ["nuts", "walnuts"])
def test_a_data_set_as_an_argument_and_as_constants_give_the_same_draws(transition: str) -> None:
    y = np.array([1.0, 2, 0.5, 3, -1])
    argument = mean_model().with_data({"y": y, "mask": np.ones(5)})
    constant = Model.from_function(
        lambda p: -0.5 * p["mu"] ** 2 - 0.5 * ops.sum(np.ones(5) * (y - p["mu"]) ** 2),
        variables={"mu": []},
        dtype="float64",
    )
    draws = [
        batchnuts.sample_chains(model, chains=4, draws=50, warmup=50, groups=[], transition=transition).posterior
        for model in (argument, constant)
    ]
    np.testing.assert_allclose(draws[0]["mu"], draws[1]["mu"], rtol=1e-9)


def test_densities_of_jax_take_data_of_any_structure() -> None:
    def log_density(x: Any, data: Any) -> Any:
        return -0.5 * jnp.sum((data.y - data.x @ x) ** 2) - 0.5 * jnp.sum(x**2)

    rng = np.random.default_rng(0)
    data = [Pair(rng.normal(size=(20, 2)), rng.normal(size=20)) for _ in range(2)]
    model = Model.from_function(log_density, dimension=2, data=data[0], dtype="float64", name="regression")
    for pair in data:
        posterior = batchnuts.sample_chains(model.with_data(pair), chains=4, draws=200).posterior["position"]
        precision = pair.x.T @ pair.x + np.eye(2)
        exact = np.linalg.solve(precision, pair.x.T @ pair.y)
        error = np.sqrt(np.diag(np.linalg.inv(precision)) / 150)
        assert (np.abs(posterior.mean(("chain", "draw")) - exact) < 5 * error).all()


def test_functions_of_draws_take_data_and_data_of_other_models_give_their_own() -> None:
    model = mean_model(generated=lambda p, data: {"total": p["mu"] * ops.sum(data["y"])})
    for mean in (1.0, 2.0):
        other = model.with_data({"y": np.full(5, mean), "mask": np.ones(5)})
        result = batchnuts.sample_chains(other, chains=2, draws=20, warmup=20)
        mu = result.posterior["mu"].values
        np.testing.assert_allclose(result.posterior["total"], 5 * mean * mu, rtol=1e-12)
        expected = -0.5 * (mean - mu) ** 2 - 0.5 * np.log(2 * np.pi)
        np.testing.assert_allclose(result.log_likelihood["y"][..., 0], expected, rtol=1e-12)
        np.testing.assert_array_equal(result.observed_data["y"], np.full(5, mean))


def test_check_and_until_and_labels_work_with_data() -> None:
    model = schools_model()
    assert model.check().ok
    result = batchnuts.sample_chains(model, chains=64, draws=400, until={"ess_bulk": 400}, seed=3)
    assert batchnuts.check(result).min_ess >= 400
    assert result.posterior["eta"].dims == ("chain", "draw", "school")
    with pytest.raises(ModelError, match="school"):
        model.with_data({"y": np.zeros(7), "sigma": np.ones(7), "scale": 1.0})
