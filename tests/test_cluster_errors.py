"""What ends or refuses a run on a cluster, and what is said of it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import distributed
import pytest
from cluster_in_process import IN_PROCESS, MODEL, WORKERS, Client, in_process, on_threads_once, refused, run
from mcmc_models import gaussian

from batchnuts.cli.config import ConfigError, config_of, named_again
from batchnuts.cluster import connect, machines, runner, session, stretch, tasks
from batchnuts.cluster.errors import ClusterError
from batchnuts.cluster.messages import StorePlan
from batchnuts.cluster.open_store import require_same_place
from batchnuts.cluster.region import make_token
from batchnuts.files.url import Url
from batchnuts.mcmc.checkpoint.saved_run import described
from batchnuts.mcmc.execution.program_cache import Programs, borrow
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.settings.cluster_settings import ClusterSettings
from batchnuts.mcmc.storage.draws import RunFailed
from batchnuts.mcmc.storage.place import LocalPlace
from batchnuts.mcmc.storage.progress import Progress
from batchnuts.process.signals import StopSignals
from batchnuts.settings.schema import SettingsError


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
    assert f"{cluster.scheduler_address} has 0 workers after 0.2 s, expected at least 1 worker" in said


class Failing(distributed.deploy.cluster.Cluster):
    """A cluster that does not start with these keywords."""

    def __init__(self, n_workers: str) -> None:
        raise TypeError(n_workers)

    def __del__(self, _warn: object = None) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("dask_cuda.nowhere.Cluster", "'dask_cuda.nowhere.Cluster', but dask_cuda.nowhere cannot be imported"),
        ("distributed.NoCluster", "but distributed has no 'NoCluster'"),
        ("distributed.Failing", "distributed.Failing could not be started with {'n_workers': 'two'}: TypeError: two"),
    ],
)
def test_a_class_that_starts_nothing(named: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "Failing", Failing, raising=False)
    assert said in refused(cluster={"class": named, "n_workers": "two"})


@pytest.mark.parametrize(
    "named", ["subprocess.Popen", "os.system", "mine.Cluster", "distributed_of_mine.SLURMCluster", "dask.delayed"]
)
def test_only_packages_of_clusters_are_imported(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect.importlib, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    with pytest.raises(SettingsError, match=rf"cluster.class: found '{named}'; expected local, or a class of dask_job"):
        run(cluster={"class": named, "args": ["true"]})


@pytest.mark.parametrize(
    ("named", "what"),
    [
        ("distributed.deploy.subprocess.logger", "of type Logger"),
        ("distributed.SSHCluster", "of type function"),
        ("distributed.Client", "the class Client"),
        ("distributed.SpecCluster", "the class SpecCluster"),
        ("distributed.deploy.cluster.Cluster", "the class Cluster"),
    ],
)
def test_only_clusters_are_called(named: str, what: str) -> None:
    """Of the packages' many objects; nor the general ones, whose keywords name what they call."""
    said = refused(cluster={"class": named, "scheduler": {"cls": "subprocess.Popen", "options": {"args": "true"}}})
    assert f"found '{named}', which is {what}; expected a subclass" in said
    assert "It was not called" in said


class StartedWorkers:
    """A client of local workers that have not come yet; code: with which one has ended."""

    def __init__(self, code: int | None) -> None:
        process = SimpleNamespace(returncode=code)
        self.scheduler = SimpleNamespace(address="tcp://127.0.0.1:1")
        self.cluster = SimpleNamespace(worker_spec={0: {}, 1: {}}, workers={0: SimpleNamespace(process=process)})
        self.asked = 0

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        self.asked += 1
        ready = {f"tcp://a:{n}": {"nthreads": 1, "status": "running"} for n in range(2 if self.asked > 8 else 1)}
        return {"workers": ready}


