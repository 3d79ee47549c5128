"""Stores under URLs: the same as in folders, whole at any moment, and nothing that is of others is deleted."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations
from streamed_draws import (
    CHAINS,
    INTERRUPTED,
    MODEL,
    assert_same_groups,
    drawn,
    feed,
    finished,
    flushed,
    in_three_lives,
    records_of,
    run_to_end,
    stream,
)
from url_files import KINDS, content_of, small_blocks_from, url_of

from batchnuts.files.saving import OutputError, check_path
from batchnuts.files.sealed_file import CheckpointError
from batchnuts.files.url import Url, folder_of, location_of
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.output.opened_run import open_run
from batchnuts.mcmc.output.streaming import ZarrRun
from batchnuts.mcmc.storage import streamed, url_place
from batchnuts.mcmc.storage.earlier_run import draws_of_run, read_groups
from batchnuts.mcmc.storage.place import METADATA, STATE, LocalPlace, Place, is_store
from batchnuts.mcmc.storage.place_store import PlaceStore
from batchnuts.mcmc.storage.stored_run import open_zarr
from batchnuts.mcmc.storage.url_place import UrlError, UrlPlace, check_url, place_of
from batchnuts.report.run_file import NotARun, read_run
from batchnuts.settings.schema import SettingsError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return small_blocks_from(tmp_path, monkeypatch)


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Url:
    return url_of(request.param, tmp_path)


@pytest.fixture
def in_memory(tmp_path: Path) -> Url:
    return url_of("memory", tmp_path)


# ---- the same as in a folder -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [None, INTERRUPTED], ids=["whole", "interrupted"])
def test_a_store_holds_what_one_in_a_folder_holds(url: Url, here: Path, done: list[int] | None) -> None:
    """Object by object but for when it was made, and nothing is left that was needed until the end."""
    draws, content = drawn(done, ends=True), Content(divergences=True, unconstrained=True)
    assert_same_groups(finished(url, draws, content=content), finished(here / "a.zarr", draws, content=content))
    there = content_of(url)
    local = {p.relative_to(here / "a.zarr").as_posix(): p for p in (here / "a.zarr").rglob("*") if p.is_file()}
    assert there.keys() == local.keys()
    chunks = [key for key in there if not key.endswith(METADATA)]
    assert {key: there[key] for key in chunks} == {key: local[key].read_bytes() for key in chunks}
    assert os.listdir(here) == ["a.zarr"]


def test_urls_of_files_are_paths(tmp_path: Path) -> None:
    assert location_of(f"file://{tmp_path}/a.zarr") == tmp_path / "a.zarr"
    assert check_path(f"file://{tmp_path}/a.zarr", is_store=is_store) == tmp_path / "a.zarr"
    assert location_of("s3://runs/a.zarr") == Url("s3://runs/a.zarr")
    assert location_of(Path("a.zarr")) == Path("a.zarr")
    for path, said in ((3, "Found 3 in place of a path"), ("x" * 256, "of 256 bytes; expected names of at most 255")):
        with pytest.raises(OutputError, match=said):
            open_run(path)  # type: ignore[arg-type]


def test_readers_find_whole_draws_at_any_moment(in_memory: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two objects that are put: one length everywhere, and the draws themselves, also as xarray and Zarr
    read them by fsspec."""
    draws, seen, put = drawn(), [], UrlPlace.put

    def look(self: UrlPlace, key: str, data: Any) -> None:
        put(self, key, data)
        if key not in (METADATA, *(f"{name}/{METADATA}" for name in ("posterior", "sample_stats"))):
            return
        if "posterior" not in open_zarr(in_memory):
            return
        store = PlaceStore(UrlPlace(in_memory), read_only=True)
        first, then = (xarray.open_zarr(store, group=name) for name in ("posterior", "sample_stats"))
        assert then.sizes["draw"] >= first.sizes["draw"]
        groups = open_zarr(in_memory)
        found = {array.sizes["draw"] for g in ("posterior", "sample_stats") for array in groups[g].data_vars.values()}
        assert len(found) == 1
        seen.append(found.pop())
        np.testing.assert_array_equal(groups["posterior"]["mu"], draws.position[:, : seen[-1], 0])

    monkeypatch.setattr(UrlPlace, "put", look)
    monkeypatch.setattr(streamed, "SHARE", 3)
    monkeypatch.setattr(streamed, "SMALL_BLOCK", 1)
    finished(in_memory, draws)
    assert sorted(set(seen)) == [16, 32, 47]
    monkeypatch.undo()
    with xarray.open_datatree(in_memory.text, engine="zarr") as tree:
        np.testing.assert_array_equal(tree["posterior"]["mu"], draws.position[:, :, 0])


