"""Runs on a cluster: the same draws as on threads, whatever happens to its workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import url_files
from cluster_in_process import (
    IN_PROCESS,
    MODEL,
    SETTINGS,
    WORKERS,
    Client,
    assert_same,
    in_process,
    on_threads_once,
    refused,
    run,
    within,
)
from distributed.diagnostics.plugin import UploadFile
from url_files import bucket_in

from batchnuts.cli.resume import TYPES
from batchnuts.cluster import stretch
from batchnuts.cluster.connect import connected
from batchnuts.cluster.direct import DirectZarrRun
from batchnuts.cluster.errors import ClusterError
from batchnuts.cluster.messages import SegmentTask
from batchnuts.files.url import OutputLocation, Url
from batchnuts.mcmc.checkpoint.keeper import Keeper, read_saved_run
from batchnuts.mcmc.execution import chunk
from batchnuts.mcmc.execution.program_cache import Programs
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.settings.cluster_settings import ClusterSettings
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.progress import Progress
from batchnuts.process.signals import StopSignals


class Workers(NamedTuple):
    """Two processes that this one has started, and their scheduler."""

    client: Any

    @property
    def address(self) -> str:
        return self.client.scheduler.address

    def pids(self) -> list[int]:
        return list(self.client.run(os.getpid).values())

    def kill(self, which: int) -> None:
        os.kill(self.pids()[which], signal.SIGKILL)

    def wait(self, count: int = 2) -> None:
        self.client.wait_for_workers(count)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    settings = ClusterSettings.model_validate({"class": "local", "jobs": 2})
    with StopSignals() as stop, connected(settings, stop) as client:
        yield Workers(client)


@pytest.fixture(scope="module")
def on_threads() -> Draws:
    return on_threads_once()[0]


@pytest.fixture(scope="module")
def programs() -> Programs:
    return on_threads_once()[1]


def test_a_worker_that_is_killed_costs_no_draw(
    workers: Workers, on_threads: Draws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none is there twice: half of the groups go on from their last state on the other worker."""
    monkeypatch.setattr(stretch, "SEGMENT", 0.02)
    monkeypatch.setattr(stretch, "SAVE", 0.05)
    killed = []

    def kill_once(progress: Progress) -> None:
        if progress.phase == "sampling" and progress.slowest > 10 and not killed:
            killed.append(progress.slowest)
            workers.kill(0)

    assert_same(run(kill_once, cluster=workers.address), on_threads)
    assert killed


# ---- in this process: the same code, without Dask ------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short tasks, and states that come back often."""
    monkeypatch.setattr(stretch, "SEGMENT", 0.001)
    monkeypatch.setattr(stretch, "REPORTS", 500)  # which bounds how short they are, too
    monkeypatch.setattr(stretch, "SAVE", 0.01)
    monkeypatch.setattr(stretch, "LOOKS", 0.0)
    monkeypatch.setattr(chunk, "MIN_SWEEPS", 4)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 3, 4, 5))])
def test_accidents_cost_no_draw(
    on_threads: Draws, often: None, monkeypatch: pytest.MonkeyPatch, programs: Programs, seed: int
) -> None:
    # tasks of a millisecond may make no transition on a busy machine, however often they are not lost
    monkeypatch.setattr(stretch, "DEATHS", 1000)
    client = Client(accidents=0.3, seed=seed)
    with in_process(client, monkeypatch, programs):
        assert_same(run(**IN_PROCESS), on_threads)
    assert client.lost > 5


