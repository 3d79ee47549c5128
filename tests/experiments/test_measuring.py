"""The measuring loop with stand-ins for the samplers' processes: turns, resuming, limits, failures."""

from __future__ import annotations

import io
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_experiment import CONFIG

from batchnuts.experiments.harness import measuring
from batchnuts.experiments.harness.measuring import Worker, plan
from batchnuts.experiments.harness.processes import Missing, NoAnswer, Process, environment_for
from batchnuts.experiments.harness.row_by_row import RowByRow
from batchnuts.experiments.harness.rows import MeasurementsError, RowsFile
from batchnuts.experiments.harness.task import Preparation, Prepare
from batchnuts.experiments.samplers.config import ExperimentConfig, load_experiment
from batchnuts.experiments.samplers.results import Results
from batchnuts.experiments.samplers.task import Measurement, MissingSampler, Outcome, Task
from batchnuts.experiments.samplers.timing import prepare, timed

FIGURES: dict[str, Any] = {
    "seconds": 2.0, "useful_gradients": 100, "executed_gradients": 200, "lockstep_gradients": 200,
    "asynchronous_gradients": 150, "ess_min": 3.0, "ess_mean": 4.0, "peak_memory_mb": 1.0, "load": 0.5,
}  # fmt: skip


class StandIn:
    """In place of a Worker: notes what is asked, and does what the test says."""

    asked: list[tuple[str, int, str]] = []  # noqa: RUF012  # set again by the fixture
    behaviour: Any = None

    def __init__(self, task: Task, log: Any, timeout: float) -> None:
        self.name = task.options.get("executor", "virtual_machine")
        self.task = task

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        if (self.name, self.task.chains, "end") not in StandIn.asked:
            self.note("end")

    def note(self, what: str) -> None:
        StandIn.asked.append((self.name, self.task.chains, what))

    def prepare(self, task: Task) -> Preparation:
        assert task == self.task
        self.note("prepare")
        if StandIn.behaviour:
            StandIn.behaviour(task, None)
        return Preparation(1.5)

    def run(self, task: Task, seed: int) -> dict[str, Any]:
        self.note(f"run {seed}")
        changed = StandIn.behaviour(task, seed) if StandIn.behaviour else None
        return dict(changed or FIGURES)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExperimentConfig:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measuring, "Worker", StandIn)
    monkeypatch.setattr(StandIn, "asked", [])
    monkeypatch.setattr(StandIn, "behaviour", None)
    Path("my.yaml").write_text(CONFIG)
    return load_experiment("my.yaml")


def measure(config: ExperimentConfig, notes: list[Any] | None = None) -> list[Measurement]:
    file = RowsFile(Path("rows.csv"), Measurement)
    note = (lambda *args: notes.append(args)) if notes is not None else lambda *_: None
    RowByRow(config, file, io.StringIO(), "here", note).run()
    return file.read()


def test_samplers_of_one_size_get_ready_and_then_take_turns(config: ExperimentConfig) -> None:
    rows = measure(config)
    of_two = [(name, what) for name, chains, what in StandIn.asked if chains == 2]
    runs = [("virtual_machine", "run"), ("stackless", "run")]
    expected = [("virtual_machine", "prepare"), ("stackless", "prepare")]
    expected += [(name, f"run {seed}") for seed in range(3) for name, _ in runs]
    assert of_two == [*expected, ("stackless", "end"), ("virtual_machine", "end")]
    assert len(rows) == 15
    assert all(row.ok for row in rows)
    assert {(row.seed, row.repetition) for row in rows} == {(0, 0), (1, 1), (2, 2)}
    assert (rows[0].rate, rows[0].utilization, rows[0].ess_per_minute) == (50.0, 0.5, 90.0)


