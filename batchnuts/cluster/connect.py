"""A client of the cluster that the settings name, and the end of what was started for it."""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from batchnuts.autobatch.machine import processors
from batchnuts.cluster.errors import ClusterError
from batchnuts.mcmc.settings.cluster_settings import LOCAL, ClusterSettings
from batchnuts.process.signals import StopSignals, say
from batchnuts.settings.schema import in_words

if TYPE_CHECKING:
    from distributed import Client

REACHED = 20.0
"""Seconds within which a scheduler must answer."""

STARTED = 900.0
"""Seconds within which local workers must have started: on a busy machine each may import its libraries for minutes."""

WAITING = 30.0
"""Seconds after which a line says that no worker is there yet: a batch system may take hours to start a job."""

NO_WORKER = 120.0
"""Seconds that are waited for a worker of a scheduler that was running before."""

COMES_BACK = "600s"
"""For so long a local worker that has died may take to start again."""

LOCAL_THREADS = 4
"""Threads of a local worker, on a machine with many cores: they share compiled programs."""


def require_dask() -> None:
    """Raise ClusterError unless it is installed."""
    if find_spec("distributed") is None:
        raise ClusterError(
            "execution.cluster needs Dask's distributed scheduler, which is not installed; install it (pip install "
            "'batchnuts[dask]'), or set execution.cluster: null, which runs chains on threads of this process."
        )


@contextmanager
def connected(settings: ClusterSettings, stop: StopSignals) -> Iterator[Client]:
    """A client of the cluster, with one worker at least; what was started for it ends with it.

    Raises ClusterError where it cannot be reached or started, or no worker comes.
    """
    require_dask()
    import dask
    import distributed

    with _quiet(), dask.config.set({"distributed.deploy.lost-worker-timeout": COMES_BACK}), ExitStack() as ending:
        if settings.address is not None:
            target: Any = settings.address
        else:
            target = _started(settings)
            ending.callback(_close, target)
        try:
            client = distributed.Client(target, timeout=REACHED, set_as_default=False)
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise ClusterError(
                f"execution.cluster: no Dask scheduler answers at {settings.address or settings.class_} within "
                f"{REACHED:g} s ({_reason(error)}). Start one (dask scheduler) and workers (dask worker "
                "tcp://HOST:PORT), and give the address that it prints."
            ) from error
        ending.callback(_close, client)
        _warn_if_open(client.scheduler.address)
        _wait_for_a_worker(client, settings, stop)
        yield client


