"""The real command line as a subprocess: whole runs, their files, Ctrl-C, and what bad models are told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]

CONFIG = """\
model: {name: correlated_gaussian, dimension: 5, covariance: ar1, correlation: 0.5}
sampler: {chains: 16, warmup: 40, draws: 30, seed: 3}
output: {path: out.nc}
"""

MODELS = """\
import tensorflow as tf

def shifted(q):
    return -0.5 * tf.reduce_sum((q - 3.0) ** 2)

def parts(values):
    return -0.5 * (values["mu"] - 3.0) ** 2 - 0.5 * tf.reduce_sum((values["theta"] - values["mu"]) ** 2)

def not_a_number(q):
    return tf.reduce_sum(tf.math.log(q - 10.0))

def unbounded(q):
    return tf.reduce_sum(q) / tf.constant(0.0)

def vector(q):
    return -q ** 2

def constant(q):
    return tf.constant(1.0)

def mixed(q):
    return -tf.reduce_sum(q * tf.ones(3, tf.float64))

def wrong_length(q):
    return -tf.reduce_sum((q - tf.zeros(4)) ** 2)

def mistaken(q):
    return undefined_name
"""


def command(*arguments: str, cwd: Path) -> tuple[list[str], dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", "COLUMNS": "120"}
    return [sys.executable, "-m", "batchnuts.sample", *arguments], {"cwd": cwd, "env": environment, "text": True}


def run(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    line, options = command(*arguments, cwd=cwd)
    done = subprocess.run(line, capture_output=True, timeout=240, check=False, **options)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    done.stderr = own_words(done.stderr)
    return done


def own_words(stderr: str) -> str:
    """What batchnuts itself wrote: TensorFlow's start-up notes come before any log level is heeded."""
    notes = re.compile(r"(WARNING: All log messages before absl|[IWE]0000 |\d{4}-\d\d-\d\d |To enable the following)")
    return "".join(line for line in stderr.splitlines(keepends=True) if not notes.match(line))


