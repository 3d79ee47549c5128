"""Many fits by a config with the section `many`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import batchnuts
from batchnuts import Model
from batchnuts.files.saving import OutputError
from batchnuts.report.__main__ import main as report
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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("output.report=true", "output.report: found true, which has no effect with many; expected false"),
        ("output.thin=2", "output.thin: found 2, which has no effect with many; expected 1"),
        ("output.checkpoint_seconds=null", "output.checkpoint_seconds: found null, which has no effect with many"),
        ("output.path=fits.nc", "output.path: found 'fits.nc' with many"),
        ("output.path=s3://bucket/fits.zarr", "output.path: found 's3://bucket/fits.zarr' with many"),
        ("sampler.chains=auto", "sampler.chains"),
    ],
)
def test_settings_without_effect_are_refused(
    folder: Path, override: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "by: site", override) == 2
    assert message in capsys.readouterr().err
    assert not Path("fits.zarr").exists()


def test_a_dry_run_counts_fits_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "by: site", "--dry-run") == 0
    captured = capsys.readouterr()
    assert "  by: site" in captured.out
    assert "the model was checked:" in captured.err
    assert "2 fits of 4 chains, 100 draws of each; of each fit draws would be written to fits.zarr" in captured.err
    assert not Path("fits.zarr").exists()
    config = CONFIG.replace("[site, y]", "[y]").replace("sampler: {draws: 100}", "")
    (folder / "run.yaml").write_text(config + 'many: {sbc: {simulate: "many_sites:simulate", fits: 20}}')
    assert main(["--config", "run.yaml", "--dry-run"]) == 0
    assert "20 fits of 4 chains, at most 2,000 draws of each" in capsys.readouterr().err, "as batchnuts.sbc has it"


def test_what_takes_one_run_says_what_a_store_of_many_fits_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "by: site", "--quiet") == 0
    capsys.readouterr()
    message = "fits.zarr has many fits, not one run: batchnuts.open_many(path) reads it"
    assert report(["fits.zarr"]) == 1
    assert message in capsys.readouterr().err
    for key in ("sampler.warmup.from", "sampler.init.run"):
        assert main(["--config", "eight_schools.yaml", f"{key}=fits.zarr"]) == 2
        assert f"{key}: fits.zarr cannot be read ({message}" in capsys.readouterr().err
    with pytest.raises(OutputError, match="has many fits, not one run"):
        batchnuts.open_run("fits.zarr")
    results = batchnuts.open_many("fits.zarr")
    with pytest.raises(batchnuts.BatchnutsError, match=r"Of many fits give one, results\[label\]"):
        batchnuts.check(results)
    assert batchnuts.check(results["a"]).ok == bool(results.table.loc["a", "ok"])


def test_what_cannot_be_resumed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "by: site", "--quiet") == 0
    assert main(["--resume", "fits.zarr", "sampler.draws=+100"]) == 2
    assert "fits.zarr has many fits, each of which has ended by its own rule" in capsys.readouterr().err
    (folder / "sites.csv").write_text("site,y\nb,1\nb,2\na,1\na,2\n")
    assert main(["--resume", "fits.zarr"]) == 1
    assert "The store has the fit 0, 'b', with other data" in capsys.readouterr().err
    model = Model.from_function(lambda p, d: -0.5 * (p["m"] - d["y"]) ** 2, variables={"m": []}, data={"y": 0.0})
    batchnuts.sample_many(model, {"y": np.zeros(2)}, draws=10, warmup=20, processes=1, path="python.zarr")
    assert main(["--resume", "python.zarr"]) == 2
    assert "was written by batchnuts.sample_many in Python, and has no config" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_which_goes_on_later(folder: Path, number: signal.Signals) -> None:
    rows = [f"s{site},{value}" for site in range(400) for value in (1.0, 2.0, site / 100)]
    (folder / "sites.csv").write_text("\n".join(["site,y", *rows]))
    (folder / "run.yaml").write_text(f"{CONFIG}many: {{processes: 2, by: site, keep: [mean]}}\n")
    command = [sys.executable, "-m", "batchnuts.sample", "--quiet"]
    done = folder / "fits.zarr" / "fits" / "done" / "c" / "0"
    with subprocess.Popen(
        [*command, "--config", "run.yaml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not done.exists():
            assert process.poll() is None, "it is ended while it runs"
            time.sleep(0.05)
        if number == signal.SIGINT:  # a terminal sends it to all of its processes
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert out == "fits.zarr\n"
    assert "; to go on: python -m batchnuts.sample --resume fits.zarr" in err
    assert "Traceback" not in err, "the pipes are closed: no process is left"
    assert 0 < len(batchnuts.open_many("fits.zarr")) < 400
    subprocess.run([*command, "--resume", "fits.zarr"], check=True)
    shutil.move("fits.zarr", "resumed.zarr")
    resumed = batchnuts.open_many("resumed.zarr")
    subprocess.run([*command, "--config", "run.yaml"], check=True)
    whole = batchnuts.open_many("fits.zarr")
    assert whole.labels == resumed.labels == [f"s{site}" for site in range(400)]
    np.testing.assert_array_equal(whole.mean["mu"], resumed.mean["mu"])


def test_packaged_models_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.yaml").write_text("model: {name: eight_schools}\nmany: {folds: 3}\n")
    assert main(["--config", "run.yaml"]) == 2
    assert "many: expected a model of your own" in capsys.readouterr().err
