"""batchnuts: recursive NUTS, written for one chain and compiled to run for thousands of them.

Public names: `autobatch` (the compiler of single-lane Python functions), `sample_chains`, `check`, `keep_programs`,
`use_own_threads`, `Model`, `__version__`.
They are loaded on first use, so that `import batchnuts` (and the command line's `--help`) does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["Model", "__version__", "autobatch", "check", "keep_programs", "sample_chains", "use_own_threads"]

if TYPE_CHECKING:
    from batchnuts import autobatch
    from batchnuts.autobatch.machine import use_own_threads
    from batchnuts.mcmc.execution.program_cache import keep_programs
    from batchnuts.mcmc.model import Model
    from batchnuts.mcmc.sampling import sample_chains
    from batchnuts.mcmc.verdict import check


def __getattr__(name: str) -> Any:
    # importlib, not `from batchnuts import autobatch`: that statement would ask this very function again.
    if name == "autobatch":
        return importlib.import_module("batchnuts.autobatch")
    if name == "sample_chains":
        return importlib.import_module("batchnuts.mcmc.sampling").sample_chains
    if name == "check":
        return importlib.import_module("batchnuts.mcmc.verdict").check
    if name == "keep_programs":
        return importlib.import_module("batchnuts.mcmc.execution.program_cache").keep_programs
    if name == "use_own_threads":
        return importlib.import_module("batchnuts.autobatch.machine").use_own_threads
    if name == "Model":
        return importlib.import_module("batchnuts.mcmc.model").Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
