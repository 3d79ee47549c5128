"""The commands in their quick modes, for real but on tiny sizes, and the files that they write."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from batchnuts.experiments import benchmark, clusters, figure6, figure7, fsm, scaling
from batchnuts.experiments.harness.experiment import main
from batchnuts.experiments.harness.measuring import Measuring
from batchnuts.experiments.harness.rows import RowsFile
from batchnuts.experiments.samplers.config import load_experiment
from batchnuts.experiments.samplers.task import Measurement

TINY = {
    "figure6": [
        "problems.logreg.model.rows=50", "problems.logreg.model.columns=3", "problems.logreg.step_size=0.1",
        "run.chains=[2]", "run.transitions=2", "run.max_tree_depth=3", "measurement.repetitions=2",
        "curves.program_counter.chains=[2]", "curves.best=null", "curves.limit=null",
    ],
    "figure7": [
        "problems.main.model.dimension=3", "run.chains=[3]", "run.transitions=2",
        "run.max_tree_depth=3", "curves.trajectories_100=null", "curves.sweep=null",
        "curves.table_program_counter=null", "curves.local_static.chains=[3]", "curves.drain.chains=[3]",
        "curves.trajectories_10.chains=[3]",
    ],
    "fsm": [
        "problems.equicorrelated.model.dimension=3", "run.chains=[3]", "problems.equicorrelated.transitions=8",
        "run.max_tree_depth=3", "measurement.repetitions=1",
    ],
    "benchmark": [
        "problems.gauss.model.dimension=3", "run.chains=[2]", "claims.gauss_vmap.chains=2", "run.transitions=4",
        *(f"curves.{name}.chains=[2]" for name in ("batchnuts", "stanli", "nutpie")),
        "run.max_tree_depth=3", "measurement.repetitions=1",
    ],
    "scaling": [
        "curves.chains.chains=[2, 3]", "curves.chains_limit=null", "run.chains=[2]", "run.max_tree_depth=3",
        "measurement.repetitions=1", "curves.dimension.problems=[d2]", "curves.trajectory.problems=[t1]",
        *(f"problems.{name}.model.dimension=3" for name in ("base", "t1", "n1")),
        *(f"problems.{name}.transitions=3" for name in ("base", "d2", "t1", "n1")),
    ],
}  # fmt: skip
EXPERIMENTS = {
    "figure6": figure6.EXPERIMENT,
    "figure7": figure7.EXPERIMENT,
    "fsm": fsm.EXPERIMENT,
    "benchmark": benchmark.EXPERIMENT,
    "scaling": scaling.EXPERIMENT,
}
PICTURES = {
    "figure6": ["figure6", "figure6_utilization"],
    "figure7": ["figure7"],
    "fsm": ["fsm"],
    "benchmark": ["benchmark_gauss", "benchmark_schools"],
    "scaling": [f"scaling_{axis}" for axis in ("chains", "dimension", "trajectory", "draws", "memory")],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "tensorflow") for name in TINY if name != "scaling"),
        *((name, "jax") for name in ("figure6", "figure7", "scaling")),
        pytest.param("scaling", "tensorflow", marks=pytest.mark.release),
    ],
)
def test_quick_mode_writes_its_files_and_goes_on_where_it_stopped(
    name: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = [*TINY[name], f"run.backend={backend}"]
    command = ["--config", f"{name}.yaml", "--quick", *overrides]
    assert main(EXPERIMENTS[name], command) == 0
    out, err = capfd.readouterr()
    assert out == f"results/{name}-quick/summary.md\n"
    assert " runs; " in err  # progress, as lines
    folder = Path("results") / f"{name}-quick"
    files = {path.name for path in folder.iterdir()}
    drawn = {f"{picture}.{kind}" for picture in PICTURES[name] for kind in ("png", "pdf")}
    others = {"config.yaml", "measurements.csv", "environment.json", "summary.md", "workers.log"}
    assert files == drawn | others | set(EXPERIMENTS[name].files)

    config = load_experiment(f"{name}.yaml", overrides, quick=True)
    assert load_experiment(str(folder / "config.yaml")).resolved() == config.resolved()
    rows = RowsFile(folder / "measurements.csv", Measurement).read()
    tasks = {task.fingerprint(): task for point in config.points() if (task := config.task(*point))}
    assert {row.task for row in rows} == set(tasks)
    for row in rows:
        assert row.ok or (
            row.status == "missing" and row.sampler in ("blackjax", "numpyro", "stan", "stanli", "nutpie")
        )
        if row.sampler == "batchnuts" and backend == "jax":
            assert json.loads(row.options)["backend"] in ("jax", "native"), "a curve of machine code keeps its backend"
        if row.ok:
            assert row.seconds is not None
            assert row.useful_gradients is not None
            assert row.seconds > 0
            assert row.useful_gradients >= row.chains * row.transitions
            assert (row.ess_min is not None) == tasks[row.task].measure_ess
    with (folder / "measurements.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == len(rows)
    (environment,) = json.loads((folder / "environment.json").read_text()).values()
    assert environment["packages"]["tensorflow"]
    assert environment["processors"] >= 1
    summary = (folder / "summary.md").read_text()
    for claim in config.claims.values():
        assert claim.says in summary
    assert (
        not config.claims
        or ("**holds**" in summary)
        or ("**does not hold**" in summary)
        or ("**not measured**" in summary)
    )
    for row in rows:
        if row.status == "missing":
            assert row.note in summary

    # once more: nothing is run again but what was missing
    before = [row for row in rows if row.ok]
    assert main(EXPERIMENTS[name], command) == 0
    assert [row for row in RowsFile(folder / "measurements.csv", Measurement).read() if row.ok] == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "figure8.yaml"], "no packaged config of that name; did you mean 'figure"),
        (["--config", "figure6.yaml", "run.size=3"], "command line, run.size=3: run.size: unknown key"),
        (["--config", "fsm"], "found the config of the experiment fsm; expected one for figure6"),
        (["--config", "figure6.yaml", "--again", "nobody"], "--again nobody: there is no such curve; expected one of"),
    ],
)
def test_mistakes_on_the_command_line_are_reported_and_nothing_is_written(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(figure6.EXPERIMENT, arguments) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("panel", ["", "chain"])
def test_a_curve_without_an_axis_is_reported(
    panel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(scaling.EXPERIMENT, ["--config", "scaling.yaml", f"curves.draws.panel='{panel}'"]) == 2
    assert f"curves.draws.panel: found '{panel}'; expected what it is drawn against" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("mine")
    assert main(fsm.EXPERIMENT, ["--config", "fsm.yaml", "output.folder=taken"]) == 2
    assert "output.folder: taken cannot be created: File exists. Name another one" in capsys.readouterr().err
    assert Path("taken").read_text() == "mine"


def test_two_commands_do_not_measure_into_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shared").mkdir()
    lock = os.open("shared", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert main(fsm.EXPERIMENT, ["--config", "fsm.yaml", "output.folder=shared"]) == 1
    os.close(lock)
    assert "shared: another command measures into this folder" in capsys.readouterr().err
    assert list(Path("shared").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ([], "and the same command continues from there"),
        (["--fresh"], "and the same command without --fresh continues"),
    ],
)
def test_an_interrupted_command_says_how_to_go_on(
    options: list[str], how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def interrupt(_: Measuring) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Measuring, "run", interrupt)
    assert main(fsm.EXPERIMENT, ["--config", "fsm.yaml", *options]) == 130
    assert f"what was measured is in results/fsm, {how}" in capsys.readouterr().err


def test_where_nothing_can_be_measured_the_summary_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Measuring, "run", lambda _: None)
    assert main(fsm.EXPERIMENT, ["--config", "fsm.yaml"]) == 1
    assert "is empty: summary.md says why" in capsys.readouterr().err
    assert "not measured yet" in Path("results/fsm/summary.md").read_text()


def test_a_dry_run_prints_a_config_that_can_be_used(tmp_path: Path, capsys: Any) -> None:
    assert main(figure6.EXPERIMENT, ["--config", "figure6.yaml", "--dry-run", "run.device=gpu"]) == 0
    (tmp_path / "again.yaml").write_text(capsys.readouterr().out)
    config = load_experiment(str(tmp_path / "again.yaml"))
    assert config.run.device == "gpu"
    assert config.run.chains[-1] == 16384
    assert config.measurement.repetitions == 5


@pytest.mark.parametrize(("library", "module"), [("matplotlib", "matplotlib.figure"), ("archspec", "archspec.cpu")])
def test_without_a_library_nothing_is_measured(
    library: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(fsm.EXPERIMENT, ["--config", "fsm.yaml"]) == 1
    printed = capsys.readouterr().err
    assert f"experiments need {library}, which is not installed" in printed
    assert "pip install 'batchnuts[experiments]'" in printed
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_command_leaves_no_summary_of_another_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("results/fsm")
    folder.mkdir(parents=True)
    (folder / "summary.md").write_text("of long ago")

    def interrupt(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Measuring, "run", interrupt)
    assert main(fsm.EXPERIMENT, ["--config", "fsm.yaml"]) == 130
    assert "the same command continues from there" in capsys.readouterr().err
    assert not (folder / "summary.md").exists()
    assert (folder / "config.yaml").exists()


def test_clusters_shows_its_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert clusters.main(["--config", "clusters.yaml", "--quick", "run.draws=7", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "  draws: 7\n" in shown
    (tmp_path / "again.yaml").write_text(shown)
    assert clusters.main(["--config", str(tmp_path / "again.yaml"), "--dry-run"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run.draw=7", "run.draw: unknown key; did you mean 'draws'?"),
        ("run.workers=[1, 0]", "workers: found [1, 0]; expected increasing integers of at least 1"),
        ("run.warmup=soon", "command line, run.warmup=soon: run.warmup.transitions: found 'soon' (a string); expected"),
        ("run.backend=jaxx", "command line, run.backend=jaxx: run.backend: found 'jaxx' (a string); expected one of"),
        ("quick.run.draws=7", "the section quick is applied before the command line; set run.draws itself"),
    ],
)
def test_clusters_refuses_a_wrong_key_before_it_runs(
    override: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clusters.main(["--config", "clusters.yaml", "--quick", override]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_clusters_measures_threads_and_workers_and_calculates(capsys: pytest.CaptureFixture[str]) -> None:
    assert clusters.main(["--config", "clusters.yaml", "run.draws=20", "--quick"]) == 0
    out = capsys.readouterr().out
    assert "\n| threads |" in out
    assert "\n| 1 worker |" in out
    assert "\n100 machines of 16 threads, 1,000,000 chains, 1,000 draws of each:\n" in out
    assert "nan" not in out
