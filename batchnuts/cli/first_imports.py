"""Which array libraries a run imports before its model is built, and the threads that they are given.

Both have to be settled before a model makes its first array: then TensorFlow makes its devices, and JAX its threads. A
model that needs neither may run without them.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from pathlib import Path

from batchnuts.autobatch.machine import engine_infos, missing, preferred_backend, prepare_disk_cache, tensor_library
from batchnuts.cli.config import RunConfig, TargetOptions, bridge_of
from batchnuts.mcmc.model.model import Model
from batchnuts.process.quiet import import_tensorflow, without_jax


def import_first(config: RunConfig) -> None:
    """Import the libraries that the run will need in any case, before its model is built."""
    _import(expected_libraries(config), config)


def import_for(model: Model, config: RunConfig) -> None:
    """Import the library that a model takes which runs on either, unless its gradient is machine code."""
    if expected_libraries(config):
        return
    from batchnuts.mcmc.model.library_choice import runs_alone

    chains = None if config.sampler.chains == "auto" else config.sampler.chains
    if not runs_alone(model, config.execution, chains):
        expert = config.execution.expert
        _import({preferred_backend(expert.mode, expert.style)}, config)


def _import(backends: set[str], config: RunConfig) -> None:
    """Import TensorFlow, without its messages; give each shard threads of its own."""
    from batchnuts.mcmc.execution.chunk_plan import own_threads

    for backend in sorted(backends):
        if missing(backend):  # which is reported when it is needed
            continue
        if backend == "tensorflow":
            with without_jax():
                import_tensorflow()
        if config.execution.cache is not None:
            prepare_disk_cache(backend)
        own_threads(config.sampler.chains, config.execution.model_copy(update={"backend": backend}))
        if backend == "jax":
            _ = tensor_library("jax")  # XLA's options are set before the model's first array


def expected_libraries(config: RunConfig) -> set[str]:
    """Backends whose libraries the run will need, as far as the config and the text of the user's module tell: none for
    a model that runs on either."""
    backend, model = config.execution.backend, config.model
    if (bridge := bridge_of(model)) is not None and (library := bridge.library(model)) is not None:
        return {library}
    expected = imported_by(model.target.partition(":")[0]) if isinstance(model, TargetOptions) else set()
    info = engine_infos().get(backend)  # none of `auto`
    if info is not None and info.family != backend:  # a family's is that of the density
        expected = expected | {backend if info.differentiates else info.gradients} - {""}
    return expected


def imported_by(module: str) -> set[str]:
    """The backends whose packages the source of a module imports, or that of modules beside it that it imports; empty
    where it cannot be found or read."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    roots: set[str] = set()
    left, read = [module], set[str]()
    while left:
        name = left.pop()
        if name in read:
            continue
        read.add(name)
        found = _imports_of(name, anywhere=name == module)
        roots |= {imported.partition(".")[0] for imported in found}
        left += found
    return {name for name, info in engine_infos().items() if not roots.isdisjoint(info.dependents)}


def _imports_of(module: str, *, anywhere: bool) -> set[str]:
    """The modules that the source of a module imports. anywhere: of one that is not in the current folder, too."""
    try:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            return set()
        origin = Path(spec.origin).resolve()
        installed = "site-packages" in origin.parts
        if not anywhere and (installed or not origin.is_relative_to(Path.cwd())):
            return set()
        tree = ast.parse(origin.read_bytes())
    except Exception:  # what is wrong with it is reported when it is imported
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found
