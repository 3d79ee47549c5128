"""Elementwise functions of JAX through which a gradient of zero stays zero, whatever the slope.

Where a density chooses among formulas by `where`, the formula that is not chosen gets a gradient of zero. In JAX that
becomes NaN at the first slope in it that is infinite or NaN (0 * inf), as of erfcx(-30), log(0) or exp(800). PyTensor
moves multiplications into the choice, so gradients of PyMC are finite there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

_scaled = Primitive("batchnuts_scaled")
"""slope * tangent, of one shape; as a linear function of the tangent, it maps a gradient of 0 to 0."""


def _product(slope: Any, tangent: Any) -> Any:
    return slope * tangent


def _jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (slope, tangent), (of_slope, of_tangent) = primals, tangents
    parts = [
        _scaled.bind(factor, ad.instantiate_zeros(part))
        for factor, part in ((slope, of_tangent), (tangent, of_slope))
        if not isinstance(part, ad.Zero)
    ]
    return _scaled.bind(slope, tangent), functools.reduce(ad.add_jaxvals, parts)


def _transpose(gradient: Any, slope: Any, tangent: Any) -> list[Any]:
    if isinstance(gradient, ad.Zero):
        return [None, gradient]
    return [None, jnp.where(gradient == 0, jnp.zeros_like(gradient), slope * gradient)]


def _batch(arguments: Any, axes: Any) -> tuple[Any, int]:
    (size,) = {x.shape[axis] for x, axis in zip(arguments, axes, strict=True) if axis is not batching.not_mapped}
    slope, tangent = (batching.bdim_at_front(x, axis, size) for x, axis in zip(arguments, axes, strict=True))
    return _scaled.bind(slope, tangent), 0


_scaled.def_impl(_product)
_scaled.def_abstract_eval(lambda slope, tangent: slope)
ad.primitive_jvps[_scaled] = _jvp
ad.primitive_transposes[_scaled] = _transpose
batching.primitive_batchers[_scaled] = _batch
mlir.register_lowering(_scaled, mlir.lower_fun(_product, multiple_results=False))


def zero_stays_zero(function: Callable[..., Any]) -> Callable[..., Any]:
    """An elementwise function with broadcasting, of one result, with the same values and slopes."""

    def called(*inputs: Any) -> Any:
        traced = [k for k, x in enumerate(inputs) if isinstance(x, jax.core.Tracer)]
        if not any(jnp.issubdtype(inputs[k].dtype, jnp.floating) for k in traced):
            return function(*inputs)  # numbers stay Python's
        # the rule below may be run where JAX has other dtypes on
        constants = [x if isinstance(x, (bool, int, float, jax.core.Tracer)) else jnp.asarray(x) for x in inputs]

        @jax.custom_jvp  # type: ignore[untyped-decorator]
        def of_traced(*operands: Any) -> Any:
            whole = list(constants)
            for k, x in zip(traced, operands, strict=True):
                whole[k] = x
            return function(*whole)

        @of_traced.defjvp  # type: ignore[untyped-decorator]
        def slopes(primals: Any, tangents: Any) -> tuple[Any, Any]:
            value = of_traced(*primals)
            total = jnp.zeros_like(value)
            for k, (x, tangent) in enumerate(zip(primals, tangents, strict=True)):
                if jnp.issubdtype(x.dtype, jnp.floating):
                    along = functools.partial(_at, of_traced.fun, primals, k)
                    slope = jnp.broadcast_to(jax.jvp(along, (x,), (jnp.ones_like(x),))[1], value.shape)
                    spread = jnp.broadcast_to(tangent, value.shape).astype(slope.dtype)
                    total = total + _scaled.bind(slope, spread)
            return value, total

        return of_traced(*[inputs[k] for k in traced])

    return called


def _at(function: Callable[..., Any], operands: Any, k: int, x: Any) -> Any:
    return function(*operands[:k], x, *operands[k + 1 :])
