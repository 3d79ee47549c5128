"""batchnuts: recursive NUTS, written for one chain and compiled to run for thousands of them.

Public names: `autobatch` (the compiler of single-lane Python functions), `densities` (of distributions), `Model`, what
its variables are declared with (`real`, `positive`, `simplex`, ...), `sample_chains`, `extend`, `predict`, `check`,
`sample_many`, `open_many`, `sbc`, `cross_validate`, `reloo`, `sensitivity`, `open_run`, `to_stan_csv`, `keep_programs`,
`use_own_threads`, `BatchnutsError`, `__version__`. They are loaded on first use, so that `import batchnuts` (and the
command line's `--help`) does not import TensorFlow.
"""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

BEGAN = time.time()
"""When this process began to read the package's files: what is in them later may not be what it runs."""

__version__ = "0.3.0"

__all__ = [
    "BatchnutsError",
    "Model",
    "__version__",
    "autobatch",
    "bijector",
    "check",
    "correlation_cholesky",
    "covariance_cholesky",
    "cross_validate",
    "densities",
    "extend",
    "interval",
    "keep_programs",
    "lower",
    "open_many",
    "open_run",
    "ordered",
    "positive",
    "positive_ordered",
    "predict",
    "real",
    "reloo",
    "sample_chains",
    "sample_many",
    "sbc",
    "sensitivity",
    "simplex",
    "to_stan_csv",
    "unit_interval",
    "unit_vector",
    "upper",
    "use_own_threads",
]

if TYPE_CHECKING:
    from batchnuts import autobatch, densities
    from batchnuts.api.calibrating import sbc
    from batchnuts.api.cross_validating import cross_validate, reloo
    from batchnuts.api.extending import extend
    from batchnuts.api.predicting import predict
    from batchnuts.api.sampling import sample_chains
    from batchnuts.api.sampling_many import sample_many
    from batchnuts.api.sensitivity_of import sensitivity
    from batchnuts.autobatch import BatchnutsError
    from batchnuts.autobatch.machine import use_own_threads
    from batchnuts.many.result import open_many
    from batchnuts.mcmc.diagnostics.verdict import check
    from batchnuts.mcmc.execution.program_cache import keep_programs
    from batchnuts.mcmc.model.declarations import (
        bijector,
        correlation_cholesky,
        covariance_cholesky,
        interval,
        lower,
        ordered,
        positive,
        positive_ordered,
        real,
        simplex,
        unit_interval,
        unit_vector,
        upper,
    )
    from batchnuts.mcmc.model.model import Model
    from batchnuts.mcmc.output.opened_run import open_run
    from batchnuts.mcmc.output.stan_csv import to_stan_csv

_MODULES = {
    "BatchnutsError": "autobatch",
    "sample_chains": "api.sampling",
    "extend": "api.extending",
    "predict": "api.predicting",
    "sample_many": "api.sampling_many",
    "sbc": "api.calibrating",
    "cross_validate": "api.cross_validating",
    "reloo": "api.cross_validating",
    "sensitivity": "api.sensitivity_of",
    "open_many": "many.result",
    "check": "mcmc.diagnostics.verdict",
    "open_run": "mcmc.output.opened_run",
    "to_stan_csv": "mcmc.output.stan_csv",
    "keep_programs": "mcmc.execution.program_cache",
    "use_own_threads": "autobatch.machine",
    "Model": "mcmc.model.model",
}
"""Where a name is; those of supports are in mcmc/model/declarations.py."""


def __getattr__(name: str) -> Any:
    # importlib, not `from batchnuts import autobatch`: that statement would ask this very function again.
    if name in ("autobatch", "densities", "pymc"):
        return importlib.import_module(f"batchnuts.{name}")
    if name in __all__ and name != "__version__":
        return getattr(importlib.import_module(f"batchnuts.{_MODULES.get(name, 'mcmc.model.declarations')}"), name)
    hint = "; expected batchnuts.sample_chains" if name == "sample" else ""
    if name.startswith("from_"):  # a bridge
        hint = f"; models are made by batchnuts.Model.{name}"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
