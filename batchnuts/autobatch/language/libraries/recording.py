"""One more array library, whose arrays have a type and a number: what is computed with them is written down.

The types are found by the rules of `abstract`; each function is noted by its name and its arguments, in the order of
its parameters. Python's operators on its arrays are noted as the library functions that they mean.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchnuts.autobatch.language.libraries.library import Array, Function
from batchnuts.autobatch.language.libraries.numpy import NUMPY
from batchnuts.autobatch.language.libraries.type_rules import LIBRARY as TYPES
from batchnuts.autobatch.language.libraries.type_rules import NotTyped, Typed


@dataclass(frozen=True)
class Call:
    """A function of the library with its arguments, and its results."""

    function: str
    arguments: tuple[Any, ...]
    """Recorded and NumPy's arrays, static values, and tuples of these; a `Recording` where it is `kernel`."""
    results: tuple[Recorded, ...]


@dataclass(eq=False)
class Recording:
    """What was computed, in order."""

    inputs: list[Recorded] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    """What the computation gives: arrays, recorded or NumPy's; set once it has been recorded."""

    def input(self, dtype: Any, shape: tuple[int, ...]) -> Recorded:
        """One more input."""
        array = Recorded(dtype, shape, self)
        self.inputs.append(array)
        return array

    def note(self, function: str, arguments: tuple[Any, ...], typed: Sequence[Typed]) -> tuple[Recorded, ...]:
        """Write down a call; its results."""
        results = tuple(Recorded(array.static_dtype, array.static_shape, self) for array in typed)
        self.calls.append(Call(function, arguments, results))
        return results


class Recorded(Typed):
    """An array of a dtype and static shape that a recording knows."""

    __slots__ = ("recording",)

    def __init__(self, dtype: Any, shape: tuple[int, ...], recording: Recording) -> None:
        super().__init__(dtype, shape, frozenset())
        self.recording = recording

    def __getitem__(self, parts: Any) -> Any:
        parts = parts if isinstance(parts, tuple) else (parts,)
        rank = len(self.static_shape)
        if ... in parts:
            at = parts.index(...)
            given = sum(part is not None and part is not ... for part in parts)
            parts = (*parts[:at], *[slice(None)] * (rank - given), *parts[at + 1 :])
        given = sum(part is not None for part in parts)
        return LIBRARY.item(self, (*parts, *[slice(None)] * (rank - given)))

    def __setitem__(self, parts: Any, value: Any) -> None:
        raise NotTyped("a changed array")


def _recording_of(arguments: Any) -> Recording:
    """The recording that the arguments are of: the only one among them."""
    recordings = list({id(recording): recording for recording in _recordings(arguments)}.values())
    if len(recordings) != 1:
        raise NotTyped("no recording, or two")
    return recordings[0]


def _recordings(value: Any) -> Iterator[Recording]:
    if isinstance(value, Recorded):
        yield value.recording
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _recordings(part)


@functools.cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(getattr(TYPES, name))


