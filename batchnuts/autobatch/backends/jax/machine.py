"""A machine that JAX compiles, and the threads that drive it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from batchnuts.autobatch.backends.backend import Array, State
from batchnuts.autobatch.language.libraries.jax import enable_x64
from batchnuts.autobatch.language.libraries.jax_programs import Known, compiled, key_by_source, load, named_by
from batchnuts.store.entries import Entries
from batchnuts.store.folder import current

_tracing = threading.RLock()
"""Held while a machine is traced: threads that begin together would trace the same functions at once."""


@dataclass
class _Program:
    """The machine for states of one type."""

    function: Any
    """`jax.jit` of it."""
    types: tuple[jax.ShapeDtypeStruct, ...]
    """Of its arguments."""
    known: Known | None
    kept: Entries | None
    """Where the run that traced it keeps programs; another thread may compile it."""
    source: str | None = None
    """The key of what is known of it, and its results."""
    found: str | None = None
    """The key of the program that was found by it, which then is not traced."""
    traced: Any = None
    lowered: Any = None
    compiling: threading.Lock = field(default_factory=threading.Lock)
    compiled: Any = None

    def prepare(self) -> None:
        """Do the Python part of compiling, if it is needed."""
        if self.known is not None and self.kept is not None:
            self.source = key_by_source(self.known, repr(self.types))
            self.found = named_by(self.source, self.kept)
        if self.found is None:
            self._trace()

    def _trace(self) -> None:
        with _tracing, enable_x64():
            self.traced = self.function.trace(*self.types)
            self.lowered = self.traced.lower()

    def ready(self) -> Any:
        """Compiled, by the thread that comes first."""
        with self.compiling:
            if self.compiled is None and self.found is not None and self.known is not None and self.kept is not None:
                self.compiled = load(self.found, self.kept, (self.types, {}), self.known.result)
                if self.compiled is None:  # deleted since, or this JAX does not take it
                    self._trace()
            if self.compiled is None:
                self.compiled = compiled(self.traced, self.lowered, self.kept, self.source)
                self.traced = self.lowered = None
            return self.compiled


class JitMachine:
    """The `CompiledMachine` of `jax.jit`; 64-bit dtypes are on inside. A call returns when the result is there."""

    def __init__(self, function: Callable[..., tuple[State, Array]], known: Known | None = None) -> None:
        self._jitted = jax.jit(function, keep_unused=True)
        self._known = known
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
        program = self._programs.get(key)
        if program is None:
            with _tracing, enable_x64():
                program = self._programs.get(key)
                if program is None:
                    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, *scalars))
                    program = _Program(self._jitted, types, self._known, current())
                    program.prepare()
                    self._programs[key] = program
        return program