def test_several_compile_at_once_and_one_runs(config: ExperimentConfig) -> None:
    meeting = threading.Barrier(2, timeout=30)
    alone = threading.Lock()

    def meet(task: Task, seed: int | None) -> None:
        if seed is None and task.chains > 1:  # with one chain there is one curve
            meeting.wait()
        elif seed is not None:
            assert alone.acquire(blocking=False)
            time.sleep(0.001)
            alone.release()

    StandIn.behaviour = staticmethod(meet)
    assert len(measure(load_experiment("my.yaml", ["measurement.compile_at_once=2"]))) == 15


def test_where_only_counts_matter_several_run_at_once(config: ExperimentConfig) -> None:
    meeting = threading.Barrier(2, timeout=30)

    def meet(task: Task, seed: int | None) -> None:
        if seed is not None and task.chains > 1:
            meeting.wait()

    StandIn.behaviour = staticmethod(meet)
    rows = measure(load_experiment("my.yaml", ["measurement.run_at_once=2"]))
    expected = [(1, n) for n in range(3)] + [(chains, n) for chains in (2, 4) for n in range(3) for _ in "ab"]
    assert [(row.chains, row.repetition) for row in rows] == expected


def test_what_is_measured_already_is_not_measured_again(config: ExperimentConfig) -> None:
    first = measure(config)
    StandIn.asked.clear()
    assert measure(config) == first
    assert StandIn.asked == []


