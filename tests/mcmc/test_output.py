import errno
import json
import os
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import xarray
from fake_run import make_draws
from ways import rotating

from batchnuts.files import saving
from batchnuts.files.saving import NotSaved, OutputError, check_path, check_space, save
from batchnuts.mcmc.kernel.sample_statistics import draw_bytes
from batchnuts.mcmc.model.model import Model, Variable
from batchnuts.mcmc.output.datasets import to_arviz, to_datasets
from batchnuts.mcmc.run.forecast import Size, forecast
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings

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
    assert stored["adaptation"].attrs["metric"] == "unit"
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
    for name in ("new/", "new//", "new/.", "new/..", ""):
        with pytest.raises(OutputError, match="it names a folder"):
            check_path(f"{tmp_path}/{name}")
        with pytest.raises(NotSaved, match="it names a folder"):
            save({}, f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"file is not a folder. Set another output\.path"):
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
    with pytest.raises(OutputError, match=r"was created during the run .* the draws are in .*a-2\.nc"):
        save(datasets, path)
    assert path.read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["a-2.nc", "a.nc"]
    assert save(datasets, path, force=True) == path
    with xarray.open_dataset(path, group="posterior", engine="h5netcdf") as posterior:
        assert posterior.sizes["draw"] == 5


def test_the_file_has_the_permissions_of_an_ordinary_one(model, tmp_path):
    groups = to_datasets(make_draws(model, SETTINGS), model)
    before = os.umask(0o027)
    try:
        path = save(groups, tmp_path / "a.nc")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    assert [file.name for file in tmp_path.iterdir()] == ["a.nc"]


def test_the_process_keeps_its_umask_while_a_file_is_written(model, tmp_path, monkeypatch):
    """Another thread may make a file meanwhile."""
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask was set"))
    save(to_datasets(make_draws(model, SETTINGS), model), tmp_path / "a.nc")
    (tmp_path / "b").touch()
    assert (tmp_path / "a.nc").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_file_systems_without_links(model, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(saving.os, "link", refuse)
    datasets = to_datasets(make_draws(model, SETTINGS), model)
    save(datasets, tmp_path / "a.nc")
    with pytest.raises(OutputError, match=r"a-2\.nc"):
        save(datasets, tmp_path / "a.nc")
    assert sorted(os.listdir(tmp_path)) == ["a-2.nc", "a.nc"]


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class Full:
    """A disk with room for so many bytes, which fills up in the middle of a write as real ones do."""

    def __init__(self, raw, room, number):
        self.raw, self.room, self.number = raw, room, number

    def write(self, data):
        room = self.room - self.raw.tell()
        if room <= 0:
            raise OSError(self.number, os.strerror(self.number))
        return self.raw.write(memoryview(data)[:room])

    def truncate(self, size=None):
        if size is not None and size > self.room:
            raise OSError(self.number, os.strerror(self.number))
        return self.raw.truncate(size)

    def __getattr__(self, name):
        return getattr(self.raw, name)


def fill_up(monkeypatch, room, number=errno.ENOSPC):
    write = saving.write_netcdf
    monkeypatch.setattr(saving, "write_netcdf", lambda groups, raw: write(groups, Full(raw, room, number)))


@pytest.mark.parametrize(
    ("number", "force"),
    rotating(
        {os.strerror(number): number for number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)},
        {"force": True, "new": False},
        always=0,
    ),
)
def test_failed_write_leaves_nothing_and_names_the_cause(model, tmp_path, monkeypatch, number, force, capfd):
    """Wherever the disk fills up: nothing of HDF5's own words is seen, and what was there stays."""
    groups = to_datasets(make_draws(model, SETTINGS), model)
    size = save(groups, tmp_path / "whole.nc").stat().st_size
    (tmp_path / "a.nc").write_text("precious")
    monkeypatch.setattr(saving, "other_folders", lambda: [])
    for room in range(0, size, 4099):
        with monkeypatch.context() as patch:
            fill_up(patch, room, number)
            with pytest.raises(NotSaved, match=re.escape(f"{os.strerror(number)}. The draws of this run are not")):
                save(groups, tmp_path / "a.nc", force=force)
        assert tree(tmp_path) == ["a.nc", "whole.nc"]
    assert (tmp_path / "a.nc").read_text() == "precious"
    assert capfd.readouterr() == ("", "")


def test_hdf5_reads_back_what_it_wrote_after_the_disk_filled_up(tmp_path):
    """h5py takes a short read for a whole one: what HDF5 then finds in its tables makes the process crash."""
    with open(tmp_path / "a", "w+b", buffering=0) as raw:
        disk = saving._Disk(Full(raw, 10, errno.ENOSPC))
        disk.write(b"0123")
        assert disk.failure is None
        for place, data in ((8, b"abcdef"), (20, b"ghij"), (12, b"XY")):
            disk.seek(place)
            assert disk.write(data) == len(data)
            assert disk.tell() == place + len(data)
        assert disk.failure is not None
        disk.seek(2)
        buffer = bytearray(b"?" * 25)
        assert disk.readinto(buffer) == len(buffer)
        assert bytes(buffer) == b"23" + bytes(4) + b"abcdXY" + bytes(6) + b"ghij" + bytes(3)
        assert disk.tell() == 27
        assert os.path.getsize(tmp_path / "a") == 10


