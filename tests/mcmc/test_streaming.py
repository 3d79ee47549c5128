"""Draws that go to a Zarr store while chains run: the same as in a netCDF file, whole at any moment, in bounded memory.

Records are fed by hand, in the ways that chunks of chains do: out of step, on changing lanes, again after an interrupt.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from streamed_draws import (
    CAPACITY,
    CHAINS,
    DRAWS,
    INTERRUPTED,
    LANES,
    MODEL,
    SAMPLER,
    assert_same_groups,
    drawn,
    feed,
    finished,
    flushed,
    in_three_lives,
    part_of,
    record,
    records_of,
    run_to_end,
    store_part,
    stream,
)

import batchnuts
from batchnuts.autobatch.machine import map_leaves
from batchnuts.files.saving import OutputError, check_path, save
from batchnuts.files.sealed_file import CheckpointError
from batchnuts.mcmc.diagnostics.kept_diagnostics import keep_diagnostics
from batchnuts.mcmc.model.content import Content, check_content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.output.opened_run import open_run
from batchnuts.mcmc.output.streaming import STATE, ZarrRun, require_zarr
from batchnuts.mcmc.run.lengthen import EndedRun, recover, replace_store
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.settings.until import Until
from batchnuts.mcmc.starts.tuning import Tuning, read_tuning
from batchnuts.mcmc.storage import row_blocks, stored_run, streamed
from batchnuts.mcmc.storage.earlier_run import draws_of_run
from batchnuts.mcmc.storage.layout import SAMPLES, Entries, Layout
from batchnuts.mcmc.storage.place import METADATA, LocalPlace, is_store
from batchnuts.mcmc.storage.row_blocks import RowBlock
from batchnuts.mcmc.storage.stored_run import open_zarr
from batchnuts.mcmc.storage.streamed import StreamedStorage
from batchnuts.mcmc.storage.zarr_files import ZarrFiles, chunk_shape
from batchnuts.report.run_file import NotARun, next_steps, read_run
from batchnuts.settings.schema import SettingsError


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "SHARE", 6)  # 8 draws each
    monkeypatch.setattr(streamed, "SMALL_BLOCK", 1)
    monkeypatch.setattr(streamed, "CHAINS_BYTES", 1500)


def stored(path: Path) -> dict[str, xarray.Dataset]:
    """The groups of a netCDF file."""
    groups = {}
    for name in xarray.open_datatree(path, engine="h5netcdf").children:
        with xarray.open_dataset(path, group=name, engine="h5netcdf") as dataset:
            groups[name] = dataset.load()
    return groups


def test_a_small_store_has_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four chunks of each variable; of a run whose blocks are large enough twenty, and no more bytes than fit."""
    monkeypatch.undo()
    draws = drawn()
    run, storage = stream(tmp_path / "a.zarr", draws)
    feed(storage, records_of(draws), draws.done)
    run.finish(draws)
    chunks = [path for path in (tmp_path / "a.zarr/posterior/mu/c").rglob("*") if path.is_file()]
    assert len(chunks) == streamed.SMALL_SHARE
    files = [path for path in (tmp_path / "a.zarr").rglob("*") if path.is_file()]
    arrays = len([path for path in files if path.name == METADATA])
    assert len(files) < 4 * arrays
    rows = [streamed.most_rows(row, 1000) for row in (1, 1000, 1250, 5000, 100_000)]
    assert rows == [250, 250, 200, 50, 50]
    assert streamed.most_rows(1_000_000, 1000) == 32


CASES: dict[str, tuple[Content, list[int] | None]] = {
    "whole": (Content(divergences=True), None),
    "interrupted": (Content(unconstrained=True, divergences=True), INTERRUPTED),
    "some chains had not begun": (Content(), [3, 0, 5, 7, 1, 2]),
    "some of it": (Content(variables=("beta",), thin=3, dtype="float64", divergences=True), INTERRUPTED),
    "at the end of a block": (Content(), [16, 16, 16, 16, 16, 17]),
    "of one chain": (Content(), [0, 0, 2, 0, 0, 0]),
}


