"""Which engine runs a program where the caller leaves that open: `backend="auto"`, or the name of a family."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from batchnuts.autobatch.backends.backend import Backend
from batchnuts.autobatch.backends.registry import get_backend, has_jax
from batchnuts.autobatch.engines.registry import (
    AUTO,
    backend_of_program,
    engine_alone,
    engine_infos,
    engine_on,
    engine_with,
    is_family,
    preferred_backend,
)
from batchnuts.autobatch.language.arrays import tensor_library_of
from batchnuts.autobatch.language.pytree import flatten, hashable
from batchnuts.autobatch.lru_cache import LruCache
from batchnuts.autobatch.run_options import RunOptions

Types = tuple[Any, ...]
"""Of one lane's arguments."""


Compiles = Callable[[Types, Backend], object]
"""Compiles the function for such types and a backend."""


class EngineChoice:
    """The choice for one batched function, remembered for the last few types."""

    def __init__(self, limit: int) -> None:
        self._libraries: LruCache[str] = LruCache(limit)

    def engine(self, compiles: Compiles, types: Types, options: RunOptions, arguments: Any) -> str | Backend:
        """The engine's name, where the option `backend` leaves it open; else that option."""
        backend, mode, style = options.backend, options.mode, options.style
        if backend != AUTO and not is_family(backend):
            return backend
        alone = not has_jax() and "tensorflow" not in sys.modules  # then it calls functions of neither
        if backend == AUTO:
            asked = mode, style, options.schedule, options.executor
            if alone and (engine := engine_alone(*asked)):
                return engine
            return engine_on(self.library(compiles, types, mode, style, arguments), *asked)
        if alone:
            return engine_with(backend, "numpy")
        return engine_with(
            backend, self.library(compiles, types, options.engine().info.mode_of(mode), style, arguments)
        )

    def library(self, compiles: Compiles, types: Types, mode: str, style: str = "auto", arguments: Any = ()) -> str:
        """The name of the backend that `auto` stands for: that of the arguments' library, or of the functions that the
        program calls, which is found out by compiling it; and for a program that runs on either the preferred one."""
        preferred = preferred_backend(mode, style)
        try:
            library = tensor_library_of(*flatten(arguments)[0])
        except TypeError:  # arrays of two
            return preferred
        if library is not None and preferred == "jax":  # else a mode or style asks for TensorFlow
            return next(name for name, info in engine_infos().items() if info.title == library.name)
        key = (hashable(types), mode, style)
        name = self._libraries.get(key)
        if name is None:
            name = backend_of_program(lambda name: compiles(types, get_backend(name, mode, style)), mode, style)
            self._libraries.put(key, name)
        return name
