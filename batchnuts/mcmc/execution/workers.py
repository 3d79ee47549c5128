"""Persistent workers: TensorFlow's first call in a thread takes longer than the next ones, and so does starting one.

concurrent.futures has such a pool, but at exit the process waits until all jobs of its threads are done, which may be
an abandoned run of hours. These are daemon threads.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

Job: TypeAlias = tuple[Future[None], Callable[[], None]]


class Workers:
    """`count` threads, which end when the object is collected."""

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        weakref.finalize(self, _dismiss, self._jobs, count)
        self._threads = [threading.Thread(target=_work, args=(self._jobs,), daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        self.started: list[Future[None]] = []
        """The jobs that were started since the last `wait`."""

    def start(self, job: Callable[[], None]) -> None:
        """Have one of them do it."""
        future: Future[None] = Future()
        self.started.append(future)  # first: an interruption waits for all jobs that may run
        self._jobs.put((future, partial(copy_context().run, job)))  # what is compiled there is kept as elsewhere

    def wait(self) -> None:
        """Wait until all jobs are done.

        Not where that would never happen: in one of the threads, and at exit, when they do not run any more.
        """
        if threading.current_thread() not in self._threads and not sys.is_finalizing():
            wait(self.started)
        self.started = []

    def map(self, function: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
        """What the function gives for each value, by these threads; raises what the first one raises that does."""
        given, results = list(values), {}

        def job(number: int) -> None:
            results[number] = function(given[number])

        for number in range(len(given)):
            self.start(partial(job, number))
        futures = self.started
        self.wait()
        for future in futures:
            future.result()
        return [results[number] for number in range(len(given))]


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (entry := jobs.get()) is not None:
        future, job = entry
        try:
            job()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        del entry, future, job  # they know of the object whose going ends this


def _dismiss(jobs: SimpleQueue[Job | None], count: int) -> None:
    for _ in range(count):
        jobs.put(None)
