"""Where chains start: each method, its options, superchains, and what does not fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchnuts import positive, sample_chains
from batchnuts.autobatch import ops
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.starts.methods import make_proposals, positions_to_check
from batchnuts.mcmc.starts.pathfinder import approximations, climb, inverse_hessian, pathfinder_starts
from batchnuts.settings.schema import SettingsError


def density(values: dict[str, Any]) -> Any:
    return -0.5 * values["mu"] ** 2 - ops.sum(values["tau"])


def prior(seed: Any) -> dict[str, Any]:
    from batchnuts.autobatch import random

    return {"mu": 100.0 + random.normal(seed, ()), "tau": ops.exp(random.normal(random.fold_in(seed, 1), (2,)))}


MODEL = Model.from_function(density, variables={"mu": [], "tau": positive(2)}, dtype="float64", prior=prior)


def proposals(model: Model = MODEL, **settings: Any) -> Any:
    sampler, execution = split_settings({"chains": 6, "superchains": 3, "seed": 5, **settings})
    return make_proposals(model, sampler, execution)


def test_chains_of_a_superchain_start_together_and_each_attempt_proposes_others() -> None:
    proposed = proposals()
    first = proposed(0)
    np.testing.assert_array_equal(first[:3], first[3:])
    assert len(np.unique(first, axis=0)) == 3
    assert not np.isin(proposed(1), first).any()
    np.testing.assert_array_equal(proposed(0), first)
    np.testing.assert_array_equal(proposals(chains=3)(0), first[:3])


def test_uniform_has_the_radius_asked_for() -> None:
    position = proposals(chains=3000, superchains=3000, init={"method": "uniform", "radius": 0.5})(0)
    assert 0.49 < np.abs(position).max() < 0.5


def test_values_are_given_by_name_one_start_or_several_in_turn() -> None:
    one = proposals(init={"values": {"mu": 3.0, "tau": [1.0, np.exp(2.0)]}})(0)
    np.testing.assert_allclose(one, np.tile([3.0, 0.0, 2.0], (6, 1)))
    two = proposals(init={"values": {"mu": [3.0, 4.0], "tau": [1.0, 1.0]}})(0)
    np.testing.assert_allclose(two[:, 0], [3, 4, 3, 3, 4, 3])
    arrays = {"mu": np.array([3.0, 4.0], "float32"), "tau": [np.float64(1.0), np.array(1.0)]}
    np.testing.assert_array_equal(proposals(init={"values": arrays})(0), two)
    sampler, _ = split_settings({"init": {"values": arrays}})
    assert sampler.init.model_dump(mode="json")["values"] == {"mu": [3.0, 4.0], "tau": [1.0, 1.0]}
    moved = proposals(init={"values": {"mu": 3.0, "tau": [1.0, 1.0]}, "jitter": 0.1})(0)
    assert 0.01 < np.abs(moved - [3.0, 0.0, 0.0]).max() < 0.5
    np.testing.assert_array_equal(moved[:3], moved[3:])


def test_prior_draws_are_the_models_own() -> None:
    position = proposals(init="prior")(0)
    assert (np.abs(position[:, 0] - 100) < 5).all()
    assert len(np.unique(position, axis=0)) == 3


def test_draws_of_an_earlier_run_are_starts(tmp_path: Path) -> None:
    few: dict[str, Any] = {"chains": 4, "warmup": 0, "draws": 3, "step_size": 0.1, "max_tree_depth": 2}
    result = sample_chains(MODEL, **few, backend="numpy")
    file = tmp_path / "run.nc"
    result.to_netcdf(str(file), engine="h5netcdf")
    posterior = result["posterior"]
    assert posterior["tau"].dims == ("chain", "draw", "tau_dim_0")
    known = posterior["mu"].values.reshape(-1)
    position = proposals(init={"run": str(file)})(0)
    assert np.isin(position[:, 0], known).all()
    row = int(np.flatnonzero(known == position[0, 0])[0])
    np.testing.assert_allclose(np.exp(position[0, 1:]), posterior["tau"].values.reshape(-1, 2)[row])
    other = Model.from_function(lambda x: -0.5 * ops.sum(x * x), dimension=3)
    with pytest.raises(SettingsError, match="has no 'position'; expected draws of position"):
        proposals(other, init={"run": str(file)})
    (tmp_path / "text.nc").write_text("no file of ours")
    with pytest.raises(SettingsError, match="is not the file of an earlier run"):
        proposals(init={"run": str(tmp_path / "text.nc")})


def test_variables_without_values_start_at_random(tmp_path: Path) -> None:
    """With `radius`, and somewhere else in a second attempt."""
    (tmp_path / "inits.json").write_text('{"mu": [3.0, 4.0]}')
    for values in ({"mu": [3.0, 4.0]}, str(tmp_path / "inits.json")):
        propose = proposals(chains=6, superchains=6, init={"values": values, "radius": 0.5})
        first, second = propose(0), propose(1)
        np.testing.assert_array_equal(first[:, 0], [3.0, 4.0] * 3)
        np.testing.assert_array_equal(second[:, 0], [3.0, 4.0] * 3)
        assert len(np.unique(first[:, 1:])) == 12
        assert np.abs(first[:, 1:]).max() < 0.5 + 1e-6
        assert (first[:, 1:] != second[:, 1:]).all()


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("priors", "init.method: found 'priors' (a string); expected one of auto, uniform, prior"),
        (3, "init: found 3; expected a method, or a mapping with keys among method, radius"),
        (0, '. Starts within (-x, x) are {"radius": x}, with 1e-6 as good as 0'),
        ({"mu": 1.0}, "init: found {'mu': 1.0}; expected a method, or"),
        ({"mu": 1.0}, '. Initial values are {"values": {"mu": ...}}'),
        ({"methd": "prior"}, "init.methd: unknown key; did you mean 'method'?"),
        ("a/inits.json", '. A file is {"values": "a/inits.json"}'),
        ("run.nc", '. A file is {"run": "run.nc"}'),
        ([{"mu": 1.0}] * 4, "init: found a list of 4 mappings; expected one mapping, with a list of several"),
        ({"values": [{"mu": 1.0}]}, "init.values: found a list of 1 mapping; expected one mapping, with a list of"),
        ({"method": "values"}, "init: method is values, but values is not given"),
        ({"method": "prior", "run": "x.nc"}, "init: found run, which has no effect with method prior"),
        ({"run": "nowhere.nc"}, "init.run: there is no file nowhere.nc"),
        ({"values": {"nu": 1.0}}, "init.values: Model 'density': got values for ['nu']; expected ['mu', 'tau']"),
        ({"values": "none.json"}, "init.values: the file 'none.json' cannot be read as JSON: "),
        (
            {"values": {"mu": "x", "tau": [1.0, 1.0]}},
            "sampler.init.values.mu: found 'x'; expected numbers, or",
        ),
        (
            {"values": {"mu": [[1.0], [1.0, 2.0]], "tau": 1.0}},
            "sampler.init.values.mu: found [[1.0], [1.0, 2.0]]; expected numbers",
        ),
        (
            {"values": {"mu": 1.0, "tau": [1.0, float("nan")]}},
            "sampler.init.values.tau: found nan; expected finite numbers",
        ),
        ({"values": {"mu": 1.0, "tau": [1.0, -1.0]}}, "init.values: Model 'density': 'tau'"),
        (
            {"values": {"mu": [1.0] * 4, "tau": [1.0, 1.0]}},
            "found 4 starts for 3 superchains; set sampler.superchains to at least",
        ),
    ],
)
def test_what_does_not_fit_is_named(init: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        proposals(init=init)


def test_a_model_without_a_prior_cannot_start_from_it() -> None:
    model = Model.from_function(density, variables={"mu": [], "tau": positive(2)})
    with pytest.raises(SettingsError, match="init: found prior, but the model 'density' has no function `prior`"):
        proposals(model, init="prior")


# ---- pathfinder --------------------------------------------------------------------------------------------------


def normal(dimension: int) -> tuple[np.ndarray, np.ndarray, Any, Any]:
    """A correlated normal density far from zero: mean, covariance, value and gradient, log-densities."""
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(dimension, dimension)) / np.sqrt(dimension) + np.eye(dimension)
    covariance, mean = factor @ factor.T, 10 * rng.normal(size=dimension)
    precision = np.linalg.inv(covariance)

    def one(x: np.ndarray) -> tuple[float, np.ndarray]:
        return float(-0.5 * (x - mean) @ precision @ (x - mean)), -precision @ (x - mean)

    return mean, covariance, one, lambda rows: np.array([one(x)[0] for x in rows])


def test_an_inverse_hessian_satisfies_the_secant_equation() -> None:
    rng = np.random.default_rng(0)
    curvature = np.diag([1.0, 4.0, 9.0])
    pairs = [(step, curvature @ step) for step in rng.normal(size=(3, 3))]
    found = inverse_hessian(pairs)
    np.testing.assert_allclose(found @ pairs[-1][1], pairs[-1][0])
    assert (np.linalg.eigvalsh(found) > 0).all()


def test_the_path_of_a_normal_density_ends_at_its_mean() -> None:
    mean, _, one, _ = normal(5)
    path = climb(one, np.zeros(5))
    np.testing.assert_allclose(path[-1][0], mean, atol=1e-3)
    np.testing.assert_allclose(approximations(path)[-1].mean, mean, atol=1e-3)


def test_starts_are_in_the_typical_set() -> None:
    """(x - mean)' covariance^-1 (x - mean) is about chi-squared: its mean is the dimension, and 0 at the mode."""
    dimension = 10
    _, _, one, many = normal(dimension)
    starts = pathfinder_starts(one, many, np.zeros((40, dimension)), np.random.default_rng(0))
    distances = -2 * many(starts)
    assert 0.5 * dimension < distances.mean() < 2 * dimension
    assert len(np.unique(starts, axis=0)) == 40


def test_where_there_is_no_path_the_start_itself_is_given() -> None:
    def nowhere(x: np.ndarray) -> tuple[float, np.ndarray]:
        return np.nan, np.full_like(x, np.nan)

    starts = np.ones((2, 3))
    found = pathfinder_starts(nowhere, lambda rows: np.full(len(rows), np.nan), starts, np.random.default_rng(0))
    np.testing.assert_array_equal(found, starts)


@pytest.mark.slow
def test_pathfinder_starts_a_run_of_a_model() -> None:
    settings = split_settings({"chains": 6, "superchains": 3, "init": "pathfinder"})
    sampler, execution = settings
    proposed = make_proposals(MODEL, sampler, execution)
    assert np.abs(positions_to_check(MODEL, sampler, proposed)).max() <= 2
    position = proposed(0)
    np.testing.assert_array_equal(position[:3], position[3:])
    assert np.abs(position).max() < 6
