"""What ends or refuses a run on a cluster, and what is said of it."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import distributed
import pytest
from cluster_in_process import IN_PROCESS, MODEL, WORKERS, Client, in_process, on_threads_once, refused, run
from mcmc_models import gaussian

from batchnuts.mcmc.checkpoint.saved_run import described
from batchnuts.mcmc.cluster import connect, machines, runner, running_stretch, session, tasks
from batchnuts.mcmc.cluster.errors import ClusterError
from batchnuts.mcmc.cluster.messages import StorePlan
from batchnuts.mcmc.cluster.open_store import require_same_place
from batchnuts.mcmc.cluster.region import make_token
from batchnuts.mcmc.content import Content
from batchnuts.mcmc.draws import Progress
from batchnuts.mcmc.execution.program_cache import Programs, borrow
from batchnuts.mcmc.model import Model
from batchnuts.mcmc.storage.place import LocalPlace
from batchnuts.mcmc.url import Url


@pytest.fixture(scope="module")
def programs() -> Programs:
    return on_threads_once()[1]


def test_a_scheduler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "REACHED", 0.5)
    said = refused(cluster="tcp://127.0.0.1:1")
    assert "no Dask scheduler answers at tcp://127.0.0.1:1 within 0.5 s" in said
    assert "dask scheduler" in said


def test_a_scheduler_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "NO_WORKER", 0.2)
    here = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    with distributed.SpecCluster(scheduler={"cls": distributed.Scheduler, "options": here}) as cluster:
        said = refused(cluster=cluster.scheduler_address)
    assert f"{cluster.scheduler_address} has 0 workers after 0.2 s, expected 1 worker at least" in said


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("nowhere.Cluster", "execution.cluster.class: found 'nowhere.Cluster', but nowhere cannot be imported"),
        ("distributed.NoCluster", "but distributed has no 'NoCluster'"),
        ("datetime.date", "datetime.date could not be started with {'n_workers': 'two'}: TypeError"),
    ],
)
def test_a_class_that_starts_nothing(named: str, said: str) -> None:
    assert said in refused(cluster={"class": named, "n_workers": "two"})


def test_without_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "find_spec", lambda name: None)
    assert "pip install 'batchnuts[dask]'" in refused(cluster="local")


def test_machines_that_differ_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, programs: Programs) -> None:
    client = Client()
    here = machines.versions_of("jax")
    monkeypatch.setattr(machines, "versions_of", lambda backend: here | {"numpy": "1.0", "batchnuts": "9.9"})
    monkeypatch.setattr(runner, "versions_of", machines.versions_of)
    with in_process(client, monkeypatch, programs):
        lines = refused(**IN_PROCESS).splitlines()
    assert lines[0].startswith("Workers differ from this machine")
    assert lines[1:] == [
        f"batchnuts: 9.9 here, {here['batchnuts']} on tcp://a:1 and 1 more",
        f"numpy: 1.0 here, {here['numpy']} on tcp://a:1 and 1 more",
    ]


@pytest.mark.parametrize("part", ["model", "density"])
def test_another_model_on_a_worker_is_refused(part: str, monkeypatch: pytest.MonkeyPatch, programs: Programs) -> None:
    """Of another version of a user's package, say."""
    client, other = Client(), gaussian(5, covariance="ar1", correlation=0.3 if part == "density" else 0.5)
    if part == "model":
        other = replace(other, name="other")
    content = machines.pickled(other)
    monkeypatch.setattr(runner, "pickled", lambda model: content)
    if part == "density":
        monkeypatch.setattr(session, "described", lambda model: described(MODEL))
    with in_process(client, monkeypatch, programs):
        monkeypatch.setattr(session, "borrow", borrow)
        said = refused(**IN_PROCESS)
    assert "other name" in said if part == "model" else "its log-density has other values on tcp://a:1" in said


def test_chains_of_which_workers_die_end_the_run(monkeypatch: pytest.MonkeyPatch, programs: Programs) -> None:
    client = Client()
    client.fails = lambda order: "error" if order.first == 4 else None
    with in_process(client, monkeypatch, programs):
        said = refused(**IN_PROCESS)
    assert re.match(
        r"Chains 4 to 5 cannot be run \(warmup\): several workers have ended one after another while they did it "
        r"\(out of memory\?\)\. .* lower execution.chunk_lanes",
        said,
    )


@pytest.mark.parametrize("fate", ["gone", "gone or paused"])
def test_workers_that_are_gone_for_long_end_the_run(
    fate: str, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    client = Client()
    monkeypatch.setattr(tasks, "WITHOUT_WORKERS", 0.1)
    monkeypatch.setattr(running_stretch, "LOOKS", 0.0)

    def leave(progress: Progress) -> None:
        if progress.phase == "sampling":
            client.threads = {} if fate == "gone" else {WORKERS[0]: 1}
            client.states[WORKERS[0]] = "paused"

    with in_process(client, monkeypatch, programs), pytest.raises(ClusterError, match=f"All workers are {fate}, and"):
        run(leave, **IN_PROCESS)


def test_a_model_that_cannot_be_sent() -> None:
    lock = threading.Lock()
    model = Model.from_function(lambda q: -0.5 * (q * q).sum() if lock else q, dimension=2, name="locked")
    with pytest.raises(ClusterError, match="Model 'locked' cannot be sent to other processes"):
        machines.pickled(model)


@pytest.mark.parametrize("text", ["memory://of this process/run.zarr", "xyz://host/run.zarr"])
def test_a_url_that_workers_do_not_see(tmp_path: Path, text: str) -> None:
    plan = StorePlan(Url(text), "token", tmp_path, {}, Content(), 10, 5, 100, 0)
    said = "it finds another store there, or none" if text.startswith("memory") else "the protocol 'xyz' is unknown"
    with pytest.raises(ClusterError, match=f"A worker cannot use {text}: .*{said}.*must reach that URL"):
        require_same_place(plan)


def test_a_store_that_workers_do_not_see(tmp_path: Path) -> None:
    plan = StorePlan(tmp_path / "run.zarr", "token", tmp_path, {}, Content(), 10, 5, 100, 0)
    with pytest.raises(ClusterError, match=r"A worker cannot see .*run.zarr: .* output.format: netcdf"):
        require_same_place(plan)
    make_token(LocalPlace(tmp_path / "run.zarr"), "token")
    require_same_place(plan)