@pytest.mark.parametrize(("content", "done"), CASES.values(), ids=CASES)
def test_a_store_holds_what_a_netcdf_file_holds(tmp_path: Path, content: Content, done: list[int] | None) -> None:
    """Rows that come a second time, as those of a chunk do that an interrupt finds at its end, change nothing."""
    draws = drawn(done, ends=content.divergences)
    run, storage = stream(tmp_path / "a.zarr", draws, content)
    records = records_of(draws)
    feed(storage, records, draws.done)
    again = np.flatnonzero(draws.done)[:LANES]
    record(storage, records, again, np.arange(len(again)), np.maximum(draws.done[again] - 3, 0), draws.done[again])
    assert storage.finalize().position.shape == (CHAINS, 0, MODEL.dimension)
    expected = to_datasets(draws, MODEL, content=content)
    if content.unconstrained:  # once there and back: test_output.py has that files hold what there is in memory
        expected = stored(save(expected, tmp_path / "a.nc"))
    assert_same_groups(run.finish(draws), expected)
    assert not (tmp_path / "a.zarr" / STATE).exists()


def test_readers_find_whole_draws_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two files that are put in place: one length everywhere, and the draws themselves."""
    draws, path, seen = drawn(), tmp_path / "a.zarr", []
    put = LocalPlace.put

    def look(self: LocalPlace, key: str, data: Any) -> None:
        put(self, key, data)
        at = [METADATA, *(f"{name}/{METADATA}" for name in ("posterior", "sample_stats"))]
        if key not in at or "posterior" not in open_zarr(path):
            return
        with xarray.open_zarr(path, group="posterior") as posterior:  # as one does who opens one group after another
            first = lengths(posterior)
        with xarray.open_zarr(path, group="sample_stats") as stats:
            assert min(lengths(stats)) >= max(first)
        groups = open_zarr(path)
        found = {length for name in ("posterior", "sample_stats") for length in lengths(groups[name])}
        assert len(found) == 1
        seen.append(found.pop())
        np.testing.assert_array_equal(groups["posterior"]["mu"], draws.position[:, : seen[-1], 0])
        np.testing.assert_array_equal(groups["sample_stats"]["lp"], draws.stats["lp"][:, : seen[-1]])
        assert groups["posterior"].attrs["interrupted"] == int("being_written" in groups["posterior"].attrs)

    monkeypatch.setattr(LocalPlace, "put", look)
    monkeypatch.setattr(streamed, "SHARE", 3)
    monkeypatch.setattr(streamed, "SMALL_BLOCK", 1)
    groups = finished(path, draws)
    assert sorted(set(seen)) == [16, 32, 47]
    assert groups["posterior"].attrs["interrupted"] == 0
    assert list(groups["observed_data"]["row"].values) == list("abcd")


def lengths(group: xarray.Dataset) -> set[int]:
    return {group.sizes["draw"], *(array.sizes["draw"] for array in group.data_vars.values())}


def test_open_run_gives_arvizs_object(tmp_path: Path) -> None:
    draws = drawn()
    finished(tmp_path / "a.zarr", draws)
    save(to_datasets(draws, MODEL), tmp_path / "a.nc")
    for path in (tmp_path / "a.zarr", str(tmp_path / "a.nc")):
        found = open_run(path)
        np.testing.assert_array_equal(found["posterior"]["beta"], draws.position[:, :, 2:].reshape(6, 47, 2, 2))
        assert found.attrs["seed"] == SAMPLER.seed
        assert batchnuts.check(found).divergences == draws.stats["diverging"].sum()
        if hasattr(found, "close"):
            found.close()


def test_what_open_run_cannot_read_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "damaged.nc").write_bytes(b"no HDF5")
    (tmp_path / "damaged.zarr").mkdir()
    (tmp_path / "damaged.zarr" / "zarr.json").write_text("{")
    for name, said in (
        ("absent.nc", "There is no file .*absent.nc. Check the path"),
        ("", "is a folder, but not a Zarr store. Give the path of the file or store in it"),
        ("damaged.nc", r"damaged.nc cannot be read as netCDF \(.+\). If a run wrote it, it is truncated or damaged"),
        ("damaged.zarr", r"damaged.zarr cannot be read as Zarr \(.+\). If a run wrote it"),
    ):
        with pytest.raises(OutputError, match=said):
            open_run(tmp_path / name)


def test_later_runs_and_reports_read_a_store_as_they_read_a_file(tmp_path: Path) -> None:
    draws, paths = drawn(), [str(tmp_path / "a.zarr"), str(tmp_path / "a.nc")]
    run, storage = stream(Path(paths[0]), draws)
    with pytest.raises(SettingsError, match=r"a\.zarr has no adaptation: that run has not finished"):
        tuning_from(paths[0])
    run_to_end(storage, draws)
    run.finish(draws)
    save(to_datasets(draws, MODEL), paths[1])
    (one, other), verdicts = [tuning_from(path) for path in paths], [read_run(path).check for path in paths]
    np.testing.assert_array_equal(one.positions, other.positions)
    np.testing.assert_array_equal(one.centre.mean, other.centre.mean)
    starts = [draws_of_run(MODEL, path, "sampler.init.run") for path in paths]
    np.testing.assert_array_equal(*starts)
    assert str(verdicts[0]) == str(verdicts[1])


def tuning_from(path: str) -> Tuning:
    found = read_tuning(MODEL, split_settings({"metric": "unit", "warmup": {"from": path}})[0])
    assert found is not None
    return found


def test_a_slow_chain_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five chains are done before the sixth makes its first draw: blocks wait for it in files."""
    monkeypatch.setattr(streamed, "IN_MEMORY", 2)
    draws = drawn(ends=True)
    run, storage = stream(tmp_path / "a.zarr", draws)
    most, files = 0, 0
    get = storage.blocks.get

    def watched(number: int) -> RowBlock:
        nonlocal most, files
        block = get(number)
        most = max(most, len(storage.blocks.in_memory))
        files = max(files, len(os.listdir(tmp_path / "a.zarr" / STATE / "pages")))
        return block

    monkeypatch.setattr(storage.blocks, "get", watched)
    records = records_of(draws)
    feed(storage, records, np.array([DRAWS] * 5 + [0]))
    assert storage.written == 0
    feed(storage, records, draws.done)
    storage.drain()
    assert storage.written == 6, "all of them: what came back from files counts"
    assert (most, files) == (2, 4)
    assert_same_groups(run.finish(draws), to_datasets(draws, MODEL))


