"""The tuning of an earlier run: what the file holds, what is refused, and whole runs that start from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from fake_run import make_draws

from batchnuts import interval, positive, sample_chains
from batchnuts.autobatch import ops
from batchnuts.files.saving import save
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.run.run import Run
from batchnuts.mcmc.settings.run_settings import SamplerSettings, split_settings
from batchnuts.mcmc.starts.methods import make_proposals
from batchnuts.mcmc.starts.tuning import read_tuning
from batchnuts.settings.schema import SettingsError

SCALES = np.geomspace(0.01, 100.0, 12)


def normal(shift: float = 0.0, factor: float = 1.0) -> Model:
    """Independent coordinates with these scales times a factor, about a mean of `shift` scales."""

    def density(x: Any) -> Any:
        return -0.5 * ops.sum(((x / SCALES - shift) / factor) ** 2)

    return Model.from_function(density, dimension=12, dtype="float64", name="normal")


def density(values: dict[str, Any]) -> Any:
    return -0.5 * values["mu"] ** 2 - ops.sum(values["tau"])


MODEL = Model.from_function(density, variables={"mu": [], "tau": positive(2)}, dtype="float64")

FAKE: dict[str, Any] = {"chains": 5, "draws": 7, "seed": 1, "metric": "diag"}


def sampler_of(**settings: Any) -> SamplerSettings:
    return split_settings(FAKE | settings)[0]


def fake_groups(model: Model = MODEL, done: Any = None, **settings: Any) -> dict[str, xarray.Dataset]:
    """The output of a run that never was; its metric is of the kind asked for."""
    sampler = sampler_of(**settings)
    draws = make_draws(model, sampler, done=done)
    k = {"dense": model.dimension, "low_rank": 2}.get(sampler.metric, 0)
    vectors = np.linalg.qr(np.random.default_rng(0).normal(size=(model.dimension, model.dimension)))[0][:, :k]
    metric = MetricParameters(sampler.metric, np.geomspace(0.1, 10, model.dimension), vectors, np.arange(1.0, k + 1))
    object.__setattr__(draws, "metric", metric)
    return to_datasets(draws, model)


def saved(groups: dict[str, xarray.Dataset], folder: Path) -> str:
    return str(save(groups, folder / "run.nc"))


@pytest.mark.parametrize("metric", ["diag", "dense", "low_rank", "unit"])
def test_a_file_gives_back_the_tuning(tmp_path: Path, metric: str) -> None:
    groups = fake_groups(metric=metric)
    found = read_tuning(MODEL, sampler_of(metric=metric, warmup={"from": saved(groups, tmp_path)}))
    assert found is not None
    assert found.step_size == pytest.approx(0.5)
    assert found.metric.kind == metric
    np.testing.assert_array_equal(found.metric.inverse_mass, np.geomspace(0.1, 10, 3))
    assert found.metric.eigenvectors.shape == (3, {"dense": 3, "low_rank": 2}.get(metric, 0))
    draws = make_draws(MODEL, sampler_of())
    np.testing.assert_array_equal(found.positions, draws.position[:, -1])
    np.testing.assert_allclose(found.centre.mean, draws.position.mean(axis=(0, 1)))
    np.testing.assert_allclose(found.centre.squared_error, draws.position.mean(axis=1).var(axis=0) / 5)
    assert found.remarks == ()


def test_chains_with_tuning_of_their_own_are_pooled_and_that_is_said(tmp_path: Path) -> None:
    group = fake_groups(warmup={"pool": "none"})
    own = np.geomspace(1.0, 16.0, 5)
    entries = {"inverse_mass": (("chain", "coefficient"), own[:, None] * np.ones(3)), "step_size": (("chain",), own)}
    group["adaptation"] = group["adaptation"].drop_vars(list(entries)).assign(entries)
    found = read_tuning(MODEL, sampler_of(warmup={"from": saved(group, tmp_path)}, target_acceptance=0.9))
    assert found is not None
    assert found.step_size == pytest.approx(4.0)
    np.testing.assert_allclose(found.metric.inverse_mass, [4.0] * 3)
    assert str(found).endswith(
        "run.nc (the median of its step sizes, and the geometric mean of its metrics; its target_acceptance was 0.8, "
        "so its step size is only a first guess)"
    )


def test_chains_start_at_the_last_positions_and_at_other_draws_if_these_are_too_few(tmp_path: Path) -> None:
    groups = fake_groups()
    path = saved(groups, tmp_path)

    def starts(**settings: Any) -> np.ndarray:
        sampler, execution = split_settings(FAKE | {"warmup": {"from": path}} | settings)
        proposed: np.ndarray = make_proposals(MODEL, sampler, execution, read_tuning(MODEL, sampler))(0)
        return proposed

    last = groups["adaptation"]["last_position"].values
    found = starts(chains=6, superchains=3)
    np.testing.assert_array_equal(found[:3], found[3:])
    assert len(np.unique(found, axis=0)) == 3
    assert np.isin(found, last).all()
    np.testing.assert_array_equal(found, starts(chains=6, superchains=3))
    assert not (found == starts(chains=6, superchains=3, seed=2)).all()
    many = starts(chains=20)
    assert len(np.unique(many, axis=0)) == 20
    assert np.isin(many[:, 0], groups["posterior"]["mu"].values).all()
    assert np.abs(starts(init={"values": {"mu": 3.0, "tau": [1.0, 1.0]}}) - [3.0, 0.0, 0.0]).max() < 1e-12


def without(*names: str) -> Callable[[xarray.Dataset], xarray.Dataset]:
    return lambda group: group.drop_vars(list(names))


def with_values(name: str, value: float) -> Callable[[xarray.Dataset], xarray.Dataset]:
    return lambda group: group.assign({name: xarray.full_like(group[name], value)})


OTHERS = {
    "a variable more": Model.from_function(density, variables={"mu": [], "tau": positive(2), "nu": []}, name="other"),
    "shape": Model.from_function(density, variables={"mu": [], "tau": positive(3)}, name="other"),
    "support": Model.from_function(density, variables={"mu": [], "tau": interval(0.0, 2.0, 2)}, name="other"),
    "order": Model.from_function(density, variables={"tau": positive(2), "mu": []}, name="other"),
}

REFUSED: list[tuple[dict[str, Any], Any, dict[str, Any], str]] = [
    ({}, without("step_size"), {}, "is from a run that was interrupted before each of its chains had a draw"),
    ({"done": [3, 0, 2, 1, 1]}, None, {}, "is from a run that was interrupted before each of its chains had a draw"),
    ({}, without("variables"), {}, "has no 'variables' in its group 'adaptation'; it was written by an older version"),
    (
        {},
        lambda group: group.assign_attrs(tuned=0),
        {},
        "is from a run without warmup: its step size and metric were not",
    ),
    (
        {"transition": "walnuts"},
        None,
        {},
        "a run with transition walnuts, this one has sampler.transition nuts: a step",
    ),
    ({}, None, {"leapfrogs_per_leaf": 2}, "leapfrogs_per_leaf 1, this one has sampler.leapfrogs_per_leaf 2"),
    ({"metric": "dense"}, None, {}, "metric dense, this one has sampler.metric diag: one form of the metric cannot"),
    (
        {"metric": "low_rank"},
        None,
        {"metric": "low_rank", "metric_rank": 1},
        "has a metric with 2 directions; sampler.metric_rank is 1. Set sampler.metric_rank to at least 2",
    ),
    ({}, with_values("step_size", 0.0), {}, "'step_size' has 0; expected numbers above 0. The file is damaged"),
    ({}, with_values("inverse_mass", -1.0), {}, "'inverse_mass' has -1; expected numbers above 0"),
    ({}, with_values("inverse_mass", 1e30), {}, "'inverse_mass' has values beyond 1e-24 to 1e+24"),
    ({}, with_values("last_position", np.nan), {}, "'last_position' has values that are not finite"),
    ({}, without("mean"), {}, "expected 3 numbers 'mean'"),
    (
        {"metric": "dense"},
        without("metric_eigenvalues"),
        {"metric": "dense"},
        "eigenvectors and eigenvalues do not fit",
    ),
    (
        {"metric": "dense"},
        with_values("metric_eigenvectors", 0.5),
        {"metric": "dense"},
        "its eigenvectors are not orthonormal",
    ),
]


@pytest.mark.parametrize(("earlier", "change", "settings", "message"), REFUSED)
def test_what_does_not_carry_over_is_refused(
    tmp_path: Path, earlier: dict[str, Any], change: Any, settings: dict[str, Any], message: str
) -> None:
    groups = fake_groups(**earlier)
    if change is not None:
        groups["adaptation"] = change(groups["adaptation"])
    path = saved(groups, tmp_path)
    with pytest.raises(SettingsError, match=re.escape(message)) as caught:
        read_tuning(MODEL, sampler_of(**settings, warmup={"from": path}))
    assert str(caught.value).startswith(f"sampler.warmup.from: {path} ")
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a variable more", "it has nothing of that name, where 'other' has nu [] real (name, shape, support)"),
        ("shape", "it has tau [2] lower(0), where 'other' has tau [3] lower(0)"),
        ("support", "it has tau [2] lower(0), where 'other' has tau [2] interval(0, 2)"),
        ("order", "it has mu [] real, tau [2] lower(0), where 'other' has tau [2] lower(0), mu [] real"),
    ],
)
def test_a_run_of_another_model_is_refused(tmp_path: Path, name: str, message: str) -> None:
    path = saved(fake_groups(), tmp_path)
    with pytest.raises(SettingsError, match=re.escape(message)):
        read_tuning(OTHERS[name], sampler_of(warmup={"from": path}))


def test_a_file_that_cannot_be_read_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    text = tmp_path / "text.nc"
    text.write_text("no file of ours")
    for path, message in ((text, "is not the file of an earlier run"), (tmp_path / "gone.nc", "there is no file")):
        with pytest.raises(SettingsError, match=re.escape("sampler.warmup.from: ") + ".*" + message):
            sample_chains(MODEL, warmup={"from": path})


# ---- whole runs ------------------------------------------------------------------------------------------------------


def warmup_gradients(result: Any) -> int:
    return int(result["sample_stats"].attrs["useful_gradients"] - result["sample_stats"]["n_steps"].sum())


def largest_z(result: Any, model_shift: float, factor: float = 1.0) -> float:
    """Of means and of mean squares of the coordinates, by the variance between chains."""
    z = (result["posterior"]["position"].values / SCALES - model_shift) / factor
    statistics = [(z.mean(axis=1), 0.0), ((z**2).mean(axis=1), 1.0)]
    scores = [(s.mean(axis=0) - truth) / (s.std(axis=0, ddof=1) / np.sqrt(len(s))) for s, truth in statistics]
    return float(np.abs(scores).max())


MOST_Z = 4.2
"""24 scores of 63 degrees of freedom each exceed it by chance in one of 500 runs."""


@pytest.mark.slow
def test_a_confirmed_tuning_costs_a_fraction_and_draws_as_well(tmp_path: Path) -> None:
    model, path = normal(), tmp_path / "run.nc"
    settings: dict[str, Any] = {"chains": 64, "draws": 40, "seed": 3}
    fresh = sample_chains(model, **settings, start="windows")
    fresh.to_netcdf(str(path), engine="h5netcdf")
    for changed in ({}, {"seed": 4}, {"chains": 128, "seed": 5}):
        again = sample_chains(model, **(settings | changed), warmup={"from": path})
        ended = again["posterior"].attrs["warmup_ended"]
        assert ended == f"taken from {path}, confirmed after 15 transitions"
        chains = again["posterior"].sizes["chain"]
        assert warmup_gradients(again) / chains < 0.3 * warmup_gradients(fresh) / 64
        assert largest_z(again, 0.0) < MOST_Z
        assert abs(float(again["sample_stats"]["acceptance_rate"].mean()) - 0.8) < 0.05
    same = sample_chains(model, **settings, warmup={"from": path})
    once_more = sample_chains(model, **settings, warmup={"from": path})
    np.testing.assert_array_equal(same["posterior"]["position"], once_more["posterior"]["position"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shift", "factor", "message"),
    [
        (2.0, 1.0, "the mean of all chains is off by"),
        (0.0, 3.0, "the metric's scales are off by 200%"),
        (0.0, 0.2, "the metric's scales are off by"),
    ],
)
def test_one_that_does_not_fit_is_found_and_the_ordinary_warmup_follows(
    tmp_path: Path, shift: float, factor: float, message: str
) -> None:
    path = tmp_path / "run.nc"
    settings: dict[str, Any] = {"chains": 64, "draws": 40, "seed": 3}
    sample_chains(normal(), **settings).to_netcdf(str(path), engine="h5netcdf")
    result = sample_chains(normal(shift, factor), **settings, warmup={"from": path})
    attributes = result["posterior"].attrs
    assert f"; the tuning of {path} did not fit: " in attributes["warmup_ended"]
    assert message in attributes["warmup_ended"]
    assert attributes["warmup"] >= 40
    assert attributes["warmup_agreed"] == 1
    np.testing.assert_allclose(result["adaptation"]["inverse_mass"], (factor * SCALES) ** 2, rtol=0.01)
    assert largest_z(result, shift, factor) < MOST_Z


@pytest.mark.parametrize("chains", [5, 64])
def test_the_same_compiled_program_serves_with_a_tuning_and_without(tmp_path: Path, chains: int) -> None:
    """Its buffers have the same rows, so it is found on disk."""
    path = saved(fake_groups(), tmp_path)

    def rows(**warmup: Any) -> int:
        sampler, execution = split_settings({"chains": chains, "draws": 20, "warmup": warmup, "backend": "numpy"})
        unused: Any = None
        tuning = read_tuning(MODEL, sampler)
        return Run(MODEL, unused, sampler, execution, unused, unused, unused, unused, tuning=tuning).rows

    assert rows(**{"from": path}) == rows()


@pytest.mark.slow
def test_a_fixed_number_of_transitions_runs_from_the_tuning(tmp_path: Path) -> None:
    """None at all: the draws are made with it as it is; a few: the step size adapts from it."""
    model = Model.from_function(lambda x: -0.5 * ops.sum(x * x), dimension=3, dtype="float64")
    groups = fake_groups(model)
    path = saved(groups, tmp_path)
    small: dict[str, Any] = {"chains": 4, "draws": 3, "backend": "numpy", "max_tree_depth": 3}
    result = sample_chains(model, **small, warmup={"from": path, "transitions": 0})
    np.testing.assert_allclose(result["sample_stats"]["step_size"], 0.5)
    np.testing.assert_array_equal(result["adaptation"]["inverse_mass"], np.geomspace(0.1, 10, 3))
    assert result["posterior"].attrs["warmup_ended"] == f"as requested, from the tuning of {path}"
    some = sample_chains(model, **small, warmup={"from": path, "transitions": 3})
    assert not np.allclose(some["sample_stats"]["step_size"], 0.5)
    fixed = sample_chains(model, **small, step_size=0.25, warmup={"from": path, "transitions": 3})
    np.testing.assert_allclose(fixed["sample_stats"]["step_size"], 0.25)


@pytest.mark.slow
def test_chains_that_adapt_alone_warm_up_by_themselves_and_from_a_file(tmp_path: Path) -> None:
    model, path = normal(), tmp_path / "run.nc"
    settings: dict[str, Any] = {"chains": 16, "draws": 20, "seed": 3}
    alone = sample_chains(model, **settings, warmup={"pool": "none", "maximum": 120})
    assert alone["adaptation"]["inverse_mass"].dims == ("chain", "coefficient")
    alone.to_netcdf(str(path), engine="h5netcdf")
    again = sample_chains(model, **settings, warmup={"pool": "none", "from": path, "maximum": 200})
    assert "the geometric mean of its metrics" in again["posterior"].attrs["warmup_ended"]


def test_a_file_that_claims_more_than_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the draws of the new run, which are few."""
    from batchnuts.mcmc.storage.earlier_run import read_groups

    path = tmp_path / "huge.nc"
    xarray.Dataset({"x": (("n",), np.zeros(3))}).to_netcdf(path, group="adaptation", engine="h5netcdf")

    def too_large(_: xarray.Dataset) -> None:
        raise MemoryError

    monkeypatch.setattr(xarray.Dataset, "load", too_large)
    with pytest.raises(
        SettingsError, match=r"sampler.warmup.from: the arrays of .*huge.nc do not fit into memory: it is"
    ):
        read_groups(str(path), ("adaptation",), "sampler.warmup.from")