class Recorder:
    """The part of a `TensorLibrary` that has rules for types; what has none raises NotTyped."""

    name = "recording"

    dtype_of = staticmethod(TYPES.dtype_of)
    static_shape = staticmethod(TYPES.static_shape)

    def convert(self, x: Any, dtype: Any) -> Array:
        """An array of `dtype`: the same object if it has it already."""
        if not isinstance(x, Typed):
            return np.asarray(x, dtype=dtype)
        return x if x.static_dtype == dtype else self.cast(x, dtype)

    def cast(self, x: Array, dtype: Any) -> Array:
        """Note the array in another dtype."""
        if not isinstance(x, Typed):
            return np.asarray(x).astype(dtype)[()]
        return x if x.static_dtype == dtype else self._note("cast", (x, np.dtype(dtype).name), TYPES.cast(x, dtype))

    def tensor(self, x: Array) -> Array:
        """The array itself: what is recorded may have NumPy's among its arguments."""
        return x

    def call(self, function: Function, *tensors: Array) -> Any:
        """The result of a user's function."""
        return function(*tensors)

    def positive(self, x: Array) -> Array:
        """The same array."""
        return x

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        """Note the array in another shape, which is known."""
        typed = TYPES.reshape(x, tuple(shape))
        return self._note("reshape", (x, typed.static_shape), typed)

    def bitcast(self, x: Array, dtype: np.dtype[Any]) -> Array:
        """Note the same bits in another dtype."""
        return self._note("bitcast", (x, np.dtype(dtype).name), TYPES.bitcast(x, dtype))

    def kernel(self, function: Function) -> Function:
        """Note the kernel's calls apart, once for all arrays of some types."""

        @functools.lru_cache(maxsize=64)
        def recorded(types: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]) -> Recording:
            inner = Recording()
            inner.outputs = list(function(*itertools.starmap(inner.input, types)))
            return inner

        def of_arrays(*arrays: Array) -> tuple[Array, ...]:
            inner = recorded(tuple((TYPES.dtype_of(x), TYPES.static_shape(x)) for x in arrays))
            return _recording_of(arrays).note("kernel", (inner, *arrays), inner.outputs)

        return of_arrays

    def trace_of(self, x: Array) -> object | None:
        """The same object for every recorded array: there are no inner functions here."""
        return self if isinstance(x, Recorded) else None

    def _note(self, name: str, arguments: tuple[Any, ...], typed: Any) -> Any:
        recording = _recording_of(arguments)
        if isinstance(typed, list):
            return list(recording.note(name, arguments, typed))
        return recording.note(name, arguments, [typed])[0]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        rule = getattr(TYPES, name)  # NotTyped where there is none

        def noted(*arguments: Any, **options: Any) -> Any:
            bound = _signature(name).bind(*arguments, **options)
            bound.apply_defaults()
            return self._note(name, tuple(bound.args), rule(*arguments, **options))

        setattr(self, name, noted)
        return noted


LIBRARY = Recorder()


def _invert(x: Recorded) -> Any:
    """All bits of an integer, `not` of a boolean."""
    if x.static_dtype.kind == "b":
        return LIBRARY.logical_not(x)
    return LIBRARY.bitwise_xor(x, np.array(-1).astype(x.static_dtype))


def _operators() -> None:
    """Give Recorded Python's operators: each is the library's function of operands in the array's dtype."""

    def binary(typed: str, function: str, swapped: bool) -> Any:
        rule = getattr(Typed, typed)

        def operate(x: Recorded, y: Any) -> Any:
            rule(x, y)  # raises NotTyped where libraries differ
            y = LIBRARY.convert(y, x.static_dtype)
            return getattr(LIBRARY, function)(*((y, x) if swapped else (x, y)))

        return operate

    def unary(typed: str, function: str) -> Any:
        rule = getattr(Typed, typed)

        def operate(x: Recorded) -> Any:
            rule(x)
            return getattr(LIBRARY, function)(x)

        return operate

    for name, function in (("add", "add"), ("sub", "subtract"), ("mul", "multiply"), ("truediv", "divide")):
        setattr(Recorded, f"__{name}__", binary(f"__{name}__", function, False))
        setattr(Recorded, f"__r{name}__", binary(f"__r{name}__", function, True))
    for name, function in (("and", "logical_and"), ("or", "logical_or"), ("xor", "not_equal")):
        setattr(Recorded, f"__{name}__", binary(f"__{name}__", function, False))
        setattr(Recorded, f"__r{name}__", binary(f"__r{name}__", function, True))
    for name, function in (("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal")):
        setattr(Recorded, f"__{name}__", binary(f"__{name}__", function, False))
    Recorded.__pow__ = binary("__pow__", "power", False)  # type: ignore[operator]
    Recorded.__neg__ = unary("__neg__", "negative")  # type: ignore[operator]
    Recorded.__invert__ = _invert  # type: ignore[operator]


_operators()


class Functions:
    """The language's functions of recorded arrays and NumPy's; where all are NumPy's, computed now."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            return getattr(LIBRARY if has_recorded(arguments) else NUMPY, name)(*arguments)

        setattr(self, name, call)
        return call


def has_recorded(arguments: Any) -> bool:
    """Whether an argument, or one in a tuple of them, is recorded."""
    if isinstance(arguments, tuple):
        return any(map(has_recorded, arguments))
    return isinstance(arguments, Recorded)


FUNCTIONS = Functions()