class Gate:
    """A sink that writes nothing, and no block before it is open."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.blocks: list[int] = []

    def write(self, block: RowBlock, previous: Any) -> None:
        self.reached.set()
        assert self.open.wait(30)
        self.blocks.append(block.first)

    def sync(self) -> None:
        pass


def test_chains_wait_while_the_queue_is_full(tmp_path: Path) -> None:
    records, gate = records_of(drawn()), Gate()
    storage = StreamedStorage(records, CHAINS, DRAWS, gate, 2, tmp_path)
    thread = threading.Thread(target=feed, args=(storage, records, np.full(CHAINS, DRAWS)))
    thread.start()
    while len(storage.waiting) < streamed.QUEUE:
        assert thread.is_alive()
        time.sleep(0.001)
    thread.join(0.2)
    assert thread.is_alive()
    assert len(storage.waiting) == streamed.QUEUE
    assert storage.recorded.min() < (streamed.QUEUE + 1) * 2 + CAPACITY
    gate.open.set()
    thread.join(30)
    storage.finalize()
    assert gate.blocks == list(range(0, DRAWS, 2))
    storage.close()


def test_closing_waits_for_the_block_that_is_being_written(tmp_path: Path) -> None:
    """Whoever opens the store after it meets no writer."""
    records, gate = records_of(drawn()), Gate()
    storage = StreamedStorage(records, CHAINS, DRAWS, gate, 2, tmp_path)
    feed(storage, records, np.full(CHAINS, 2))
    assert gate.reached.wait(30)
    closing = threading.Thread(target=storage.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    gate.open.set()
    closing.join(30)
    assert gate.blocks == [0]


def test_a_full_disk_ends_the_run_and_what_was_written_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws, path = drawn(), tmp_path / "a.zarr"
    run, storage = stream(path, draws)
    write = ZarrFiles.write

    def full(self: ZarrFiles, name: str, entries: Any, chains: slice, rows: slice) -> None:
        if rows.start >= 16:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, name, entries, chains, rows)

    monkeypatch.setattr(ZarrFiles, "write", full)
    with pytest.raises(OutputError, match=r"a\.zarr: No space left on device; 16 draws of each chain are in it"):
        run_to_end(storage, draws)
    for after in (storage.flush, storage.finalize, lambda: run.finish(draws)):
        with pytest.raises(OutputError, match="No space left"):
            after()
    storage.close()
    groups = open_zarr(path)
    np.testing.assert_array_equal(groups["posterior"]["mu"], draws.position[:, :16, 0])
    assert groups["posterior"].attrs["interrupted"] == 1


def test_a_store_that_was_just_begun_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first files found no place, or the process was killed among them: only the run itself takes the folder."""
    draws, path, put = drawn(), tmp_path / "a.zarr", LocalPlace.put

    def full(self: LocalPlace, key: str, data: Any) -> None:
        if "observed_data" in key:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(self, key, data)

    monkeypatch.setattr(LocalPlace, "put", full)
    with pytest.raises(OutputError, match=r"a\.zarr: No space left on device; it has no draws"):
        stream(path, draws)
    monkeypatch.setattr(LocalPlace, "put", put)
    assert not (path / METADATA).exists()
    with pytest.raises(OutputError, match="exists and is not overwritten"):
        check_path(path, is_store=is_store)
    assert check_path(path, is_store=is_store, force=True) == path
    run, storage = stream(path, draws, resumed=True)
    for read, error in ((open_run, OutputError), (read_run, NotARun)):
        with pytest.raises(error, match=r"^There are no draws in .*a\.zarr yet\. .*--resume .*a\.zarr$"):
            read(path)
    run_to_end(storage, draws)
    assert_same_groups(run.finish(draws), to_datasets(draws, MODEL))


