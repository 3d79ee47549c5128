"""Runs whose stores are under URLs and that are made longer: readers see the shorter run, and then the longer one."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
import streamed_draws
import xarray
from fsspec.implementations.memory import MemoryFileSystem
from streamed_draws import DRAWS, MODEL, assert_same_groups, drawn, part_of, store_part
from url_files import content_of, small_blocks_from, url_of

from batchnuts.autobatch import ops
from batchnuts.files.saving import OutputError, save
from batchnuts.files.url import Url
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.datasets import to_datasets
from batchnuts.mcmc.run.lengthen import EndedRun, joined, replace_store
from batchnuts.mcmc.storage.layout import Layout
from batchnuts.mcmc.storage.place import METADATA
from batchnuts.mcmc.storage.stored_run import open_zarr
from batchnuts.mcmc.storage.url_place import UrlError, UrlPlace
from batchnuts.mcmc.storage.zarr_files import ZarrFilesBeside


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return small_blocks_from(tmp_path, monkeypatch)


@pytest.fixture
def in_memory(tmp_path: Path) -> Url:
    return url_of("memory", tmp_path)


def lengthened(url: Url, whole: Any, content: Content, ends: tuple[int, ...]) -> dict[str, xarray.Dataset]:
    """Of a run of `ends[0]` draws, made longer to each of the others; its groups."""
    store_part(url, part_of(whole, 0, ends[0]), content, ends[0])
    groups = open_zarr(url)
    for first, last in itertools.pairwise(ends):
        ended = EndedRun(url, first, saved=None)  # type: ignore[arg-type]
        store_part(ended.further, part_of(whole, first, last), content, last)
        groups = replace_store(ended)
    return groups


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("memory", (8, 30, 32, DRAWS)),
        ("folders", (30, DRAWS)),
        pytest.param("folders", (8, 30, 32, DRAWS), marks=pytest.mark.slow),
    ],
)
def test_a_store_is_made_longer(kind: str, tmp_path: Path, here: Path, ends: tuple[int, ...]) -> None:
    """All groups are those of a longer run; nothing is left over, whatever the chunks are called."""
    url = url_of(kind, tmp_path)
    whole, content = drawn(ends=True), Content(unconstrained=True, divergences=True)
    found, expected = lengthened(url, whole, content, ends), to_datasets(whole, MODEL, content=content)
    means, expected_means = found.pop("adaptation"), expected.pop("adaptation")
    assert_same_groups(found, expected)
    xarray.testing.assert_allclose(means, expected_means)
    assert os.listdir(here) == []
    files, path = fsspec.url_to_fs(url.text)
    assert [name.rstrip("/").rpartition("/")[2] for name in files.ls(path.rpartition("/")[0], detail=False)] == [
        "a.zarr"
    ]
    keys = {key for key in content_of(url) if key.startswith(("adaptation/", "divergences/")) and "zarr" not in key}
    assert len({re.search("/c(/|$)", key) is None for key in keys}) == 1, "chunks of one kind of name"


@pytest.mark.parametrize(
    "fails_at", ["metadata", *(pytest.param(name, marks=pytest.mark.slow) for name in ("chunk", "root"))]
)
def test_readers_see_the_shorter_run_until_the_longer_one_is_whole(
    in_memory: Url, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """A process that is killed on the way leaves what was; it is made longer when that is done again, by another
    number of draws, too."""
    whole, content = drawn(ends=True), Content(divergences=True)
    before = {name: group.load() for name, group in lengthened(in_memory, whole, content, (30,)).items()}
    ended = EndedRun(in_memory, 30, saved=None)  # type: ignore[arg-type]
    store_part(ended.further, part_of(whole, 30, DRAWS), content, DRAWS)
    put = MemoryFileSystem.pipe_file
    inside = UrlPlace(in_memory).path

    def killed(self: Any, path: str, value: bytes, **options: Any) -> None:
        key = str(path).removeprefix(f"{inside}/")
        now = {
            "chunk": "/c/" in key and "lp" in key,
            "metadata": key == f"posterior/{METADATA}",
            "root": key == METADATA,
        }
        if str(path).startswith(f"{inside}/") and now[fails_at]:
            raise ConnectionError("the network is gone")
        put(self, path, value, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", killed)
        with pytest.raises(
            OutputError, match=r"could not be extended, .*the network is gone.*: it has 30 draws of each chain"
        ):
            replace_store(ended)
        assert_same_groups(open_zarr(in_memory), before)
    found = lengthened_from(in_memory, whole, content, 30, 33)
    part = part_of(whole, 0, 33)
    expected = to_datasets(replace(part, first=0), MODEL, content=content)
    for name in ("posterior", "sample_stats", "divergences"):
        xarray.testing.assert_equal(found[name], expected[name])


def lengthened_from(url: Url, whole: Any, content: Content, first: int, last: int) -> dict[str, xarray.Dataset]:
    ended = EndedRun(url, first, saved=None)  # type: ignore[arg-type]
    store_part(ended.further, part_of(whole, first, last), content, last)
    return replace_store(ended)


def test_a_longer_run_whose_leftovers_stay_has_its_draws(
    in_memory: Url, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where these cannot be deleted there is a warning, and no error: else one would do it again."""
    whole, content = drawn(ends=True), Content(divergences=True)
    lengthened(in_memory, whole, content, (30,))

    def forbidden(*_: Any) -> None:
        raise UrlError(in_memory, "permission denied")

    with monkeypatch.context() as patch:
        ended = EndedRun(in_memory, 30, saved=None)  # type: ignore[arg-type]
        store_part(ended.further, part_of(whole, 30, DRAWS), content, DRAWS)
        patch.setattr(ZarrFilesBeside, "forget", forbidden)
        patch.setattr(UrlPlace, "discard", forbidden)
        assert replace_store(ended)["posterior"].sizes["draw"] == DRAWS
    assert capfd.readouterr().err.count("warning: leftover files were not deleted: memory://") == 2


