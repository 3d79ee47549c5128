"""A sampler made ready and run in its own process; what comes back is moments and diagnostics, not draws."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.bridges.errors import NotInstalledError
from batchnuts.cli.config import ConfigError, build_model
from batchnuts.cli.first_imports import import_first
from batchnuts.experiments.harness.task import Figures, Preparation, Runnable
from batchnuts.experiments.posterior_checks.moments import encode, summarize, transformed
from batchnuts.experiments.posterior_checks.registry import REGISTRY
from batchnuts.experiments.posterior_checks.task import MissingLibrary, Sampling, Task
from batchnuts.mcmc.diagnostics.diagnose import Diagnostics


def prepare(task: Task) -> Runnable:
    """Build the model, and what the sampler makes of it. Raises MissingLibrary."""
    began = time.perf_counter()
    config = task.run_config()
    registered = REGISTRY[task.sampler]
    module = importlib.import_module(f"batchnuts.experiments.posterior_checks.{registered.module}")
    if registered.ours:
        import_first(config)
    try:
        model = build_model(config.model)
    except ConfigError as error:
        if isinstance(error.__cause__, NotInstalledError):
            raise MissingLibrary(str(error.__cause__)) from error
        raise
    sampling: Sampling = module.prepare(task, config, model)
    return Runnable(Preparation(time.perf_counter() - began), partial(figures_of, sampling, task))


def figures_of(sampling: Sampling, task: Task, seed: int) -> Figures:
    """The figures of a run with this seed."""
    load = os.getloadavg()[0]
    run = sampling.run(seed)
    moments, diagnostics = summarize(transformed(run.draws, task.transforms))
    worst = _worst(diagnostics, run.draws)
    fewest = int(np.nanargmin(diagnostics.columns["ess_bulk"]))
    return {
        "seconds": run.seconds,
        "compile_seconds": run.compile_seconds,
        "divergences": run.divergences,
        "rhat": float(diagnostics.rhat[worst]),
        "rhat_of": diagnostics.names[worst],
        "ess": float(diagnostics.columns["ess_bulk"][fewest]),
        "ess_of": diagnostics.names[fewest],
        "lines": sampling.lines,
        "moments": encode(moments),
        "load": load,
    }


def _worst(diagnostics: Diagnostics, draws: Mapping[str, NDArray[Any]]) -> int:
    """The number of the coefficient with the largest R-hat among real numbers, if there are any: most decoded states
    have one value, and of the rare others R-hat says nothing."""
    order = diagnostics.worst_first()
    integers = [np.all(array == np.rint(array), axis=(0, 1)).reshape(-1) for array in draws.values()]
    real = order[~np.concatenate(integers)[order]]
    return int(real[0] if len(real) else order[0])
