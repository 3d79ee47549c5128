"""Draws as Stan's CSV files: what other tools read of them is what the run drew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import arviz
import numpy as np
import pytest

import batchnuts
from batchnuts import Model
from batchnuts.files.saving import OutputError
from batchnuts.mcmc.output.stan_csv import stan_csv_files
from batchnuts.sample import main


def model(dtype: Any = "float32") -> Model:
    return Model.from_function(
        lambda p: -0.5 * (p["x"] ** 2 + (p["m"] ** 2).sum()),
        variables={"x": batchnuts.real(), "m": batchnuts.real(2, 3)},
        generated=lambda p: {"is_positive": p["x"] > 0, "y": 2 * p["x"]},
        log_likelihood=lambda p: {"y": p["m"][0]},
        dtype=dtype,
    )


@pytest.mark.parametrize(
    "options", [{}, {"metric": "dense"}, {"metric": "low_rank"}, {"warmup": {"transitions": 50, "pool": "none"}}]
)
def test_arviz_reads_what_was_drawn(tmp_path: Path, options: dict[str, Any]) -> None:
    result = batchnuts.sample_chains(model(), chains=3, draws=20, seed=1, **{"warmup": 50, **options})
    paths = batchnuts.to_stan_csv(result, tmp_path / "run.csv")
    assert [path.name for path in paths] == ["run_1.csv", "run_2.csv", "run_3.csv"]
    read = arviz.from_cmdstan([str(path) for path in paths])
    for name in ("x", "m", "y", "is_positive"):
        np.testing.assert_array_equal(read.posterior[name].values.astype("float32"), result.posterior[name])
    np.testing.assert_array_equal(read.posterior["log_likelihood_y"].astype("float32"), result.log_likelihood["y"])
    for name in ("lp", "acceptance_rate", "step_size", "tree_depth", "n_steps", "diverging", "energy"):
        np.testing.assert_array_equal(read.sample_stats[name].values.astype("float32"), result.sample_stats[name])
    lines = paths[1].read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert "#     num_samples = 20" in comments
    assert "# id = 2" in comments
    words = [line.rpartition("(")[2] for line in comments if " seconds (" in line]
    assert words == ["Warm-up)", "Sampling)", "Total)"]  # cmdstanpy refuses others
    inverse_mass = [[float(x) for x in line[1:].split(",")] for line in comments if line.count(",") == 6]
    assert len(inverse_mass) == (7 if options.get("metric") in ("dense", "low_rank") else 1)


def test_a_matrix_has_its_first_index_fastest(tmp_path: Path) -> None:
    result = batchnuts.sample_chains(model("float64"), chains=1, draws=2, warmup=5, seed=1)
    (path,) = batchnuts.to_stan_csv(result, tmp_path / "run.csv")
    header, first = [line for line in path.read_text().splitlines() if line[0] != "#"][:2]
    row = dict(zip(header.split(","), map(float, first.split(",")), strict=True))
    assert [name for name in row if name.startswith("m.")] == ["m.1.1", "m.2.1", "m.1.2", "m.2.2", "m.1.3", "m.2.3"]
    assert row["m.2.1"] == result.posterior["m"].values[0, 0, 1, 0]


MODEL = "{name: correlated_gaussian, dimension: 3}"
USERS_MODEL = "{target: 'mine:density', variables: {m: []}, data: {path: run_1.csv, columns: {y: y}}}"
CONFIG = f"""
model: {MODEL}
sampler: {{chains: 4, draws: 10, warmup: 20}}
output: {{format: stan_csv, path: run.nc}}
"""


def test_a_run_writes_them_beside_its_file(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(CONFIG)
    assert main(["--config", "run.yaml", "--quiet"]) == 0
    names = [f"run_{chain}.csv" for chain in range(1, 5)]
    assert [path.name for path in stan_csv_files(Path("run.nc").absolute())] == names
    read = arviz.from_cmdstan(names)
    with batchnuts.open_run("run.nc").posterior as posterior:
        np.testing.assert_array_equal(read.posterior["x"].values.astype("float32"), posterior["x"])
    Path("run.nc").unlink()
    assert main(["--config", "run.yaml", "--quiet"]) == 2
    assert "run_1.csv and 3 more exist and are not overwritten" in capsys.readouterr().err
    Path("run_7.csv").write_text("x\n1\n")  # a user's own
    assert main(["--config", "run.yaml", "--quiet", "--force", "sampler.chains=2"]) == 0
    assert sorted(path.name for path in Path().glob("run*")) == ["run.nc", "run.yaml", *names[:2], "run_7.csv"]
    assert main(["--resume", "run.nc", "--quiet", "sampler.draws=+5"]) == 0
    assert arviz.from_cmdstan(names[:2]).posterior.sizes["draw"] == 15
    assert main(["--config", "run.yaml", "output.path=run.csv"]) == 2
    assert "expected the path of the netCDF file, run.nc" in capsys.readouterr().err


def test_data_that_a_run_reads_are_not_overwritten(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run_1.csv").write_text("y\n0.5\n1.5\n")
    Path("mine.py").write_text("def density(p, data):\n    return -0.5 * ((data['y'] - p['m']) ** 2).sum()\n")
    Path("run.yaml").write_text(CONFIG.replace(MODEL, USERS_MODEL))
    assert main(["--config", "run.yaml", "--force"]) == 2
    assert "run_1.csv: the run reads it (model.data)" in capsys.readouterr().err
    assert Path("run_1.csv").read_text().startswith("y\n")


def test_what_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="found dict without a group 'posterior'"):
        batchnuts.to_stan_csv({}, tmp_path / "run.csv")
    result = batchnuts.sample_chains(model(), chains=1, draws=2, warmup=5, seed=1)
    batchnuts.to_stan_csv(result, tmp_path / "run.csv")
    with pytest.raises(OutputError, match=r"run_1\.csv exists and is not overwritten\. Set replace=True"):
        batchnuts.to_stan_csv(result, tmp_path / "run.csv")