def open_file(path: Path) -> Any:
    import arviz

    return arviz.from_netcdf(path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder in which a small config was run under the defaults (virtual machine, XLA)."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "small.yaml").write_text(CONFIG)
    return folder, run("--config", "small.yaml", cwd=folder)


def test_a_run_tells_what_it_did(finished: Any) -> None:
    folder, done = finished
    assert "x[0]" in done.stdout
    assert "x[4]" in done.stdout
    assert "R-hat" in done.stdout
    assert f"Draws: {folder / 'out.nc'}" in done.stdout
    for phase in ("compile", "warmup", "sampling", "diagnostics"):
        assert f"{phase} " in done.stdout.split("Time:")[1]
    assert "sampling 100%" in done.stderr
    assert "divergences" in done.stderr
    assert sorted(os.listdir(folder)) == ["out.nc", "small.yaml"]


def test_the_file_has_arvizs_schema(finished: Any) -> None:
    file = open_file(finished[0] / "out.nc")
    posterior, stats = file["posterior"], file["sample_stats"]
    assert posterior["x"].dims == ("chain", "draw", "coordinate")
    assert posterior["x"].shape == (16, 30, 5)
    assert np.isfinite(posterior["x"].values).all()
    assert set(stats.data_vars) == {
        "lp", "acceptance_rate", "step_size", "tree_depth", "n_steps", "diverging", "energy", "reached_max_treedepth",
    }  # fmt: skip
    assert all(stats[name].dims == ("chain", "draw") for name in stats.data_vars)
    assert stats["diverging"].dtype == bool
    assert stats["tree_depth"].dtype.kind == "i"
    assert file["constant_data"]["true_covariance"].shape == (5, 5)
    attributes = posterior.attrs
    assert attributes["inference_library"] == "batchnuts"
    assert attributes["inference_library_version"]
    assert attributes["created_at"].startswith("20")
    assert attributes["seed"] == 3
    assert attributes["interrupted"] == 0
    assert attributes["sampling_time"] > 0
    config = json.loads(attributes["config"])
    assert config["sampler"]["chains"] == 16
    assert config["model"]["covariance"] == "ar1"


def test_an_existing_file_is_overwritten_only_by_force(finished: Any) -> None:
    folder, _ = finished
    before = (folder / "out.nc").read_bytes()
    refused = run("--config", "small.yaml", cwd=folder, code=1)
    assert "exists and is not overwritten. Give --force" in refused.stderr
    assert (folder / "out.nc").read_bytes() == before
    quick = ("execution.backend=numpy", "sampler.chains=2", "sampler.draws=3", "sampler.warmup=0", "--quiet", "--force")
    done = run("--config", "small.yaml", *quick, cwd=folder)
    assert done.stdout == f"{folder / 'out.nc'}\n"
    assert done.stderr == ""
    assert open_file(folder / "out.nc")["posterior"].sizes["draw"] == 3


@pytest.mark.parametrize(
    ("warmup", "draws", "lanes", "saved"),
    [("20", "4000", "3", True), ("4000", "10", "3", False), ("20", "4000", "1", True), ("4000", "10", "1", False)],
    ids=["sampling", "warmup", "sampling-chunks", "warmup-chunks"],
)
def test_ctrl_c(tmp_path: Path, warmup: str, draws: str, lanes: str, saved: bool) -> None:
    """While sampling, what was drawn is saved and marked; during warmup there is nothing to save. Threads end too."""
    (tmp_path / "long.yaml").write_text(CONFIG)
    line, options = command(
        "--config", "long.yaml", f"sampler.warmup={warmup}", f"sampler.draws={draws}", "sampler.chains=3",
        "execution.backend=numpy", f"execution.chunk_lanes={lanes}", "execution.shards=2", cwd=tmp_path,
    )  # fmt: skip
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests run in the background may ignore it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": heed}
    with subprocess.Popen(line, **pipes, **options) as process:
        assert process.stderr is not None
        seen = ""
        phase = "sampling" if saved else "warmup"
        for text in process.stderr:
            seen += text
            if phase in text:
                break
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, seen + err
    assert "Traceback" not in out + seen + err
    if not saved:
        assert "interrupted; nothing was drawn yet and no file was written" in err
        assert os.listdir(tmp_path) == ["long.yaml"]
        return
    assert "which is marked as interrupted" in err
    file = open_file(tmp_path / "out.nc")
    attributes = file["posterior"].attrs
    assert attributes["interrupted"] == 1
    assert attributes["draws_requested"] == 4000
    assert 0 < attributes["draws_complete"] < 4000
    assert file["posterior"]["x"].shape == (3, attributes["draws_complete"], 5)
    assert np.isfinite(file["posterior"]["x"].values).all()
    assert len(np.unique(file["posterior"]["x"].values[..., 0])) > attributes["draws_complete"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "mine.py").write_text(MODELS)
    (folder / "flat.yaml").write_text(
        "model: {target: 'mine:shifted', dimension: 3}\n"
        "sampler: {chains: 6, warmup: 30, draws: 20}\n"
        "execution: {executor: stackless, mode: eager}\n"
    )
    (folder / "parts.yaml").write_text(
        "model: {target: 'mine:parts', variables: {mu: [], theta: [2]}}\n"
        "sampler: {chains: 6, warmup: 30, draws: 20}\n"
        "execution: {executor: stackless, mode: eager}\n"
    )
    return folder


@pytest.mark.parametrize("name", ["flat", "parts"])
def test_a_users_own_model(models: Path, name: str) -> None:
    done = run("--config", f"{name}.yaml", cwd=models)
    posterior = open_file(models / f"{name}.nc")["posterior"]
    variable = "position" if name == "flat" else "mu"
    assert abs(float(posterior[variable].mean()) - 3) < 1.0
    assert variable in done.stdout
    if name == "parts":
        assert posterior["theta"].dims == ("chain", "draw", "theta_dim_0")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            "not_a_number",
            ["log-density is not finite at the initial position of 6 of 6 chains", "give the model"],
        ),
        ("unbounded", ["is not finite at the initial position"]),
        ("vector", ["returned shape (3,); expected a scalar", "Sum over"]),
        ("constant", ["has no gradient"]),
        ("mixed", ["of 3 numbers (float32), failed with", "float"]),
        ("wrong_length", ["of 3 numbers", "failed with"]),
        ("mistaken", ["failed with NameError", "undefined_name"]),
    ],
)
def test_bad_models(models: Path, target: str, words: list[str]) -> None:
    done = run("--config", "flat.yaml", f"model.target=mine:{target}", f"output.path={target}.nc", cwd=models, code=1)
    assert f"Model 'mine:{target}'" in done.stderr
    for part in words:
        assert part in done.stderr
    assert not (models / f"{target}.nc").exists()
    assert len(done.stderr.strip().splitlines()) <= 6, done.stderr


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sampler.chains=0", "sampler.chains: found 0 (an integer); expected an integer at least 1"),
        ("sampler.draws=-1", "sampler.draws: found -1 (an integer); expected an integer at least 1"),
        ("sampler.chains=many", "sampler.chains: found 'many' (a text); expected an integer"),
        ("sampler.step_size=.nan", "sampler.step_size: found nan"),
        ("sampler.dras=3", "did you mean 'draws'"),
        ("execution.executor=pc", "expected one of virtual_machine, stackless, unbatched"),
    ],
)
def test_bad_settings(models: Path, override: str, words: str) -> None:
    assert words in run("--config", "flat.yaml", override, cwd=models, code=2).stderr


@pytest.mark.parametrize("path", ["missing/out.nc", ".", "/proc/out.nc"])
def test_unwritable_outputs(models: Path, path: str) -> None:
    done = run("--config", "flat.yaml", f"output.path={path}", cwd=models, code=1)
    assert "Cannot write" in done.stderr


def test_a_stack_too_shallow(models: Path) -> None:
    done = run("--config", "flat.yaml", "execution.max_stack_depth=1", "output.path=deep.nc", cwd=models, code=1)
    assert "recursed too deep in 'build_subtree'" in done.stderr
    assert "max_stack_depth" in done.stderr
