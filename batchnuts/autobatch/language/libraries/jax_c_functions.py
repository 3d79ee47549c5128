"""Functions of C (c_functions.py) in JAX's programs: one call of XLA's, which computes lanes one after another."""

from __future__ import annotations

import functools
from typing import Any

import jax

from batchnuts.autobatch.language.c_functions import c_function
from batchnuts.autobatch.language.libraries.library import Array


def call_c(arrays: tuple[Array, ...], key: str) -> list[Array]:
    """The results; a value that comes with its gradient can be differentiated once."""
    if not c_function(key).gives_gradient:
        return _all(arrays, key)
    (x,) = arrays
    return [_value(x, key), _both(x, key)[1]]


def _all(arrays: tuple[Array, ...], key: str) -> list[Array]:
    function = c_function(key)
    function.refuse_others([(x.dtype.name, x.shape) for x in arrays])
    if function.for_xla is None:
        raise TypeError(f"the function {key} cannot be called from XLA")
    types = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in function.outputs]
    return list(jax.ffi.ffi_call(function.for_xla(function), types, vmap_method="broadcast_all")(*arrays))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _both(x: Array, key: str) -> list[Array]:
    return _all((x,), key)


def _refuse(*_: Any) -> Any:
    raise TypeError("a function of C has no second derivative")


_both.defvjp(lambda x, key: (_both(x, key), None), _refuse)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _value(x: Array, key: str) -> Array:
    return _all((x,), key)[0]


_value.defvjp(lambda x, key: tuple(_both(x, key)), lambda key, gradient, adjoint: (adjoint * gradient,))
