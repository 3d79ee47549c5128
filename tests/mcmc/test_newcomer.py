"""Mistakes and mishaps that a newcomer met, and what they are told now."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import xarray
from rich.console import Console

from batchnuts.mcmc import saving
from batchnuts.mcmc.diagnostics import diagnose
from batchnuts.mcmc.model import Model, ModelError
from batchnuts.mcmc.sampling import run_chains, sample_chains
from batchnuts.mcmc.settings import ExecutionSettings, SamplerSettings
from batchnuts.models.tables import DataError, read_labelled
from batchnuts.settings.schema import SettingsError


def test_labels_in_brackets_are_no_markup() -> None:
    draws = np.random.default_rng(0).normal(size=(4, 50, 2))
    found = diagnose(draws, ["beta[age]", "beta[/x]"])
    console = Console(file=io.StringIO(), width=120)
    console.print(found.table())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "beta[age]" in text
    assert "beta[/x]" in text


def test_a_run_of_divergences_is_called_unusable() -> None:
    draws = np.random.default_rng(0).normal(size=(4, 50, 1))
    assert "WARNING" in diagnose(draws, ["x"], np.ones((4, 50), bool)).verdict()
    assert "(100% of the draws)" in diagnose(draws, ["x"], np.ones((4, 50), bool)).verdict()
    assert "WARNING" not in diagnose(draws, ["x"], np.zeros((4, 50), bool)).verdict()


def test_a_table_without_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bare.csv").write_text("0.1,2.0,1\n0.3,1.0,0\n")
    with pytest.raises(DataError, match="line 1 holds only numbers"):
        read_labelled(str(tmp_path / "bare.csv"), None, None)
    (tmp_path / "semicolons.csv").write_text("a;b;y\n1;2;0\n")
    with pytest.raises(DataError, match="other than commas"):
        read_labelled(str(tmp_path / "semicolons.csv"), None, None)


def test_draws_that_cannot_be_written_are_kept_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(saving.tempfile, "tempdir", str(elsewhere))
    groups = {"posterior": xarray.Dataset({"x": (("chain", "draw"), np.zeros((2, 3)))})}
    with pytest.raises(saving.OutputError, match="The draws are kept in"):
        saving.save(groups, tmp_path / "missing" / "draws.nc")
    assert (elsewhere / "draws.nc").exists()


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(ModelError, match="takes a Model, found function"):
        sample_chains(lambda q: q)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="expected names with their shapes"):
        Model.from_function(lambda q: q, variables={"mu": 3})  # type: ignore[dict-item]
    model = Model.from_function(lambda q: -tf.reduce_sum(q * q), dimension=1)
    with pytest.raises(SettingsError, match="progress"):
        sample_chains(model, progress="yes")  # type: ignore[arg-type]


def test_a_branch_on_values_names_the_line_of_the_density() -> None:
    def log_density(q: tf.Tensor) -> tf.Tensor:
        if q[0] > 0:
            return -tf.reduce_sum(q * q)
        return -tf.reduce_sum(tf.abs(q))

    model = Model.from_function(log_density, dimension=2)
    with pytest.raises(ModelError, match=r"test_newcomer\.py:\d+.*tf\.where"):
        run_chains(model, SamplerSettings(chains=2, warmup=0, draws=1), ExecutionSettings())
