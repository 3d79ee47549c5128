"""`extend`: a run that is made longer from Python is the longer run, bit for bit; and what cannot be extended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from chain_runs import slice_for
from small_runs import FIXED, MODEL

import batchnuts
from batchnuts import Model, positive
from batchnuts.autobatch import BatchnutsError, ops, random
from batchnuts.mcmc.run.lengthen import joined_groups
from batchnuts.mcmc.storage.progress import Progress

SUMS = ("total", "mean", "mean_error")
"""In the group `adaptation`: of all draws of a chain, here as those of two parts."""

OF_ITS_OWN = ("created_at", "config", "compile_time", "warmup_time", "sampling_time", "utilization")
"""Attributes that say when and how a run was made."""

VALUES = np.array([0.3, -1.2, 2.0, 0.7])


def log_density(p: Any, data: Any) -> Any:
    residual = (data["y"] - p["mu"]) / p["sigma"]
    return -0.5 * ops.sum(residual * residual) - 5.0 * ops.log(p["sigma"]) - 0.5 * ops.sum(p["mu"] ** 2)


def normal(scale: float = 1.0) -> Model:
    return Model.from_function(
        log_density,
        variables={"mu": [4], "sigma": positive()},
        data={"y": scale * VALUES},
        observed_data=["y"],
        dtype="float64",
        generated=lambda p, data: {"first": p["mu"][0] / p["sigma"]},
        log_likelihood=lambda p, data: {"y": -0.5 * ((data["y"] - p["mu"]) / p["sigma"]) ** 2},
        predictive=lambda p, key, data: {"y": p["mu"] + p["sigma"] * random.normal(key, (4,), "float64")},
        prior=lambda key, data: {"mu": random.normal(key, (4,), "float64"), "sigma": 1.0},
    )


SETTINGS: dict[str, Any] = {"chains": 8, "warmup": 60, "draws": 12, "seed": 4, "progress": False}


def groups_of(result: Any) -> dict[str, xarray.Dataset]:
    names = result.groups() if callable(result.groups) else [name for name in result.groups if name != "/"]
    datasets = {name.strip("/"): result[name.strip("/")] for name in names}
    return {name: each.to_dataset() if hasattr(each, "children") else each for name, each in datasets.items()}


def assert_same_run(found: Any, expected: Any) -> None:
    """Bit for bit, but for sums of two parts, and when what was done."""
    there, groups = groups_of(found), groups_of(expected)
    assert there.keys() == groups.keys()
    for name in SUMS:
        np.testing.assert_allclose(there["adaptation"][name], groups["adaptation"][name], rtol=1e-12, atol=1e-14)
    for name in groups.keys() - {"progress"}:
        left, right = (each[name].drop_vars(SUMS, errors="ignore") for each in (there, groups))
        xarray.testing.assert_equal(left, right)
        for attribute in right.attrs.keys() - set(OF_ITS_OWN) if not name.startswith("warmup") else ():
            assert left.attrs[attribute] == right.attrs[attribute], (name, attribute)


@pytest.fixture(scope="module")
def short() -> Any:
    return batchnuts.sample_chains(normal(), **SETTINGS)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"unconstrained": True, "divergences": True, "keep_warmup": True, "chains": 64},
        {"groups": ["prior"], "metric": "dense", "transition": "walnuts"},
        {"backend": "jax", "draws": 5},
    ],
    ids=["plain", "all that is kept", "fewer groups", "on an array library"],
)
def test_it_is_the_longer_run(settings: dict[str, Any]) -> None:
    model, settings = normal(), SETTINGS | settings
    begun = batchnuts.sample_chains(model, **settings)
    before = {name: group.copy(deep=True) for name, group in groups_of(begun).items()}
    longer = batchnuts.extend(batchnuts.extend(begun, 5), 8)
    assert_same_run(longer, batchnuts.sample_chains(model, **settings | {"draws": settings["draws"] + 13}))
    for name, group in groups_of(begun).items():  # is left as it was
        xarray.testing.assert_identical(group, before[name])


def test_a_run_that_a_condition_has_ended() -> None:
    settings = FIXED | {"max_tree_depth": 1, "draws": 60}
    ended = batchnuts.sample_chains(MODEL, **settings, until={"ess_bulk": 20})
    draws = ended["posterior"].sizes["draw"]
    assert draws < 60
    longer = batchnuts.extend(ended, 7)
    whole = batchnuts.sample_chains(MODEL, **settings | {"draws": draws + 7})
    np.testing.assert_array_equal(longer["posterior"]["x"], whole["posterior"]["x"])
    assert "sampling_ended" in ended["posterior"].attrs
    assert "sampling_ended" not in longer["posterior"].attrs


def test_a_file_needs_the_model(short: Any, tmp_path: Path) -> None:
    path = tmp_path / "short.nc"
    short.to_netcdf(str(path), engine="h5netcdf")
    opened = batchnuts.open_run(path)
    with pytest.raises(
        BatchnutsError, match=r"extend: it is not known .* give model=\.\.\., the model that was fitted"
    ):
        batchnuts.extend(opened, 6)
    longer = batchnuts.extend(opened, 6, model=normal())
    assert_same_run(longer, batchnuts.sample_chains(normal(), **SETTINGS | {"draws": 18}))


def test_it_predicts_and_is_checked_like_any_result() -> None:
    """Also of a model that reports other numbers than those that moved, whose positions are kept."""
    numpyro = pytest.importorskip("numpyro")
    import numpyro.distributions as dist

    def location(y: Any = None) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        numpyro.deterministic("twice", 2.0 * mu)
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    model = Model.from_numpyro(location, VALUES)
    longer = batchnuts.extend(batchnuts.sample_chains(model, **SETTINGS), 20)
    predicted = batchnuts.predict(longer, {"y": None})
    assert predicted.predictions["y"].shape == (8, 32, 4)
    np.testing.assert_allclose(longer["posterior"]["twice"], 2.0 * longer["posterior"]["mu"], rtol=1e-6)
    assert str(batchnuts.check(longer)) == str(
        batchnuts.check(batchnuts.sample_chains(model, **SETTINGS | {"draws": 32}))
    )


STOPS = {
    "before": ("compile", 0.0, "no further draws were made yet"),
    "on the way": ("sampling", 0.8, None),
}


@pytest.mark.parametrize(("phase", "share", "message"), STOPS.values(), ids=STOPS)
def test_further_draws_that_are_stopped_are_kept(
    phase: str, share: float, message: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slice_for(1e-6, monkeypatch)

    def stop(progress: Progress) -> None:
        if progress.phase == phase and progress.done >= share * progress.total:
            raise KeyboardInterrupt

    result = batchnuts.sample_chains(MODEL, **FIXED)
    if message is not None:
        with pytest.raises(KeyboardInterrupt, match=message):
            batchnuts.extend(result, 8, progress=stop)
        return
    longer = batchnuts.extend(result, 8, progress=stop)
    whole = batchnuts.sample_chains(MODEL, **FIXED | {"draws": 17})
    made = longer["posterior"].sizes["draw"]
    assert longer["posterior"].attrs["interrupted"]
    assert 9 < made < 17
    assert f"interrupted; {made} of 17 draws of each of 4 chains" in capsys.readouterr().err
    np.testing.assert_array_equal(longer["posterior"]["x"], whole["posterior"]["x"][:, :made])
    with pytest.raises(BatchnutsError, match="it was interrupted"):
        batchnuts.extend(longer, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "draws: found 0; expected a positive integer"),
        ((2.5,), r"draws: found 2\.5; expected a positive integer"),
        ((5, {"model": "normal"}), "extend: model is 'normal'; expected the Model that was fitted"),
        ((5, {"progress": 3}), "progress: found 3; expected true, false, None"),
        ((5, {"signals": "drop"}), "signals: found 'drop'; expected 'keep' or 'raise'"),
        ((5, {"cluster": 4}), "cluster: found 4"),
        ((5, {"model": normal(scale=2.0)}), "The model has changed .*(data).* or start again"),
    ],
)
def test_arguments_that_do_not_fit(short: Any, arguments: tuple[Any, ...], message: str) -> None:
    draws, keywords = arguments[0], (*arguments, {})[1]
    with pytest.raises(BatchnutsError, match=message):
        batchnuts.extend(short, draws, **keywords)


def test_chains_that_have_not_begun_end_it(short: Any) -> None:
    groups = groups_of(short)
    fewer = {name: groups[name].isel(chain=[0, 2]) for name in ("posterior", "sample_stats")}
    with pytest.raises(BatchnutsError, match=r"The run is unchanged: not every chain had started"):
        joined_groups(groups, fewer, 12)


def test_results_that_cannot_be_extended(short: Any) -> None:
    groups = groups_of(short)
    fewer = {**groups, "posterior": groups["posterior"].isel(draw=slice(5))}
    thinned = {
        name: group.isel(draw=slice(0, None, 2)) if "draw" in group.dims else group for name, group in groups.items()
    }
    older = {
        **groups,
        "adaptation": groups["adaptation"].assign_attrs(config='{"sampler": {"speed": 3}, "execution": {}}'),
    }
    for there, message in [
        (fewer, "its group posterior lacks some of the run's draws"),
        (thinned, r"it lacks some of its draws \(output\.thin\); start another run"),
        ({"posterior": groups["posterior"]}, r"its draws were not saved .*keep_draws.*not a batchnuts run"),
        (
            {name: groups[name] for name in ("posterior", "sample_stats")},
            "it has no group adaptation: it is one of many",
        ),
        (older, "This result cannot be extended: speed"),
        ({}, "not a batchnuts run"),
    ]:
        result = xarray.DataTree.from_dict(there)
        with pytest.raises(BatchnutsError, match=message) as caught:
            batchnuts.extend(result, 5, model=normal())
        assert not re.search(r"\bNone\b", str(caught.value))
    kept = batchnuts.sample_chains(normal(), **SETTINGS, keep_draws=False)
    with pytest.raises(BatchnutsError, match="keep_draws"):
        batchnuts.extend(kept, 5)
