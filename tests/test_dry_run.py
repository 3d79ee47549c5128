"""`--dry-run`: what is known of a run before it is made."""

import os
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from test_cli import SMALL, UNWRITABLE

from batchnuts import sample


@pytest.fixture
def dry_run(tmp_path, monkeypatch, capsys):
    """Call the command line in a folder with a config; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)

    def call(*arguments):
        code = sample.main(["--config", "small.yaml", "--dry-run", *arguments])
        return code, *capsys.readouterr()

    return call


def test_dry_run_prints_a_config_and_runs_nothing(dry_run):
    code, out, err = dry_run("sampler.draws=9")
    assert code == 0
    assert "memory: about 505 MB (libraries" in err
    assert "disk: about 1" in err
    assert YAML(typ="safe").load(out)["sampler"]["draws"] == 9
    assert os.listdir() == ["small.yaml"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        *UNWRITABLE,
        (
            "output.variables=[foo]",
            "output.variables: found 'foo', which the model does not report; expected some of x",
        ),
        ("sampler.init.run=no.nc", "sampler.init.run: there is no file no.nc"),
        ("sampler.warmup.from=no.nc", "sampler.warmup.from: there is no file no.nc"),
        ("sampler.init.values={y: 0}", "sampler.init.values: Model 'correlated_gaussian': got values for ['y']"),
    ],
)
def test_dry_run_refuses_what_the_run_would_refuse(dry_run, key, message):
    code, _, err = dry_run(key)
    assert code == 2
    assert message in err


def test_dry_run_tries_starts_though_the_number_of_chains_is_not_decided(dry_run):
    Path("small.yaml").write_text(SMALL.replace("chains: 4, draws: 20", "chains: auto, until: {rhat: 1.01}"))
    for starts in (4, 32):
        assert dry_run(f"sampler.init.values={{x: {[[0.0] * 3] * starts}}}")[0] == 0
    code, _, err = dry_run(f"sampler.init.values={{x: {[[0.0] * 3] * 33}}}")
    assert code == 2
    assert "found 33 starts, more than the superchains of" in err
    assert dry_run("sampler.init.values={x: [0, 0]}")[0] == 2


QUICK = ("execution.backend=numpy", "sampler.step_size=0.5", "sampler.warmup=2", "sampler.draws=2")


def test_dry_run_refuses_a_run_of_another_model(dry_run):
    assert sample.main(["--config", "small.yaml", "model.dimension=2", *QUICK]) in (0, 1)
    for key, said in (
        ("init.run", "in out.nc 'x' has 2 numbers"),
        ("warmup.from", "out.nc is from a run of another model"),
    ):
        code, _, err = dry_run(f"sampler.{key}=out.nc", "output.path=other.nc")
        assert code == 2
        assert f"sampler.{key}: {said}" in err


def test_dry_run_with_force_deletes_nothing(dry_run):
    kept = Path("out.nc.checkpoint/checkpoint.npz")
    kept.parent.mkdir()
    kept.touch()
    code, _, err = dry_run()
    assert code == 2
    assert "has the checkpoint of an unfinished run" in err
    assert dry_run("--force", "output.variables=[x]")[0] == 0
    assert kept.exists()


def test_dry_run_checks_a_model_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    density = "def density(p, data):\n    return -p['tau'] - p['x'] ** 2 - p['y'] ** 2\n"
    functions = f"{density}\n\ndef fails(p, data):\n    1 / 0\n"
    Path("mine_to_check.py").write_text(functions)
    Path("t.csv").write_text("y,n,who\n1,2,me\n3,4,you\n")
    data = "data: {path: t.csv, columns: {y: y, n: {column: n, as: integer}, who: who}}"
    Path("mine.yaml").write_text(
        f"model: {{target: 'mine_to_check:density', variables: {{tau: positive, x: [], y: []}}, {data}}}\n"
    )
    assert sample.main(["--config", "mine.yaml", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert YAML(typ="safe").load(out)["model"]["variables"] == {"tau": {"support": "positive"}, "x": {}, "y": {}}
    assert "ok  Jacobian of tau: " in err
    assert "t.csv, as it is read: y: number (float32), n: integer (int32), who: category (2 labels)" in err
    assert not Path("mine.nc").exists()
    left_out = ["model.log_likelihood=fails", "output.groups=[]"]
    assert sample.main(["--config", "mine.yaml", "--dry-run", *left_out]) == 0
    assert sample.main(["--config", "mine.yaml", "--dry-run", *left_out[:1]]) == 1
    capsys.readouterr()
    unused = ["model.variables={tau: positive, x: [], y: [], taus: positive}"]
    assert sample.main(["--config", "mine.yaml", "--dry-run", *unused]) == 1
    assert "its log-density does not depend on 'taus'" in capsys.readouterr().err
