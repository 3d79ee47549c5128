"""Functions of C that a program may call, by their keys.

A program names such a function by a key, and holds no address: so it can be kept on disk, and used by another process
that has loaded the same function. Addresses are read when a program is made ready to run.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

Type = tuple[str, tuple[int, ...]]
"""The dtype and the shape of an array."""


@dataclass(frozen=True, eq=False)
class CFunction:
    """A function of C of one lane's arrays, called as

        int function(before..., const input *..., output *..., after...)

    from several threads at once, with a pointer for each array. It gives 0, or another number where it has no result.
    """

    key: str
    """What it computes: functions of one key give the same."""
    address: int
    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]
    without_result: tuple[float, ...]
    """What fills each output where there is no result."""
    before: tuple[int, ...] = ()
    """Further arguments: integers or addresses."""
    after: tuple[int, ...] = ()
    gives_gradient: bool = False
    """Whether its second output is the gradient of the first, a scalar, with respect to its one input."""
    keeps: Any = field(default=None, repr=False)
    """What must live as long as the function is called."""
    for_xla: Callable[[CFunction], str] | None = field(default=None, repr=False)
    """Makes it known to XLA, and gives the name of its target there; None: it is not called from there."""

    @functools.cached_property
    def _call(self) -> Any:
        count = len(self.before) + len(self.inputs) + len(self.outputs) + len(self.after)
        return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_ssize_t] * count)(self.address)

    def evaluate(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs [lanes..., *shape] for inputs [lanes..., *shape]."""
        rank = len(self.inputs[0][1])
        lanes = arrays[0].shape[: arrays[0].ndim - rank]
        given = [np.ascontiguousarray(x, dtype) for x, (dtype, _) in zip(arrays, self.inputs, strict=True)]
        results = [np.empty((*lanes, *shape), dtype) for dtype, shape in self.outputs]
        for lane in np.ndindex(lanes):
            pointers = [array[(*lane, ...)].ctypes.data for array in (*given, *results)]
            if self._call(*self.before, *pointers, *self.after):
                for result, value in zip(results, self.without_result, strict=True):
                    result[lane] = value
        return [result[()] for result in results]

    def refuse_others(self, types: Sequence[Type]) -> None:
        """Raise TypeError for arrays of other types."""
        if tuple(types) != self.inputs:
            found, expected = (", ".join(f"{dtype}{list(s)}" for dtype, s in side) for side in (types, self.inputs))
            raise TypeError(f"a function of C takes {expected}; found {found}")


_functions: WeakValueDictionary[str, CFunction] = WeakValueDictionary()


def registered(key: str, make: Callable[[], CFunction]) -> CFunction:
    """The function of a key, made if this process has none: code that calls it keeps it, and reads its address once."""
    function = _functions.get(key)
    if function is None:
        function = _functions[key] = make()
    return function


def c_function(key: str) -> CFunction:
    """The function of a key; KeyError where this process has none."""
    return _functions[key]
