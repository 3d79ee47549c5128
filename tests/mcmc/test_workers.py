"""Persistent workers: they do what they are given, outlive what goes wrong, and go with the object."""

from __future__ import annotations

import gc
import threading
from functools import partial

from batchnuts.mcmc.execution.workers import Workers

PATIENCE = 30.0
"""Seconds after which a test has failed that waits for a thread."""


def test_the_same_threads_do_all_jobs() -> None:
    workers = Workers(2)
    seen: list[int] = []
    for _ in range(3):
        both = threading.Barrier(2)

        def job(both: threading.Barrier = both) -> None:
            both.wait(PATIENCE)  # so each thread has one of them
            seen.append(threading.get_ident())

        workers.start(job)
        workers.start(job)
        workers.wait()
        assert not workers.started
    assert len(seen) == 6
    assert len(set(seen)) == 2
    assert threading.get_ident() not in seen


def test_waiting_is_for_all_that_was_started() -> None:
    workers, go_on, done = Workers(1), threading.Event(), []
    workers.start(lambda: done.append(go_on.wait(PATIENCE)))
    workers.start(lambda: done.append(True))
    threading.Timer(0.05, go_on.set).start()
    workers.wait()
    assert done == [True, True]


def test_a_job_that_fails_leaves_the_thread_at_work() -> None:
    workers, done = Workers(1), threading.Event()

    def fail() -> None:
        raise KeyboardInterrupt

    workers.start(fail)
    (failed,) = workers.started
    workers.start(done.set)
    workers.wait()
    assert isinstance(failed.exception(), KeyboardInterrupt)
    assert done.is_set()


def test_a_job_does_not_wait_for_itself() -> None:
    workers, done = Workers(1), threading.Event()

    def job() -> None:
        workers.wait()
        done.set()

    workers.start(job)
    assert done.wait(PATIENCE)


def test_threads_end_when_the_object_goes() -> None:
    workers = Workers(3)
    threads = workers._threads
    workers.start(partial(str, workers))  # the last job knew of it
    workers.wait()
    assert all(thread.is_alive() for thread in threads)
    del workers
    gc.collect()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
