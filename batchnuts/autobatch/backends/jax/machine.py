"""A machine that JAX compiles, and the threads that drive it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from batchnuts.autobatch.backends.backend import Array, State
from batchnuts.autobatch.language.libraries.jax import enable_x64

_ALONE = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""XLA for processors gives products of matrices to a library, and by itself also sums, with the operations on elements
that lead to them: what these need it then stores in arrays of their own. Compiled by XLA they are faster."""

_tracing = threading.RLock()
"""Held while a machine is traced: threads that begin together would trace the same functions at once."""


@dataclass
class _Program:
    """The machine for states of one type."""

    lowered: Any
    compiling: threading.Lock = field(default_factory=threading.Lock)
    compiled: Any = None

    def ready(self) -> Any:
        """Compiled, by the thread that comes first."""
        with self.compiling:
            if self.compiled is None:
                self.compiled = _compiled(self.lowered)
            return self.compiled


def _compiled(lowered: Any) -> Any:
    """With our options where they apply: not beside the user's own for that library, nor where XLA knows no such."""
    if jax.default_backend() == "cpu" and not any(name in os.environ.get("XLA_FLAGS", "") for name in _ALONE):
        try:
            return lowered.compile(compiler_options=_ALONE)
        except RuntimeError:  # of XLA: it refuses unknown options
            pass
    return lowered.compile()


class JitMachine:
    """The `CompiledMachine` of `jax.jit`; 64-bit dtypes are on inside. A call returns when the result is there."""

    def __init__(self, function: Callable[..., tuple[State, Array]]) -> None:
        self._jitted = jax.jit(function)
        self._programs: dict[Any, _Program] = {}

    def __call__(self, state: State, *scalars: Array) -> tuple[State, Array]:
        """See CompiledMachine."""
        with enable_x64():
            after, taken = self._program(state, scalars).ready()(state, *scalars)
        taken.block_until_ready()
        return after, taken

    def trace(self, state: State, *scalars: Array) -> None:
        """See CompiledMachine."""
        self._program(state, scalars)

    def compiled_text(self, state: State, *scalars: Array) -> str:
        """The instructions of XLA that the machine was compiled to, as text."""
        text: str = self._program(state, scalars).ready().as_text()
        return text

    def _program(self, state: State, scalars: tuple[Array, ...]) -> _Program:
        key = tuple((name, array.shape, array.dtype) for name, array in state.items())
        found = self._programs.get(key)
        if found is None:
            with _tracing, enable_x64():
                found = self._programs.get(key)
                if found is None:
                    found = self._programs[key] = _Program(self._jitted.trace(state, *scalars).lower())
        return found
