"""Products with a matrix that all lanes have in common, written so that `jax.vmap` puts the lanes first.

For `matrix @ x` of each lane's vector x, `jax.vmap` makes a product whose last axis is that of lanes, and turns it for
each operation that reads it: XLA for processors then reads columns there, without vector instructions. `x @ matrix.T`
is the same product with the lanes in front.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Literal, jaxpr_as_fun

from batchnuts.autobatch.backends.jax.lapack import one_after_another


def vectorized(function: Callable[..., Sequence[Any]]) -> Callable[..., tuple[Any, ...]]:
    """A function of one lane's arrays over all lanes: `jax.vmap`, with the lanes first in products too, and calls of
    LAPACK for one lane after another."""

    def all_lanes(*values: Any) -> tuple[Any, ...]:
        specs = [jax.ShapeDtypeStruct(value.shape[1:], value.dtype) for value in values]
        traced = jax.make_jaxpr(function)(*specs)
        turned = traced.replace(jaxpr=_lanes_first(traced.jaxpr, [True] * len(values))[0])
        return tuple(one_after_another(jax.vmap(jaxpr_as_fun(turned)), values)(*values))

    return all_lanes


def _lanes_first(jaxpr: Any, inputs: Sequence[bool]) -> tuple[Any, list[bool]]:
    """The jaxpr in which vectors stand before what they are multiplied by, if only they differ between lanes; of the
    inputs it is given whether they do, of the outputs returned. Loops and branches inside are left as they are."""
    differing = {v for v, differs in zip(jaxpr.invars, inputs) if differs}

    def differs(atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in differing

    equations = []
    for equation in jaxpr.eqns:
        among = [differs(atom) for atom in equation.invars]
        outputs = [any(among)] * len(equation.outvars)
        if equation.primitive.name == "dot_general" and among == [False, True]:
            equation = _vector_first(equation)
        elif equation.primitive.name in ("jit", "pjit"):
            inner = equation.params["jaxpr"]
            turned, outputs = _lanes_first(inner.jaxpr, among)
            if turned is not inner.jaxpr:
                equation = equation.replace(params={**equation.params, "jaxpr": inner.replace(jaxpr=turned)})
        differing.update(v for v, varies in zip(equation.outvars, outputs) if varies)
        equations.append(equation)
    if any(new is not old for new, old in zip(equations, jaxpr.eqns)):
        jaxpr = jaxpr.replace(eqns=equations)
    return jaxpr, [differs(atom) for atom in jaxpr.outvars]


def _vector_first(product: Any) -> Any:
    """The product of a matrix and a vector with these exchanged: its shape stays, since the vector has no other axis
    than the one that is summed."""
    contracted, batch = product.params["dimension_numbers"]
    matrix, vector = product.invars
    if batch != ((), ()) or len(vector.aval.shape) != len(contracted[1]):
        return product
    precision = product.params["precision"]
    exchanged: dict[str, Any] = {"dimension_numbers": (contracted[::-1], batch)}
    if isinstance(precision, tuple):
        exchanged["precision"] = precision[::-1]
    return product.replace(invars=[vector, matrix], params={**product.params, **exchanged})