def test_local_workers_are_waited_for_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For as long as their processes are there; what is said helps."""
    now = iter(range(0, 100_000, 100))
    monkeypatch.setattr(connect, "time", SimpleNamespace(monotonic=lambda: next(now), sleep=lambda _: None))
    local = ClusterSettings.model_validate({"class": "local"})
    connect._wait_for_a_worker(StartedWorkers(None), local, StopSignals())  # type: ignore[arg-type]
    assert "waiting for a worker of local, 1 of 2 have started" in capsys.readouterr().err
    for code, said in ((1, "ended with exit code 1 before"), (-9, "was ended by SIGKILL before")):
        with pytest.raises(ClusterError, match=said):
            connect._wait_for_a_worker(StartedWorkers(code), local, StopSignals())  # type: ignore[arg-type]
    monkeypatch.setattr(connect, "STARTED", 150.0)
    with pytest.raises(ClusterError, match=r"1 of 2 local workers have started after 150 s: this machine is busy"):
        connect._wait_for_a_worker(StartedWorkers(None), local, StopSignals())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "warns"),
    [
        ("tcp://10.1.2.3:8786", True),
        ("tcp://scheduler.example:8786", True),
        ("tcp://[2001:db8::1]:8786", True),
        ("tcp://127.0.0.1:8786", False),
        ("tcp://127.8.0.1:8786", False),
        ("tcp://[::1]:8786", False),
        ("tcp://localhost:8786", False),
        ("tls://10.1.2.3:8786", False),
    ],
)
def test_an_open_scheduler_is_warned_of(
    address: str, warns: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = SimpleNamespace(scheduler=SimpleNamespace(address=address), close=lambda timeout: None)
    monkeypatch.setattr(distributed, "Client", lambda *_, **__: client)
    monkeypatch.setattr(connect, "_wait_for_a_worker", lambda *_: None)
    with connect.connected(ClusterSettings(address=address), StopSignals()):
        pass
    assert (f"{address} is neither encrypted nor protected" in capsys.readouterr().err) == warns


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
        r"Chains 4 to 5 cannot be run \(warmup\): several workers ended one after another while running it "
        r"\(out of memory\?\)\. .* lower execution.chunk_lanes",
        said,
    )


@pytest.mark.parametrize("fate", ["gone", "gone or paused"])
def test_workers_that_are_gone_for_long_end_the_run(
    fate: str, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    client = Client()
    monkeypatch.setattr(tasks, "WITHOUT_WORKERS", 0.1)
    monkeypatch.setattr(stretch, "LOOKS", 0.0)

    def leave(progress: Progress) -> None:
        if progress.phase == "sampling":
            client.threads = {} if fate == "gone" else {WORKERS[0]: 1}
            client.states[WORKERS[0]] = "paused"

    with in_process(client, monkeypatch, programs), pytest.raises(RunFailed) as failed:
        run(leave, **IN_PROCESS)
    assert isinstance(failed.value.cause, ClusterError)
    assert f"All workers are {fate}, and" in str(failed.value)
    assert failed.value.draws.done.any()


def test_workers_that_are_lost_are_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    client = Client()
    seen = tasks.Tasks(client, StopSignals())  # type: ignore[arg-type]
    seen.workers()
    assert capsys.readouterr().err == ""
    client.threads = {"tcp://b:1": 1, "tcp://c:1": 1, "tcp://d:1": 2}
    seen.workers()
    seen.workers()
    said = capsys.readouterr().err
    assert said.count("1 worker ended or cannot be reached (tcp://a:1): chains continue elsewhere") == 1
    assert "3 workers left." in said
    client.states["tcp://b:1"] = "paused"
    seen.workers()
    assert capsys.readouterr().err == ""  # it is there
    client.threads = {"tcp://e:1": 1}
    seen.workers()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "3 workers ended or cannot be reached (tcp://b:1, tcp://c:1, tcp://d:1)" in said


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


@pytest.mark.parametrize(
    ("cluster", "again"),
    [
        ({"class": "subprocess.Popen", "args": ["touch", "x"]}, '{"class": "subprocess.Popen"'),
        ({"class": "dask_jobqueue.SLURMCluster", "job_script_prologue": ["touch x"]}, '{"class": "dask_jobqueue.SLU'),
        ({"class": "local", "jobs": 100_000}, '{"class": "local", "jobs": 100000}'),
        ({"address": "tcp://10.0.0.1:8786"}, "tcp://10.0.0.1:8786"),
        ("tcp://10.0.0.1:8786", '"tcp://10.0.0.1:8786"'),
        (["no cluster"], '["no cluster"]'),
    ],
)
def test_a_cluster_in_the_file_of_a_run_has_to_be_named_again(cluster: Any, again: str) -> None:
    content = {"model": {"name": "eight_schools"}, "execution": {"cluster": cluster}}
    with pytest.raises(ConfigError, match="A file alone cannot start a cluster or connect to one") as caught:
        config_of(content, Path("run.nc"))
    assert f"execution.cluster={again}" in str(caught.value)
    assert named_again({"address": "tcp://a:1", "class": None, "jobs": None}) == "execution.cluster=tcp://a:1"
    named = config_of(content, Path("run.nc"), ["execution.cluster=tls://10.0.0.2:8786"]).execution.cluster
    assert named is not None
    assert named.address == "tls://10.0.0.2:8786"
    assert content["execution"]["cluster"] == cluster
    without = {"model": {"name": "eight_schools"}, "execution": {"cluster": None}}
    assert config_of(without, Path("run.nc")).execution.cluster is None


def test_without_dask_it_says_what_to_install(tmp_path: Path) -> None:
    program = tmp_path / "run.py"
    program.write_text(
        "import sys\n"
        "sys.modules['distributed'] = None\n"
        "import batchnuts\n"
        "model = batchnuts.Model.from_function(lambda x: -0.5 * x[0] ** 2, dimension=1)\n"
        "batchnuts.sample_chains(model, chains=4, warmup=20, draws=5, cluster='local', backend='native_numpy')\n"
    )
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "ClusterError: execution.cluster needs Dask's distributed scheduler, which is not installed" in ended.stderr
