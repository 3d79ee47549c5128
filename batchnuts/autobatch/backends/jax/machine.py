"""A machine that JAX compiles, and the threads that drive it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import jax
from typing_extensions import override

from batchnuts.autobatch.backends.backend import Array, CompiledMachine, MachineFunction, State
from batchnuts.autobatch.language.libraries.jax_flags import enable_x64
from batchnuts.autobatch.language.libraries.jax_programs import compiled, found, load
from batchnuts.disk_cache.entries import Entries
from batchnuts.disk_cache.folder import current

_tracing = threading.RLock()
"""Held while a machine is traced: threads that begin together would trace the same functions at once."""


@dataclass
class _Program:
    """The machine for states of one type."""

    function: MachineFunction
    types: tuple[Any, ...]
    """The types of its arguments: trees of jax.ShapeDtypeStruct."""
    entries: Entries | None
    """Where the run that made it keeps programs; another thread may compile it."""
    second_key: str | None = None
    """The key by which it will be found without a trace."""
    content: bytes | None = None
    """The program as it was on the disk, until it is loaded."""
    traced: Any = None
    lowered: Any = None
    compiling: threading.Lock = field(default_factory=threading.Lock)
    compiled: Any = None

    def prepare(self) -> None:
        """Find it by what is known of it; else do the Python part of compiling."""
        identity, entries = self.function.identity, self.entries
        if identity is None or entries is None:
            self._trace()
            return
        key = identity.key(self.function.text(), repr(self.types), lanes=self.function.lanes)
        if key is not None:
            self.content = found(key, entries)
        if self.content is None:
            self._trace()
            self.second_key = key if identity.is_unchanged() else None  # else it is not what was traced

    def _trace(self) -> None:
        with _tracing, enable_x64():
            self.traced = jax.jit(self.function.advance, keep_unused=True).trace(*self.types)
            self.lowered = self.traced.lower()

    def ready(self) -> Any:
        """Compiled, by the thread that comes first."""
        with self.compiling:
            if self.compiled is None and self.content is not None:
                self.compiled = load(self.content, (self.types, {}), (dict.fromkeys(self.function.gives, 0), 0))
                self.content = None
            if self.compiled is None:
                if self.traced is None:
                    self._trace()
                self.compiled = compiled(self.traced, self.lowered, self.entries, self.second_key)
                self.traced = self.lowered = None
            return self.compiled


class JitMachine(CompiledMachine):
    """The `CompiledMachine` of `jax.jit`; 64-bit dtypes are on inside. A call returns when the result is there."""

    def __init__(self, function: MachineFunction) -> None:
        self._function = function
        self._programs: dict[Any, _Program] = {}

    @override
    def __call__(self, state: State, *scalars: Array) -> tuple[State, Array]:
        with enable_x64():
            after, sweeps_made = self._program(state, scalars).ready()(state, *scalars)
        sweeps_made.block_until_ready()
        return after, sweeps_made

    @override
    def trace(self, state: State, *scalars: Array) -> None:
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
                    program = _Program(self._function, types, current())
                    program.prepare()
                    self._programs[key] = program
        return program
