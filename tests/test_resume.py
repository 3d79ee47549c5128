"""Runs that are killed, and go on: `python -m batchnuts.sample --resume`, in processes of their own.

Those that are not to be seen from their first import on are forked (forked_runs.py).
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5netcdf
import numpy as np
import pytest
import xarray
from fake_run import make_draws
from forked_runs import ForkedRun, run, start, start_and_end_while_drawing
from test_cli_run import command
from url_files import bucket_in

import batchnuts
from batchnuts import sample
from batchnuts.autobatch import ops
from batchnuts.cli.resume import TYPES
from batchnuts.files.sealed_file import read_checkpoint, write_checkpoint
from batchnuts.files.url import folder_of, location_of
from batchnuts.mcmc.checkpoint.keeper import NAME
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.run import sampling

CONFIG = """\
model: {name: correlated_gaussian, dimension: 5, covariance: ar1, correlation: 0.5}
sampler: {chains: 16, warmup: {transitions: auto, maximum: 300}, draws: 2000, seed: 3}
execution: {backend: jax, chunk_lanes: 4, cache: programs}
output: {path: whole.nc, checkpoint_seconds: 0.05}
"""

OBJECTS = "objects://{}/bucket"

OF_ITS_OWN = ("created_at", "config", "compile_time", "warmup_time", "sampling_time", "utilization")
"""Attributes that say when and how a run was made; executed gradients depend on how often chunks are left."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a run that nothing has interrupted, and compiled programs."""
    return with_a_whole_run(tmp_path_factory.mktemp("resumed"), CONFIG)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a run in machine code, with more gradients for each draw, for it computes them faster."""
    pytest.importorskip("llvmlite")
    config = CONFIG.replace("backend: jax", "backend: native").replace("seed: 3", "seed: 3, leapfrogs_per_leaf: 40")
    return with_a_whole_run(tmp_path_factory.mktemp("native"), config)


def with_a_whole_run(folder: Path, config: str) -> Path:
    bucket_in(folder)
    (folder / "run.yaml").write_text(config)
    run("--config", "run.yaml", "--quiet", cwd=folder)
    assert not (folder / "whole.nc.checkpoint").exists()
    return folder


def groups_of(path: Path) -> dict[str, xarray.Dataset]:
    options: dict[str, Any] = {"engine": "h5netcdf"} if path.is_file() else {"engine": "zarr"}
    names = [group.strip("/") for group in xarray.open_groups(path, **options)]
    return {
        name: xarray.open_dataset(path, group=name, **options).load() for name in names if name not in ("", "progress")
    }


SUMS = ("total", "mean", "mean_error")
"""In the group `adaptation`: of all draws of a chain."""


def assert_same_run(one: Path, other: Path, *, in_parts: bool = False) -> None:
    """Bit for bit, in all groups but that of when what was done. in_parts: whether sums are those of two parts."""
    then, now = groups_of(one), groups_of(other)
    assert then.keys() == now.keys()
    if in_parts:
        for name in SUMS:
            np.testing.assert_allclose(now["adaptation"][name], then["adaptation"][name], rtol=1e-12, atol=1e-14)
        then["adaptation"], now["adaptation"] = (groups["adaptation"].drop_vars(SUMS) for groups in (then, now))
    for name, group in then.items():
        xarray.testing.assert_equal(now[name], group)
        for attribute in group.attrs.keys() - set(OF_ITS_OWN):
            assert str(now[name].attrs[attribute]) == str(group.attrs[attribute]), attribute


def started(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    line, options = command(*arguments, cwd=cwd)
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def written(folder: Path, output: str) -> int:
    """A number that changes with each checkpoint."""
    try:
        return (checkpoint_of(folder, output) / NAME).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def checkpoint_of(folder: Path, output: str) -> Path:
    target = location_of(output)
    return folder / folder_of(target).name


def killed(arguments: list[str], folder: Path, rng: np.random.Generator, count: Callable[[], int]) -> bool:
    """SIGKILL at random: while it starts, or some time after some checkpoints of this life. Whether it was in time."""
    early = rng.random() < 0.2
    until = time.monotonic() + (rng.uniform(0.0, 4.0) if early else 60.0)
    process: subprocess.Popen[str] | ForkedRun
    from_shell = early and "objects://" not in " ".join(arguments)  # which only processes of these tests know
    process = started(*arguments, cwd=folder) if from_shell else start(arguments, folder)
    wanted, seen, last = int(rng.integers(1, 3)), 0, count()
    while process.poll() is None and seen < wanted and time.monotonic() < until:
        time.sleep(0.002)
        seen, last = seen + (count() != last), count()
    time.sleep(rng.uniform(0.0, 0.15))
    process.kill()
    _, error = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), error
    return process.returncode != 0


def next_life(folder: Path, output: str) -> list[str]:
    """Arguments of a process that goes on with the run, or begins it."""
    if written(folder, output):
        return ["--resume", output, "--quiet"]
    return ["--config", "run.yaml", f"output.path={output}", "--quiet", "--force"]


def kill_again_and_again(folder: Path, output: str, kills: int, seed: int) -> None:
    """Run to its end a run that is killed so often on the way; one that ends before is begun once more."""
    rng = np.random.default_rng(seed)
    done = 0
    while done < kills:
        done += killed(next_life(folder, output), folder, rng, lambda: written(folder, output))
    run(*next_life(folder, output), cwd=folder)
    assert not checkpoint_of(folder, output).exists()


@pytest.mark.parametrize(
    ("run_in", "output", "kills", "seed"),
    [
        pytest.param("native", "two.zarr", 2, 2, marks=[pytest.mark.slow, pytest.mark.each_commit]),
        pytest.param("native", "five.nc", 5, 3, marks=pytest.mark.slow),
        pytest.param("native", "five.zarr", 5, 2, marks=pytest.mark.slow),
        pytest.param("folder", "five.nc", 5, 3, marks=pytest.mark.slow),
        pytest.param("folder", "five.zarr", 5, 2, marks=pytest.mark.slow),
        pytest.param("folder", f"{OBJECTS}/five.zarr", 5, 2, marks=pytest.mark.slow),
    ],
)
def test_kills_change_nothing(request: pytest.FixtureRequest, run_in: str, output: str, kills: int, seed: int) -> None:
    """Seed 3 ends processes that have just started, too."""
    folder: Path = request.getfixturevalue(run_in)
    output = output.format(folder)
    kill_again_and_again(folder, output, kills, seed)
    assert_same_run(folder / "whole.nc", folder / output.removeprefix("objects://"))


def test_a_run_under_a_url_ends_on_a_signal(folder: Path) -> None:
    """What it says leads to the rest of the run, in the folder where it was begun; what judged its draws is kept."""
    (folder / "elsewhere").mkdir()
    store = folder / "bucket" / "ended.zarr"
    url = f"objects://{folder}/bucket/ended.zarr"
    arguments = ["--config", "run.yaml", f"output.path={url}", "output.checkpoint_seconds=600"]
    process = start_and_end_while_drawing(arguments, folder)
    _, said = process.communicate()
    assert process.returncode == 143
    assert re.search(rf"Continue with --resume {url} in this folder, which has ended\.zarr-\w+\.checkpoint\.", said)
    elsewhere = run("--resume", url, cwd=folder / "elsewhere", code=1).stderr
    assert "or it was started in another folder, where its checkpoint is" in elsewhere
    groups = groups_of(store)
    assert groups["diagnostics"].attrs["draws"] == groups["posterior"].sizes["draw"] < 2000
    run("--resume", url, cwd=folder)
    assert groups_of(store)["diagnostics"].attrs["draws"] == 2000
    assert not list(folder.glob("ended.zarr-*"))


@pytest.mark.release
@pytest.mark.parametrize("output", ["more.nc", "more.zarr", f"{OBJECTS}/more.zarr"])
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_more_kills_change_nothing(folder: Path, output: str, seed: int) -> None:
    output = output.format(folder)
    kill_again_and_again(folder, output, 5, seed=100 + seed)
    assert_same_run(folder / "whole.nc", folder / output.removeprefix("objects://"))


@pytest.mark.slow
def test_a_run_that_is_killed_when_its_output_is_written_has_ended(folder: Path) -> None:
    """Then there are both, and the output stays; one of another run does too, and is in the way."""
    whole, content = folder / "whole.nc", (folder / "whole.nc").read_bytes()
    process = started("--config", "run.yaml", "--force", cwd=folder)
    while not written(folder, "whole.nc"):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    whole.write_text("of another program")
    assert "exists and is not overwritten" in run("--resume", "whole.nc", cwd=folder, code=1).stderr
    whole.write_bytes(content)
    assert "the run had already finished; its output is complete" in run("--resume", "whole.nc", cwd=folder).stderr
    assert whole.read_bytes() == content
    assert not (folder / "whole.nc.checkpoint").exists()


def test_a_signal_saves_draws_and_a_checkpoint(folder: Path) -> None:
    """SIGTERM: exit code 143; --resume goes on, and replaces the file of the draws so far."""
    arguments = ["--config", "run.yaml", "output.path=ended.nc", "output.checkpoint_seconds=600"]
    process = start_and_end_while_drawing(arguments, folder)
    _, said = process.communicate()
    assert process.returncode == 143
    assert "Continue with --resume" in said
    again = run("--config", "run.yaml", "output.path=ended.nc", "--quiet", cwd=folder, code=2)
    assert "has the checkpoint of an unfinished run" in again.stderr
    run("--resume", "ended.nc", "--quiet", cwd=folder)
    said = run("--resume", "ended.nc", cwd=folder, code=1).stderr
    assert "the run has finished; to extend it, add sampler.draws=+1000" in said
    assert_same_run(folder / "whole.nc", folder / "ended.nc")


MISTAKES = {
    "nothing there": (["--resume", "none.nc"], 1, "There is no checkpoint of .*none.nc"),
    "it has ended": (["--resume", "whole.nc"], 1, r"the run has finished; .* add sampler\.draws=\+1000"),
    "with a setting": (["--resume", "whole.nc", "sampler.chains=3"], 2, "found sampler.chains=3; expected nothing"),
    "fewer draws": (["--resume", "whole.nc", "sampler.draws=+0"], 2, r"found sampler\.draws=\+0; expected nothing"),
    "a longer one that is not there": (["--resume", "none.nc", "sampler.draws=+5"], 1, r"there is no file .*none\.nc"),
    "a longer one of something else": (
        ["--resume", "run.yaml", "sampler.draws=+5"],
        1,
        "is not the file of an earlier run",
    ),
    "a longer one of a folder": (
        ["--resume", ".", "sampler.draws=+5"],
        1,
        "is a folder, but not a Zarr store of a run",
    ),
    "elsewhere": (["--resume", "memory://a.zarr"], 1, "no such run here, or it was started in another folder"),
    "with a config": (["--resume", "whole.nc", "--config", "run.yaml"], 2, "not allowed with argument"),
}


def test_a_run_of_python_is_not_made_longer_here(folder: Path) -> None:
    """Its file has no model; what gives the longer run is said."""
    model = batchnuts.Model.from_function(lambda q: -0.5 * ops.sum(q * q), dimension=2)
    result = batchnuts.sample_chains(model, chains=2, draws=5, warmup=20, backend="numpy")
    result.to_netcdf(str(folder / "python.nc"), engine="h5netcdf")
    said = run("--resume", "python.nc", "sampler.draws=+5", cwd=folder, code=1).stderr
    assert "python.nc cannot be extended here: it was sampled from Python" in said
    assert "batchnuts.extend(batchnuts.open_run(path), draws, model=model)" in said


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_resumed(folder: Path, mistake: str) -> None:
    arguments, code, said = MISTAKES[mistake]
    assert re.search(said, run(*arguments, cwd=folder, code=code).stderr)


@pytest.mark.parametrize("made", ["none", "raised"])
def test_a_longer_run_that_is_stopped_leaves_its_file_and_says_so(
    folder: Path, made: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_chains(model: Any, sampler: Any, execution: Any, *_: Any, **__: Any) -> Any:
        if made == "raised":
            raise KeyboardInterrupt
        return make_draws(model, sampler, done=(0,) * 16)

    monkeypatch.setattr(sampling, "run_chains", run_chains)
    monkeypatch.chdir(folder)
    before = (folder / "whole.nc").read_bytes()
    assert sample.main(["--resume", "whole.nc", "sampler.draws=+10"]) == 130
    said = capsys.readouterr().err
    assert f"no draws were made yet, and {folder / 'whole.nc'} is unchanged, with 2000 draws of each chain." in said
    assert "no file was written" not in said
    assert (folder / "whole.nc").read_bytes() == before


def of_a_cluster(output: Path, cluster: dict[str, Any]) -> None:
    """Write this cluster into the config of a run, as who made the file can."""
    if folder_of(output).exists():
        tree = read_checkpoint(folder_of(output) / NAME, [SavedRun, *TYPES])
        tree.config["execution"]["cluster"] = cluster
        write_checkpoint(folder_of(output) / NAME, tree)
        return
    with h5netcdf.File(output, "a") as file:
        config = json.loads(file["adaptation"].attrs["config"])
        config["execution"]["cluster"] = cluster
        file["adaptation"].attrs["config"] = json.dumps(config)


@pytest.mark.parametrize("made", ["ended", "interrupted"])
def test_a_file_alone_starts_no_cluster(folder: Path, made: str, tmp_path: Path) -> None:
    """Nor does one that names a program as its cluster, where the command line names it, too."""
    output = tmp_path / "foreign.nc"
    if made == "ended":
        shutil.copy(folder / "whole.nc", output)
    else:
        arguments = ["--config", "run.yaml", f"output.path={output}", "sampler.draws=20000"]  # no report is its last
        start_and_end_while_drawing(arguments, folder).communicate(60)
    of_a_cluster(output, {"class": "subprocess.Popen", "args": ["touch", "was_run"]})
    more = ["sampler.draws=+10"] if made == "ended" else []
    said = run("--resume", str(output), *more, cwd=tmp_path, code=2).stderr
    assert "A file alone cannot start a cluster or connect to one" in said
    named = "execution.cluster={class: subprocess.Popen, args: [touch, was_run]}"
    said = run("--resume", str(output), *more, named, cwd=tmp_path, code=2).stderr
    assert f"command line, {named[:57]}" in said
    assert "expected local, or a class of dask_jobqueue" in said
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize(
    "output", ["short.nc", "short.zarr", pytest.param(f"{OBJECTS}/short.zarr", marks=pytest.mark.slow)]
)
def test_a_run_that_has_ended_is_made_longer(folder: Path, output: str) -> None:
    """By as many draws as a longer run would have had, and the same."""
    output = output.format(folder)
    run("--config", "run.yaml", f"output.path={output}", "sampler.draws=1000", "--quiet", cwd=folder)
    run("--resume", output, "sampler.draws=+1000", "--quiet", cwd=folder)
    at_url, output = output.startswith("objects://"), output.removeprefix("objects://")
    assert_same_run(folder / "whole.nc", folder / output, in_parts=True)
    left = set((folder / output).parent.glob(f".{Path(output).name}*"))
    assert {path for path in left if not at_url or any(file.is_file() for file in path.rglob("*"))} == set()
    options: dict[str, Any] = {"engine": "h5netcdf" if output.endswith(".nc") else "zarr"}
    with xarray.open_dataset(folder / output, group="progress", **options) as history:
        assert (np.diff(history["seconds"]) >= 0).all()
        draws = history["transitions"].values[history["phase"].values.astype(object) == "sampling"]
        assert (np.diff(draws) >= 0).all()
        with xarray.open_dataset(folder / output, group="posterior", **options) as posterior:
            assert draws[-1] == posterior.sizes["chain"] * 2000
