"""A way to vectorize made ready and timed, in the process that it shares with others."""

from __future__ import annotations

import math
import os
import time
from functools import partial

import numpy as np

from batchnuts.experiments.harness.outputs import fingerprint
from batchnuts.experiments.harness.task import Figures, Preparation, Runnable
from batchnuts.experiments.vectorizers.task import Computation, Task

_MOST_CALLS = 10_000
_WARM_SECONDS = 0.03


def prepare(task: Task) -> Runnable:
    """Lay out, compile and call twice: the second call shows how many fit into a timing."""
    if task.processors is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task.processors])
    from batchnuts.experiments.vectorizers.methods import ready  # TensorFlow sees the cores that were set

    began = time.perf_counter()
    computation = ready(task)
    result = computation.call()
    seconds = time.perf_counter() - began
    outputs = tuple(fingerprint(np.asarray(output)) for output in computation.outputs(result))
    began = time.perf_counter()
    computation.call()
    calls = math.ceil(task.min_seconds / max(time.perf_counter() - began, 1e-9))
    calls = min(max(calls, 1), _MOST_CALLS)
    return Runnable(Preparation(seconds, outputs, {"units": computation.units}), partial(timed, computation, calls))


def timed(computation: Computation, calls: int, seed: int) -> Figures:
    """One timing of some calls together, of the same data whatever the seed; after some that are not timed, if they are
    many."""
    load = os.getloadavg()[0]
    began = time.perf_counter()
    while calls > 1 and time.perf_counter() - began < _WARM_SECONDS:
        computation.call()  # until its data are in the caches again, and another library's threads are idle
    began = time.perf_counter()
    for _ in range(calls):
        computation.call()
    return {"seconds": (time.perf_counter() - began) / calls, "calls": calls, "load": load}