def test_readers_take_urls(url: Url) -> None:
    draws = drawn()
    with pytest.raises(OutputError, match=r"There is no Zarr store at .*a\.zarr\. Check the URL"):
        open_run(url.text)
    with pytest.raises(NotARun, match=r"There is no Zarr store at .*a\.zarr; expected"):
        read_run(url.text)
    with pytest.raises(SettingsError, match=r"sampler\.warmup\.from: there is no Zarr store at"):
        read_groups(url.text, ("adaptation",), "sampler.warmup.from")
    finished(url, draws)
    np.testing.assert_array_equal(open_run(url.text)["posterior"]["mu"], draws.position[:, :, 0])
    assert read_run(url.text).check is not None
    assert draws_of_run(MODEL, url.text, "sampler.init.run").shape[-1] == MODEL.dimension
    assert "adaptation" in read_groups(url.text, ("adaptation",), "sampler.warmup.from")


# ---- runs that go on -------------------------------------------------------------------------------------------------


def test_a_run_that_was_interrupted_goes_on(url: Url, here: Path) -> None:
    """Twice, with fewer chains than all at first; what is needed meanwhile is in the current folder."""
    lives = in_three_lives(url, [16, 0, 0, 20, 0, 9])
    for _ in range(2):
        next(lives)
        assert (folder_of(url) / "state" / "claim").exists()
    next(lives)
    assert os.listdir(here) == []
    assert {key.partition("/")[0] for key in content_of(url)} == {
        *("posterior", "sample_stats", "observed_data", "constant_data", "adaptation", METADATA)
    }


@pytest.mark.parametrize("flushes", [1, 2])
def test_a_run_goes_on_from_what_was_flushed(in_memory: Url, flushes: int) -> None:
    """In another process; readers see no fewer draws meanwhile."""
    draws, records, at = flushed(in_memory, flushes)
    run, storage = stream(in_memory, draws, resumed=True)
    storage.resume(at[0])
    assert open_zarr(in_memory)["posterior"].sizes["draw"] == 40
    feed(storage, records, draws.done, seed=2)
    assert_same_groups(run.finish(draws), to_datasets(draws, MODEL))


def test_a_run_does_not_go_on_where_another_one_has_written(url: Url) -> None:
    draws = drawn()
    _, storage = stream(url, draws)
    storage.close()
    claim = folder_of(url) / "state" / "claim"
    own = claim.read_text()
    stream(url, draws, replace=True)[1].close()
    claim.write_text(own)  # as the first process has left it
    before = content_of(url)
    with pytest.raises(
        CheckpointError, match=r"a\.zarr has changed since this run wrote it: another run was written there"
    ):
        ZarrRun(url, MODEL, Content(), resumed=True)
    assert content_of(url) == before


