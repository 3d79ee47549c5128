"""NaN in the float results of lanes that have a fault, inside a user's program, where no error can be raised."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from batchnuts.autobatch.language.libraries.jax import with_64_bits

Array = Any


@with_64_bits
def with_nan(result: Array, faults: Array) -> Array:
    """A float result [lanes, ...], NaN in lanes whose fault is not 0, as are its tangents there."""
    factor = jnp.where(faults != 0, jnp.nan, 1.0).astype(result.dtype)
    return result * factor.reshape(-1, *[1] * (result.ndim - 1))


@with_64_bits
def with_nan_in_reverse(result: Array, faults: Array, *arguments: Array) -> Array:
    """The same for reverse mode: NaN is the derivative with respect to these arguments, [lanes, ...] of floats, too.

    A lane whose result the caller does not use, with a cotangent of 0, has the derivative 0.
    """
    return _reverse(result, faults, *arguments)


def _where(lanes: Array, x: Array, y: Array) -> Array:
    return jnp.where(lanes.reshape(-1, *[1] * (y.ndim - 1)), x, y)


def _value(result: Array, faults: Array, *_: Array) -> Array:
    return _where(faults != 0, jnp.full_like(result, jnp.nan), result)


def _forward(result: Array, faults: Array, *arguments: Array) -> tuple[Array, Any]:
    return _value(result, faults), (faults, arguments)


@with_64_bits
def _backward(saved: Any, cotangent: Array) -> tuple[Array | None, ...]:
    faults, arguments = saved
    used = (faults != 0) & (cotangent != 0).reshape(len(faults), -1).any(axis=1)
    # the machine may not have written the result of such a lane, which then depends on no argument
    return cotangent, None, *(_nan_or_zero(used, argument) for argument in arguments)


def _nan_or_zero(used: Array, argument: Array) -> Array:
    """NaN in used lanes, as further derivatives are; the factor of others is 1, or theirs would be 0 times NaN."""
    zeros, ones = jnp.zeros_like(argument), jnp.ones_like(argument)
    return _where(used, argument, zeros) * _where(used, jnp.full_like(argument, jnp.nan), ones)


_reverse = jax.custom_vjp(_value)
_reverse.defvjp(_forward, _backward)
