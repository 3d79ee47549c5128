"""Machines that TensorFlow compiles: traced once for arguments of some types, or found on disk without a trace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from batchnuts.autobatch.backends.backend import Array, State
from batchnuts.autobatch.backends.tensorflow.session import SessionProgram, may_have_session
from batchnuts.autobatch.pfor.errors import noting_warnings
from batchnuts.disk_cache.folder import current

SecondKey = Callable[[str], str | None]
"""The key by which a program is found on disk without a trace, of a text that says the types of its arguments; None:
there is none."""


@dataclass(frozen=True)
class _Program:
    """What runs for arguments of some types."""

    run: Callable[..., Sequence[Array]]
    names: tuple[str, ...]
    """Names of the entries of the state that results."""
    traced: Any = None
    """The `tf.function`; None where the program was found without a trace."""


class TracedMachine:
    """(State, *scalars) -> (State, scalar), by a traced function of the arrays.

    traced: makes a `tf.function` of a Python function. Traced once for each list of names, dtypes and shapes. sessions:
    whether programs may run in sessions (session.py). second_key: see SecondKey. unchanged: whether that key still is
    the one of what is traced.
    """

    def __init__(
        self,
        function: Callable[..., tuple[State, Array]],
        traced: Callable[[Callable[..., Any]], Any],
        sessions: bool = True,
        second_key: SecondKey = lambda types: None,
        unchanged: Callable[[], bool] = lambda: True,
    ) -> None:
        self._function = function
        self._trace = traced
        self._sessions = sessions
        self._second_key = second_key
        self._unchanged = unchanged
        self._programs: dict[Any, _Program] = {}
        self._making = threading.Lock()

    def __call__(self, state: State, *scalars: Array) -> tuple[State, Array]:
        """The results of the function for them."""
        program = self._program(state, scalars)
        *values, scalar = program.run(*state.values(), *scalars)
        return dict(zip(program.names, values)), scalar

    def trace(self, state: State, *scalars: Array) -> None:
        """Trace it for such arguments, if it was not yet."""
        self._program(state, scalars)

    @property
    def traces(self) -> int:
        """How often it was traced."""
        return sum(program.traced is not None for program in self._programs.values())

    def graph(self, state: State, *scalars: Array) -> Any:
        """The graph of what runs on these."""
        return self._traced(state, scalars).get_concrete_function(*_specs(state, scalars)).graph

    def compiled_text(self, state: State, *scalars: Array) -> str:
        """The optimized instructions that XLA makes of it for these arguments."""
        traced = self._traced(state, scalars)
        arrays = map(tf.convert_to_tensor, (*state.values(), *scalars))
        text: str = traced.experimental_get_compiler_ir(*arrays)(stage="optimized_hlo")
        return text

    def _traced(self, state: State, scalars: tuple[Array, ...]) -> Any:
        traced = self._program(state, scalars).traced
        return self._function_of(tuple(state), []) if traced is None else traced

    def _program(self, state: State, scalars: tuple[Array, ...]) -> _Program:
        key = (tuple(state), tuple(_type_of(array) for array in (*state.values(), *scalars)))
        program = self._programs.get(key)
        if program is None:
            with self._making:  # several threads may be the first
                if key not in self._programs:
                    self._programs[key] = self._make(tuple(state), _specs(state, scalars), repr(key))
                program = self._programs[key]
        return program

    def _make(self, names: tuple[str, ...], specs: list[tf.TensorSpec], types: str) -> _Program:
        entries = current()
        key = None if entries is None else self._second_key(types)
        if entries is not None and key is not None and (content := entries.get(key)) is not None:
            with suppress(Exception):  # sound, but of something that this version does not read
                if (loaded := SessionProgram.of_entry(content)) is not None:
                    run, names_back = loaded
                    return _Program(run, tuple(names_back))
            entries.drop(key)
        results: list[str] = []
        traced = self._function_of(names, results)
        with noting_warnings() as warned:
            concrete = traced.get_concrete_function(*specs)
        names_back = tuple(results)
        if not self._sessions or not may_have_session(concrete):
            # the concrete function itself would convert NumPy's arrays more slowly
            return _Program(lambda *arrays: concrete(*map(tf.convert_to_tensor, arrays)), names_back, traced)
        program = SessionProgram.of_function(traced, specs)
        if entries is not None and key is not None and not warned and self._unchanged():
            entry = program.as_entry(names_back)
            if entry is not None:
                program.once_run = lambda: entries.put(key, entry)
        return _Program(program, names_back, traced)

    def _function_of(self, names: tuple[str, ...], results: list[str]) -> Any:
        """The `tf.function` of the arrays. results: has, once it is traced, the names of what it gives."""

        def of_arrays(*arrays: Any) -> list[Any]:
            after, scalar = self._function(dict(zip(names, arrays)), *arrays[len(names) :])
            results[:] = after
            return [*after.values(), scalar]

        return self._trace(of_arrays)


def _specs(state: State, scalars: tuple[Array, ...]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(shape, dtype) for dtype, shape in map(_type_of, (*state.values(), *scalars))]


def _type_of(array: Any) -> tuple[str, tuple[int, ...]]:
    """The dtype of an array or a tensor, by NumPy's name, and its shape."""
    dtype = array.dtype
    return (dtype if isinstance(dtype, np.dtype) else np.dtype(dtype.as_numpy_dtype)).name, tuple(array.shape)
