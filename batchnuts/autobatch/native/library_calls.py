"""Which array libraries have programs of XLA's that can call machine code (xla_call.py), and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from batchnuts.autobatch.backends.backend import Array, Backend
from batchnuts.autobatch.ir.tensor_type import TensorType


class Calls(Protocol):
    """What an array library has for programs of XLA's that call machine code: a module of this folder."""

    def is_possible(self) -> bool:
        """Whether programs can make calls here. It makes the handler known to the library."""

    def call(self, handle: Array, operands: Sequence[Array], results: Sequence[TensorType]) -> Sequence[Array]:
        """The results of `function(context, operands, results)`, in a program that is traced.

        handle: uint64[2], the function's address and that of its context.
        """

    def repeat(self, body: Callable[..., Sequence[Array]], first: Sequence[Array]) -> Sequence[Array]:
        """The values after a loop whose trips `body` makes, while the last value's first element is not 0."""


def calls_of(backend: Backend) -> Calls | None:
    """Those of a backend's library, None where it has none."""
    calls: Calls | None = None
    if backend.mode == "xla" and backend.name == "jax":
        from batchnuts.autobatch.native import jax_call as calls
    elif backend.mode == "xla" and backend.name == "tensorflow":
        from batchnuts.autobatch.native import tensorflow_call as calls
    return calls if calls is not None and calls.is_possible() else None