def test_signals_are_handled_within_a_long_write(model, tmp_path, monkeypatch):
    """No array is written in one piece; who gives up while it is written leaves all as it was."""
    groups = to_datasets(make_draws(model, SETTINGS), model)
    monkeypatch.setattr(saving, "_AT_ONCE", 100)
    sizes = []

    class Watched(Full):
        def write(self, data):
            sizes.append(len(data))
            if sizes.count(100) == self.number:
                raise KeyboardInterrupt
            return self.raw.write(data)

    write = saving.write_netcdf
    monkeypatch.setattr(saving, "write_netcdf", lambda groups, raw: write(groups, Watched(raw, 2**30, None)))
    save(groups, tmp_path / "a.nc")
    assert max(sizes) == 100
    assert sizes.count(100) > 5
    sizes.clear()
    monkeypatch.setattr(saving, "write_netcdf", lambda groups, raw: write(groups, Watched(raw, 2**30, 5)))
    before = (tmp_path / "a.nc").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        save(groups, tmp_path / "a.nc", force=True)
    assert tree(tmp_path) == ["a.nc"]
    assert (tmp_path / "a.nc").read_bytes() == before


def test_draws_go_to_the_first_folder_that_takes_them(model, tmp_path, monkeypatch):
    groups = to_datasets(make_draws(model, SETTINGS), model)
    for name in ("wanted", "full", "free"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(saving, "other_folders", lambda: [tmp_path / name for name in ("wanted", "full", "free")])
    write = saving._save

    def some_are_full(datasets, target, force, *rest):
        if target.parent.name != "free":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(datasets, target, force, *rest)

    monkeypatch.setattr(saving, "_save", some_are_full)
    with pytest.raises(OutputError, match=r"No space left on device\. The draws are kept in .*free/a\.nc; move them"):
        save(groups, tmp_path / "wanted" / "a.nc")
    assert tree(tmp_path) == ["free", "free/a.nc", "full", "wanted"]
    first = (tmp_path / "free" / "a.nc").read_bytes()
    with pytest.raises(OutputError, match=r"The draws are kept in .*free/a-2\.nc; move them"):  # force is for the path
        save(groups, tmp_path / "wanted" / "a.nc", force=True)
    assert (tmp_path / "free" / "a.nc").read_bytes() == first


def test_draws_of_a_missing_folder_go_to_a_temporary_one(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(saving.tempfile, "tempdir", str(elsewhere))
    groups = {"posterior": xarray.Dataset({"x": (("chain", "draw"), np.zeros((2, 3)))})}
    with pytest.raises(OutputError, match="The draws are kept in"):
        save(groups, tmp_path / "missing" / "draws.nc")
    assert (elsewhere / "draws.nc").exists()


def test_folders_for_draws_that_cannot_be_saved_where_they_should_exist():
    assert saving.other_folders()
    assert all(folder.is_dir() for folder in saving.other_folders())


def test_too_little_room_is_reported_before_the_run(tmp_path, monkeypatch):
    check_space(tmp_path / "a.nc", 1000)
    with pytest.raises(OutputError, match=r"needs about 1e\+09 TB, and .* are free there\. Make room"):
        check_space(tmp_path / "a.nc", 10**21)
    monkeypatch.setattr(saving, "_file_size_limit", lambda: 5_000)
    with pytest.raises(OutputError, match=r"files may be at most 5 kB long here \(ulimit -f\)"):
        check_space(tmp_path / "a.nc", 6_000)


def test_the_forecast_size_is_at_least_that_of_the_arrays_and_hardly_more_than_the_file(model, tmp_path):
    sampler = SamplerSettings(chains=50, draws=200)
    size = save(to_datasets(make_draws(model, sampler), model), tmp_path / "a.nc").stat().st_size
    arrays = 50 * 200 * draw_bytes(model.dimension, model.dtype)
    expected = forecast(sampler, ExecutionSettings(), Size.of(model))
    assert arrays < expected.file_at_least <= expected.file
    assert arrays < size
    assert 0.8 * expected.file < size


def test_what_is_no_ordinary_file_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(OutputError, match="it is not a file"):
            check_path(path, force=True)
    (tmp_path / "kept.nc").touch(mode=0o444)
    with pytest.raises(OutputError, match="it is write-protected"):
        check_path(tmp_path / "kept.nc", force=True)


def test_chains_that_had_not_begun_take_no_draw_from_the_others(model):
    """Two of four chains had no turn: the others' draws are the posterior, and all that was made is in the file."""
    whole = make_draws(model, SamplerSettings(chains=4, draws=5))
    begun = np.array([True, False, True, False])
    draws = replace(whole, done=np.array([3, 0, 5, 0]), begun=begun, interrupted=True)
    groups = to_datasets(draws, model)
    posterior = groups["posterior"]
    assert posterior["chain"].values.tolist() == [0, 2]
    assert posterior.sizes["draw"] == 3
    np.testing.assert_array_equal(groups["sample_stats"]["lp"].values, draws.stats["lp"][[0, 2], :3])
    further = groups["unfinished"]
    assert further["chain"].values.tolist() == [0, 2]
    assert further["draws_done"].values.tolist() == [3, 5]
    assert int(np.isfinite(further["lp"].values).sum()) == 2
    np.testing.assert_array_equal(further["lp"].values[1], draws.stats["lp"][2, 3:])
    np.testing.assert_array_equal(further["beta"].values[1], draws.position[2, 3:, 1:])
    wanted = {"draws_complete": 3, "draws_made": 8, "chains_requested": 4, "chains_begun": 2}
    assert {name: posterior.attrs[name] for name in wanted} == wanted
    assert "3 of 5 draws of each of 2 chains (the other 2 had not started)" in draws.what_there_is()