def test_an_ensemble_start_is_the_same_as_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of its burn-in is shared among workers; and what is kept of warmup comes from all of them."""
    how = {"content": Content(warmup=True)}
    settings: dict[str, Any] = {"chains": 16, "draws": 5, "start": "ensemble", "metric": "low_rank", "how": how}
    on_threads, client = run(**settings), Client()
    (programs,) = (each for key, each in MODEL.cache.programs.items() if ("metric", "low_rank") in key)
    with in_process(client, monkeypatch, programs):
        draws = run(**settings, **IN_PROCESS)
    assert_same(draws, on_threads)
    assert draws.warmup == on_threads.warmup
    assert draws.warmup.burn_in > 20
    for window, expected in zip(draws.warmup.records, on_threads.warmup.records, strict=True):
        np.testing.assert_array_equal(window.done, expected.done)
        for name, array in expected.records.items():
            np.testing.assert_array_equal(window.records[name], array, err_msg=name)


@pytest.mark.parametrize("save", [0.0, 1e9], ids=["saved", "not saved"])
def test_a_report_that_never_comes_costs_no_draw(
    save: float, on_threads: Draws, often: None, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    """Though the worker that gets the chains back has them as they were after it. save: seconds between states."""
    monkeypatch.setattr(stretch, "SAVE", save)
    client, unheard = Client(), []
    del client.threads[WORKERS[1]]

    def lost(order: SegmentTask) -> str | None:
        if order.stretch.phase == "sampling" and order.segment == 2:
            unheard.append(order.group)
            return "cancelled"
        return None

    client.fails = lost
    with in_process(client, monkeypatch, programs):
        assert_same(run(**IN_PROCESS), on_threads)
    assert sorted(unheard) == [0, 1]


def stopped_at(share: float) -> Callable[[Progress], None]:
    """Interrupts a run when such a share of its draws is made."""

    def progress(now: Progress) -> None:
        if now.phase == "sampling" and share * now.total < now.done < now.total:
            raise KeyboardInterrupt

    return progress


def in_lives(
    folder: Path, shares: list[float], location: OutputLocation | None, **settings: Any
) -> Iterator[tuple[Draws, Any]]:
    """A run with checkpoints that is interrupted at these shares of its draws; each time the draws and, if there is
    one, the groups of the store `location`."""
    saved = None
    for share in [*shares, 1.0]:
        keeper = Keeper(folder / "checkpoint", 0.05, {"of": "a test"}, saved)
        how: dict[str, Any] = {"keeper": keeper}
        if location is not None:
            how["stream"] = DirectZarrRun(location, MODEL, Content(thin=3), resumed=saved is not None)
        draws = run(stopped_at(share), how=how, **settings)
        groups = how["stream"].finish(draws, keep=draws.interrupted) if location and draws.done.any() else None
        if keeper._lock is not None:
            os.close(keeper._lock)  # as the end of its process does
        yield draws, groups
        if not draws.interrupted:
            return
        saved = read_saved_run(folder / "checkpoint", TYPES)


def test_a_task_that_hangs_is_given_to_another_worker(
    on_threads: Draws, often: None, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    client, hanging = Client(), []
    monkeypatch.setattr(stretch, "STALLED", (0.05, 0.0))

    def hangs(order: SegmentTask) -> str | None:
        if order.group == 1 and order.segment == 0:
            hanging.append(order)
            return "pending"
        return None

    client.fails = hangs
    with in_process(client, monkeypatch, programs):
        assert_same(run(**IN_PROCESS), on_threads)
    assert len({order.stretch.number for order in hanging}) > 1


def test_groups_of_a_worker_that_hangs_move(
    on_threads: Draws, often: None, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    """All of them: those too that wait for its threads."""
    client, hung = Client(), []
    monkeypatch.setattr(stretch, "STALLED", (0.05, 0.0))

    def hangs(order: SegmentTask) -> str | None:
        if client.current == WORKERS[0] and order.stretch.phase == "sampling" and (hung or order.segment == 1):
            hung.append(order.group)
            return "pending"
        return None

    client.fails = hangs
    with in_process(client, monkeypatch, programs):
        assert_same(run(within(100.0), **IN_PROCESS), on_threads)
    assert hung


@pytest.mark.parametrize("phase", ["compile", "sampling"])
def test_results_that_are_lost_with_their_worker(
    phase: str, on_threads: Draws, often: None, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    """A task has ended, and its worker is gone before its result has come: Dask waits for that worker."""
    client, lost = Client(), []
    monkeypatch.setattr(stretch, "STALLED", (1e9, 0.0))

    def never() -> str | None:
        if client.current == WORKERS[0] and not lost:
            lost.append(client.threads.pop(WORKERS[0]))
            return "unheard"
        return None

    if phase == "compile":
        client.compiling = never
    else:
        client.fails = lambda order: never() if order.stretch.phase == phase and order.segment == 1 else None
    with in_process(client, monkeypatch, programs):
        assert_same(run(within(100.0), **IN_PROCESS), on_threads)
    assert lost
    assert "unheard" in {future.fate for future in client.cancelled}


@pytest.mark.parametrize("phase", ["compile", "sampling"])
def test_paused_workers_get_no_tasks(
    phase: str, on_threads: Draws, often: None, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    """Dask pauses those that are short of memory, and keeps tasks that are meant for them."""
    client, given = Client(), []
    monkeypatch.setattr(stretch, "DEATHS", 1)
    if phase == "compile":
        client.states[WORKERS[0]] = "paused"

    def count(order: SegmentTask) -> None:
        if order.stretch.phase == "sampling":
            given.append(client.current)
            client.states[WORKERS[0]] = "paused"

    client.fails = count
    with in_process(client, monkeypatch, programs):
        assert_same(run(**IN_PROCESS), on_threads)
    assert given.count(WORKERS[0]) <= (1 if phase == "sampling" else 0)
    assert given.count(WORKERS[1]) > 1


def test_tasks_of_workers_that_are_all_gone_are_given_to_those_that_come(
    on_threads: Draws, often: None, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    """Dask does not. Chains end the run if all workers die of them again and again."""
    client = Client()
    monkeypatch.setattr(stretch, "STALLED", (1e9, 0.0))

    def die() -> str:
        client.came += len(WORKERS)
        client.threads = {f"tcp://n:{client.came + number}": 1 for number in range(len(WORKERS))}
        return "pending"

    def die_once(order: SegmentTask) -> str | None:
        early = order.stretch.phase == "sampling" and order.segment == 1 and client.came < 10
        return die() if early else None

    with in_process(client, monkeypatch, programs):
        client.compiling = lambda: None if client.came else die()
        client.fails = die_once
        assert_same(run(within(100.0), **IN_PROCESS), on_threads)
        assert client.came > len(WORKERS)
        assert "pending" in {future.status for future in client.cancelled}
        client.fails = lambda order: die() if order.first == 4 else None
        said = refused(progress=within(100.0), **IN_PROCESS)
    assert "Chains 4 to 5 cannot be run (warmup): several workers ended one after another" in said


def test_workers_that_come_later_get_a_share(
    on_threads: Draws, often: None, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    client = Client()
    del client.threads[WORKERS[1]]
    done = dict.fromkeys(WORKERS, 0)

    def count(order: SegmentTask) -> None:
        done[client.current] += order.stretch.phase == "sampling"

    def come(progress: Progress) -> None:
        if progress.phase == "sampling" and progress.done > 80:
            client.threads[WORKERS[1]] = 1

    client.fails = count
    with in_process(client, monkeypatch, programs):
        assert_same(run(come, **IN_PROCESS), on_threads)
    assert min(done.values()) > 1


@pytest.mark.parametrize("kind", [pytest.param("memory", marks=pytest.mark.slow), "zarr", "url"])
def test_a_run_that_is_interrupted_goes_on(
    on_threads: Draws, often: None, monkeypatch: pytest.MonkeyPatch, programs: Programs, tmp_path: Path, kind: str
) -> None:
    """With accidents in each life. A store has the draws that all chains have made, at any time."""
    client = Client(accidents=0.1, seed=1)
    monkeypatch.chdir(tmp_path)
    targets = {"memory": None, "zarr": tmp_path / "run.zarr", "url": Url(f"{bucket_in(tmp_path)}/run.zarr")}
    with in_process(client, monkeypatch, programs):
        lives = 0
        for draws, groups in in_lives(tmp_path, [0.2, 0.6], targets[kind], **IN_PROCESS):
            lives += 1
            if groups is not None:
                n = draws.complete
                assert groups["posterior"].sizes["draw"] == -(-n // 3)
                np.testing.assert_array_equal(groups["posterior"]["x"], on_threads.position[:, :n:3])
                np.testing.assert_array_equal(groups["sample_stats"]["lp"], on_threads.stats["lp"][:, :n:3])
            elif kind == "memory":
                for chain, done in enumerate(draws.done):
                    np.testing.assert_array_equal(draws.position[chain, :done], on_threads.position[chain, :done])
    assert lives > 1
    assert (draws.done == SETTINGS["draws"]).all()
    assert draws.warmup == on_threads.warmup


@pytest.mark.parametrize("zarr", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["memory", "zarr"])
def test_the_stopping_rule_ends_a_run_where_it_ends_on_threads(
    often: None, monkeypatch: pytest.MonkeyPatch, programs: Programs, tmp_path: Path, zarr: bool
) -> None:
    until = {"until": {"ess_bulk": 150.0}}
    there = run(**until)
    stream = DirectZarrRun(tmp_path / "run.zarr", MODEL, Content()) if zarr else None
    with in_process(Client(), monkeypatch, programs):
        found = run(how={"stream": stream}, **until, **IN_PROCESS)
    assert found.ended == there.ended
    assert 10 < there.complete < SETTINGS["draws"]
    if stream is None:
        assert_same(found, there)
    else:
        np.testing.assert_array_equal(stream.finish(found)["posterior"]["x"], there.position[:, : there.complete])


@pytest.mark.slow
def test_two_workers_write_to_a_url(workers: Workers, on_threads: Draws, tmp_path: Path, cwd: None) -> None:
    """Which is all that they share; one of them is killed on the way. What only this process sees is refused."""
    workers.client.register_plugin(UploadFile(url_files.__file__))  # which is imported
    url, killed = Url(f"{bucket_in(tmp_path)}/run.zarr"), []

    def kill_once(progress: Progress) -> None:
        if progress.phase == "sampling" and progress.slowest > 10 and not killed:
            killed.append(progress.slowest)
            workers.kill(0)

    stream = DirectZarrRun(url, MODEL, Content(divergences=True))
    groups = stream.finish(run(kill_once, how={"stream": stream}, cluster=workers.address))
    assert killed
    np.testing.assert_array_equal(groups["posterior"]["x"], on_threads.position)
    for name in ("lp", "energy", "diverging", "step_size"):
        np.testing.assert_array_equal(groups["sample_stats"][name], on_threads.stats[name])
    with pytest.raises(ClusterError, match=r"A worker cannot use memory://run\.zarr: it finds another store"):
        run(how={"stream": DirectZarrRun(Url("memory://run.zarr"), MODEL, Content())}, cluster=workers.address)


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_workers_draw_what_threads_draw(workers: Workers, on_threads: Draws) -> None:
    reports: list[Progress] = []
    found = run(reports.append, cluster=workers.address)
    assert_same(found, on_threads)
    assert found.arrangement.chunks == 4
    assert {one.phase for one in reports} == {"compile", "warmup", "sampling"}
    assert reports[-1].done == reports[-1].total == 8 * SETTINGS["draws"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "draws"), [(6, 6_000), pytest.param(20, 20_000, marks=pytest.mark.release)])
def test_kills_at_random(workers: Workers, monkeypatch: pytest.MonkeyPatch, number: int, draws: int) -> None:
    """In all phases, of either worker or both; no draw is lost or there twice."""
    monkeypatch.setattr(stretch, "SEGMENT", 0.05)
    monkeypatch.setattr(stretch, "SAVE", 0.2)
    monkeypatch.setattr(stretch, "STALLED", (1e9, 0.0))
    in_time = within(200.0)
    rng = np.random.default_rng(5)
    kills = 0

    def kill_some(progress: Progress) -> None:
        nonlocal kills
        in_time(progress)
        if rng.random() < 0.1 and kills < number and progress.phase != "compile":
            for pid in list(workers.pids())[: int(rng.integers(1, 3))]:
                os.kill(pid, signal.SIGKILL)
                kills += 1
            time.sleep(rng.uniform(0.0, 1.0))

    settings = {"draws": draws}
    found = run(kill_some, cluster=workers.address, **settings)
    assert kills >= number
    assert_same(found, run(**settings))
