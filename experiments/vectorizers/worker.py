"""Several ways to vectorize in one process (`python -m batchnuts.experiments.vectorizers.worker`), called in turns.

{"task": {...}, "name": NAME, "min_seconds": S}  ->  {"seconds": ..., "units": ..., "prints": [...]}   made ready
{"run": NAME}                                    ->  {"seconds": ..., "calls": ..., "load": ...}       one timing
                                                 or  {"missing": REASON} / {"failed": REASON}; the others go on
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.experiments.harness.processes import serve
from batchnuts.experiments.vectorizers.task import Task

_MOST_CALLS = 10_000
_WARM_SECONDS = 0.03


class Answering:
    """What has been made ready, by name."""

    def __init__(self) -> None:
        self.ready: dict[str, tuple[Any, int]] = {}

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """See the head of this file."""
        if "task" in request:
            return self.prepare(request["name"], Task(**request["task"]), float(request["min_seconds"]))
        return self.run(request["run"])

    def prepare(self, name: str, task: Task, min_seconds: float) -> dict[str, Any]:
        """Lay out, compile and call twice: the second call tells how many fit into a timing."""
        if task.processors is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task.processors])
        from batchnuts.experiments.vectorizers.ways import ready

        began = time.perf_counter()
        made = ready(task)
        result = made.call()
        seconds = time.perf_counter() - began
        prints = [fingerprint(np.asarray(output)) for output in made.outputs(result)]
        began = time.perf_counter()
        made.call()
        calls = math.ceil(min_seconds / max(time.perf_counter() - began, 1e-9))
        self.ready[name] = made, min(max(calls, 1), _MOST_CALLS)
        return {"seconds": seconds, "units": made.units, "prints": prints}

    def run(self, name: str) -> dict[str, Any]:
        """One timing; after some calls that are not timed, if it is of many short ones."""
        made, calls = self.ready[name]
        load = os.getloadavg()[0]
        began = time.perf_counter()
        while calls > 1 and time.perf_counter() - began < _WARM_SECONDS:
            made.call()  # until its data are in the caches again, and another library's threads are idle
        began = time.perf_counter()
        for _ in range(calls):
            made.call()
        return {"seconds": (time.perf_counter() - began) / calls, "calls": calls, "load": load}


def fingerprint(array: NDArray[Any]) -> list[float]:
    """Norm, and the sum with irregular weights in [-1, 1], over the norm.

    Entries off by a small share of the norm move both by as little; entries that changed places move the second by
    about 1.
    """
    flat = array.astype(np.float64).ravel()
    norm = float(np.linalg.norm(flat))
    weights = np.cos(np.arange(flat.size) ** 1.5)
    return [norm, float(flat @ weights) / (norm or 1.0)]


def difference(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """The largest relative one between the fingerprints of two ways' outputs; infinite where they do not match."""
    if len(ours) != len(theirs):
        return math.inf
    found = 0.0
    for (norm, along), (other_norm, other_along) in zip(ours, theirs, strict=True):
        apart = max(abs(norm - other_norm) / (max(norm, other_norm) or 1.0), abs(along - other_along))
        found = math.inf if math.isnan(apart) else max(found, apart)
    return found


if __name__ == "__main__":
    sys.exit(serve(Answering().reply, go_on=True))