def test_it_goes_on_where_it_was_interrupted(config: ExperimentConfig) -> None:
    def interrupt(task: Task, seed: int | None) -> None:
        if (task.chains, seed) == (2, 1):
            raise KeyboardInterrupt

    StandIn.behaviour = staticmethod(interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure(config)
    assert len(RowsFile(Path("rows.csv"), Measurement).read()) == 5
    assert [what for _, _, what in StandIn.asked[-2:]] == ["end", "end"]
    StandIn.behaviour = None
    StandIn.asked.clear()
    assert len(measure(config)) == 15
    assert StandIn.asked[:3] == [("virtual_machine", 2, "prepare"), ("stackless", 2, "prepare"), (
        "virtual_machine", 2, "run 1",
    )]  # fmt: skip


def test_another_config_measures_only_what_is_new(config: ExperimentConfig) -> None:
    measure(config)
    StandIn.asked.clear()
    measure(load_experiment("my.yaml", ["curves.one.chains=[2, 8]", "measurement.repetitions=2"]))
    assert {(name, chains) for name, chains, _ in StandIn.asked} == {("virtual_machine", 8)}


def test_a_curve_stops_after_a_size_that_took_too_long(config: ExperimentConfig) -> None:
    def slow(task: Task, seed: int | None) -> dict[str, Any] | None:
        if task.chains == 2 and task.options["executor"] == "virtual_machine" and seed is not None:
            return {**FIGURES, "seconds": 61.0 + seed}
        return None

    StandIn.behaviour = staticmethod(slow)
    rows = measure(config)
    (stopped,) = [row for row in rows if row.status == "stopped"]
    assert (stopped.chains, stopped.seconds) == (4, None)
    assert stopped.note == "a run with 2 chains took 61.0 s, more than 60 s"
    assert sum(row.chains == 4 and row.ok for row in rows) == 3
    # the same when it goes on from the file, and still one row of it
    StandIn.asked.clear()
    assert [row.status for row in measure(config)].count("stopped") == 1
    assert StandIn.asked == []


def test_a_missing_sampler_is_asked_for_once_and_written_down_for_all_its_sizes(config: ExperimentConfig) -> None:
    def missing(task: Task, seed: int | None) -> None:
        raise Missing("it is not here; pip install it")

    StandIn.behaviour = staticmethod(missing)
    rows = measure(config)
    assert [row.status for row in rows] == ["missing"] * 5
    assert {row.note for row in rows} == {"it is not here; pip install it"}
    asked = [(name, chains) for name, chains, what in StandIn.asked if what == "prepare"]
    assert asked == [("virtual_machine", 1), ("stackless", 2)]
    StandIn.behaviour = None  # now it is installed
    assert [row.status for row in measure(config)] == ["ok"] * 15


def test_the_process_of_a_missing_sampler_is_ended_before_others_run(config: ExperimentConfig) -> None:
    def missing(task: Task, seed: int | None) -> None:
        if task.options["executor"] == "virtual_machine":
            raise Missing("it is not here")

    StandIn.behaviour = staticmethod(missing)
    measure(load_experiment("my.yaml", ["curves.one.chains=[2]"]))
    asked = [(name, what) for name, chains, what in StandIn.asked if chains == 2]
    assert asked.index(("virtual_machine", "end")) < asked.index(("stackless", "run 0"))


def test_what_one_curve_cannot_do_another_of_the_same_sampler_may(config: ExperimentConfig) -> None:
    def missing(task: Task, seed: int | None) -> None:
        if task.options["executor"] == "virtual_machine":
            raise Missing("not with these options")

    StandIn.behaviour = staticmethod(missing)
    rows = measure(config)
    assert [(row.chains, row.status) for row in rows if "virtual_machine" in row.options] == [
        (1, "missing"), (2, "missing"), (4, "missing"),
    ]  # fmt: skip
    assert [row.status for row in rows if "stackless" in row.options] == ["ok"] * 6


def test_one_that_failed_is_ended_before_the_others_run_on(config: ExperimentConfig) -> None:
    def fail(task: Task, seed: int | None) -> None:
        if (task.chains, task.options["executor"], seed) == (2, "virtual_machine", 0):
            raise NoAnswer("no answer within 900 s")

    StandIn.behaviour = staticmethod(fail)
    measure(config)
    first = StandIn.asked.index(("virtual_machine", 2, "run 0"))
    assert StandIn.asked[first + 1 : first + 3] == [("virtual_machine", 2, "end"), ("stackless", 2, "run 0")]


def test_another_seed_is_another_run(config: ExperimentConfig) -> None:
    measure(config)
    other = load_experiment("my.yaml", ["measurement.seed=1"])
    rows = measure(other)
    assert len(rows) == 30
    point = Results(other, rows).rows_of("one", "gauss", 4)
    assert [(row.repetition, row.seed) for row in point] == [(0, 1), (1, 2), (2, 3)]
    assert measure(config) == rows  # the first ones are still there


def test_a_size_interrupted_in_a_slow_run_gets_all_its_repetitions(config: ExperimentConfig) -> None:
    def slow(task: Task, seed: int | None) -> dict[str, Any] | None:
        if task.chains < 4 or task.options["executor"] == "stackless" or seed is None:
            return None
        if seed == 1 and interrupt:
            raise KeyboardInterrupt
        return {**FIGURES, "seconds": 61.0}

    interrupt = True
    StandIn.behaviour = staticmethod(slow)
    with pytest.raises(KeyboardInterrupt):
        measure(config)
    interrupt = False
    assert [row.status for row in measure(config)] == ["ok"] * 15


def test_curves_that_share_a_task_stop_together(config: ExperimentConfig) -> None:
    same = load_experiment(
        "my.yaml", ["curves.two.options={backend: numpy, schedule: earliest}", "curves.one.chains=[1, 2]"]
    )

    def slow(task: Task, seed: int | None) -> dict[str, Any] | None:
        return {**FIGURES, "seconds": 61.0} if task.chains == 2 and seed is not None else None

    StandIn.behaviour = staticmethod(slow)
    assert [(row.chains, row.status) for row in measure(same)][-1] == (4, "stopped")


def test_a_failure_is_written_down_and_larger_sizes_are_left(config: ExperimentConfig) -> None:
    def fail(task: Task, seed: int | None) -> None:
        if task.chains == 2 and task.options["executor"] == "stackless" and seed == 1:
            raise NoAnswer("its process\nended with code -9")

    StandIn.behaviour = staticmethod(fail)
    rows = [row for row in measure(config) if row.options.count("stackless")]
    assert [(row.chains, row.status) for row in rows] == [(2, "ok"), (2, "failed"), (4, "stopped")]
    assert rows[1].note == "its process ended with code -9"
    assert rows[2].note == "failed with 2 chains: its process ended with code -9"


def test_progress_ends_with_everything_done(config: ExperimentConfig) -> None:
    notes: list[tuple[str, int, int]] = []
    measure(config, notes)
    assert [total for _, _, total in notes] == [15] * len(notes)
    assert [done for _, done, _ in notes] == sorted(done for _, done, _ in notes)
    assert notes[0] == ("first curve, a small Gaussian, 1 chains: compiles", 0, 15)
    assert notes[-1] == ("second curve, a small Gaussian, 4 chains: run 3", 14, 15)


def test_a_task_of_two_curves_is_measured_once(config: ExperimentConfig) -> None:
    same = load_experiment("my.yaml", ["curves.two.options={backend: numpy, schedule: earliest}"])
    assert [len(group) for group in plan(same)] == [1, 1, 1]


def test_rows_survive_the_file(config: ExperimentConfig) -> None:
    (row, *_) = measure(config)
    assert row.note == ""
    assert isinstance(row.chains, int)
    assert isinstance(row.seconds, float)
    file = RowsFile(Path("rows.csv"), Measurement)
    before = file.read()
    file.rewrite(before)
    assert file.read() == before


def test_a_line_cut_short_is_dropped_and_other_damage_is_named(config: ExperimentConfig) -> None:
    rows = measure(config)
    path = Path("rows.csv")
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert RowsFile(path, Measurement).read() == rows[:-1]
    path.write_text(whole.replace(",ok,0,", ",ok,zero,", 1))
    with pytest.raises(MeasurementsError, match=r"rows.csv:2: column repetition: found 'zero'; expected int"):
        RowsFile(path, Measurement).read()
    path.write_text(whole.replace(",ok,0,", ",okay,0,", 1))
    with pytest.raises(
        MeasurementsError, match=r"rows.csv:2: column status: found 'okay'; expected one of ok, missing"
    ):
        RowsFile(path, Measurement).read()
    path.write_text(whole.replace(",2.0,", ",,", 1))
    with pytest.raises(MeasurementsError, match=r"rows.csv:2: found a run \(status ok\) without"):
        RowsFile(path, Measurement).read()
    path.write_bytes(whole.encode() + b"\xff\n")
    with pytest.raises(MeasurementsError, match="not UTF-8 text"):
        RowsFile(path, Measurement).read()
    path.write_text(whole.replace(",ok,", "," + "x" * 200_000 + ",", 1))
    with pytest.raises(MeasurementsError, match="not CSV"):
        RowsFile(path, Measurement).read()
    path.write_text("a,b\n1,2\n")
    with pytest.raises(MeasurementsError, match=r"rows.csv:1: found the columns a, b"):
        RowsFile(path, Measurement).read()


def test_a_sampler_in_a_worker_may_fork(tmp_path: Path) -> None:
    """As PyStan does: the new process closes its standard input, which nobody may be reading then."""
    script = """
import multiprocessing

from batchnuts.experiments.harness.processes import serve
from batchnuts.experiments.harness.task import Preparation, Prepare
from batchnuts.experiments.harness.worker import Answering

class Forked:
    preparation = Preparation(1.0)

def prepare(task):
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join(60)
    assert child.exitcode == 0, child.exitcode
    return Forked()

if __name__ == "__main__":
    from batchnuts.experiments.samplers import timing
    timing.prepare = prepare
    serve(Answering())
"""
    (tmp_path / "forking.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with (tmp_path / "log").open("a") as log, Process("forking", "", log, 120, environment) as process:
        assert process.ask(Prepare(a_task())) == Preparation(1.0)


@pytest.mark.slow
def test_a_real_worker_answers_and_reports_what_went_wrong(tmp_path: Path) -> None:
    gauss = {"name": "correlated_gaussian", "dimension": 2, "covariance": "ar1", "dtype": "float64"}
    good = Task(
        sampler="batchnuts", options={"backend": "numpy", "executor": "stackless"}, problem=gauss, chains=3,
        transitions=20, step_size=0.3, max_tree_depth=5, leapfrogs_per_leaf=1, start="wide", device="cpu",
        measure_ess=True,
    )  # fmt: skip
    with (tmp_path / "log").open("a") as log:
        with Worker(good, log, timeout=120) as worker:
            assert worker.prepare(good).seconds > 0
            one, two, again = (worker.run(good, seed) for seed in (1, 2, 1))
        assert one["useful_gradients"] == again["useful_gradients"]
        assert one["ess_min"] == again["ess_min"] != two["ess_min"]
        assert one["executed_gradients"] >= one["asynchronous_gradients"] >= one["useful_gradients"]
        impossible = Task(**{**good.__dict__, "problem": {**gauss, "correlation": 2.0}})
        with Worker(impossible, log, timeout=120) as worker, pytest.raises(NoAnswer, match="ValidationError"):
            worker.prepare(impossible)
    assert "correlation" in (tmp_path / "log").read_text()


def a_task(**changed: Any) -> Task:
    gauss = {"name": "correlated_gaussian", "dimension": 2, "covariance": "ar1", "dtype": "float64"}
    return Task(**{
        "sampler": "batchnuts", "options": {}, "problem": gauss, "chains": 3, "transitions": 4, "step_size": 0.3,
        "max_tree_depth": 5, "leapfrogs_per_leaf": 1, "start": "wide", "device": "cpu", "measure_ess": False, **changed,
    })  # fmt: skip


def test_processes_share_the_memory_of_a_gpu_and_see_none_otherwise() -> None:
    assert environment_for("cpu", {})["CUDA_VISIBLE_DEVICES"] == "-1"
    shared = environment_for("gpu", {"TF_FORCE_GPU_ALLOW_GROWTH": "mine"})
    assert (shared["XLA_PYTHON_CLIENT_PREALLOCATE"], shared["TF_FORCE_GPU_ALLOW_GROWTH"]) == ("false", "mine")


def test_lockstep_is_not_counted_where_only_totals_are_known() -> None:
    each, totals = np.array([[1, 3, 1, 1], [3, 1, 1, 1]]), np.array([[6], [6]])
    outcomes = [Outcome(leapfrogs, 16, None) for leapfrogs in (each, totals)]
    seen = [timed(lambda _, outcome=outcome: lambda: outcome, a_task(chains=2), 0) for outcome in outcomes]
    assert [tuple(t[f"{kind}_gradients"] for kind in ("useful", "lockstep", "asynchronous")) for t in seen] == [
        (12, 16, 12), (12, None, 12),
    ]  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "tensorflow", "jax"])
