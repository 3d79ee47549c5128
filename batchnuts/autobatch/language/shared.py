"""Arrays that all lanes have in common, and whose values may change between runs without a new compilation.

Constants of a program are compiled into it; inputs have a lane axis. A `Shared` array is neither: a machine keeps it in
its state, once for all lanes, and its compiled code takes it as an argument. Only batched primitives read it, which
take it after their other arguments:

    factor = Shared("factor", numpy.eye(3))
    turned = primitive(lambda x, factor: x @ factor, batched=True, shared=(factor,))
    factor.value = ...                              # the next run computes with this
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any

_bound: ContextVar[Mapping[str, Array]] = ContextVar("shared_arrays", default={})  # noqa: B039  (never changed)
"""By name: the arrays of the machine whose code is traced or run now."""


class Shared:
    """An array of one dtype and shape. Its value is read when a run, or a machine, starts."""

    def __init__(self, name: str, value: Any) -> None:
        """`name` is unique among those of a program. Raises TypeError for a value that is not numbers."""
        self.name = name
        self._value = np.array(value)
        if self._value.dtype.kind not in "biufc":
            raise TypeError(f"shared array {name!r}: found values of dtype {self._value.dtype}, expected numbers")

    def __repr__(self) -> str:
        return f"Shared({self.name!r}, {self._value.dtype}{list(self._value.shape)})"

    @property
    def value(self) -> NDArray[Any]:
        """The array; do not change it in place."""
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        """Raises ValueError for another dtype or shape than at first: programs are compiled for these."""
        array = np.asarray(value)
        if array.dtype != self._value.dtype or array.shape != self._value.shape:
            raise ValueError(
                f"shared array {self.name!r}: found {array.dtype}{list(array.shape)}, expected "
                f"{self._value.dtype}{list(self._value.shape)}, as it was made"
            )
        self._value = np.array(array)

    def read(self) -> Array:
        """The array of the machine that runs or is traced here; outside of one, the value."""
        return _bound.get().get(self.name, self._value)


@contextmanager
def bound(names: Sequence[str], arrays: Sequence[Array]) -> Iterator[None]:
    """Within, `Shared.read` gives these arrays, in this thread."""
    token = _bound.set({**_bound.get(), **dict(zip(names, arrays))})
    try:
        yield
    finally:
        _bound.reset(token)


def entry_of(name: str) -> str:
    """Where a state holds the shared array of that name."""
    return f"{PREFIX}{name}"


PREFIX = "shared:"
