"""How much a JAX function does for one lane, read from its jaxpr."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

from batchnuts.autobatch.backends.abstract import TRACED_LANES
from batchnuts.autobatch.ir.program import Primitive, TensorType
from batchnuts.autobatch.language.pytree import flatten

FREE = {"reshape", "squeeze", "broadcast_in_dim", "expand_dims", "stop_gradient", "copy", "optimization_barrier"}
"""Primitives that compute nothing."""


def primitive_work(function: Primitive, inputs: tuple[TensorType, ...]) -> float:
    """Estimate the work of a primitive from its trace, which is made within `enable_x64`.

    A rough measure: a loop counts once, a branch with all arms.
    """
    lanes = TRACED_LANES if function.batched else 1
    specs = [jax.ShapeDtypeStruct((lanes, *t.shape) if function.batched else t.shape, t.dtype) for t in inputs]

    def arrays(*values: Any) -> list[Any]:
        return [leaf for result in function.call(*values) for leaf in flatten(result)[0] if isinstance(leaf, jax.Array)]

    return _work(jax.make_jaxpr(arrays)(*specs).jaxpr) / lanes


def _work(jaxpr: Any) -> float:
    """The work in a jaxpr and in those that it calls."""
    total = 0.0
    for equation in jaxpr.eqns:
        called = list(called_by(equation))
        for inner in called:
            total += _work(inner)
        size = float(sum(math.prod(getattr(v.aval, "shape", ())) for v in equation.outvars))
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total += size * math.prod(shape[axis] for axis in contracted)
        elif equation.primitive.name not in FREE and not called:
            total += size
    return total


def called_by(equation: Any) -> Iterator[Any]:
    """The jaxprs among an equation's parameters."""
    yield from _jaxprs(list(equation.params.values()))


def _jaxprs(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _jaxprs(part)
    elif hasattr(value, "eqns"):
        yield value
    elif hasattr(value, "jaxpr"):  # with its constants
        yield value.jaxpr


def inputs_used(jaxpr: Any, outputs: list[bool], called: Callable[[Any], Iterator[Any]] = called_by) -> set[int]:
    """The numbers of the inputs that the outputs marked, or effects, depend on. A call inside is looked into, a loop or
    branch uses all that goes into it."""
    needed = {id(v) for v, wanted in zip(jaxpr.outvars, outputs) if wanted}
    for equation in reversed(jaxpr.eqns):
        wanted = [id(v) in needed for v in equation.outvars]
        if not any(wanted) and not equation.effects:
            continue
        inner = list(called(equation))
        if equation.primitive.name in ("jit", "pjit") and len(inner) == 1 and not equation.effects:
            used = inputs_used(inner[0], wanted, called)
        else:
            used = set(range(len(equation.invars)))
        needed |= {id(v) for i, v in enumerate(equation.invars) if i in used}
    return {i for i, v in enumerate(jaxpr.invars) if id(v) in needed}