def test_a_full_disk_is_named_where_blocks_wait_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, arrays: Any, *, durable: bool) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(row_blocks, "write_arrays", full)
    draws = drawn()
    _, storage = stream(tmp_path / "a.zarr", draws)
    with pytest.raises(OutputError, match=r"a\.zarr/\.state: No space left on device"):
        feed(storage, records_of(draws), np.array([DRAWS] * 5 + [0]))
    with pytest.raises(OutputError, match="No space left"):
        storage.finalize()
    storage.close()


@pytest.mark.parametrize("flushes", [1, 2])
def test_a_run_goes_on_from_what_was_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushes: int) -> None:
    """In another process, from the last flush or from the one before; what was recorded after it is recorded again.
    Readers see no fewer draws meanwhile."""
    monkeypatch.setattr(streamed, "IN_MEMORY", 2)
    path = tmp_path / "a.zarr"
    draws, records, at = flushed(path, flushes)
    run, storage = stream(path, draws, resumed=True)
    with pytest.raises(CheckpointError, match="does not have the draws that the checkpoint names"):
        storage.resume(at[2])
    saved = path / STATE / "saved-0" / "2.npz"
    whole = saved.read_bytes()
    saved.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match="is truncated, damaged"):
        storage.resume(at[0])
    saved.write_bytes(whole)
    storage.resume(at[0])
    assert open_zarr(path)["posterior"].sizes["draw"] == 40
    feed(storage, records, at[1], seed=1)
    storage.drain()
    assert open_zarr(path)["posterior"].sizes["draw"] == 40
    storage.flush()
    feed(storage, records, draws.done, seed=2)
    assert_same_groups(run.finish(draws), to_datasets(draws, MODEL))


