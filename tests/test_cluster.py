"""Runs on a cluster: the same draws as on threads, whatever happens to its workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from mcmc_models import gaussian

from batchnuts.mcmc.cluster import under_way
from batchnuts.mcmc.cluster.connect import connected, workers_of
from batchnuts.mcmc.draws import Draws, Progress
from batchnuts.mcmc.sampling import run_chains
from batchnuts.mcmc.settings import ClusterSettings, split_settings
from batchnuts.stopping import StopSignals

MODEL = gaussian(5)
SETTINGS: dict[str, Any] = {
    "chains": 16,
    "warmup": {"transitions": "auto", "maximum": 300},
    "draws": 2000,
    "seed": 3,
    "backend": "jax",
    "chunk_lanes": 2,
}


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


def run(progress: Callable[[Progress], None] | None = None, **settings: Any) -> Draws:
    return run_chains(MODEL, *split_settings(SETTINGS | settings), progress)


@pytest.fixture(scope="module")
def on_threads() -> Draws:
    return run()


def assert_same(one: Draws, other: Draws) -> None:
    """Bit for bit."""
    np.testing.assert_array_equal(one.done, other.done)
    n = one.complete
    np.testing.assert_array_equal(one.position[:, :n], other.position[:, :n])
    for name, array in one.stats.items():
        np.testing.assert_array_equal(array[:, :n], other.stats[name][:, :n], err_msg=name)
    np.testing.assert_array_equal(one.step_size, other.step_size)
    np.testing.assert_array_equal(one.metric.inverse_mass, other.metric.inverse_mass)
    assert one.warmup == other.warmup


def test_two_workers_draw_what_threads_draw(workers: Workers, on_threads: Draws) -> None:
    reports: list[Progress] = []
    found = run(reports.append, cluster=workers.address)
    assert_same(found, on_threads)
    assert found.arrangement.chunks == 8
    assert {one.phase for one in reports} == {"compile", "warmup", "sampling"}
    assert reports[-1].done == reports[-1].total == 16 * 2000


def test_a_worker_that_is_killed_costs_no_draw(
    workers: Workers, on_threads: Draws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none is there twice: half of the groups go on from their last state on the other worker."""
    monkeypatch.setattr(under_way, "SEGMENT", 0.02)
    monkeypatch.setattr(under_way, "SAVE", 0.05)
    killed = []

    def kill_once(progress: Progress) -> None:
        if progress.phase == "sampling" and progress.slowest > 100 and not killed:
            killed.append(progress.slowest)
            workers.kill(0)

    assert_same(run(kill_once, cluster=workers.address), on_threads)
    assert killed


@pytest.mark.slow
def test_twenty_kills_at_random(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all phases, of either worker or both; no draw is lost or there twice."""
    monkeypatch.setattr(under_way, "SEGMENT", 0.05)
    monkeypatch.setattr(under_way, "SAVE", 0.2)
    rng = np.random.default_rng(5)
    kills = 0

    def kill_some(progress: Progress) -> None:
        nonlocal kills
        if rng.random() < 0.1 and kills < 20 and progress.phase != "compile":
            for pid in list(workers.pids())[: int(rng.integers(1, 3))]:
                os.kill(pid, signal.SIGKILL)
                kills += 1
            time.sleep(rng.uniform(0.0, 1.0))

    settings = {"draws": 20_000}
    found = run(kill_some, cluster=workers.address, **settings)
    assert kills >= 20
    assert_same(found, run(**settings))
