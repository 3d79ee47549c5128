"""The real command line: whole runs and signals in a process of their own, what is reported of bad models within this
one."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchnuts import sample
from batchnuts.files import saving

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

def leaves(q):
    raise SystemExit
"""


def command(*arguments: str, cwd: Path) -> tuple[list[str], dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", "COLUMNS": "120"}
    return [sys.executable, "-m", "batchnuts.sample", *arguments], {"cwd": cwd, "env": environment, "text": True}


def run(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    line, options = command(*arguments, cwd=cwd)
    options["env"].pop("TF_CPP_MIN_LOG_LEVEL", None)
    done = subprocess.run(line, capture_output=True, timeout=240, check=False, **options)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """run_here(*arguments, cwd=..., code=...): a real run without a process of its own; gives its stdout and stderr."""

    def call(*arguments: str, cwd: Path, code: int = 0) -> str:
        monkeypatch.chdir(cwd)
        found = sample.main(arguments)
        out, err = capfd.readouterr()
        text = out + own_words(err)
        assert found == code, text
        assert "Traceback" not in text
        return text

    return call


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


def test_a_run_reports_what_it_did(finished: Any) -> None:
    folder, done = finished
    assert "x[0]" in done.stdout
    assert "x[4]" in done.stdout
    assert "R-hat" in done.stdout
    assert f"Draws: {folder / 'out.nc'}" in done.stdout
    for phase in ("compile", "warmup", "sampling", "diagnostics"):
        assert f"{phase} " in done.stdout.split("Time:")[1]
    assert "sampling 100%" in done.stderr
    assert "divergences" in done.stderr
    assert sorted(set(os.listdir(folder)) - {"quiet.nc"}) == ["out.nc", "small.yaml"]


def test_a_run_prints_what_we_print(finished: Any) -> None:
    """No word of TensorFlow's: neither at start-up nor while it compiles."""
    _, done = finished
    ours = re.compile(r"(start|compile|warmup|sampling|saving|diagnostics)( \d+%)?  .*\d+ s(, [\d:]+ left)?")
    assert [text for text in done.stderr.splitlines() if not ours.fullmatch(text)] == []
    assert len(done.stderr.splitlines()) >= 4


def test_the_file_has_arvizs_schema(finished: Any) -> None:
    file = open_file(finished[0] / "out.nc")
    posterior, stats = file["posterior"], file["sample_stats"]
    assert posterior["x"].dims == ("chain", "draw", "coordinate")
    assert posterior["x"].shape == (16, 30, 5)
    assert np.isfinite(posterior["x"].values).all()
    assert set(stats.data_vars) == {
        "lp", "acceptance_rate", "step_size", "tree_depth", "n_steps", "diverging", "energy", "reached_max_treedepth",
        "energy_error", "max_energy_error", "index_in_trajectory",
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


def test_an_existing_file_is_overwritten_only_by_force(tmp_path: Path, run_here: Callable[..., str]) -> None:
    (tmp_path / "small.yaml").write_text(CONFIG)
    (tmp_path / "out.nc").write_text("precious")
    refused = run_here("--config", "small.yaml", cwd=tmp_path, code=2)
    assert "exists and is not overwritten. Give --force" in refused
    assert (tmp_path / "out.nc").read_text() == "precious"
    quick = ("execution.backend=numpy", "sampler.chains=2", "sampler.draws=3", "sampler.warmup=0", "--quiet", "--force")
    quick = (*quick, "sampler.step_size=0.5")
    assert run_here("--config", "small.yaml", *quick, cwd=tmp_path) == f"{tmp_path / 'out.nc'}\n"
    assert open_file(tmp_path / "out.nc")["posterior"].sizes["draw"] == 3


QUICK = ("execution.backend=numpy", "sampler.step_size=0.5", "sampler.warmup=0", "sampler.draws=5")
LONG = ("sampler.draws=200000", "sampler.chains=3", "execution.backend=numpy")


def test_a_run_that_ends_by_itself_says_why(tmp_path: Path, run_here: Callable[..., str]) -> None:
    (tmp_path / "small.yaml").write_text(CONFIG)
    quick = (*QUICK, "sampler.draws=40", "sampler.chains=4")
    until = "sampler.until={ess_bulk: 20, parameters: [x]}"
    shown = run_here("--config", "small.yaml", *quick, until, cwd=tmp_path)
    (why,) = re.findall(r"^Sampling ended: (.*)$", shown, flags=re.M)
    posterior = open_file(tmp_path / "out.nc")["posterior"]
    assert why == posterior.attrs["sampling_ended"]
    assert re.fullmatch(rf"x has bulk ESS >= 20 after {posterior.sizes['draw']} draws of each chain", why)
    assert posterior.sizes["draw"] < 40
    refused = run_here("--config", "small.yaml", *quick, "--force", until.replace("x", "y"), cwd=tmp_path, code=2)
    assert "sampler.until.parameters: found 'y', which is not a parameter of the model; expected some of x" in refused


def with_signals(folder: Path, marker: str, numbers: Sequence[int], *overrides: str) -> tuple[int, str, str]:
    """Run until stderr shows the marker, then send the signals at once: exit code, stdout, stderr."""
    (folder / "long.yaml").write_text(CONFIG)
    line, options = command("--config", "long.yaml", *LONG, *overrides, cwd=folder)
    with heeding_signals():
        started = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    with started as process:
        assert process.stderr is not None
        seen = ""
        for text in process.stderr:
            seen += text
            if marker in text:
                break
        for number in numbers:
            process.send_signal(number)
        out, err = process.communicate(timeout=240)
    assert "Traceback" not in out + seen + err
    return process.returncode, out, seen + err


@contextmanager
def heeding_signals() -> Iterator[None]:
    """Processes that are started within heed them, which tests that run in the background may ignore. (A function that
    runs between fork and exec would be simpler, but JAX warns of any fork.)"""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    try:
        for number in ignored:
            signal.signal(number, signal.SIG_DFL)
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


ALL_SIGNALS = [signal.SIGHUP, signal.SIGTERM, signal.SIGINT]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "overrides"),
    [
        ([signal.SIGINT], ["execution.chunk_lanes=1", "execution.expert.shards=2"]),
        ([signal.SIGINT] * 3, []),
        ([signal.SIGTERM], ["execution.expert.executor=stackless"]),
        pytest.param(ALL_SIGNALS, ["execution.chunk_lanes=2"], marks=pytest.mark.each_commit),
    ],
    ids=["one", "three", "sigterm", "all"],
)
def test_a_signal_while_drawing_saves_the_draws(tmp_path: Path, numbers: list[int], overrides: list[str]) -> None:
    """However many come, and whichever; what was drawn is saved and marked. The second plain line is of a draw made."""
    code, _, err = with_signals(tmp_path, "sampling", numbers, "sampler.warmup=2", *overrides)
    # which of several pending signals is handled first is the system's choice
    assert code in {128 + number for number in numbers}
    assert "which is marked as interrupted" in err
    file = open_file(tmp_path / "out.nc")
    attributes = file["posterior"].attrs
    assert attributes["interrupted"] == 1
    assert attributes["draws_requested"] == 200_000
    assert 0 < attributes["draws_made"] < 3 * 200_000
    assert file["posterior"]["x"].shape == (attributes["chains_begun"], attributes["draws_complete"], 5)
    assert np.isfinite(file["posterior"]["x"].values).all()
    draws = file["posterior"]["x"].size // 5
    if "unfinished" in {name.strip("/") for name in groups_of(file)}:
        draws += int(np.isfinite(file["unfinished"]["lp"].values).sum())
    assert draws == attributes["draws_made"], "no draw that was made is dropped"


@pytest.mark.parametrize(
    ("marker", "numbers"),
    [pytest.param("compile", [signal.SIGINT], marks=pytest.mark.slow), ("warmup", [signal.SIGTERM, signal.SIGTERM])],
)
def test_a_signal_before_the_first_draw_saves_nothing(tmp_path: Path, marker: str, numbers: list[int]) -> None:
    code, out, err = with_signals(tmp_path, marker, numbers, "sampler.warmup=100000")
    assert code == 128 + numbers[0]
    assert "no draws were made yet, and no file was written" in err
    assert out == ""
    # once warmup has begun, there is a checkpoint, and it is said
    assert set(os.listdir(tmp_path)) == {
        "long.yaml",
        *(["out.nc.checkpoint"] if "Continue with --resume" in err else []),
    }


WHILE_IMPORTING = """\
import os, signal
os.kill(os.getpid(), signal.{number})
raise ImportError("what a library makes of a signal that comes while it is loaded")
"""


@pytest.mark.parametrize(
    ("library", "number", "code"),
    [
        ("pydantic", "SIGINT", 130),
        ("numpy", "SIGTERM", 143),
        ("tensorflow", "SIGINT", 130),
        ("tensorflow", "SIGHUP", 129),
        ("jax", "SIGINT", 130),
    ],
)
def test_a_signal_while_libraries_are_imported_ends_quietly(
    tmp_path: Path, library: str, number: str, code: int
) -> None:
    (tmp_path / "small.yaml").write_text(CONFIG)
    (tmp_path / f"{library}.py").write_text(WHILE_IMPORTING.format(number=number))
    backend = library if library in ("tensorflow", "jax") else "auto"
    line, options = command("--config", "small.yaml", f"execution.backend={backend}", cwd=tmp_path)
    options["env"].pop("TF_CPP_MIN_LOG_LEVEL", None)
    options["env"]["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    with heeding_signals():
        done = subprocess.run(line, capture_output=True, timeout=240, check=False, **options)
    why = "interrupted" if number == "SIGINT" else f"ended by {number}"
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"batchnuts: {why}; no draws were made yet, and no file was written.\n"


def groups_of(file: Any) -> list[str]:
    groups = file.groups
    return list(groups() if callable(groups) else groups)


SAVING = """\
import sys, time
from batchnuts.files import saving
from batchnuts.sample import main
write = saving.write_netcdf

def slow(groups, raw):
    write(groups, raw)
    print("saving", file=sys.stderr, flush=True)
    time.sleep(600)

saving.write_netcdf = slow
sys.exit(main(sys.argv[1:]))
"""


def test_killed_while_saving(tmp_path: Path) -> None:
    """Nothing can be saved then, but what was there is whole, with --force too."""
    (tmp_path / "small.yaml").write_text(CONFIG)
    (tmp_path / "out.nc").write_text("precious")
    line, options = command("--config", "small.yaml", *QUICK, "--force", cwd=tmp_path)
    line[1:3] = ["-c", SAVING]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options) as process:
        assert process.stderr is not None
        assert any("saving" in text for text in process.stderr)
        process.kill()
    assert (tmp_path / "out.nc").read_text() == "precious"
    left = set(os.listdir(tmp_path)) - {"out.nc", "small.yaml"}
    assert all(name.startswith(".out.nc-") and name.endswith(".tmp") for name in left)


def test_a_limit_on_the_size_of_files(
    tmp_path: Path, run_here: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ulimit -f`, reported before sampling; and, where the file grows beyond it, by name, with the old file."""
    (tmp_path / "small.yaml").write_text(CONFIG)
    (tmp_path / "out.nc").write_text("precious")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    write = saving.write_netcdf

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    def limited(*arguments: Any) -> None:
        limit(10_000)
        write(*arguments)

    monkeypatch.setattr(saving, "write_netcdf", limited)
    too_long = "files may be at most 20 kB long here (ulimit -f)"
    for before, code, words in [(20_000, 2, too_long), (soft, 1, "File too large")]:
        try:
            limit(before)
            shown = run_here("--config", "small.yaml", *QUICK, "--force", cwd=tmp_path, code=code)
        finally:
            limit(soft)
        assert words in shown
        assert ("sampling" in shown) == (before == soft)
        assert (tmp_path / "out.nc").read_text() == "precious"
        assert sorted(os.listdir(tmp_path)) == ["out.nc", "small.yaml"]


@pytest.mark.slow
def test_a_small_model_imports_no_array_library(tmp_path: Path) -> None:
    """With predictions and draws of the prior, which the packaged eight schools have; nor SciPy, even to compile."""
    _, options = command(cwd=tmp_path)
    program = (
        "import sys; from batchnuts.cli.main import main; code = main(sys.argv[1:]); "
        "print(code, *sorted({'jax', 'tensorflow', 'scipy', 'xarray', 'pandas'} & set(sys.modules)))"
    )
    settings = ["sampler.chains=4", "sampler.warmup=20", "sampler.draws=10", "execution.cache=programs"]
    line = [sys.executable, "-c", program, "--config", "eight_schools.yaml", *settings]
    done = subprocess.run(line, capture_output=True, timeout=240, check=False, **options)
    assert done.stdout.splitlines()[-1] == "0", done.stdout + done.stderr


def test_a_quiet_run_prints_the_path_alone(finished: Any) -> None:
    folder, _ = finished
    quiet = ("--quiet", "output.path=quiet.nc", "execution.expert.mode=graph", "sampler.warmup=1", "sampler.draws=2")
    again = run("--config", "small.yaml", *quiet, cwd=folder)
    assert (again.stderr, again.stdout) == ("", f"{folder / 'quiet.nc'}\n")


CRASH = """\
import os, warnings
warnings.warn("a word of Python's")
os.write(2, b"I0000 00:00:1795437971.877534    8141 port.cc:153] noise\\n")
os.write(2, b"F0000 00:00:1795437971.877534    8141 cpu.cc:1] compiled to use AVX, which is not there\\n")
os.abort()
"""


def test_the_messages_of_a_crash_are_not_lost(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(CONFIG)
    (tmp_path / "tensorflow.py").write_text(CRASH)
    line, options = command("--config", "small.yaml", "execution.backend=tensorflow", cwd=tmp_path)
    options["env"].pop("TF_CPP_MIN_LOG_LEVEL", None)
    options["env"]["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    done = subprocess.run(line, capture_output=True, timeout=240, check=False, **options)
    assert done.returncode == -signal.SIGABRT
    assert "a word of Python's" in done.stderr
    assert "compiled to use AVX, which is not there" in done.stderr
    assert "noise" not in done.stderr
    options["env"]["TF_CPP_MIN_LOG_LEVEL"] = "0"  # who asks for them gets all of them
    assert "noise" in subprocess.run(line, capture_output=True, timeout=240, check=False, **options).stderr


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "mine.py").write_text(MODELS)
    (folder / "flat.yaml").write_text(
        "model: {target: 'mine:shifted', dimension: 3}\n"
        "sampler: {chains: 6, warmup: 20, draws: 10, max_tree_depth: 3}\n"
        "execution: {expert: {executor: stackless, mode: eager}}\n"
    )
    (folder / "parts.yaml").write_text(
        "model: {target: 'mine:parts', variables: {mu: [], theta: [2]}}\n"
        "sampler: {chains: 6, warmup: 12, draws: 6, max_tree_depth: 3}\n"
        "execution: {backend: numpy}\n"
    )
    return folder


@pytest.mark.parametrize("name", ["flat", "parts"])
def test_a_users_own_model(models: Path, run_here: Callable[..., str], name: str) -> None:
    shown = run_here("--config", f"{name}.yaml", cwd=models)
    posterior = open_file(models / f"{name}.nc")["posterior"]
    variable = "position" if name == "flat" else "mu"
    assert abs(float(posterior[variable].mean()) - 3) < 1.0
    assert variable in shown
    if name == "parts":
        assert posterior["theta"].dims == ("chain", "draw", "theta_dim_0")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            "not_a_number",
            ["log-density is not finite at the initial position of 6 of 6 chains", "float64", "jitter"],
        ),
        ("unbounded", ["is +inf at a position of chain 1 (its start)", "(`where`)"]),
        ("vector", ["returned shape (3,); expected a scalar", "Sum over"]),
        ("constant", ["has no gradient"]),
        ("mixed", ["of 3 numbers (float32), failed with", "float"]),
        ("wrong_length", ["of 3 numbers", "failed with"]),
        ("mistaken", ["failed with NameError", "undefined_name"]),
        ("leaves", ["failed with SystemExit", "mine.py:31"]),
    ],
)
def test_bad_models(models: Path, run_here: Callable[..., str], target: str, words: list[str]) -> None:
    changes = (f"model.target=mine:{target}", f"output.path={target}.nc")
    shown = run_here("--config", "flat.yaml", *changes, cwd=models, code=1)
    assert f"Model 'mine:{target}'" in shown
    for part in words:
        assert part in shown
    assert not (models / f"{target}.nc").exists()
    assert len(shown.strip().splitlines()) <= 6, shown


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sampler.chains=0", "sampler.chains: found 0; expected auto, or an integer of at least 1"),
        ("sampler.draws=-1", "sampler.draws: found -1 (an integer); expected an integer of at least 1"),
        ("sampler.chains=many", "sampler.chains: found 'many' (a string); expected an integer"),
        ("sampler.step_size=.nan", "sampler.step_size: found nan"),
        ("sampler.dras=3", "did you mean 'draws'"),
        ("sampler.warmup.from=gone.nc", "sampler.warmup.from: there is no file gone.nc"),
        ("execution.expert.executor=pc", "expected one of virtual_machine, stackless, unbatched"),
    ],
)
def test_bad_settings(models: Path, run_here: Callable[..., str], override: str, words: str) -> None:
    assert words in run_here("--config", "flat.yaml", override, "output.path=refused.nc", cwd=models, code=2)


@pytest.mark.parametrize("path", ["missing/out.nc", ".", "/proc/out.nc"])
def test_unwritable_outputs(models: Path, run_here: Callable[..., str], path: str) -> None:
    assert "Cannot write" in run_here("--config", "flat.yaml", f"output.path={path}", cwd=models, code=2)


@pytest.mark.slow
def test_a_stack_too_shallow(models: Path, run_here: Callable[..., str]) -> None:
    changes = ("execution.max_stack_depth=1", "output.path=deep.nc")
    shown = run_here("--config", "flat.yaml", *changes, cwd=models, code=1)
    assert "recursed too deep in 'build_subtree'" in shown
    assert "max_stack_depth" in shown
