"""Many fits: each equals the same fit alone, whatever else is in the run; those that fail stop nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import cloudpickle
import fitted_models
import numpy as np
import pytest
from fitted_models import SIGMA, mean_model, schools_model

import batchnuts
from batchnuts.many.fit import seed_of
from batchnuts.many.progress import ManyProgress
from batchnuts.many.store import StoreError
from batchnuts.settings.schema import SettingsError


def schools_data(fits: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"y": rng.normal(5, 15, (fits, 8)), "sigma": SIGMA, "scale": 5.0}


def test_a_fit_of_many_is_that_fit_alone() -> None:
    model, data = schools_model(), schools_data(3)
    many = batchnuts.sample_many(model, data, draws=100, processes=1, seed=7)
    assert many.labels == [0, 1, 2]
    for number in (0, 2):
        one = model.with_data({**data, "y": data["y"][number]})
        alone = batchnuts.sample_chains(
            one, chains=4, draws=100, seed=seed_of(7, number), groups=[], expert={"shards": 1}
        )
        for name in ("mu", "tau", "eta"):
            np.testing.assert_array_equal(many[number].posterior[name], alone.posterior[name])
        row, check = many.rows[number], batchnuts.check(alone)
        assert (row.ok, row.worst_rhat, row.min_ess) == (check.ok, check.worst_rhat, check.min_ess)
        assert row.seed == seed_of(7, number)
        assert many[number].posterior["eta"].coords["school"].values.tolist() == list("ABCDEFGH")


def test_warmup_may_start_from_an_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, data = schools_model(), schools_data(3)
    for name, seed in (("earlier.nc", 0), ("other.nc", 1)):
        batchnuts.sample_chains(model, chains=4, draws=100, seed=seed).to_netcdf(name)
    options: dict[str, Any] = {"draws": 100, "processes": 1, "seed": 7}
    tuned = batchnuts.sample_many(model, data, warmup={"from": "earlier.nc"}, path="fits.zarr", **options)
    one = model.with_data({**data, "y": data["y"][1]})
    alone = batchnuts.sample_chains(
        one, chains=4, draws=100, seed=seed_of(7, 1), warmup={"from": "earlier.nc"}, expert={"shards": 1}
    )
    np.testing.assert_array_equal(tuned[1].posterior["eta"], alone.posterior["eta"])
    Path("other.nc").rename("earlier.nc")
    with pytest.raises(StoreError, match="tuning"):
        batchnuts.sample_many(model, data, warmup={"from": "earlier.nc"}, path="fits.zarr", resume=True, **options)
    with pytest.raises(SettingsError, match="is from a run of another model"):
        batchnuts.sample_many(mean_model(), {"y": np.zeros((2, 8)), "mask": np.ones(8)}, warmup={"from": "earlier.nc"})


def test_draws_of_a_fit_depend_neither_on_the_others_nor_on_processes() -> None:
    model, data = schools_model(), schools_data(6)
    whole = batchnuts.sample_many(model, data, draws=40, warmup=60, processes=1)
    shared = batchnuts.sample_many(model, data, draws=40, warmup=60, processes=2)
    first = batchnuts.sample_many(model, {**data, "y": data["y"][:2]}, draws=40, warmup=60, processes=1)
    np.testing.assert_array_equal(whole.posterior["eta"], shared.posterior["eta"])
    np.testing.assert_array_equal(whole.posterior["eta"][:2], first.posterior["eta"])
    assert whole.posterior["eta"].dims == ("fit", "chain", "draw", "school")


def test_fits_that_fail_are_listed_and_stop_nothing() -> None:
    model = mean_model()
    good = {"y": np.zeros(5), "mask": np.ones(5)}
    data = [good, {**good, "y": np.full(5, np.nan)}, {"y": np.zeros(5)}, {**good, "y": np.ones(5)}, "nothing"]
    many = batchnuts.sample_many(model, data, labels=list("abcde"), draws=100, processes=1)
    assert list(many.failed) == ["b", "c", "e"]
    assert "log-density is not finite at the initial position" in many.failed["b"]
    assert "data lacks 'mask'" in many.failed["c"]
    assert "data is a str" in many.failed["e"]
    assert not many.ok
    assert repr(many).startswith("5 fits: ")
    assert "3 failed" in repr(many)
    assert many["d"].posterior["mu"].shape == (4, 100)
    with pytest.raises(StoreError, match="The fit 'b' has failed: "):
        many["b"]
    with pytest.raises(KeyError, match="there is no fit 'x'"):
        many["x"]
    table = many.table
    assert table.index.tolist() == list("abcde")
    assert table.loc["a", "draws"] == 100
    assert np.isnan(table.loc["b", "min_ess"])


def test_ragged_data_are_padded_or_compiled_for_each_size() -> None:
    rng = np.random.default_rng(0)
    sizes = [3, 4, 5, 6]
    data = [{"y": rng.normal(2, 1, n)} for n in sizes]
    padded = batchnuts.sample_many(mean_model(), data, mask="mask", draws=400, processes=1)
    exact = batchnuts.sample_many(
        mean_model(), [{**d, "mask": np.ones(n)} for d, n in zip(data, sizes, strict=True)], draws=400, processes=1
    )
    assert padded.notes == ("5% of all rows are padding",)
    for number, (d, n) in enumerate(zip(data, sizes, strict=True)):
        mean, sd = d["y"].sum() / (n + 1), 1 / np.sqrt(n + 1)
        for many in (padded, exact):
            assert abs(float(many[number].posterior["mu"].mean()) - mean) < 5 * sd / np.sqrt(400)


def test_summaries_alone_and_stopping_rules_of_each_fit() -> None:
    many = batchnuts.sample_many(
        schools_model(),
        schools_data(3),
        keep=["mean", "sd", "quantiles"],
        draws=2000,
        until={"ess_bulk": 300},
        processes=1,
    )
    assert many.mean["eta"].dims == ("fit", "school")
    assert many.quantiles["mu"].dims == ("fit", "quantile")
    assert (many.quantiles["mu"].diff("quantile") > 0).all()
    assert all(row.min_ess >= 300 and "ESS" in row.ended for row in many.rows.values())
    assert len({row.draws for row in many.rows.values()}) >= 1
    with pytest.raises(StoreError, match="The draws of the fit 0 were not kept"):
        many[0]
    with pytest.raises(StoreError, match="'ranks' was not kept"):
        many.ranks  # noqa: B018


def test_a_store_holds_what_memory_does_and_goes_on_after_an_interrupt(tmp_path: Path) -> None:
    model, data = schools_model(), schools_data(5)
    options: dict[str, Any] = {"draws": 300, "until": {"ess_bulk": 150}, "keep": ["draws", "mean"], "processes": 1}
    memory = batchnuts.sample_many(model, data, **options)
    seen: list[ManyProgress] = []

    def stop(progress: ManyProgress) -> None:
        seen.append(progress)
        if progress.done == 2 and len(seen) == 2:
            raise KeyboardInterrupt

    path = tmp_path / "fits.zarr"
    part = batchnuts.sample_many(model, data, path=path, progress=stop, **options)
    assert part.interrupted
    assert len(part) == 2
    with pytest.raises(StoreError, match="is there already: give resume=True"):
        batchnuts.sample_many(model, data, path=path, **options)
    with pytest.raises(StoreError, match="is of another run: its settings"):
        batchnuts.sample_many(model, data, path=path, resume=True, **{**options, "draws": 301})
    whole = batchnuts.sample_many(model, data, path=path, resume=True, progress=stop, **options)
    assert not whole.interrupted
    assert (seen[-1].done, seen[-1].count) == (3, 3)
    opened = batchnuts.open_many(path)
    for found in (whole, opened):
        assert found.labels == memory.labels
        assert [row.draws for row in found.rows.values()] == [row.draws for row in memory.rows.values()]
        np.testing.assert_array_equal(found.posterior["eta"], memory.posterior["eta"])
        np.testing.assert_array_equal(found.mean["tau"], memory.mean["tau"])
        np.testing.assert_array_equal(found[3].posterior["mu"], memory[3].posterior["mu"])
        assert found[3].posterior["eta"].coords["school"].values.tolist() == list("ABCDEFGH")
        np.testing.assert_array_equal(found[3].sample_stats["diverging"], memory[3].sample_stats["diverging"])
    with pytest.raises(StoreError, match="cannot be read: No group found"):
        batchnuts.open_many(tmp_path)


def test_a_run_goes_on_with_the_data_that_it_had(tmp_path: Path) -> None:
    """Fits that failed are made again where their data are others now."""
    model, path = mean_model(), tmp_path / "fits.zarr"
    good = {"y": np.zeros(5), "mask": np.ones(5)}
    bad, other = {**good, "y": np.full(5, np.nan)}, {**good, "y": np.ones(5)}
    options: dict[str, Any] = {"draws": 20, "warmup": 50, "processes": 1, "path": path}
    first = batchnuts.sample_many(model, [good, bad], **options)
    assert list(first.failed) == [1]
    assert "digest" not in first.table
    for data, labels, message in (
        ([other, bad], None, "The store has the fit 0, 0, with other data"),
        ([good, bad], ["a", "b"], "The store has the fit 0, 'a', with the label 0"),
        ([good], None, "has fits of 2 data sets or more; there are 1 now"),
    ):
        with pytest.raises(StoreError, match=message):
            batchnuts.sample_many(model, data, labels=labels, resume=True, **options)
    whole = batchnuts.sample_many(model, [good, other, other], resume=True, **options)
    assert (len(whole), whole.failed) == (3, {})
    assert whole.posterior["mu"].notnull().all()
    memory = batchnuts.sample_many(model, [good, other, other], **{**options, "path": None})
    np.testing.assert_array_equal(whole.posterior["mu"], memory.posterior["mu"])
    with pytest.raises(StoreError, match=r"found the URL 's3://bucket/fits\.zarr'"):
        batchnuts.sample_many(model, [good], **{**options, "path": "s3://bucket/fits.zarr"})


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_with_the_same_draws(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys, numpy, batchnuts
        sys.path.insert(0, sys.argv[2])
        from fitted_models import SIGMA, schools_model
        y = numpy.random.default_rng(1).normal(5, 15, (200, 8))
        batchnuts.sample_many(schools_model(), {"y": y, "sigma": SIGMA, "scale": 5.0}, path=sys.argv[1], resume=True,
                              draws=100, processes=int(sys.argv[3]))
        """
    )
    helpers = str(Path(__file__).parents[1] / "helpers")
    path = tmp_path / "fits.zarr"
    command = [sys.executable, "-c", program, str(path), helpers, "2"]
    with subprocess.Popen(command, start_new_session=True) as process:
        while not (path / "fits" / "done" / "c" / "0").exists():
            assert process.poll() is None, "it is killed while it runs"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    part = batchnuts.open_many(path)
    assert 0 < len(part) < 200
    subprocess.run([*command[:-1], "1"], check=True)
    whole = batchnuts.open_many(path)
    y = np.random.default_rng(1).normal(5, 15, (200, 8))
    memory = batchnuts.sample_many(schools_model(), {"y": y, "sigma": SIGMA, "scale": 5.0}, draws=100, processes=2)
    assert len(whole) == 200
    np.testing.assert_array_equal(whole.posterior["eta"], memory.posterior["eta"])


