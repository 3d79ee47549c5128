"""Decompositions and transforms of many arrays, one array after another.

On processors JAX leaves them to LAPACK and to a library for FFTs. A call for many arrays divides them among the threads
of JAX's one pool, and waits for these on a thread of the same pool. Where as many such calls run at once as the pool
has threads (two programs on two cores: two shards of chains), each waits for the others, forever. A call for one array
divides nothing. (Seen with jaxlib 0.10.2: `ParallelBatchMap` under `lapack_spotrf_ffi`, in all threads of the pool.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

_AXES = {
    "cholesky": 2,
    "cholesky_update": 2,
    "eig": 2,
    "eigh": 2,
    "geqp3": 2,
    "geqrf": 2,
    "hessenberg": 2,
    "householder_product": 2,
    "lu": 2,
    "ormqr": 2,
    "qr": 2,
    "schur": 2,
    "svd": 2,
    "triangular_solve": 2,
    "tridiagonal": 2,
    "tridiagonal_solve": 1,
}
"""How many axes of its first argument one call needs, by the primitive's name. All before these are a batch."""


def one_after_another(function: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """The function of arrays like `inputs` (with shapes and dtypes), in which each such call is for one array; on other
    devices than processors, the function itself."""
    if jax.default_backend() != "cpu":
        return function
    traced = jax.make_jaxpr(function)(*inputs)
    rewritten = _rewritten(traced.jaxpr)
    return function if rewritten is traced.jaxpr else jaxpr_as_fun(traced.replace(jaxpr=rewritten))


def _rewritten(jaxpr: Any) -> Any:
    """The jaxpr, with those in loops, branches and calls; the same object where there is nothing to change."""
    equations = [_split(_with_inner(equation)) for equation in jaxpr.eqns]
    if all(new is old for new, old in zip(equations, jaxpr.eqns)):
        return jaxpr
    return jaxpr.replace(eqns=equations)


def _with_inner(equation: Any) -> Any:
    changed = {}
    for name, value in equation.params.items():
        new = _inside(value)
        if new is not value:
            changed[name] = new
    return equation.replace(params={**equation.params, **changed}) if changed else equation


def _inside(value: Any) -> Any:
    """A parameter of an equation: a jaxpr, or several."""
    if isinstance(value, ClosedJaxpr):
        rewritten = _rewritten(value.jaxpr)
        return value if rewritten is value.jaxpr else value.replace(jaxpr=rewritten)
    if isinstance(value, Jaxpr):
        return _rewritten(value)
    if isinstance(value, tuple) and any(isinstance(part, (ClosedJaxpr, Jaxpr)) for part in value):
        parts = list(map(_inside, value))
        if all(new is old for new, old in zip(parts, value)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _split(equation: Any) -> Any:
    primitive, params = equation.primitive, equation.params
    axes = len(params["fft_lengths"]) if primitive.name == "fft" else _AXES.get(primitive.name)
    if axes is None:
        return equation
    shape = equation.invars[0].aval.shape
    batch = shape[: len(shape) - axes]
    if math.prod(batch) < 2:
        return equation

    def alone(arrays: tuple[Any, ...]) -> Any:
        return primitive.bind(*arrays, **params)

    def each(*arrays: Any) -> Any:
        rows = tuple(array.reshape(-1, *array.shape[len(batch) :]) for array in arrays)
        return jax.tree.map(lambda result: result.reshape(*batch, *result.shape[1:]), lax.map(alone, rows))

    specs = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    (call,) = jax.make_jaxpr(jax.jit(each))(*specs).jaxpr.eqns
    return call.replace(invars=equation.invars, outvars=equation.outvars)
