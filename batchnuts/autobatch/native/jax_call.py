"""Calls of machine code in programs that JAX compiles (xla_call.py)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from batchnuts.autobatch.ir.tensor_type import TensorType
from batchnuts.autobatch.native.xla_call import TARGET, handler


@functools.cache
def is_possible() -> bool:
    """They always are; makes the handler known to JAX."""
    import jax

    jax.ffi.register_ffi_target(TARGET, capsule(handler().address("handler")), platform="cpu")
    return True


def capsule(address: int) -> Any:
    """An address as JAX takes it."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, None, None)


def call(handle: Any, operands: Sequence[Any], results: Sequence[TensorType]) -> Sequence[Any]:
    """The call, in a program that JAX traces. It has no side effect, for the sake of the disk cache."""
    import jax

    types = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in results]
    made: Sequence[Any] = jax.ffi.ffi_call(TARGET, types)(handle, *operands)
    return made


def repeat(body: Callable[..., Sequence[Any]], first: Sequence[Any]) -> Sequence[Any]:
    """The values after the loop whose trips `body` makes, while the last one's first element is not 0."""
    import jax

    last: Sequence[Any] = jax.lax.while_loop(
        lambda values: values[-1][0] != 0, lambda values: tuple(body(*values)), tuple(first)
    )
    return last