@pytest.mark.slow
def test_a_process_that_dies_takes_one_fit_with_it() -> None:
    def deadly(p: Any, data: Any) -> Any:
        if isinstance(data["y"], np.ndarray) and data["y"][0] == 666:
            os.kill(os.getpid(), signal.SIGKILL)
        return -0.5 * p["mu"] ** 2 * float(len(data["y"]))

    model = batchnuts.Model.from_function(deadly, variables={"mu": []}, data={"y": np.zeros(3)}, dtype="float64")
    sets = [{"y": np.full(3, float(n))} for n in range(6)]
    sets[2] = {"y": np.full(4, 666.0)}  # another shape: it is tried before it is compiled
    many = batchnuts.sample_many(model, sets, draws=50, warmup=50, processes=2)
    assert list(many.failed) == [2]
    assert "its process has died twice" in many.failed[2]
    assert len(many) == 6


@pytest.mark.slow
def test_fits_on_a_cluster_have_the_same_draws() -> None:
    cloudpickle.register_pickle_by_value(fitted_models)  # workers cannot import it
    model, data = schools_model(), schools_data(6)
    here = batchnuts.sample_many(model, data, draws=60, processes=1)
    spread = batchnuts.sample_many(
        model, data, draws=60, cluster={"class": "local", "jobs": 2, "threads_per_worker": 1}
    )
    np.testing.assert_array_equal(here.posterior["mu"], spread.posterior["mu"])


def test_a_model_that_no_fit_can_be_made_of_is_an_error() -> None:
    model = batchnuts.Model.from_function(lambda p, data: p["mu"] / data["y"], variables={"mu": []}, data={"y": [0.0]})
    with pytest.raises(batchnuts.BatchnutsError, match="Model '<lambda>'"):
        batchnuts.sample_many(model, [{"y": [1.0]}, {"y": [2.0]}], processes=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["draw"]}, "keep: found 'draw'"),
        ({"processes": 0}, "processes: found 0"),
        ({"resume": True}, "resume: found True without a path"),
        ({"chains": "auto", "until": {"ess_bulk": 400}}, "chains: found auto; expected the number of chains of each"),
        ({"dras": 5}, "dras"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        batchnuts.sample_many(schools_model(), schools_data(2), **options)