def workers_of(client: Client) -> dict[str, int]:
    """By address: of each worker that is there, the number of threads for which it takes tasks.

    That is 0 for one that is paused, since it is short of memory, or about to end: it goes on with those that it has.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return {address: int(info["nthreads"]) if info["status"] == "running" else 0 for address, info in workers.items()}


def ready_workers(client: Client) -> list[str]:
    """The addresses of those that take tasks, in order."""
    return sorted(address for address, threads in workers_of(client).items() if threads)


@contextmanager
def _quiet() -> Iterator[None]:
    """Dask logs the death of a worker, which runs outlive, with tracebacks; here only what ends a run is said."""
    logger = logging.getLogger("distributed")
    previous = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(previous)


def _started(settings: ClusterSettings) -> Any:
    if settings.class_ == LOCAL:
        return _local(settings)
    assert settings.class_ is not None, "checked with the settings"
    module, _, name = settings.class_.rpartition(".")
    try:
        cluster_class = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ClusterError(
            f"execution.cluster.class: found {settings.class_!r}, but {module} cannot be imported ({error}); install "
            "the package that has it."
        ) from error
    except AttributeError:
        raise ClusterError(
            f"execution.cluster.class: found {settings.class_!r}, but {module} has no {name!r}."
        ) from None
    _require_cluster(cluster_class, settings.class_)
    try:
        cluster = cluster_class(**settings.keywords)
        if settings.jobs is not None:
            cluster.scale(settings.jobs) if not _has_jobs(cluster_class) else cluster.scale(jobs=settings.jobs)
    except Exception as error:
        raise ClusterError(
            f"execution.cluster: {settings.class_} could not be started with {settings.keywords or 'no keywords'}: "
            f"{type(error).__name__}: {_reason(error)}."
        ) from error
    return cluster


def _require_cluster(cluster_class: Any, name: str) -> None:
    """Raise ClusterError unless it is a class that starts workers: nothing else is called, whatever a config names.

    Nor are the general classes, whose keywords name further ones that they call.
    """
    from distributed import SpecCluster
    from distributed.deploy.cluster import Cluster

    if not (isinstance(cluster_class, type) and issubclass(cluster_class, Cluster)) or cluster_class in (
        Cluster,
        SpecCluster,
    ):
        description = (
            f"the class {cluster_class.__name__}"
            if isinstance(cluster_class, type)
            else f"of type {type(cluster_class).__name__}"
        )
        raise ClusterError(
            f"execution.cluster.class: found {name!r}, which is {description}; expected a subclass of distributed's "
            "Cluster that starts workers, such as dask_jobqueue.SLURMCluster or distributed.LocalCluster. It was not "
            "called."
        )


def _warn_if_open(address: str) -> None:
    """Where the scheduler's address can be reached from other machines without a certificate."""
    scheme, _, place = address.partition("://")
    host = place.rpartition(":")[0].strip("[]")
    if scheme == "tcp" and host != "localhost" and not _is_loopback(host):
        say(
            f"warning: {address} is neither encrypted nor protected: whoever reaches the scheduler or a worker can run "
            "any code there and in this process. Use it in a network that you trust, or tls:// (docs/clusters.md)."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:  # a name
        return False


def _has_jobs(cluster_class: Any) -> bool:
    """Whether it counts jobs of a batch system, of which each may have several workers."""
    return any(kind.__name__ == "JobQueueCluster" for kind in getattr(cluster_class, "__mro__", ()))


def _local(settings: ClusterSettings) -> Any:
    """Worker processes of this machine, each a new interpreter: nothing of the user's script runs in them."""
    import distributed
    from distributed.deploy.subprocess import SubprocessWorker

    class LocalWorker(SubprocessWorker):  # type: ignore[misc]
        """In a session of its own: Ctrl-C at the terminal ends the run, which needs its workers for the rest."""

        async def _start(self) -> None:
            spec = {"cls": self.worker_class, "opts": self.worker_kwargs}
            command = [sys.executable, "-m", "dask", "spec", self.scheduler, "--spec", json.dumps(spec)]
            # what workers log at their deaths is said by the run; a worker's own output goes where the run's goes
            self.process = await asyncio.create_subprocess_exec(
                *command, start_new_session=True, env={**os.environ, "DASK_LOGGING__DISTRIBUTED": "critical"}
            )

        async def close(self) -> None:
            if self.process is not None and self.process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)  # with the process that it watches, at once
                await self.process.wait()
            await super().close()  # nothing is left for it to kill

    cores = processors()
    jobs = settings.jobs or min(cores, max(2, -(-cores // LOCAL_THREADS)))
    keywords = {"nthreads": max(1, cores // jobs) if settings.jobs is None else 1, "dashboard": False}
    configured = settings.keywords
    if "threads_per_worker" in configured:
        keywords["nthreads"] = configured["threads_per_worker"]
    if "memory_limit" in configured:
        keywords["memory_limit"] = configured["memory_limit"]
    scheduler_options = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    scheduler = {"cls": distributed.Scheduler, "options": scheduler_options}
    workers = {
        number: {"cls": LocalWorker, "options": {"worker_kwargs": {**keywords, "name": str(number)}}}
        for number in range(jobs)
    }
    return distributed.SpecCluster(scheduler=scheduler, workers=workers, silence_logs=False)


def _wait_for_a_worker(client: Client, settings: ClusterSettings, stop: StopSignals) -> None:
    """Wait until there is one worker, or, of local ones, all of them."""
    expected = len(client.cluster.worker_spec) if settings.class_ == LOCAL else 1
    limit = NO_WORKER if settings.class_ is None else None
    began, announced = time.monotonic(), False
    while len(ready_workers(client)) < expected:
        stop.check()
        waited = time.monotonic() - began
        if settings.class_ == LOCAL:
            _require_local_workers(client, expected, waited)
        elif limit is not None and waited > limit:
            ready = len(ready_workers(client))
            raise ClusterError(
                f"execution.cluster: the Dask scheduler {client.scheduler.address} has {in_words(ready, 'worker')} "
                f"after {limit:g} s, expected at least {in_words(expected, 'worker')}. Start some: dask worker "
                f"{client.scheduler.address}"
            )
        if not announced and waited > WAITING:
            progress = f", {len(ready_workers(client))} of {expected} have started" if settings.class_ == LOCAL else ""
            say(f"waiting for a worker of {settings.class_ or settings.address}{progress} ...")
            announced = True
        time.sleep(0.05)


def _require_local_workers(client: Client, expected: int, waited: float) -> None:
    """Raise ClusterError where one of this machine's worker processes has ended, or they take far too long."""
    processes = (getattr(worker, "process", None) for worker in client.cluster.workers.values())
    codes = [process.returncode for process in processes if process is not None and process.returncode is not None]
    if codes:
        cause = f"was ended by {signal.Signals(-codes[0]).name}" if codes[0] < 0 else f"ended with exit code {codes[0]}"
        raise ClusterError(
            f"execution.cluster: a local worker process {cause} before it was ready; what it printed is "
            "above. If memory is short, ask for fewer (execution.cluster={class: local, jobs: 1}); "
            "execution.cluster=null runs chains on threads of this process."
        )
    if waited > STARTED:
        raise ClusterError(
            f"execution.cluster: {len(ready_workers(client))} of {expected} local workers have started after "
            f"{STARTED:g} s: this machine is busy, or short of memory. Try again when it is not, ask for fewer "
            "(execution.cluster={class: local, jobs: 1}), or set execution.cluster=null, which runs chains on threads "
            "of this process."
        )


def _close(resource: Any) -> None:
    with suppress(Exception):  # it may be gone
        resource.close(timeout=5.0)


def _reason(error: BaseException) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__
