"""Tasks on a cluster, and their results as they come."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from batchnuts.cluster.connect import workers_of
from batchnuts.cluster.errors import ClusterError, Failure
from batchnuts.mcmc.model.check_model import UnboundedDensityError
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.storage.progress import RunPhase
from batchnuts.process.signals import StopSignals, say
from batchnuts.settings.schema import in_words

if TYPE_CHECKING:
    from distributed import Client, Future

WITHOUT_WORKERS = 120.0
"""Seconds for which a run waits for a worker to come back."""

DEAD = "several workers ended one after another while running it (out of memory?)"
"""What is said of a task of which workers have died."""


class Outcome(NamedTuple):
    """The end of a task."""

    future: Future
    done: bool
    """Whether it was done, and its result is here."""
    result: Any = None
    error: BaseException | None = None
    """Why a result could not be fetched."""


class Tasks:
    """The tasks of one run on a Dask cluster, and their results."""

    def __init__(self, client: Client, stop: StopSignals) -> None:
        self.client = client
        self.stop = stop
        self.outcomes: queue.SimpleQueue[tuple[Any, Outcome]] = queue.SimpleQueue()
        """Outcomes, each with the name of its task."""
        self.lonely: float | None = None
        """The time since which there has been no worker."""
        self.present: set[str] = set()
        """The workers that there were at the last look."""

    def workers(self) -> dict[str, int]:
        """The workers, as `workers_of` gives them; says which are gone since it was last called.

        Raises ClusterError where none has taken tasks for long, or the scheduler is gone.
        """
        if self.client.status not in ("running", "connecting"):
            raise ClusterError(
                "The connection to the Dask scheduler is lost: it has ended, or its machine cannot be reached."
            )
        threads = workers_of(self.client)
        self._say_gone(threads)
        self.lonely = None if any(threads.values()) else self.lonely or time.monotonic()
        if self.lonely is not None and time.monotonic() - self.lonely > WITHOUT_WORKERS:
            raise ClusterError(
                f"All workers are gone{' or paused' * bool(threads)}, and none has come back within "
                f"{WITHOUT_WORKERS:g} s: they were ended, ran out of memory, or reached the time limit of their jobs."
            )
        return threads

    def _say_gone(self, present: Mapping[str, int]) -> None:
        """Say once of each worker that it is gone: its draws are made elsewhere, and lost time has a reason."""
        gone, self.present = sorted(self.present - present.keys()), set(present)
        if gone:
            listing = ", ".join(gone[:3]) + (f" and {len(gone) - 3} more" if len(gone) > 3 else "")
            say(
                f"{in_words(len(gone), 'worker')} ended or cannot be reached ({listing}): chains continue elsewhere "
                f"from their last state, and no draws are lost. {in_words(len(present), 'worker')} left."
            )

    def give(self, name: Any, function: Callable[..., Any], *arguments: Any, worker: str | None = None) -> Future:
        """Have a task done by that worker, or by any; its outcome comes by its name.

        What was given to a worker that is gone or paused has no outcome until it is cancelled: Dask keeps it, in case
        that one comes back. So it does with a result that was lost with its worker.
        """
        placement = {} if worker is None else {"workers": [worker]}
        future = self.client.submit(function, *arguments, pure=False, **placement)
        future.add_done_callback(lambda ended: self._queue_outcome(name, ended))
        return future

    def _queue_outcome(self, name: Any, ended: Future) -> None:
        """Queue an outcome once its result is here: that may take long, and meanwhile the run looks after others."""
        if ended.status != "finished":
            self.outcomes.put((name, Outcome(ended, False)))
            return

        def fetch() -> None:
            try:
                outcome = Outcome(ended, True, ended.result())
            except BaseException as error:  # cancelled, which is none of Exception's, say
                outcome = Outcome(ended, False, error=error)
            self.outcomes.put((name, outcome))

        threading.Thread(target=fetch, daemon=True).start()

    def cancel(self, futures: Sequence[Future]) -> None:
        """Cancel tasks for which nobody waits. One that a worker is at is not ended."""
        if futures:
            self.client.cancel(futures)

    def next(self, seconds: float) -> tuple[Any, Outcome] | None:
        """The next outcome, if one comes within so many seconds."""
        try:
            return self.outcomes.get(timeout=seconds)
        except queue.Empty:
            return None

    def all(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], model: Model) -> list[Any]:
        """The results of one function for several arguments, in order. Raises what a task has failed with."""
        batch = object()
        futures = [self.give((batch, number, 0), function, *arguments) for number, arguments in enumerate(calls)]
        results: dict[int, Any] = {}
        try:
            while len(results) < len(futures):
                self.stop.check()
                item = self.next(0.1)
                if item is None:
                    self.workers()
                if item is None or item[0][0] is not batch:
                    continue
                (_, number, _), outcome = item
                if not outcome.done:
                    raise ClusterError(f"Workers could not do a part of the run: {why_not_done(outcome)}.")
                if isinstance(outcome.result, Failure):
                    raise error_of(outcome.result, model, "warmup")
                results[number] = outcome.result
            return [results[number] for number in range(len(futures))]
        finally:
            self.cancel([future for number, future in enumerate(futures) if number not in results])


def was_killed(future: Future) -> bool:
    """Whether workers have died of a task, again and again."""
    return future.status == "error" and type(future.exception()).__name__ == "KilledWorker"


def why_not_done(outcome: Outcome) -> str:
    """Why a task has no result."""
    future, error = outcome.future, outcome.error
    if was_killed(future):
        return DEAD
    if future.status == "error":
        return in_short(future.exception())
    if error is None or type(error).__name__.endswith("CancelledError"):
        return "the scheduler has dropped it"
    return f"its result cannot be read here, {in_short(error)}"


def in_short(error: BaseException) -> str:
    """The kind of an error, and the first line of its message."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}".rstrip(": ")


def error_of(failure: Failure, model: Model, phase: RunPhase) -> Exception:
    """The error to raise for a failure."""
    match failure.kind:
        case "unbounded":
            return UnboundedDensityError(model, failure.chain, failure.position, phase)
        case "model":
            return ModelError(failure.text)
        case "cluster":
            return ClusterError(failure.text)
        case "differs":
            return differing(failure.text.splitlines())
    error = ClusterError(f"A worker could not continue: {failure.text}")
    error.add_note(failure.traceback)
    return error


def differing(lines: Sequence[str]) -> ClusterError:
    """The error where machines are not alike."""
    return ClusterError(
        "Workers differ from this machine, so draws would differ; install the same versions there:\n" + "\n".join(lines)
    )
