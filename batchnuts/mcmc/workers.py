"""Threads that stay: TensorFlow's first call in a thread takes longer than the next ones, and so does starting one.

concurrent.futures has such a pool, but a process that ends waits until all that its threads were given is done: here a
run of hours that somebody left. These are daemons.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeAlias

Job: TypeAlias = tuple[Future[None], Callable[[], None]]


class Workers:
    """`count` threads, which end when the object goes."""

    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        for _ in range(count):
            threading.Thread(target=_work, args=(self._jobs,), daemon=True).start()
        weakref.finalize(self, _dismiss, self._jobs, count)

    def start(self, job: Callable[[], None]) -> Future[None]:
        """Have one of them do it; the future is done when it is."""
        future: Future[None] = Future()
        self._jobs.put((future, job))
        return future


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (given := jobs.get()) is not None:
        future, job = given
        try:
            job()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        del given, future, job  # they know of the object whose going ends this


def _dismiss(jobs: SimpleQueue[Job | None], count: int) -> None:
    for _ in range(count):
        jobs.put(None)
