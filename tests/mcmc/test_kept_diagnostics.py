"""What a Zarr store's draws were judged by, kept in the store: taken by reports, or judged again; damage is named."""

from __future__ import annotations

import errno
import itertools
import os
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamed_draws import DRAWS, drawn, finished

import batchnuts
from batchnuts.cli.finish import keep_for_reports
from batchnuts.mcmc.diagnostics import kept_diagnostics
from batchnuts.mcmc.diagnostics.diagnose import Diagnostics
from batchnuts.mcmc.diagnostics.kept_diagnostics import keep_diagnostics
from batchnuts.mcmc.storage.place import LocalPlace
from batchnuts.mcmc.storage.stored_run import open_zarr
from batchnuts.mcmc.storage.zarr_files import ZarrFiles
from batchnuts.report.__main__ import main as report_main
from batchnuts.report.run_file import NotARun, read_run


@pytest.mark.parametrize("superchains", [0, 3])
def test_reports_take_what_was_found_before(tmp_path: Path, monkeypatch: Any, superchains: int) -> None:
    """And judge again what other code has found, what was found of other draws, and where the group is damaged."""
    monkeypatch.setattr(batchnuts, "BEGAN", time.time())
    path, draws = tmp_path / "a.zarr", drawn()
    finished(path, draws)
    if superchains:
        files = ZarrFiles.of_store(LocalPlace(path))
        files.set_attributes("posterior", open_zarr(path)["posterior"].attrs | {"superchains": superchains})
        files.commit({})
    found = read_run(path)
    assert found.check is not None
    judged = replace(found.check.diagnostics, stuck=(2, 4), low=(2,), high=(4,), late=(1, 3), furthest=(1, 0))
    keep_diagnostics(path, judged)
    assert (path / "diagnostics").is_dir()
    again = read_run(path)
    assert again.check is not None
    assert again.names == found.names
    for field in fields(Diagnostics):
        one, other = getattr(again.check.diagnostics, field.name), getattr(judged, field.name)
        np.testing.assert_equal(one, other, field.name)
        assert type(one) is type(other) or isinstance(other, (int, float)), field.name
    for change in ({"chains": 5}, {"draws": DRAWS - 1}, {"names": ("other", *judged.names[1:])}):
        keep_diagnostics(path, replace(judged, **change))
        assert read_run(path).check.diagnostics.stuck == (), change  # type: ignore[union-attr]
    for damage, array in itertools.product(("deleted", "truncated"), ("r_hat", "coefficient")):
        keep_diagnostics(path, judged)
        (chunk,) = (file for file in (path / "diagnostics" / array).rglob("*") if file.name == "0")
        chunk.write_bytes(chunk.read_bytes()[:10])
        if damage == "deleted":  # Zarr takes it as one that was never written
            chunk.unlink()
        if (damage, array) == ("truncated", "coefficient"):  # which is read where the store is opened
            with pytest.raises(NotARun, match="truncated or damaged"):
                read_run(path)
        else:
            assert read_run(path).check.diagnostics.stuck == (), (damage, array)  # type: ignore[union-attr]
    keep_diagnostics(path, judged)
    files = ZarrFiles.of_store(LocalPlace(path))
    attributes = open_zarr(path)["diagnostics"].attrs
    for changed, taken in (({"note": "mine"}, True), ({"chains": None}, False)):
        kept = {name: value for name, value in {**attributes, **changed}.items() if value is not None}
        files.set_attributes("diagnostics", kept)
        files.commit({})
        assert bool(read_run(path).check.diagnostics.stuck) == taken, changed  # type: ignore[union-attr]
    keep_diagnostics(path, judged)
    monkeypatch.setattr(kept_diagnostics, "_estimators", lambda: "others")
    assert read_run(path).check.diagnostics.stuck == ()  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["posterior/mu", "sample_stats/energy"])
def test_a_report_of_a_store_with_a_damaged_chunk_says_which(tmp_path: Path, capsys: Any, name: str) -> None:
    """Whether the verdict meets it or the pictures."""
    path = tmp_path / "a.zarr"
    finished(path, drawn())
    chunk = next(file for file in (path / name).rglob("*") if file.is_file() and file.name != "zarr.json")
    chunk.write_bytes(chunk.read_bytes()[:10])
    assert report_main([str(path)]) == 2
    said = capsys.readouterr().err
    assert f"{path} cannot be read whole ({name}: " in said
    assert "It is damaged: copy it again, or run again." in said


def test_where_diagnostics_cannot_be_written_the_store_stays(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    path = tmp_path / "a.zarr"
    finished(path, drawn())
    check = read_run(path).check
    assert check is not None
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(LocalPlace, "put_all", full)
        keep_for_reports(check.diagnostics, path)
    assert "warning: The diagnostics cannot be written to" in capsys.readouterr().err
    assert before == {file: file.read_bytes() for file in before}
    assert str(read_run(path).check) == str(check)
    keep_diagnostics(path, check.diagnostics)
    with monkeypatch.context() as patch:
        patch.setattr(LocalPlace, "put_all", full)
        keep_for_reports(replace(check.diagnostics, stuck=(1,)), path)
    assert str(read_run(path).check) == str(check)
