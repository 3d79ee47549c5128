import json
import os
import sys

import numpy as np
import pytest
import xarray
from fake_run import make_draws

from batchnuts.mcmc import output
from batchnuts.mcmc.model import Model, Variable
from batchnuts.mcmc.output import OutputError, check_path, save, to_arviz, to_datasets
from batchnuts.mcmc.settings import SamplerSettings

SETTINGS = SamplerSettings(chains=3, draws=5, seed=2**60)


@pytest.fixture
def model():
    return Model(
        name="m",
        log_density=lambda parts: parts["mu"],
        dimension=3,
        variables=(Variable("mu"), Variable("beta", (2,), ("feature",), {"feature": ["age", "dose"]})),
        structured=True,
        observed_data={"y": (("row",), np.arange(4))},
        constant_data={"x": (("row", "feature"), np.ones((4, 2)))},
    )


def test_groups_follow_the_schema(model, tmp_path):
    import arviz

    draws = make_draws(model, SETTINGS)
    path = save(to_datasets(draws, model, {"sampler": {"chains": 3}}), tmp_path / "a.nc")
    assert os.listdir(tmp_path) == ["a.nc"]
    stored = arviz.from_netcdf(path)
    posterior = stored["posterior"]
    assert dict(posterior["beta"].sizes) == {"chain": 3, "draw": 5, "feature": 2}
    assert list(posterior["feature"].values) == ["age", "dose"]
    np.testing.assert_array_equal(posterior["mu"].values, draws.position[:, :, 0])
    np.testing.assert_array_equal(posterior["beta"].values, draws.position[:, :, 1:])
    assert set(stored["sample_stats"].data_vars) == set(draws.stats)
    assert stored["sample_stats"]["diverging"].dtype == bool
    np.testing.assert_array_equal(stored["observed_data"]["y"].values, np.arange(4))
    assert stored["constant_data"]["x"].shape == (4, 2)
    np.testing.assert_array_equal(stored["adaptation"]["inverse_mass"].values, np.ones(3))
    for attributes in (stored.attrs, posterior.attrs):
        assert attributes["inference_library"] == "batchnuts"
        assert attributes["inference_library_version"]
        assert attributes["created_at"].endswith("+00:00")
        assert json.loads(attributes["config"]) == {"sampler": {"chains": 3}}
        assert attributes["seed"] == 2**60
        assert attributes["sampling_time"] == 3.0
        assert attributes["interrupted"] == 0
    if hasattr(stored, "close"):
        stored.close()


def test_memory_and_file_hold_the_same(model, tmp_path):
    import arviz

    datasets = to_datasets(make_draws(model, SETTINGS), model)
    memory, stored = to_arviz(datasets), arviz.from_netcdf(save(datasets, tmp_path / "a.nc"))
    assert memory.attrs["seed"] == stored.attrs["seed"]
    for group in datasets:
        xarray.testing.assert_identical(
            datasets[group], xarray.Dataset(memory[group].data_vars, attrs=memory[group].attrs)
        )
        np.testing.assert_equal(
            {name: array.values for name, array in memory[group].data_vars.items()},
            {name: array.values for name, array in stored[group].data_vars.items()},
        )


@pytest.mark.parametrize("done", [(2, 5, 3), (0, 1, 0)])
def test_interrupted_run_keeps_every_draw(model, tmp_path, done):
    import arviz

    draws = make_draws(model, SETTINGS, done=done)
    stored = arviz.from_netcdf(save(to_datasets(draws, model), tmp_path / "a.nc"))
    complete = min(done)
    assert stored["posterior"]["mu"].shape == (3, complete)
    assert stored["sample_stats"]["lp"].shape == (3, complete)
    for attributes in (stored.attrs, stored["posterior"].attrs):
        assert attributes["interrupted"] == 1
        assert attributes["draws_requested"] == 5
        assert attributes["draws_complete"] == complete
    rest = stored["unfinished"]
    assert list(rest["draw"].values) == list(range(complete, max(done)))
    assert tuple(rest["draws_done"].values) == done
    for chain, count in enumerate(done):
        np.testing.assert_array_equal(
            rest["beta"].values[chain, : count - complete], draws.position[chain, complete:count, 1:]
        )
        assert np.isnan(rest["beta"].values[chain, count - complete :]).all()
        np.testing.assert_array_equal(
            rest["lp"].values[chain, : count - complete], draws.stats["lp"][chain, complete:count]
        )


def test_existing_file_is_refused_unless_forced(tmp_path):
    path = tmp_path / "a.nc"
    path.write_text("precious")
    with pytest.raises(OutputError, match=r"exists and is not overwritten\. Give --force"):
        check_path(path)
    assert check_path(path, force=True) == path.resolve()
    assert path.read_text() == "precious"


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(OutputError, match=r"the folder .* does not exist"):
        check_path(tmp_path / "no" / "a.nc")
    with pytest.raises(OutputError, match="it is a folder"):
        check_path(tmp_path, force=True)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="does not exist"):
        check_path(tmp_path / "file" / "a.nc")
    with pytest.raises(OutputError, match="Cannot write"):
        check_path("a\0.nc")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc takes no files, not even from root")
def test_unwritable_folder_is_refused():
    with pytest.raises(OutputError, match=r"Cannot write /proc/a\.nc: "):
        check_path("/proc/a.nc")


def test_file_made_during_the_run_is_not_lost(model, tmp_path):
    datasets = to_datasets(make_draws(model, SETTINGS), model)
    path = tmp_path / "a.nc"
    path.write_text("precious")
    with pytest.raises(OutputError, match=r"came into being during the run .* the draws are in .*a-2\.nc"):
        save(datasets, path)
    assert path.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["a-2.nc", "a.nc"]
    assert save(datasets, path, force=True) == path
    with xarray.open_dataset(path, group="posterior", engine="h5netcdf") as posterior:
        assert posterior.sizes["draw"] == 5


def test_file_systems_without_links(model, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(output.os, "link", refuse)
    datasets = to_datasets(make_draws(model, SETTINGS), model)
    save(datasets, tmp_path / "a.nc")
    with pytest.raises(OutputError, match=r"a-2\.nc"):
        save(datasets, tmp_path / "a.nc")
    assert sorted(os.listdir(tmp_path)) == ["a-2.nc", "a.nc"]


def test_failed_write_leaves_nothing_and_keeps_the_old_file(model, tmp_path, monkeypatch):
    path = tmp_path / "a.nc"
    path.write_text("precious")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(xarray.Dataset, "to_netcdf", full)
    with pytest.raises(OutputError, match="No space left on device"):
        save(to_datasets(make_draws(model, SETTINGS), model), path, force=True)
    assert os.listdir(tmp_path) == ["a.nc"]
    assert path.read_text() == "precious"