@pytest.mark.parametrize("done", [INTERRUPTED, [16, 0, 0, 20, 0, 9]], ids=["all chains", "some chains"])
def test_a_run_that_was_interrupted_goes_on(tmp_path: Path, done: list[int]) -> None:
    """From a store that was finished as far as it goes, with a group of unfinished draws and fewer chains; twice."""
    path = tmp_path / "a.zarr"
    assert sum(1 for _ in in_three_lives(path, done)) == 3
    folders = {entry.name for entry in path.iterdir() if entry.is_dir()}
    assert folders == {"posterior", "sample_stats", "observed_data", "constant_data", "adaptation"}


def test_a_run_that_was_to_end_is_made_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "SHARE", 3)
    monkeypatch.setattr(streamed, "SMALL_BLOCK", 1)
    draws = drawn()
    run, path, records = ZarrRun(tmp_path / "a.zarr", MODEL, Content()), tmp_path / "a.zarr", records_of(draws)
    like = map_leaves(lambda array: array[:1, :1], records)
    storage: Any = run.begin(SAMPLER, draws.execution)(like, CHAINS, 30)
    feed(storage, records, np.full(CHAINS, 30))
    storage.flush()
    run.close()
    run, storage = stream(path, draws, resumed=True)
    storage.resume(np.full(CHAINS, 30))
    feed(storage, records, draws.done)
    assert_same_groups(run.finish(draws), to_datasets(draws, MODEL))


@pytest.mark.parametrize("done", [None, [40, 45, 47, 41, 40, 44]], ids=["to the end", "interrupted"])
def test_a_store_is_made_longer(tmp_path: Path, done: list[int] | None) -> None:
    """Of 30 draws, which end within a block, by 17 or some of them; all groups are those of a longer run."""
    whole, path, content = drawn(done, ends=True), tmp_path / "a.zarr", Content(unconstrained=True, divergences=True)
    one, other = part_of(whole, 0, 30), part_of(whole, 30, DRAWS, done)

    store_part(path, one, content, 30)
    check = read_run(path).check
    assert check is not None
    keep_diagnostics(path, check.diagnostics)  # which the longer run does not have
    reader = open_zarr(path)
    assert "diagnostics" in reader
    ended = EndedRun(path, 30, saved=None)  # type: ignore[arg-type]
    store_part(ended.further, other, content, DRAWS)
    shorter = path.with_name(".a.zarr.shorter")
    found, expected = replace_store(ended), to_datasets(whole, MODEL, content=content)
    means, expected_means = found.pop("adaptation"), expected.pop("adaptation")
    assert_same_groups(found, expected)
    xarray.testing.assert_allclose(means, expected_means)  # of sums, which are added in another order
    assert list(tmp_path.iterdir()) == [path]
    assert reader["posterior"].sizes["draw"] == 30
    path.rename(shorter)  # as a process leaves it that is killed before the longer one is in its place
    recover(path)
    assert open_zarr(path)["posterior"].sizes["draw"] == other.first + other.complete


def test_a_store_that_has_changed_is_not_made_longer(tmp_path: Path) -> None:
    whole, path = drawn(ends=True), tmp_path / "a.zarr"
    finished(path, whole)
    ended = EndedRun(path, 30, saved=None)  # type: ignore[arg-type]
    finished(ended.further, whole)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(CheckpointError, match="has changed while it was being extended"):
        replace_store(ended)
    ended = EndedRun(path, DRAWS, saved=None)  # type: ignore[arg-type]
    finished(ended.further, drawn([3, 0, 5, 7, 1, 2], ends=True), replace=True)
    with pytest.raises(CheckpointError, match=r"is unchanged: not every chain had started"):
        replace_store(ended)
    assert before == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_an_interim_analysis_ends_a_run_that_has_gone_further(tmp_path: Path) -> None:
    """What was written beyond it is not there any longer."""
    draws = drawn()
    run = ZarrRun(tmp_path / "a.zarr", MODEL, Content())
    like = map_leaves(lambda array: array[:1, :1], records_of(draws))
    sampler = SAMPLER.model_copy(update={"until": Until(ess_bulk=400)})
    storage: Any = run.begin(sampler, draws.execution)(like, CHAINS, DRAWS)
    feed(storage, records_of(draws), draws.done)
    np.testing.assert_array_equal(storage.first(20).position, draws.position[:, :20])
    storage.finalize()
    ended = replace(draws, done=np.full(CHAINS, 20), settings=sampler)
    assert_same_groups(run.finish(ended), to_datasets(ended, MODEL))
    chunks = {path.name for path in (tmp_path / "a.zarr" / "posterior" / "mu" / "c").glob("*/*")}
    assert chunks == {"0", "1", "2"}, "of 8 draws each"