class Ended(BaseException):
    """The process is."""


@pytest.mark.parametrize("first", range(10))
def test_a_store_is_made_longer_at_once_wherever_the_process_ends(
    in_memory: Url, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Before an object is put or some are deleted: readers find the run as it was or the longer one, and the former can
    be made longer again. Every tenth object."""
    whole, content = drawn(ends=True), Content(unconstrained=True, divergences=True)
    store_part(in_memory, part_of(whole, 0, 21), content, 21)
    ended, changed = EndedRun(in_memory, 21, saved=None), []  # type: ignore[arg-type]
    store_part(ended.further, part_of(whole, 21, 30), content, 30)
    objects = MemoryFileSystem.store
    before = {path: file.getvalue() for path, file in objects.items()}
    left = 0

    def ends(method: Callable[..., Any]) -> Callable[..., Any]:
        def change(self: UrlPlace, what: Any, *rest: Any, **how: Any) -> Any:
            nonlocal left
            changed.append(what)
            left -= 1
            if left < 0:
                raise Ended
            return method(self, what, *rest, **how)

        return change

    def attempt(changes: int) -> None:
        nonlocal left
        files, _ = fsspec.url_to_fs(in_memory.text)
        objects.clear()
        for path, data in before.items():
            files.pipe_file(path, data)
        left = changes
        changed.clear()
        with monkeypatch.context() as patch:
            for name in ("put", "delete"):
                patch.setattr(UrlPlace, name, ends(getattr(UrlPlace, name)))
            replace_store(ended)

    def assert_draws(found: dict[str, xarray.Dataset], draws: int) -> None:
        expected = to_datasets(part_of(whole, 0, draws), MODEL, content=content)
        means, expected_means = found.pop("adaptation"), expected.pop("adaptation")
        assert_same_groups(found, expected)
        xarray.testing.assert_allclose(means, expected_means)  # of sums, which are added in another order

    attempt(10**6)
    last, root = len(changed), changed.index(METADATA)
    assert root > 50
    assert last > root + 1
    for count in sorted({*range(first, last, 10), root - 1, root, root + 1, last - 1}):
        with pytest.raises(Ended):
            attempt(count)
        assert_draws(open_zarr(in_memory), 30 if count > root else 21)
        if count <= root and count % 10 == first:
            assert_draws(replace_store(ended), 30)


COMPUTING = replace(
    MODEL,
    generated=lambda p: {"twice": p["mu"] * 2.0},
    log_likelihood=lambda p: ops.stack([p["mu"], p["tau"], p["mu"], p["tau"]]),
)


@pytest.mark.parametrize("format", ["netcdf", "zarr"])
@pytest.mark.parametrize("computing", [(True, False), (False, True), (True, True)])
def test_what_some_draws_lack_is_left_out_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, computing: tuple[bool, bool], format: str
) -> None:
    """A function had failed, or a signal had left its results out: longer, a run has them of all draws or of none, and
    says why. It does not say why the shorter run had ended."""
    of_model = Layout.__init__

    def as_if_failed(self: Layout, model: Model, *arguments: Any) -> None:
        of_model(self, model, *arguments)
        self.left_out = None if model is COMPUTING else "A function failed."

    monkeypatch.setattr(Layout, "__init__", as_if_failed)
    whole, content = drawn(ends=True), Content(divergences=True)
    parts = (replace(part_of(whole, 0, 30), ended="400 effective draws"), part_of(whole, 30, DRAWS))
    path = tmp_path / f"a.{format}"
    ended = EndedRun(path, 30, saved=None)  # type: ignore[arg-type]
    models = [COMPUTING if computes else MODEL for computes in computing]
    if format == "zarr":
        for target, part, model, last in zip((path, ended.further), parts, models, (30, DRAWS), strict=True):
            monkeypatch.setattr(streamed_draws, "MODEL", model)
            store_part(target, part, content, last)
        groups = {name: group.load() for name, group in replace_store(ended).items()}
    else:
        before, further = (to_datasets(part, model, content=content) for part, model in zip(parts, models, strict=True))
        save(before, path)
        groups = joined(ended, further)
    both = all(computing)
    expected = to_datasets(whole, COMPUTING if both else MODEL, content=content)
    for group in (groups, expected):
        group.pop("adaptation")  # whose means are not of the same bits
    assert set(groups) == set(expected)
    assert_same_groups(groups, expected)
    warning = "warning: log_likelihood (y), posterior (twice): not computed for the earlier draws, or not for the new"
    assert (warning in capsys.readouterr().err) != both
