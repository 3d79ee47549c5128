"""Fits on several processes: a queue of data sets, of which each process takes the next as soon as it is free.

Processes live as long as the run; each prepares the model once. A process that dies (killed for memory, say) takes
several fits with it: those are tried again one at a time, and the one with which it dies again has failed.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from batchnuts.many.data_sets import DataSet
from batchnuts.many.fit import Fit, FitSettings, Fitter, Row, seed_of

BATCH_SECONDS, MOST_IN_BATCH = 0.5, 64
"""How long a process works between two returns, and the most fits that it makes meanwhile."""

AHEAD = 2
"""Batches for each process that are under way or wait for it: data sets are read no sooner."""

ENVIRONMENT = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Of each process, which uses one core."""


Submit = Callable[..., Future[Any]]
"""Calls a function with its arguments somewhere."""


def fits_here(settings: FitSettings, data_sets: Iterable[DataSet]) -> Iterator[Fit]:
    """The fits in order, in this process."""
    fitter = Fitter(settings)
    for data_set in data_sets:
        yield fitter.fit(data_set)


def fits_on_processes(settings: FitSettings, data_sets: Iterable[DataSet], processes: int) -> Iterator[Fit]:
    """The fits as they end, on processes of this machine."""
    import cloudpickle
    from loky import get_reusable_executor

    with _file_of(cloudpickle.dumps(settings)) as path:

        def submit(batch: Sequence[DataSet]) -> Future[Any]:
            future: Future[Any]
            try:
                future = pool().submit(_fits_of_file, path, batch)
            except (BrokenProcessPool, RuntimeError):  # one has died since: others take their places
                future = pool().submit(_fits_of_file, path, batch)
            return future

        def pool() -> Any:
            return get_reusable_executor(max_workers=processes, timeout=60, env=ENVIRONMENT)

        try:
            yield from _Queue(settings, iter(data_sets), submit, processes).fits()
        except BaseException:  # nobody wants the fits that are under way
            pool().shutdown(wait=True, kill_workers=True)
            raise


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """A temporary file with that content, which processes of this machine read."""
    with tempfile.TemporaryDirectory(prefix="batchnuts-") as folder:
        path = os.path.join(folder, "settings")
        with open(path, "wb") as file:
            file.write(content)
        yield path


_fitters: dict[str, Fitter] = {}
"""The fitter of this process, by the file of its settings: that of the last run alone."""
_making = threading.Lock()


def _fits_of_file(path: str, data_sets: Sequence[DataSet]) -> list[Fit]:
    """The fits of some data sets, in a process of its own."""
    with _making:
        if path not in _fitters:
            import cloudpickle

            _fitters.clear()
            with open(path, "rb") as file:
                _fitters[path] = Fitter(cloudpickle.load(file))
        fitter = _fitters[path]
        return [fitter.fit(data_set) for data_set in data_sets]


@dataclass
class _Queue:
    """What is under way, and what waits."""

    settings: FitSettings
    left: Iterator[DataSet]
    submit: Submit
    processes: int
    under_way: dict[Future[Any], Sequence[DataSet]] = field(default_factory=dict)
    suspects: deque[DataSet] = field(default_factory=deque)
    """Fits that were under way when a process died: they are made one at a time."""
    seconds: float = 0.0
    """What the last fits took, on average."""
    exhausted: bool = False
    lost: set[int] = field(default_factory=set)
    """The numbers of fits that were under way when a process died."""

    def fits(self) -> Iterator[Fit]:
        """All fits as they end."""
        try:
            while True:
                self._fill()
                if not self.under_way:
                    return
                ended, _ = wait(self.under_way, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield from self._taken(future, self.under_way.pop(future, ()))
        finally:
            for future in self.under_way:
                future.cancel()

    def _fill(self) -> None:
        """Let processes have enough to do; a suspect alone."""
        if self.suspects:
            if not self.under_way:
                batch = [self.suspects.popleft()]
                self.under_way[self.submit(batch)] = batch
            return
        while not self.exhausted and len(self.under_way) < AHEAD * self.processes:
            most = 1 if not self.seconds else max(1, min(MOST_IN_BATCH, int(BATCH_SECONDS / self.seconds)))
            batch = []
            for data_set in self.left:
                batch.append(data_set)
                if len(batch) == most:
                    break
            else:
                self.exhausted = True
            if batch:
                self.under_way[self.submit(batch)] = batch

    def _taken(self, future: Future[Any], batch: Sequence[DataSet]) -> Iterator[Fit]:
        try:
            fits: list[Fit] = future.result()
        except Exception as error:
            if not _has_died(error):
                raise
            (first, *_), alone = batch, len(batch) == 1 and not self.under_way
            if alone and first.number in self.lost:
                yield self._failed(first, error)
                return
            self.lost |= {data_set.number for data_set in batch}
            self.suspects.extend(batch)
            return
        if fits:
            self.seconds = sum(fit.row.seconds for fit in fits) / len(fits)
        yield from fits

    def _failed(self, data_set: DataSet, error: Exception) -> Fit:
        number = data_set.number
        why = f"its process has died twice (out of memory?): {str(error).partition(chr(10))[0]}"
        seed = seed_of(self.settings.sampler.seed, number)
        return Fit(number, Row(data_set.label, seed, failed=why, digest=data_set.digest))


def _has_died(error: Exception) -> bool:
    """Whether a process has died, of this machine or of a cluster."""
    return isinstance(error, BrokenProcessPool) or type(error).__name__ in ("KilledWorker", "CancelledError")


# ---- on a cluster ----------------------------------------------------------------------------------------------------


def fits_on_cluster(settings: FitSettings, data_sets: Iterable[DataSet], client: Any) -> Iterator[Fit]:
    """The fits as they end, on the workers of a Dask cluster. client: its `distributed.Client`."""
    import cloudpickle

    content = cloudpickle.dumps(settings)
    name = f"batchnuts-{time.time_ns():x}"
    (scattered,) = client.scatter([content], broadcast=True, hash=False)
    executor = client.get_executor(pure=False, retries=0)
    threads = sum(client.nthreads().values())

    def submit(batch: Sequence[DataSet]) -> Future[Any]:
        future: Future[Any] = executor.submit(_fits_of_content, name, scattered, cloudpickle.dumps(list(batch)))
        return future

    try:
        yield from _Queue(settings, iter(data_sets), submit, max(1, threads)).fits()
    finally:
        with suppress(Exception):
            executor.shutdown(wait=False)


_of_threads = threading.local()
"""The fitter of each thread of a Dask worker, with the name of its run."""


def _fits_of_content(name: str, content: bytes, data_sets: bytes) -> list[Fit]:
    import cloudpickle

    if getattr(_of_threads, "name", None) != name:
        _of_threads.fitter, _of_threads.name = Fitter(cloudpickle.loads(content)), name
    fitter: Fitter = _of_threads.fitter
    return [fitter.fit(data_set) for data_set in cloudpickle.loads(data_sets)]
