"""A sampler made ready and run in its own process; what comes back is moments and diagnostics, not draws."""

from __future__ import annotations

import importlib
import os
import time
from dataclasses import asdict, dataclass

import numpy as np

from batchnuts.autobatch import BatchnutsError
from batchnuts.bridges.errors import NotInstalledError
from batchnuts.cli.config import ConfigError, build_model, load_config
from batchnuts.cli.first_imports import import_first
from batchnuts.experiments.harness.task import Figures as RowFigures
from batchnuts.experiments.harness.task import Preparation
from batchnuts.experiments.posterior_checks.moments import encode, summarize, transformed
from batchnuts.experiments.posterior_checks.registry import REGISTRY
from batchnuts.experiments.posterior_checks.task import Figures, MissingLibrary, Sampling, Task


@dataclass(frozen=True)
class ReadySampling:
    """A task made ready, in its process."""

    task: Task
    sampling: Sampling
    preparation: Preparation

    def run(self, seed: int) -> RowFigures:
        """The figures of a run with this seed."""
        load = os.getloadavg()[0]
        run = self.sampling.run(seed)
        moments, diagnostics = summarize(transformed(run.draws, self.task.transforms))
        worst = int(diagnostics.worst_first()[0])
        fewest = int(np.nanargmin(diagnostics.columns["ess_bulk"]))
        return asdict(
            Figures(
                seconds=run.seconds,
                compile_seconds=run.compile_seconds,
                divergences=run.divergences,
                rhat=float(diagnostics.rhat[worst]),
                rhat_of=diagnostics.names[worst],
                ess=float(diagnostics.columns["ess_bulk"][fewest]),
                ess_of=diagnostics.names[fewest],
                lines=self.sampling.lines,
                moments=encode(moments),
                load=load,
            )
        )


def prepare(task: Task) -> ReadySampling:
    """Build the model, and what the sampler makes of it. Raises MissingLibrary."""
    began = time.perf_counter()
    config = load_config(task.config, task.overrides)
    resolved = config.resolved()
    if any(resolved[section] != expected for section, expected in task.problem.items()):
        raise BatchnutsError(f"{task.config} was changed while the experiment ran. Run the same command again.")
    module = importlib.import_module(f"batchnuts.experiments.posterior_checks.{REGISTRY[task.sampler].module}")
    if REGISTRY[task.sampler].ours:
        import_first(config)
    try:
        model = build_model(config.model)
    except ConfigError as error:
        if isinstance(error.__cause__, NotInstalledError):
            raise MissingLibrary(str(error.__cause__)) from error
        raise
    sampling: Sampling = module.prepare(task, config, model)
    return ReadySampling(task, sampling, Preparation(time.perf_counter() - began))
