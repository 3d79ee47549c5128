"""Primitives and derivatives that JAX lacks."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir

from batchnuts.autobatch.language.libraries.library import Array


def _refuse(*_: Any, message: str) -> Any:
    raise TypeError(message)


without_reverse = jax.extend.core.Primitive("without_reverse")
"""The same array. Its reverse-mode derivative is an error with the message `message`."""
without_reverse.def_impl(lambda x, message: x)
without_reverse.def_abstract_eval(lambda x, message: x)
mlir.register_lowering(without_reverse, lambda _, x, message: [x])
batching.defvectorized(without_reverse)
ad.deflinear2(without_reverse, _refuse)


def _rows_by_number(x: Any) -> Any:
    """x [rows, ...], read through an array of its rows' numbers; a scalar as it is."""
    if not x.shape:
        return x
    return x.at[lax.iota(np.int32, x.shape[0])].get(mode="promise_in_bounds")


once = jax.extend.core.Primitive("once")
"""The same words. XLA for processors would compute them again in the loop of each array that depends on them; an array
that is indexed must be there first (decisions/0016). Over lanes the first axis is theirs."""
once.def_impl(lambda x: x)
once.def_abstract_eval(lambda x: x)
mlir.register_lowering(once, lambda _, x: [x])
mlir.register_lowering(once, mlir.lower_fun(_rows_by_number, multiple_results=False), platform="cpu")
batching.defvectorized(once)


@jax.custom_vjp  # type: ignore[untyped-decorator]
def with_gradient(value: Array, x: Array, gradient: Array) -> Array:
    """The value, whose derivative with respect to x is the gradient."""
    return value


with_gradient.defvjp(
    lambda value, x, gradient: (value, gradient), lambda gradient, adjoint: (None, adjoint * gradient, None)
)


@jax.custom_jvp  # type: ignore[untyped-decorator]
def expm1(x: Array) -> Array:
    """exp(x) - 1, whose derivative keeps its digits where x is far below 0."""
    return lax.expm1(x)


expm1.defjvps(lambda tangent, _, x: tangent * lax.exp(x))  # JAX has expm1(x) + 1, which has no digits far below 0