def test_what_a_killed_process_was_putting_does_no_harm(tmp_path: Path) -> None:
    """Among chunks beyond the end, which are deleted by their names, and among what is gathered until the end."""
    draws = drawn([20] * CHAINS, ends=True)
    for target in (url_of("folders", tmp_path), tmp_path / "b.zarr"):
        run, storage = stream(target, draws)
        folder = tmp_path / "there" / "a.zarr" if isinstance(target, Url) else target
        feed(storage, records_of(draws), np.full(CHAINS, 20))
        storage.drain()
        halves = ["posterior/mu/c/0/.1.0123.tmp", f"{STATE}/divergences/.0.npz.0123.tmp", ".zarr.json.0123.tmp"]
        for half in halves:
            (folder / half).write_bytes(b"half")
        assert_same_groups(run.finish(draws), to_datasets(draws, MODEL, content=Content(divergences=True)))
        assert [half for half in halves if (folder / half).exists()] == []


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_store_that_cannot_be_reached_any_longer_ends_the_run(
    in_memory: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a full disk does: the draws that were visible stay."""
    draws = drawn()
    run, storage = stream(in_memory, draws)
    put = MemoryFileSystem.pipe_file

    def gone(self: Any, path: str, value: bytes, **options: Any) -> None:
        if "/mu/c/" in path and not path.endswith(("/0", "/1")):
            raise ConnectionError("Could not connect to the endpoint")
        put(self, path, value, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", gone)
    said = r"Cannot write memory://.*a\.zarr: it cannot be reached .*; 16 draws of each chain are in it and can be read"
    with pytest.raises(OutputError, match=said):
        run_to_end(storage, draws)
    for after in (storage.flush, storage.finalize, lambda: run.finish(draws)):
        with pytest.raises(OutputError, match="it cannot be reached"):
            after()
    storage.close()
    groups = open_zarr(in_memory)
    np.testing.assert_array_equal(groups["posterior"]["mu"], draws.position[:, :16, 0])
    assert groups["posterior"].attrs["interrupted"] == 1


class Refusing(MemoryFileSystem):
    """Every error that an object store may have."""

    protocol = "refusing"
    error: Exception = PermissionError("Access Denied")

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        raise self.error


class NoCredentialsError(Exception):
    """Named as botocore's."""


fsspec.register_implementation("refusing", Refusing, clobber=True)

ERRORS: dict[str, tuple[Exception, str]] = {
    "denied": (PermissionError("Access Denied"), r"permission denied \(Access Denied\)"),
    "no credentials": (NoCredentialsError("Unable to locate credentials"), "no credentials were found .*: set them"),
    "no bucket": (FileNotFoundError("The specified bucket does not exist"), "the bucket or folder does not exist"),
    "unreachable": (ConnectionError("refused"), r"it cannot be reached \(refused\)"),
    "full": (OSError(errno.EDQUOT, "Quota exceeded"), "Quota exceeded"),
    "something else": (RuntimeError("what a package says\nand more"), r"RuntimeError: what a package says\."),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_written_is_refused_before_anything_is_sampled(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, said = ERRORS[name]
    monkeypatch.setattr(Refusing, "error", error)
    with pytest.raises(OutputError, match=f"Cannot write refusing://b/a.zarr: {said}") as caught:
        check_url(Url("refusing://b/a.zarr"), force=False)
    assert "\n" not in str(caught.value)


def test_what_is_unknown_or_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutputError, match=r"the protocol 's4' is unknown; expected one that fsspec knows, such as s3"):
        place_of(Url("s4://b/a.zarr"))
    entry = {"class": "no_such_s3fs.core.Files", "err": "Install no_such_s3fs to access it"}
    monkeypatch.setitem(known_implementations, "s5", entry)
    with pytest.raises(
        OutputError, match=r"s5:// needs no_such_s3fs, which is not installed: pip install no_such_s3fs\."
    ):
        place_of(Url("s5://b/a.zarr"))


def test_what_is_of_others_is_never_deleted(url: Url) -> None:
    """Whatever is asked for."""
    files, path = fsspec.url_to_fs(url.text)
    foreign = {
        "other files": ({f"{path}/data.csv": b"1"}, "files are there, but not a Zarr store"),
        "their own state": ({f"{path}/{STATE}/theirs": b"1"}, "files are there, but not a Zarr store"),
        "a Zarr store": (
            {f"{path}/{METADATA}": b'{"zarr_format": 3, "attributes": {}}'},
            "a Zarr store that is not a batchnuts run is there",
        ),
        "no metadata": ({f"{path}/{METADATA}": b"[1, "}, "is not metadata of a Zarr store"),
        "a list": ({f"{path}/{METADATA}": b"[1]"}, "a Zarr store that is not a batchnuts run is there"),
    }
    if url.protocol == "folders":
        foreign["a file"] = ({path: b"1"}, "it is a file")
    for content, said in foreign.values():
        for name, data in content.items():
            files.makedirs(name.rpartition("/")[0], exist_ok=True)
            files.pipe_file(name, data)
        place = UrlPlace(url)
        before = {name: files.cat_file(name) for name in files.find(path.rpartition("/")[0])}
        with pytest.raises(OutputError, match=f"Cannot write .*: .*{said}"):
            check_url(url, force=True)
        with pytest.raises(OutputError, match="is not replaced"):
            place.remove_store()
        with pytest.raises(OutputError, match="is not replaced"):
            stream(url, drawn(), replace=True)
        with pytest.raises(OutputError, match="was created in the meantime and is not overwritten"):
            stream(url, drawn())
        assert {name: files.cat_file(name) for name in files.find(path.rpartition("/")[0])} == before
        files.rm(path, recursive=True)


def test_a_run_is_replaced_when_that_is_asked_for(url: Url) -> None:
    draws = drawn()
    finished(url, draws)
    before = content_of(url)
    with pytest.raises(OutputError, match=r"a\.zarr exists and is not overwritten\. Give --force"):
        check_url(url, force=False)
    with pytest.raises(OutputError, match="was created in the meantime and is not overwritten"):
        stream(url, draws)
    assert check_url(url, force=True) == url
    assert content_of(url) == before, "nothing is deleted before there are draws"
    run, storage = stream(url, draws, replace=True)
    assert open_zarr(url).keys() == {"observed_data", "constant_data"}
    run.discard()
    assert content_of(url) == {}
    storage.close()


def test_of_two_processes_one_gets_the_place(in_memory: Url) -> None:
    """Also where both have found nothing there."""
    one, other = UrlPlace(in_memory), UrlPlace(in_memory)
    one.make()
    other.what_is_there = lambda: "nothing"  # type: ignore[method-assign]
    with pytest.raises(FileExistsError):
        other.make()
    assert content_of(in_memory).keys() == {url_place.CLAIM}


def test_stores_of_one_name_keep_their_states_apart() -> None:
    one, other = Url("s3://a/run.zarr"), Url("s3://b/run.zarr")
    assert folder_of(one).parent == folder_of(other).parent == Path.cwd()
    assert folder_of(one).name.startswith("run.zarr-")
    assert folder_of(one) != folder_of(other)
    assert folder_of(Path("/x/run.zarr")) == Path("/x/run.zarr.checkpoint")


def test_whole_buckets_are_not_written() -> None:
    pytest.importorskip("s3fs")
    with pytest.raises(OutputError, match=r"it is a whole bucket\. Set output\.path to a name in it"):
        check_url(Url("s3://runs"), force=True)


def test_errors_cross_processes() -> None:
    error = pickle.loads(pickle.dumps(UrlError(Url("s3://a/b"), "permission denied")))
    assert (str(error), error.why) == ("s3://a/b: permission denied.", "permission denied")


@pytest.mark.parametrize("kind", ["folder", *KINDS])
def test_places_are_alike(kind: str, tmp_path: Path) -> None:
    place: Place = LocalPlace(tmp_path / "a.zarr") if kind == "folder" else UrlPlace(url_of(kind, tmp_path))
    place.make()
    place.put("a/b/0", b"1")
    place.put_all({"a/c/0": b"2", "a/c/1": b"3", "d": b"4"})
    place.put("a/c/1", memoryview(b"5"))
    assert [place.read(key) for key in ("a/b/0", "a/c/1", "d", "a", "a/x", "d/x")] == [b"1", b"5", b"4", *[None] * 3]
    assert sorted(place.keys("a")) == ["a/b/0", "a/c/0", "a/c/1"]
    assert place.keys("x") == []
    assert set(place.folders()) - {STATE} == {"a"}
    place.delete(["a/c/0", "a/c/7", "x/y"], folders=True)
    place.delete(["a/c/7"])
    place.delete([])
    assert sorted(place.keys("a")) == ["a/b/0", "a/c/1"]
    place.remove("a")
    place.remove("x")
    assert place.keys("a") == []
    assert set(place.folders()) <= {STATE}
    assert place.read("d") == b"4"
    place.put("a/b/0", b"6")
    assert place.exists("a/b/0")
    assert not place.exists("a/b/1")
