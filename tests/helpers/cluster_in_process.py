"""Workers that are none: tasks of a cluster done in this process, some of them with accidents.

A worker has a session of its own. An accident loses what it has of its groups, as its death does, or a task's result,
whether the task was done or not.
"""

from __future__ import annotations

import copy
import functools
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mcmc_models import gaussian

from batchnuts.cluster import connect, segment, session
from batchnuts.cluster.errors import ClusterError
from batchnuts.cluster.execution import execution_of
from batchnuts.mcmc.execution.program_cache import Programs
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.progress import Progress

WORKERS = ("tcp://a:1", "tcp://b:1")


class Done:
    """A task that is done. fate: its status, or that its result never comes (unheard)."""

    def __init__(self, fate: str, result: Any) -> None:
        self.fate = fate
        self.status = "finished" if fate == "unheard" else fate
        self.cancelled = threading.Event()
        self._result = result

    def result(self) -> Any:
        if self.fate == "unheard":
            self.cancelled.wait()
            raise CancelledError
        return self._result

    def exception(self) -> Exception:
        return KilledWorker("task", "worker") if self.status == "error" else RuntimeError()

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        if self.status != "pending":
            call(self)


class KilledWorker(Exception):
    """Of the same name as Dask's."""


class Client:
    """Like Dask's. accidents: how likely one is at each segment."""

    def __init__(self, accidents: float = 0.0, seed: int = 0) -> None:
        self.accidents = accidents
        self.rng = np.random.default_rng(seed)
        self.status = "running"
        self.scheduler = SimpleNamespace(address="tcp://s:1")
        self.sessions: dict[str, session.Session] = {}
        self.current = WORKERS[0]
        self.threads = dict.fromkeys(WORKERS, 1)
        self.states: dict[str, str] = {}
        """Of workers that take no tasks: paused, say."""
        self.lost = 0
        self.cancelled: list[Done] = []
        self.came = 0
        """Workers that have come since the beginning."""
        self.fails: Callable[[Any], str | None] = lambda order: None
        """Gives the fate of a task without a result; pending: its worker hangs, or has died. One that is cancelled or
        unheard was done."""
        self.compiling: Callable[[], str | None] = lambda: None
        """Likewise, of a worker that compiles."""

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        return {
            "workers": {
                a: {"nthreads": count, "status": self.states.get(a, "running")} for a, count in self.threads.items()
            }
        }

    def get_versions(self) -> dict[str, Any]:
        return {"workers": {}}

    def run(self, function: Any, *arguments: Any) -> dict[str, Any]:
        return {address: function(*arguments) for address in self.threads}

    def register_plugin(self, plugin: Any) -> None:
        plugin.setup(SimpleNamespace(address=WORKERS[0], state=SimpleNamespace(nthreads=1)))

    def unregister_worker_plugin(self, name: str) -> None:
        pass

    def cancel(self, futures: Any) -> None:
        self.cancelled += futures
        for future in futures:
            future.cancelled.set()

    def submit(self, function: Any, *arguments: Any, workers: Any = None, **options: Any) -> Done:
        self.current = workers[0] if workers else WORKERS[0]
        if function is segment.prepare and (status := self.compiling()):
            return Done(status, None)
        if function is segment.advance:
            if status := self.fails(arguments[0]):
                if status in ("cancelled", "unheard"):
                    function(*arguments)
                return Done(status, None)
            if self.rng.random() < self.accidents:
                self.lost += 1
                if (fate := self.rng.random()) < 0.3:
                    if fate < 0.15:
                        function(*arguments)  # and nobody learns of it
                    return Done("cancelled", None)
                self.session_of(arguments[0].run).live.clear()
                self.current = WORKERS[1 - WORKERS.index(self.current)]
        return Done("finished", function(*arguments))

    def session_of(self, run: str) -> session.Session:
        if self.current not in self.sessions or self.sessions[self.current].plan.run != run:
            own = copy.copy(session.session_of(run))
            own.live, own.address = {}, self.current
            self.sessions[self.current] = own
        return self.sessions[self.current]


@contextmanager
def in_process(client: Client, patch: pytest.MonkeyPatch, programs: Programs) -> Iterator[None]:
    """Within, `execution.cluster` is this client; programs: of a run on threads, which need not be compiled again."""

    @contextmanager
    def connected(*_: Any) -> Iterator[Client]:
        yield client

    patch.setattr(connect, "connected", connected)
    patch.setattr(segment, "session_of", client.session_of)
    patch.setattr(session, "ChainMachine", lambda *_: programs.runner.machine)
    for compiles in ("chain_program", "lane_program"):
        patch.setattr(session, compiles, lambda *_: None)
    patch.setattr(session, "borrow", lambda *_: programs)
    yield


# ---- runs ------------------------------------------------------------------------------------------------------------

MODEL = gaussian(5)
SETTINGS: dict[str, Any] = {
    "chains": 8,
    "warmup": {"transitions": "auto", "maximum": 100},
    "draws": 80,
    "seed": 3,
    "backend": "jax",
    "chunk_lanes": 2,
}


IN_PROCESS = {"cluster": "tcp://s:1"}


def run(progress: Callable[[Progress], None] | None = None, *, how: Any = None, **settings: Any) -> Draws:
    return run_chains(MODEL, *split_settings(SETTINGS | settings), progress, where=execution_of, **(how or {}))


@functools.cache
def on_threads_once() -> tuple[Draws, Programs]:
    """A run without a cluster, and its programs, which others use again."""
    draws = run()
    (programs,) = (each for key, each in MODEL.cache.programs.items() if ("metric", "diag") in key)
    return draws, programs


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


def within(seconds: float) -> Callable[[Progress], None]:
    """Fails a run that takes longer: without an end, say."""
    began = time.monotonic()

    def progress(_: Progress) -> None:
        assert time.monotonic() - began < seconds, "chains do not go on"

    return progress


def refused(progress: Callable[[Progress], None] | None = None, **settings: Any) -> str:
    with pytest.raises(ClusterError) as caught:
        run(progress, **settings)
    return str(caught.value)
