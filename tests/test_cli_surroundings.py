"""The command line where what is around it is unusual: the current folder, streams, and code that exits."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import test_cli
import xarray
from fake_run import make_draws

from batchnuts.files.url import Url, location_of

SMALL = test_cli.SMALL
cli = test_cli.cli


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("data: d.csv, label: z", "d.csv: label is 'z', but there is no such column"),
        ("data: d.csv, features: [a, b]", "d.csv: features is 'b', but there is no such column"),
        ("data: d.csv, features: [a, y]", "column 'y' is the label and also one of features"),
        ("data: d.npy, label: 2", "d.npy: label is 2; expected a column's index from 0 to 1"),
        ("data: d.npz, label: z", "d.npz: there is no array 'z'"),
    ],
)
def test_a_config_that_names_no_column_of_the_data_exits_2(cli, options, said):
    Path("d.csv").write_text("a,y\n1,0\n1,1\n")
    np.save("d.npy", np.eye(2))
    np.savez("d.npz", X=np.eye(2), y=np.arange(2.0))
    code, _, err = cli(f"model={{name: logistic_regression, {options}}}")
    assert code == 2
    assert said in err


MOVES = """\
import os
os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")
def density(p, data):
    return -0.5 * ((p["mu"] - data["y"]) ** 2).sum()
"""


def test_files_are_where_the_command_was_given_whatever_a_users_module_does(cli, tmp_path, monkeypatch):
    from batchnuts.cli.config import load_config

    monkeypatch.syspath_prepend(str(tmp_path))
    Path("moves.py").write_text(MOVES)
    Path("d.csv").write_text("y\n1\n2\n")
    Path("moves.yaml").write_text(
        "model: {target: 'moves:density', variables: {mu: []}, data: {path: d.csv}}\n"
        "sampler: {chains: 4, draws: 20, warmup: {from: before.nc}, init: {run: before.nc}}\n"
        "execution: {cache: programs}\n"
    )
    seen = []

    def run(model, sampler, execution):
        seen.append((sampler.warmup.from_, sampler.init.run, execution.cache))
        return make_draws(model, sampler, execution)

    code, out, err = cli("--quiet", run=run, config="moves.yaml")
    assert code == 0, err
    assert Path.cwd() == tmp_path / "elsewhere"
    assert out.strip() == str(tmp_path / "moves.nc")
    assert (tmp_path / "moves.nc").exists()
    assert seen == [tuple(str(tmp_path / name) for name in ("before.nc", "before.nc", "programs"))]
    monkeypatch.chdir(tmp_path)
    config = load_config("moves.yaml", ["output.path=there.nc"])
    monkeypatch.chdir("elsewhere")
    assert config.from_folder(tmp_path).sampler.warmup.from_ == str(tmp_path / "before.nc")
    assert Url("s3://bucket/a.zarr", tmp_path).here.parent == tmp_path
    assert location_of("s3://bucket/a.zarr").with_name("b.zarr").here.parent == tmp_path / "elsewhere"


CLOSED = """\
import os, sys
[os.close(int(one)) for one in {closed!r}]
os.execv(sys.executable, [sys.executable, *{command!r}])
"""
OPENED = """\
import sys
from batchnuts.cli.ending import open_closed_streams
open_closed_streams()
print("said")
sys.stdout.flush(), sys.stderr.flush(), sys.stdin.read()
with open("file", "w") as file:
    sys.exit(0 if file.fileno() > 2 else 7)
"""


def with_closed(closed, *command, cwd):
    code = CLOSED.format(closed=closed, command=list(command))
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("closed", ["", "1", "2", "12", "012"])
def test_streams_that_are_closed_at_the_start_go_nowhere(closed, tmp_path):
    """And no file gets their descriptors."""
    done = with_closed(closed, "-c", OPENED, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "said\n" * ("1" not in closed)


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["1", "2", "12", "012"])
def test_streams_that_are_closed_at_the_start_lose_no_draws(closed, tmp_path):
    """A process that starts others may have closed them; no file of the run gets their descriptors."""
    (tmp_path / "small.yaml").write_text(SMALL)
    done = with_closed(closed, "-m", "batchnuts.sample", "--config", "small.yaml", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    with xarray.open_dataset(tmp_path / "out.nc", group="posterior", engine="h5netcdf") as posterior:
        assert posterior.sizes["draw"] == 20


@pytest.mark.parametrize("code", [0, 3, "enough"])
def test_what_exits_within_a_run_fails_with_its_line(cli, code):
    """Wherever it is: no library's sys.exit(0) passes for a run that is done."""

    def leave(*_):
        sys.exit(code)

    found, out, err = cli("--quiet", run=leave)
    assert (found, out) == (1, "")
    place = rf"the run was ended by SystemExit: {code} at .*test_cli_surroundings.py:\d+"
    assert re.search(place + "; a model's code must not exit the program", err)