def test_what_cannot_be_written_is_refused_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"output\.variables: found 'betta'.* does not report; did you mean 'beta'"):
        check_content(MODEL, None, Content(variables=("mu", "betta")))  # type: ignore[arg-type]
    pointed = Model.from_function(MODEL.log_density, variables={"point": [2]})
    with pytest.raises(SettingsError, match=r"output\.divergences: found true, and 'point' in the model"):
        check_content(pointed, None, Content(divergences=True))  # type: ignore[arg-type]
    path = tmp_path / "a.zarr"
    finished(path, drawn())
    with pytest.raises(OutputError, match="exists and is not overwritten"):
        check_path(path, is_store=is_store)
    with pytest.raises(OutputError, match="it is a folder"):
        check_path(path, force=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    with pytest.raises(OutputError, match="not a Zarr store"):
        check_path(tmp_path / "other", is_store=is_store, force=True)
    draws = drawn()
    assert check_path(path, is_store=is_store, force=True) == path
    with pytest.raises(OutputError, match="was created in the meantime"):
        stream(path, draws)
    run, _ = stream(path, draws, replace=True)
    assert open_zarr(path).keys() == {"observed_data", "constant_data"}
    run.discard()
    assert os.listdir(tmp_path) == ["other"]
    monkeypatch.setattr(stored_run, "OLDEST", "99")
    with pytest.raises(OutputError, match=r"output\.format: zarr needs the package zarr, 3\.1\.3.*netcdf"):
        require_zarr()
    with pytest.raises(OutputError, match=r"Reading .*a\.zarr needs the package zarr"):
        open_zarr(path)


def test_what_fails_for_some_draws_is_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of the model that fails in the middle of a run: the draws are kept without its group."""

    def computed(self: Layout, position: np.ndarray, chains: np.ndarray, draws: np.ndarray) -> dict[str, Entries]:
        dims = (*SAMPLES, "row")
        if len(draws) and draws[0] < 16:
            return {"log_likelihood": {"y": (dims, position[:, :, :4], {})}}
        self.left_out = "A function failed."
        return {}

    monkeypatch.setattr(Layout, "_computed", computed)
    draws, path = drawn(), tmp_path / "a.zarr"
    groups = finished(path, draws)
    monkeypatch.undo()
    assert {group.attrs.pop("left_out") for group in groups.values()} == {"A function failed."}
    assert_same_groups(groups, to_datasets(draws, MODEL))
    assert not (path / "log_likelihood").exists()
    steps = next_steps(read_run(path))
    assert "Some groups are missing: A function failed. To have them, run again." in steps


def test_chunks_are_divided_so_that_a_coefficient_can_be_read_alone() -> None:
    assert chunk_shape((1000, 30), (), 4) == (1000, 30)
    assert chunk_shape((1000, 30), (50,), 4) == (1000, 30, 10)
    assert chunk_shape((1000, 30), (47,), 4) == (1000, 30, 8)
    assert chunk_shape((1000, 30), (3,), 4) == (1000, 30, 3)
    assert chunk_shape((1000, 300), (5, 7), 4) == (1000, 300, 1, 1)
    assert chunk_shape((10, 30), (5, 700), 4) == (10, 30, 1, 700)
    assert chunk_shape((2, 2), (5, 7), 4) == (2, 2, 5, 7)
