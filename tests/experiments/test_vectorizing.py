"""The benchmark of vectorizers: its config, its ways, its measuring loop, and the command on tiny sizes."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_vectorizing import CONFIG

from batchnuts.experiments import fsm, pfor_benchmark
from batchnuts.experiments.harness import measuring
from batchnuts.experiments.harness.experiment import main
from batchnuts.experiments.harness.outputs import difference, fingerprint
from batchnuts.experiments.harness.processes import Missing, NoAnswer
from batchnuts.experiments.harness.results import Value
from batchnuts.experiments.harness.rows import RowsFile
from batchnuts.experiments.harness.summary import claims_table
from batchnuts.experiments.harness.task import Attempt, Preparation, row_of
from batchnuts.experiments.harness.whole_groups import WholeGroups
from batchnuts.experiments.vectorizers import task as task_module
from batchnuts.experiments.vectorizers.config import VectorizingConfig, load_vectorizing
from batchnuts.experiments.vectorizers.registry import KINDS
from batchnuts.experiments.vectorizers.results import VectorizingResults
from batchnuts.experiments.vectorizers.task import Measurement, Task
from batchnuts.experiments.vectorizers.timing import prepare
from batchnuts.settings.yaml import ConfigError


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VectorizingConfig:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(CONFIG)
    return load_vectorizing("my.yaml")


# The config.


@pytest.mark.parametrize("quick", [False, True])
def test_the_packaged_config_is_valid_and_can_be_read_again(
    quick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_vectorizing("pfor.yaml", quick=quick)
    Path("again.yaml").write_text(config.to_yaml())
    assert load_vectorizing("again.yaml").to_yaml() == config.to_yaml()
    assert config.output.folder == "results/pfor" + ("-quick" if quick else "")
    assert quick or {work.kind for work in config.workloads.values()} == set(KINDS)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("workload.a=3", "workload: unknown section; did you mean 'workloads'?"),
        ("workloads.linear.kind=liner", "kind: found 'liner'; did you mean 'linear'?"),
        ("workloads.linear.sizes=[3,2]", "sizes: found [3, 2]; expected increasing integers of at least 1"),
        ("workloads.linear.options={widht: 3}", "workloads.linear.options.widht: unknown key; did you mean 'width'?"),
        ("workloads.schools.options.name=nine", "workloads.schools.options.name: found 'nine'"),
        ("workloads.linear.curves=[our]", "workloads.linear.curves.0: found 'our'; did you mean 'ours'?"),
        ("workloads.linear.picture=a b", "workloads.linear.picture: found 'a b'"),
        ("curves.jax.compiled=false", "compiled: found False; expected True: JAX compiles always"),
        ("curves.ours.method=vmap", "curves.ours.method: found 'vmap'"),
        ("claims.faster.over_curve=seq", "claims.faster.over_curve: found 'seq'"),
        ("claims.faster.workloads=[LSTM]", "claims.faster.workloads.0: found 'LSTM'"),
        ("run.processors=0", "run.processors: found 0"),
    ],
)
def test_mistakes_name_their_key(override: str, said: str, config: VectorizingConfig) -> None:
    with pytest.raises(ConfigError) as error:
        load_vectorizing("my.yaml", [override])
    assert said in str(error.value)


# The ways.


TINY = [
    ("linear", {"width": 3}), ("convnet", {"filters": [2, 3], "hidden": 4}),
    ("lstm", {"features": 2, "units": 3, "longest": 6}), ("convnet_gradients", {"filters": [2, 2], "hidden": 3}),
    ("lstm_gradients", {"features": 2, "units": 3, "longest": 6}),
    ("lstm_jacobian", {"features": 2, "units": 3, "tokens": 4}), ("vgg_jacobian", {"side": 8, "filters": [2, 3]}),
    ("density", {"name": "gaussian", "steps": 3}), ("density", {"name": "eight_schools", "steps": 3}),
    ("density", {"name": "hierarchical_regression", "steps": 3}), ("density", {"name": "gaussian_process", "steps": 3}),
]  # fmt: skip


def a_task(kind: str, options: dict[str, Any], method: Any, **changed: Any) -> Task:
    return replace(Task(kind, options, 3, method, False, "cpu", None, 0), **changed)


def prepared(task: Task) -> Preparation:
    return prepare(task).preparation


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(kind, options, marks=() if kind in ("linear", "lstm_gradients") else pytest.mark.slow)
        for kind, options in TINY
    ],
)
def test_all_ways_in_tensorflow_give_the_same(kind: str, options: dict[str, Any]) -> None:
    methods = [method for method in KINDS[kind].methods if method not in ("jax", "sequential")]
    if kind == "lstm_gradients":
        methods.remove("tensorflow")  # which fails on loops that rows leave at different times, and their gradients
    reference = prepared(a_task(kind, options, "sequential"))
    assert reference.figures["units"] > 0
    assert reference.outputs
    for method in methods:
        found = prepared(a_task(kind, options, method))
        assert difference(reference.outputs, found.outputs) < 1e-4, method
        assert found.figures == reference.figures


def test_the_regression_gives_the_same_too() -> None:
    options = {"name": "logistic_regression", "steps": 2}
    prints = [prepared(a_task("density", options, method)).outputs for method in ("sequential", "pfor", "by_hand")]
    assert max(difference(prints[0], other) for other in prints[1:]) < 1e-4


@pytest.mark.parametrize("method", ["pfor", "by_hand"])
def test_compiled_ways_give_the_same(method: str) -> None:
    kind, options = "lstm", {"features": 2, "units": 3, "longest": 6}
    plain, compiled = (prepared(a_task(kind, options, method, compiled=choice)) for choice in (False, True))
    assert difference(plain.outputs, compiled.outputs) < 1e-5


@pytest.mark.slow
def test_the_sampler_is_run_on_either_density() -> None:
    options = {"rows": 30, "columns": 2, "transitions": 2, "step_size": 0.1, "max_tree_depth": 3}
    for method in KINDS["nuts"].methods:
        found = prepared(a_task("nuts", options, method, compiled=True))
        assert found.figures["units"] >= 3 * 2
        assert found.outputs == ()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), [*TINY, ("density", {"name": "logistic_regression", "steps": 2})])
def test_jax_gives_the_same(kind: str, options: dict[str, Any]) -> None:
    pytest.importorskip("jax")
    reference = prepared(a_task(kind, options, "pfor"))
    found = prepared(a_task(kind, options, "jax", compiled=True))
    assert difference(reference.outputs, found.outputs) < 1e-4
    assert found.figures == reference.figures


def test_differences_of_outputs_are_seen() -> None:
    array = np.random.default_rng(0).standard_normal((50, 20))
    same = [fingerprint(array)]
    assert difference(same, [fingerprint(array * (1 + 1e-6))]) < 1e-5
    assert difference(same, [fingerprint(array[::-1])]) > 1e-2
    assert difference(same, [fingerprint(2 * array)]) > 0.4
    assert difference(same, []) == math.inf
    assert difference(same, [fingerprint(array * math.nan)]) == math.inf


def test_timings_repeat_short_calls() -> None:
    timing = prepare(a_task("linear", {"width": 2}, "by_hand", min_seconds=0.02)).run(0)
    assert timing["calls"] > 1
    assert 0 < timing["seconds"] < 0.02


# The measuring loop.


NAMES = {"pfor": "ours", "by_hand": "by_hand", "tensorflow": "theirs", "sequential": "sequential", "jax": "jax"}
"""Of the curves, by their methods."""


class StandIn:
    """In place of a Worker: notes what is asked, and does what the test says."""

    asked: list[tuple[str, str]] = []  # noqa: RUF012  # set again by the fixture
    behaviour: Any = None

    def __init__(self, task: Task, log: Any, timeout: float) -> None:
        self.process = task.process

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        StandIn.asked.append(("end", ""))

    def prepare(self, task: Task) -> Preparation:
        return self.reported("prepare", task) or Preparation(1.0, ((1.0, 0.5),), {"units": 10.0})

    def run(self, task: Task, seed: int) -> dict[str, Any]:
        return self.reported("run", task) or {"seconds": 0.5, "calls": 2, "load": 0.1}

    def reported(self, what: str, task: Task) -> Any:
        assert task.process == self.process
        curve = NAMES[task.method]
        StandIn.asked.append((what, curve))
        return None if StandIn.behaviour is None else StandIn.behaviour(what, curve)


@pytest.fixture(autouse=True)
def _stand_in() -> Iterator[None]:
    StandIn.asked, StandIn.behaviour = [], None
    yield
    StandIn.asked, StandIn.behaviour = [], None


def measured(config: VectorizingConfig, *workloads: str, notes: list[Any] | None = None) -> list[Measurement]:
    """What the file has after measuring some workloads."""
    chosen = {name: config.workloads[name] for name in workloads}
    file = RowsFile(Path("rows.csv"), Measurement)
    part = replace(config, workloads=chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "Worker", StandIn)
        note = (lambda *args: notes.append(args)) if notes is not None else lambda *_: None
        WholeGroups(part, file, io.StringIO(), "here", note).run()
    return file.read()


def test_ways_take_turns_in_an_order_that_changes(config: VectorizingConfig) -> None:
    rows = measured(config, "schools")
    curves = config.curves_of("schools")
    runs = [curve for what, curve in StandIn.asked if what == "run"]
    first, second = runs[: len(curves)], runs[len(curves) :]
    assert sorted(first) == sorted(second) == sorted(curves)
    assert first != second
    assert len(rows) == 2 * len(curves)
    assert len({row.group for row in rows}) == 1
    assert all(row.ok and row.rate == 20.0 and row.difference == 0.0 for row in rows)


def test_jax_has_a_process_of_its_own(config: VectorizingConfig) -> None:
    measured(config, "schools")
    assert [what for what, _ in StandIn.asked].count("end") == 2


def test_what_is_there_is_not_measured_again_and_a_cut_group_is(config: VectorizingConfig) -> None:
    first = measured(config, "linear")
    StandIn.asked = []
    assert measured(config, "linear") == first
    assert StandIn.asked == []
    file = RowsFile(Path("rows.csv"), Measurement)
    file.rewrite([row for row in first if not (row.method == "pfor" and row.size == 3 and row.repetition == 1)])
    again = measured(config, "linear")
    assert [row for row in again if row.size == 2] == [row for row in first if row.size == 2]
    assert {curve for what, curve in StandIn.asked if what == "prepare"} == set(config.curves_of("linear"))
    assert len({row.group for row in again if row.size == 3}) == 1


def test_a_failure_is_reported_and_the_others_go_on(config: VectorizingConfig) -> None:
    def behave(what: str, curve: str) -> Any:
        if curve == "theirs":
            raise NoAnswer("no rule for Svd", lost=False)
        if curve == "jax":
            raise Missing("pip install it")
        return None

    StandIn.behaviour = behave
    rows = measured(config, "linear")
    notes = {(row.method, row.size): (row.status, row.note) for row in rows if not row.ok}
    assert notes["tensorflow", 2] == ("failed", "no rule for Svd")
    assert notes["tensorflow", 3] == ("stopped", "failed with size 2: no rule for Svd")
    assert notes["jax", 3] == ("missing", "pip install it")
    assert sum(row.ok for row in rows) == 3 * 2 * 2


def test_a_long_message_stays_in_the_log(config: VectorizingConfig) -> None:
    def behave(what: str, curve: str) -> Any:
        if curve == "theirs":
            raise NoAnswer("no rule for Svd, says " + "a line of TensorFlow " * 200, lost=False)
        return None

    StandIn.behaviour = behave
    notes = [row.note for row in measured(config, "linear") if not row.ok]
    assert notes
    for note in notes:
        assert len(note) <= 300
        assert "no rule for Svd" in note
        assert note.endswith("(all of it in workers.log)")


def test_one_that_kills_its_process_is_left_out_and_the_others_begin_again(config: VectorizingConfig) -> None:
    def behave(what: str, curve: str) -> Any:
        if (what, curve) == ("run", "sequential"):
            raise NoAnswer("its process ended with code -9")
        return None

    StandIn.behaviour = behave
    rows = measured(config, "schools")
    assert {row.method for row in rows if row.status == "failed"} == {"sequential"}
    assert len({row.group for row in rows if row.ok}) == 1
    assert sum(row.ok for row in rows) == 2 * (len(config.curves_of("schools")) - 1)


def test_one_that_failed_before_another_was_lost_is_not_asked_again(config: VectorizingConfig) -> None:
    def behave(what: str, curve: str) -> Any:
        if curve == "theirs":
            raise NoAnswer("no rule for Svd", lost=False)
        if (what, curve) == ("run", "sequential"):
            raise NoAnswer("its process ended with code -9")
        return None

    StandIn.behaviour = behave
    rows = measured(config, "schools")
    assert {(row.method, row.note) for row in rows if not row.ok} == {
        ("tensorflow", "no rule for Svd"), ("sequential", "its process ended with code -9"),
    }  # fmt: skip
    assert StandIn.asked.count(("prepare", "theirs")) == 1
    assert StandIn.asked.count(("prepare", "ours")) == 2


def test_a_missing_library_is_asked_for_once_and_again_when_it_may_be_here(
    config: VectorizingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def behave(what: str, curve: str) -> Any:
        if curve == "jax":
            raise Missing("pip install it")
        return None

    monkeypatch.setattr(task_module, "find_spec", lambda name: None)
    StandIn.behaviour = behave
    first = measured(config, "linear")
    assert [row.size for row in first if row.status == "missing"] == [2, 3]
    assert StandIn.asked.count(("prepare", "jax")) == 1
    StandIn.asked = []
    assert measured(config, "linear") == first
    assert StandIn.asked == []
    monkeypatch.setattr(task_module, "find_spec", lambda name: "somewhere")
    StandIn.behaviour = None
    assert all(row.ok for row in measured(config, "linear"))


def test_an_interrupted_group_leaves_the_file_as_it_was(config: VectorizingConfig) -> None:
    first = measured(config, "linear")
    file = RowsFile(Path("rows.csv"), Measurement)
    cut = [row for row in first if not (row.size == 3 and row.method == "jax")]
    file.rewrite(cut)

    def behave(what: str, curve: str) -> Any:
        if (what, curve) == ("run", "ours"):
            raise KeyboardInterrupt
        return None

    StandIn.behaviour = behave
    with pytest.raises(KeyboardInterrupt):
        measured(config, "linear")
    assert file.read() == cut
    assert StandIn.asked[-1] == ("end", "")


def test_progress_counts_timings_of_groups_that_are_under_way(config: VectorizingConfig) -> None:
    notes: list[tuple[str, int, int]] = []
    measured(config, "linear", notes=notes)
    wanted = 2 * 2 * len(config.curves_of("linear"))
    assert {total for _, _, total in notes} == {wanted}
    assert [done for _, done, _ in notes] == sorted(done for _, done, _ in notes)
    assert notes[0] == ("ours, a product, size 2: compiles", 0, wanted)
    assert notes[-1][1] == wanted - 1


@pytest.mark.slow
def test_ways_share_a_real_process_and_one_that_fails_leaves_it_to_the_others(tmp_path: Path) -> None:
    good = a_task("linear", {"width": 2}, "by_hand", min_seconds=0.01)
    other = a_task("linear", {"width": 2}, "sequential")
    impossible = a_task("linear", {"width": 0}, "pfor")
    assert good.fingerprint() == replace(good, min_seconds=1.0).fingerprint() != other.fingerprint()
    with (tmp_path / "log").open("a") as log, measuring.Worker(good, log, timeout=120) as worker:
        outputs = worker.prepare(good).outputs
        with pytest.raises(NoAnswer, match="ValidationError") as caught:
            worker.prepare(impossible)
        assert not caught.value.lost
        with pytest.raises(NoAnswer, match="KeyError"):
            worker.run(impossible, 0)
        assert difference(worker.prepare(other).outputs, outputs) < 1e-6
        assert worker.run(good, 0)["calls"] > 1
        assert worker.run(other, 0)["calls"] == 1


def test_wrong_outputs_are_not_timed(config: VectorizingConfig) -> None:
    def behave(what: str, curve: str) -> Any:
        wrong = what == "prepare" and curve == "theirs"
        return Preparation(1.0, ((2.0, 0.5),), {"units": 10.0}) if wrong else None

    StandIn.behaviour = behave
    rows = measured(config, "schools")
    (wrong,) = (row for row in rows if not row.ok)
    assert (wrong.method, wrong.note) == ("tensorflow", "its outputs are not those of ours: 0.5 apart")
    assert ("run", "theirs") not in StandIn.asked


def test_a_slow_way_goes_to_no_larger_size(config: VectorizingConfig) -> None:
    def behave(what: str, curve: str) -> Any:
        return {"seconds": 9.0, "calls": 1, "load": 0.0} if (what, curve) == ("run", "sequential") else None

    StandIn.behaviour = behave
    rows = measured(config, "linear")
    (stopped,) = (row for row in rows if not row.ok)
    assert (stopped.method, stopped.size, stopped.status) == ("sequential", 3, "stopped")
    assert stopped.note == "a run with size 2 took 9.0 s, more than 5 s"


# Results.


def a_row(config: VectorizingConfig, curve: str, size: int, repetition: int, seconds: float) -> Measurement:
    task = config.task(curve, "linear", size)
    attempt = Attempt(
        "ok", repetition, 0, "here", "2026-01-01", Preparation(1.0, figures={"units": 12.0}),
        {"seconds": seconds, "calls": 1, "load": 0.0}, "a", 0.0,
    )  # fmt: skip
    return row_of(Measurement, task, attempt)


def test_ratios_compare_timings_of_the_same_turn(config: VectorizingConfig) -> None:
    rows = [
        *(a_row(config, "ours", 2, turn, seconds) for turn, seconds in enumerate((1.0, 10.0))),
        *(a_row(config, "sequential", 2, turn, seconds) for turn, seconds in enumerate((2.0, 30.0))),
        *(a_row(config, curve, 3, turn, 1.0) for curve in ("ours", "sequential") for turn in range(2)),
    ]
    results = VectorizingResults(config, rows)
    ratio = results.ratio("ours", "sequential", "linear", 2)
    assert ratio is not None
    assert asdict(ratio) == pytest.approx(asdict(Value(2, 2.5, 2.0, 3.0, 2)))
    assert results.rate("ours", "linear", 2) == Value(2, 6.6, 1.2, 12.0, 2)
    verdict = results.judge(config.claims["faster"])
    assert verdict.seen is not None
    assert (verdict.seen.size, verdict.seen.value, verdict.word) == (3, 1.0, "holds")
    assert results.ratio("ours", "jax", "linear", 2) is None
    other = [replace(row, group="b") if row.method == "pfor" else row for row in rows]
    assert VectorizingResults(config, other).ratio("ours", "sequential", "linear", 2) is None
    assert "**holds**" in claims_table(results)
    assert pfor_benchmark.rates_table(results, "linear").splitlines()[-2:] == [
        "| loop | 3.2 (0.42) | 12 (1) |", "| jax | - | - |",
    ]  # fmt: skip


def test_rows_are_read_as_they_were_written(config: VectorizingConfig) -> None:
    file = RowsFile(Path("rows.csv"), Measurement)
    row = a_row(config, "ours", 2, 0, 0.25)
    failed = replace(row, status="failed", seconds=None, units=None, calls=None, note="it, failed")
    for one in (row, failed):
        file.append(one)
    assert [asdict(one) for one in file.read()] == [asdict(row), asdict(failed)]


# The command.


@pytest.mark.slow  # by default the command of test_quick_modes writes its files
def test_the_command_writes_its_files_and_goes_on_where_it_stopped(
    config: VectorizingConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    keep = ["linear", "lstm", "convnet_gradients"]
    dropped = [f"workloads.{name}=null" for name in config.workloads if name not in keep]
    command = ["--config", "my.yaml", "--quick", "curves.theirs=null", *dropped]
    assert main(pfor_benchmark.EXPERIMENT, command) == 0
    out, err = capfd.readouterr()
    assert out == "out-quick/summary.md\n"
    assert "linear" in err or "a product" in err
    folder = Path("out-quick")
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "measurements.csv", "environment.json", "summary.md", "workers.log",
        "inference.png", "inference.pdf", "gradients.png", "gradients.pdf",
    }  # fmt: skip
    rows = RowsFile(folder / "measurements.csv", Measurement).read()
    assert {row.method for row in rows if row.ok} >= {"pfor", "by_hand", "sequential"}
    assert all(row.ok or row.method == "jax" for row in rows)
    text = (folder / "summary.md").read_text()
    assert "## Claims" in text
    assert "Tokens per second" in text
    before = [row for row in rows if row.ok]
    if all(row.ok for row in rows):  # JAX is installed
        assert main(pfor_benchmark.EXPERIMENT, command) == 0
        assert [row for row in RowsFile(folder / "measurements.csv", Measurement).read() if row.ok] == before


def test_a_config_of_another_experiment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(pfor_benchmark.EXPERIMENT, ["--config", "fsm.yaml"]) == 2
    assert "found the config of the experiment fsm; expected one for pfor_benchmark" in capsys.readouterr().err
    assert main(fsm.EXPERIMENT, ["--config", "pfor.yaml"]) == 2
    assert "Run python -m batchnuts.experiments.pfor_benchmark" in capsys.readouterr().err
