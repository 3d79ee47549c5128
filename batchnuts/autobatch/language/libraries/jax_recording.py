"""JAX's functions, recorded: a jaxpr is interpreted with arrays that write down what is computed (`recording`).

        { lambda ; a:f32[3]. let                          %1 = square(%0)
            b:f32[3] = square a                 -->       %2 = sum(%1, [0])
            c:f32[] = reduce_sum[axes=(0,)] b             => %2
          in (c,) }

        rule ::= (equation, argument*) -> result, or a list of results

What depends on no input is computed now, as indices and shapes are; loops of a known number of trips are
unrolled. A value may have extents of 1 where its type has larger ones: it is broadcast by the functions that read it.
NotTyped is raised for a primitive without a rule, for indices that are not known, and for more than MOST_CALLS calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core
import numpy as np

from batchnuts.autobatch.language.libraries.jax_flags import enable_x64
from batchnuts.autobatch.language.libraries.jax_rules import elements, elementwise, reductions
from batchnuts.autobatch.language.libraries.jax_rules.values import (
    Array,
    Equation,
    Rule,
    number,
    one_axis,
    shape_of,
    whole,
    wholes,
)
from batchnuts.autobatch.language.libraries.recording import FUNCTIONS as F
from batchnuts.autobatch.language.libraries.recording import Recorded
from batchnuts.autobatch.language.libraries.type_rules import NotTyped

MOST_CALLS = 4_000
"""Functions that are recorded, at most: each becomes instructions, for which LLVM takes part of a millisecond."""


def record(closed: Any, *arrays: Array) -> list[Array]:
    """The results of a jaxpr for recorded arrays and NumPy's, as JAX's types have them."""
    with np.errstate(all="ignore"):
        results = _interpreted(closed.jaxpr, closed.consts, arrays)
        return [whole(result, v.aval) for result, v in zip(results, closed.jaxpr.outvars, strict=True)]


def _interpreted(jaxpr: Any, constants: Sequence[Any], arrays: Sequence[Array]) -> list[Array]:
    values: dict[Any, Array] = dict(zip(jaxpr.constvars, map(_known, constants), strict=True))
    values.update(zip(jaxpr.invars, arrays, strict=True))

    def read(atom: Any) -> Array:
        return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom, jax.extend.core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        arguments = [read(atom) for atom in equation.invars]
        results = _results(equation, arguments)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _results(equation: Equation, arguments: Sequence[Array]) -> Sequence[Array]:
    name = equation.primitive.name
    if name not in _BY_NUMPY and not any(isinstance(x, Recorded) for x in arguments):
        return _by_jax(equation, arguments)
    if (rule := RULES.get(name)) is None:
        raise NotTyped(f"JAX's {name}")
    if any(len(x.recording.calls) > MOST_CALLS for x in arguments if isinstance(x, Recorded)):
        raise NotTyped(f"more than {MOST_CALLS:,} calls of functions")
    results = rule(equation, *arguments)
    several = results if equation.primitive.multiple_results else [results]
    return [_typed(result, v.aval.dtype) for result, v in zip(several, equation.outvars, strict=True)]


def _typed(result: Array, dtype: Any) -> Array:
    """NumPy's array in the dtype that JAX gives it: a sum of small integers has not a larger one."""
    return result if isinstance(result, Recorded) else np.asarray(result, dtype)


def _by_jax(equation: Equation, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results for values that are all known."""
    with jax.ensure_compile_time_eval(), enable_x64():
        results = equation.primitive.bind(*wholes(equation, arguments), **equation.params)
        return [np.asarray(x) for x in (results if equation.primitive.multiple_results else [results])]


def _known(constant: Any) -> np.ndarray:
    if isinstance(constant, jax.core.Tracer) or jax.dtypes.issubdtype(constant.dtype, jax.dtypes.extended):
        raise NotTyped("a key, or a value of an outer trace")
    return np.asarray(constant)


# ---- programs --------------------------------------------------------------------------------------------------------


def _inner(equation: Equation, *arguments: Array) -> list[Array]:
    """The results of a jaxpr within."""
    inner = next(equation.params[name] for name in ("jaxpr", "call_jaxpr", "fun_jaxpr") if name in equation.params)
    return _of(inner, arguments)


def _of(inner: Any, arguments: Sequence[Array]) -> list[Array]:
    if isinstance(inner, jax.extend.core.ClosedJaxpr):
        return _interpreted(inner.jaxpr, inner.consts, arguments)
    return _interpreted(inner, (), arguments)


def _cond(equation: Equation, which: Array, *arguments: Array) -> list[Array]:
    """One branch, or all of them and a choice of their results."""
    branches = equation.params["branches"]
    if isinstance(which, np.ndarray):
        return _of(branches[min(max(int(which), 0), len(branches) - 1)], arguments)
    results = [_of(branch, arguments) for branch in branches]
    first, *others = results
    for place, other in enumerate(others, 1):
        chosen = F.greater_equal(which, number(place, which))
        first = [F.where(chosen, there, here) for here, there in zip(first, other, strict=True)]
    return first


def _scan(equation: Equation, *arguments: Array) -> list[Array]:
    """Each trip."""
    number_of_constants, number_carried = (equation.params[name] for name in ("num_consts", "num_carry"))
    arguments = tuple(wholes(equation, arguments))
    constants, rest = arguments[:number_of_constants], arguments[number_of_constants:]
    carried, rows = list(rest[:number_carried]), rest[number_carried:]
    stacked: dict[int, list[Array]] = {}
    trips = range(equation.params["length"])
    for trip in reversed(trips) if equation.params["reverse"] else trips:
        own = [F.item(row, one_axis(trip, 0, len(shape_of(row)))) for row in rows]
        results = _of(equation.params["jaxpr"], (*constants, *carried, *own))
        inner = equation.params["jaxpr"].jaxpr.outvars
        results = [whole(result, v.aval) for result, v in zip(results, inner, strict=True)]
        carried, stacked[trip] = results[:number_carried], results[number_carried:]
    if not stacked:
        raise NotTyped("a loop without a trip")
    return [*carried, *(F.stack(tuple(parts), 0) for parts in zip(*(stacked[trip] for trip in trips)))]


def _while(equation: Equation, *arguments: Array) -> list[Array]:
    """Trips as long as the condition is known and holds."""
    of_condition, of_body = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    constants = arguments[of_condition : of_condition + of_body]
    carried = list(arguments[of_condition + of_body :])
    for _ in range(MOST_CALLS):
        (goes_on,) = _of(equation.params["cond_jaxpr"], (*arguments[:of_condition], *carried))
        if isinstance(goes_on, Recorded):
            raise NotTyped("a loop whose number of trips depends on parameters")
        if not goes_on:
            return carried
        carried = _of(equation.params["body_jaxpr"], (*constants, *carried))
    raise NotTyped("a loop of many trips")


RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **reductions.RULES,
    **elements.RULES,
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"), _inner),
    **dict.fromkeys(("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"), _inner),
    "cond": _cond,
    "scan": _scan,
    "while": _while,
}
"""By the names of primitives."""

_BY_NUMPY = frozenset(RULES) - {"erf", "erfc", "erf_inv", "lgamma", "digamma", "div", "pow", "integer_pow", "cholesky"}
"""What NumPy computes of values that are known, without a program that XLA compiles, and without SciPy."""
