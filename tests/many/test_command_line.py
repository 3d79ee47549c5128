"""Many fits by a config with the section `many`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import batchnuts
from batchnuts.sample import main

MODULE = """
import numpy as np
from batchnuts.autobatch import ops

def log_density(p, data):
    return -0.5 * (p["mu"] / 10) ** 2 - 0.5 * ops.sum((data["y"] - p["mu"]) ** 2)

def each(p, data):
    return {"y": -0.5 * (data["y"] - p["mu"]) ** 2}

def simulate(rng):
    mu = rng.normal(0, 10)
    return {"mu": mu}, {"y": rng.normal(mu, 1, 4)}
"""
CONFIG = """
model:
  target: many_sites:log_density
  variables: {mu: []}
  dtype: float64
  log_likelihood: each
  data: {path: sites.csv, columns: [site, y], observed: [y]}
sampler: {draws: 100}
output: {path: fits.zarr}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "many_sites.py").write_text(MODULE)
    rows = [f"{site},{value}" for site, mean in (("b", 3.0), ("a", -2.0)) for value in (mean, mean + 1, mean - 1)]
    (tmp_path / "sites.csv").write_text("\n".join(["site,y", *rows]))
    return tmp_path


def run(folder: Path, many: str, *arguments: str) -> int:
    (folder / "run.yaml").write_text(f"{CONFIG}many: {{processes: 1, {many}}}\n")
    return main(["--config", "run.yaml", *arguments])


def test_a_column_tells_data_sets_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "by: site, keep: [draws, mean]") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("2 fits: ")
    assert out[-1] == "fits.zarr"
    results = batchnuts.open_many("fits.zarr")
    assert results.labels == ["b", "a"]
    assert results["b"].posterior.sizes["chain"] == 4
    np.testing.assert_allclose(results.mean["mu"], [3.0, -2.0], atol=0.3)
    assert run(folder, "by: site") == 2
    assert "fits.zarr is there already. To go on with its run: --resume fits.zarr" in capsys.readouterr().err
    assert main(["--resume", "fits.zarr"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("2 fits: ")
    assert run(folder, "by: site", "--force", "--quiet") == 0
    assert capsys.readouterr().out == "fits.zarr\n"


def test_a_folder_has_a_file_for_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "files").mkdir()
    for name in ("x", "y"):
        shutil.copy("sites.csv", folder / "files" / f"{name}.csv")
    (folder / "files" / "z.csv").write_text("site,y\n")
    assert run(folder, "data: files") == 0
    results = batchnuts.open_many("fits.zarr")
    assert results.labels == ["x", "y", "z"]
    assert list(results.failed) == ["z"]
    assert "  z: " in capsys.readouterr().out


def test_calibration_folds_and_priors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = CONFIG.replace("[site, y]", "[y]")
    for many, first in (
        ('sbc: {simulate: "many_sites:simulate", fits: 20}', "OK: 20 fits, 2 coefficients"),
        ("folds: 3", "elpd "),
        ("priors: {y: [[0.0], [1.0]]}", None),
    ):
        (folder / "run.yaml").write_text(f"{config}many: {{processes: 1, {many}}}\n")
        code = main(["--config", "run.yaml", "--force", "sampler.draws=400"])
        captured = capsys.readouterr()
        if first is None:
            assert code == 2
            assert "many.priors" in captured.err
        else:
            assert code == 0
            assert captured.out.startswith(first), captured.out


@pytest.mark.parametrize(
    ("many", "message"),
    [
        ("", "many: found none of them; expected one of by, data, sbc, folds and priors"),
        ("by: site, folds: 3", "found by and folds"),
        ("by: sit", "many.by: found 'sit'; expected a column of model.data: site, y"),
        ("folds: 3, mask: m", "found mask with folds"),
        ("data: nowhere", "many.data: "),
        ("bye: site", "did you mean 'by'"),
    ],
)
def test_wrong_sections_are_refused(folder: Path, many: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, many) == 2
    assert message in capsys.readouterr().err


def test_packaged_models_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.yaml").write_text("model: {name: eight_schools}\nmany: {folds: 3}\n")
    assert main(["--config", "run.yaml"]) == 2
    assert "many: expected a model of your own" in capsys.readouterr().err