def test_ours_does_not_quietly_run_on_the_cpu_when_a_gpu_is_asked_for(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax
    import tensorflow as tf

    def none_of(kind: str) -> None:
        raise RuntimeError(f"no {kind}")

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(jax, "devices", none_of)
    said = {"numpy": "numpy runs on the CPU only", "tensorflow": "TensorFlow sees no gpu", "jax": "JAX sees no gpu"}
    with pytest.raises(MissingSampler, match=said[backend]):
        prepare(a_task(device="gpu", options={"backend": backend}))


def test_ending_a_worker_ends_what_it_started(tmp_path: Path) -> None:
    with (tmp_path / "log").open("a") as log, Worker(a_task(), log, timeout=120) as worker:
        pid = worker.process.pid
        assert os.getpgid(pid) == pid != os.getpgid(0)
        worker.end()
        worker.end()
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)
        with pytest.raises(NoAnswer):
            worker.prepare(a_task())


def test_a_worker_ends_at_once_when_its_client_is_gone(tmp_path: Path) -> None:
    with (tmp_path / "log").open("a") as log, Worker(a_task(), log, timeout=120) as worker:
        task = a_task(transitions=10**6, options={"backend": "numpy"})  # takes hours
        worker.connection.send(Prepare(task))
        worker.connection.close()
        assert worker.process.wait(timeout=120) == -9
