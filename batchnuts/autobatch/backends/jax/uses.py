"""Programs whose reverse-mode derivative is that of the operations which led to each lane's result, and of no other.

A machine computes more than these: on inactive lanes, in both arms of a converted branch, and what a lane turns out not
to need. No cotangent comes to those operations, but where their derivative is infinite, zero times infinity is NaN.
That a cotangent is zero does not show it: it is zero at a mode, too, where its own derivative is not.

So each float variable `x` has a companion `x.use`, which goes wherever x goes: through copies, selects, stacks and
returns. Its value is 0. Its cotangent is positive where the lane's result was computed from x, whatever the derivatives
are, and zero elsewhere:

    y = f(x)            y.use = g(x.use), whose derivative passes 1 to x.use if anything comes to y.use
    y = select c, a, b  y.use = select c, a.use, b.use
    result = y          passes 1 to y.use, if the caller differentiates that result

Where nothing comes to y.use, the derivative of f is left out by selects around its arguments and its results, so that
forward mode over it leaves out the same. Reverse over reverse differentiates the forward pass, too, in which no use is
known: it is NaN where more is computed of an unused value whose derivative is infinite.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from batchnuts.autobatch.backends.backend import Array
from batchnuts.autobatch.ir.evaluate import function_of
from batchnuts.autobatch.ir.program import (
    COPY,
    Block,
    Op,
    PopOp,
    Primitive,
    PrimOp,
    Program,
    PushOp,
    TensorType,
    VariableAllocation,
    WriteRowOp,
    mentioned,
)
from batchnuts.autobatch.language.libraries.jax import with_64_bits
from batchnuts.autobatch.passes.if_convert import SELECT

Arrays = tuple[Any, ...]

_USE = TensorType("float32")
_NONE = "none.use"
"""The use of what is no float: never written."""


def with_uses(program: Program) -> Program:
    """The lowered program with a use beside each float variable; those of float results come last in its results."""
    floats = {v for v, type_ in program.var_defs.items() if jnp.issubdtype(type_.dtype, jnp.inexact)}
    blocks = tuple(_block(block, floats) for block in program.graph.blocks)
    graph = replace(program.graph, blocks=blocks)
    vars_out = (*program.vars_out, *(_use(v) for v in program.vars_out if v in floats))
    extended = program.replace(graph=graph, vars_out=vars_out)
    used = mentioned(extended)
    uses = {_use(v): v for v in program.var_defs if v in floats and _use(v) in used}
    none = {_NONE: VariableAllocation.REGISTER} if _NONE in used else {}
    return extended.replace(
        var_defs={**program.var_defs, **dict.fromkeys((*uses, *none), _USE)},
        var_alloc={**program.var_alloc, **{use: program.var_alloc[v] for use, v in uses.items()}, **none},
    )


def _use(variable: str) -> str:
    return f"{variable}.use"


def _block(block: Block, floats: set[str]) -> Block:
    return replace(block, ops=tuple(itertools.chain.from_iterable(_ops(op, floats) for op in block.ops)))


def _ops(op: Op, floats: set[str]) -> Iterable[Op]:
    """The op with what it does to uses."""

    def uses(variables: Iterable[str]) -> tuple[str, ...]:
        return tuple(_use(v) if v in floats else _NONE for v in variables)

    match op:
        case PushOp(var) | PopOp(var) if var in floats:
            return op, replace(op, var=_use(var))
        case WriteRowOp(var_out=buffer) if buffer in floats:
            return op, PrimOp(uses([buffer]), _JOIN, uses([op.buffer, op.value]), op.source)
        case PrimOp(outs, function, ins) if not floats.isdisjoint(outs):
            places = [i for i, v in enumerate(outs) if v in floats]
            uses_out = uses(outs[i] for i in places)
            if function is COPY:
                return (replace(op, vars_out=outs + uses_out, vars_in=ins + uses(ins[i] for i in places)),)
            if function.call is SELECT.call:  # with a body or without
                condition, *arms = ins
                halves = (arms[: len(outs)], arms[len(outs) :])
                arms_with_uses = [(*half, *uses(half[i] for i in places)) for half in halves]
                operands = (condition, *arms_with_uses[0], *arms_with_uses[1])
                return (PrimOp(outs + uses_out, SELECT, operands, op.source),)
            if floats.isdisjoint(ins):
                return op, PrimOp(uses_out, COPY, (_NONE,) * len(places), op.source)
            function = _only_if_used(function, len(ins), len(uses_out))
            return (PrimOp(outs + uses_out, function, ins + uses(v for v in ins if v in floats), op.source),)
    return (op,)


def _join(*uses: Array) -> Array:
    """The use of a value that is made of those that have these: [], or [lanes]."""
    joined = jax.custom_vjp(_sum)
    joined.defvjp(
        lambda *uses: (_sum(*uses), None),
        lambda _, cotangent: (jnp.where(cotangent > 0, 1.0, 0.0).astype(cotangent.dtype),) * len(uses),
    )
    return joined(*uses)


def _sum(*uses: Array) -> Array:
    return functools.reduce(operator.add, uses)


_JOIN = Primitive("join", lambda *uses: (_join(*uses),))


def _only_if_used(primitive: Primitive, inputs: int, outputs: int) -> Primitive:
    """A primitive of `inputs` variables, then the uses of the floats among them, to its results and `outputs` uses."""
    axes = 1 if primitive.batched else 0
    compute = function_of(primitive)

    def call(*values: Any) -> Arrays:
        results, uses = compute(*values[:inputs]), values[inputs:]
        return (*results, *(_sum(*uses),) * outputs)

    def forward(*values: Any) -> tuple[Arrays, Arrays]:
        return call(*values), values[:inputs]

    @with_64_bits
    def backward(values: Arrays, cotangents: Arrays) -> Arrays:
        of_results, of_uses = cotangents[:-outputs], cotangents[-outputs:]
        used = functools.reduce(operator.or_, (use > 0 for use in of_uses))

        def where_used(array: Array, otherwise: Any) -> Array:
            return jnp.where(jnp.reshape(used, used.shape + (1,) * (jnp.ndim(array) - axes)), array, otherwise)

        def float_results(*floats: Array) -> Arrays:
            tracers = iter(floats)
            results = compute(*(next(tracers) if _is_float(v) else v for v in values))
            return tuple(filter(_is_float, map(jnp.asarray, results)))  # of Python's numbers, too

        floats = tuple(where_used(v, lax.stop_gradient(v)) for v in values if _is_float(v))
        _, pull = jax.vjp(float_results, *floats)
        pulled = pull(tuple(where_used(c, 0) for c in of_results if _is_float(c)))
        of_values = iter([where_used(p, 0) for p in pulled])
        passed = jnp.where(used, 1.0, 0.0).astype(_USE.dtype)
        return (*(next(of_values) if _is_float(v) else None for v in values), *(passed,) * len(floats))

    guarded = jax.custom_vjp(call)
    guarded.defvjp(forward, backward)
    return replace(primitive.with_call(guarded), offset=None, parts=())


def _is_float(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def differentiated(function: Callable[..., Arrays], results: int) -> Callable[..., Arrays]:
    """A function of arrays to `results` arrays, then the uses of those that are floats, then more, without the uses:
    what is computed for a float result is used if the caller differentiates it."""

    def without_uses(*arrays: Array) -> Arrays:
        outputs = function(*arrays)
        uses = iter(outputs[results:])
        return (*(_differentiated(r, next(uses)) if _is_float(r) else r for r in outputs[:results]), *uses)

    return without_uses


_differentiated = jax.custom_vjp(lambda result, use: result)
_differentiated.defvjp(lambda result, use: (result, use), lambda use, cotangent: (cotangent, jnp.ones_like(use)))
