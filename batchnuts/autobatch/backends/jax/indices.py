"""Indices of 32 bits for programs inside a user's own.

A program computes with integers of 64 bits, whatever the user's `jax_enable_x64` says. To lower a scatter by clipped
indices, such as the derivative of a gather by them, JAX traces a function under the user's setting; where that is off
and the indices have 64 bits, it fails (seen with JAX 0.10.2). So what is indexed gets indices of 32 bits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax import lax

from batchnuts.autobatch.backends.backend import Array
from batchnuts.autobatch.ir.evaluate import function_of
from batchnuts.autobatch.ir.program import COPY, Block, PrimOp, Program
from batchnuts.autobatch.passes.if_convert import SELECT

_Jaxpr, _Closed = jax.extend.core.Jaxpr, jax.extend.core.ClosedJaxpr

_INDICES = {
    "gather": slice(1, 2),
    "scatter": slice(1, 2),
    "dynamic_slice": slice(1, None),
    "dynamic_update_slice": slice(2, None),
}
"""Which arguments of a primitive of JAX are indices; `scatter` is `scatter-add` and the like, too."""


def with_narrow_indices(program: Program) -> Program:
    """The same program in whose primitives JAX indexes by 32 bits."""
    blocks = tuple(map(_block, program.graph.blocks))
    return program.replace(graph=replace(program.graph, blocks=blocks))


def _block(block: Block) -> Block:
    def narrow(op: Any) -> Any:
        if not isinstance(op, PrimOp) or op.function is COPY or op.function.call is SELECT.call:
            return op
        return replace(op, function=op.function.with_call(_narrowed(function_of(op.function))))

    return replace(block, ops=tuple(map(narrow, block.ops)))


def _narrowed(function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A function that is called while JAX traces, with 64 bits on."""

    def call(*values: Any) -> tuple[Any, ...]:
        outputs: list[Any] = []

        def arrays(tracers: list[Array]) -> list[Array]:
            remaining = iter(tracers)
            outputs[:] = function(*(next(remaining) if _is_traced(v) else v for v in values))
            return [value for value in outputs if _is_traced(value)]

        traced = [value for value in values if _is_traced(value)]
        closed = jax.make_jaxpr(arrays)(traced)
        jaxpr = _with_narrow_indices(closed.jaxpr)
        if jaxpr is closed.jaxpr:
            return function(*values)
        results = iter(jax.extend.core.jaxpr_as_fun(_Closed(jaxpr, closed.consts))(*traced))
        return tuple(next(results) if _is_traced(value) else value for value in outputs)

    return call


def _is_traced(value: Any) -> bool:
    return isinstance(value, jax.core.Tracer)


def _with_narrow_indices(jaxpr: Any) -> Any:
    """The jaxpr with indices of 32 bits, also in the bodies of control flow; `jaxpr` itself where it has no others."""
    equations = [changed for equation in jaxpr.eqns for changed in _equations(equation)]
    same = len(equations) == len(jaxpr.eqns) and all(map(operator.is_, equations, jaxpr.eqns))
    return jaxpr if same else jaxpr.replace(eqns=equations)


def _equations(equation: Any) -> Iterator[Any]:
    """The equation, after those that narrow its indices."""
    params = {name: _parameter(value) for name, value in equation.params.items()}
    if not all(map(operator.is_, params.values(), equation.params.values())):
        equation = equation.replace(params=params)
    invars = list(equation.invars)
    indices = _INDICES.get(equation.primitive.name.partition("-")[0], slice(0))
    for place in range(*indices.indices(len(invars))):
        index = invars[place]
        if index.aval.dtype.itemsize < 8:
            continue
        # a function of its own each time, or JAX gives the same trace, and so the same variables, again
        of_one = jax.make_jaxpr(lambda i: _int32(i))(jax.ShapeDtypeStruct(index.aval.shape, index.aval.dtype)).jaxpr
        variable = of_one.invars[0]
        for step in of_one.eqns:
            yield step.replace(invars=[index if v is variable else v for v in step.invars])
        (invars[place],) = of_one.outvars
    same = all(map(operator.is_, invars, equation.invars))
    yield equation if same else equation.replace(invars=invars)


def _parameter(value: Any) -> Any:
    """A parameter of a primitive: traces in it have narrow indices too."""
    if isinstance(value, _Closed):
        inner = _with_narrow_indices(value.jaxpr)
        return value if inner is value.jaxpr else _Closed(inner, value.consts)
    if isinstance(value, _Jaxpr):
        return _with_narrow_indices(value)
    if isinstance(value, tuple) and any(isinstance(part, _Closed | _Jaxpr) for part in value):
        parts = tuple(map(_parameter, value))
        return value if all(map(operator.is_, parts, value)) else parts
    return value


def _int32(index: Array) -> Array:
    """An index in 32 bits; one that is beyond these is outside of every array, and stays there."""
    low, high = (index.dtype.type(end) for end in (max(-(2**31), np.iinfo(index.dtype).min), 2**31 - 1))
    return lax.convert_element_type(lax.clamp(low, index, high), jnp.int32)
