"""Constant indices outside of an axis, found in a trace.

JAX takes the nearest element for an index that is outside, and says nothing. A trace has constants, and what
`jax.numpy` makes of them: a comparison, a sum and a selection for indices that count from the end. These few operations
are computed here in NumPy, and the indices compared with the axis. What else an index is computed by is not known here,
and not judged; nor is it where the user asked for what happens outside (`mode="fill"`, `"drop"`, `"clip"`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax import lax
from numpy.typing import NDArray

from batchnuts.autobatch.language.libraries.bounds import index_error

MOST_ELEMENTS = 4_000_000
"""Larger arrays of constants are not looked at."""

_Values = dict[Any, NDArray[Any]]
"""Values of variables of a trace."""


def refuse_indices_outside(closed: Any) -> None:
    """Raise IndexError, with the traceback of the user's line, for a constant index outside of an axis."""
    _walk(closed.jaxpr, closed.consts, {})


def _walk(jaxpr: Any, constants: Any, static_values: _Values) -> list[NDArray[Any] | None]:
    """The results that are known, None for others. static_values: of arguments; others are added."""
    for variable, value in zip(jaxpr.constvars, constants, strict=True):
        if _is_small_integers(variable.aval) and not isinstance(value, jax.core.Tracer):
            static_values[variable] = np.asarray(value)

    def value_of(atom: Any) -> NDArray[Any] | None:
        if isinstance(atom, jax.extend.core.Literal):
            return np.asarray(atom.val) if _is_small_integers(atom.aval) else None
        return static_values.get(atom)

    for equation in jaxpr.eqns:
        values = [value_of(atom) for atom in equation.invars]
        name = equation.primitive.name
        if name in _CALLS:
            inner = equation.params["jaxpr"]
            arguments = {v: a for v, a in zip(inner.jaxpr.invars, values, strict=True) if a is not None}
            results = _walk(inner.jaxpr, inner.consts, arguments)
            static_values |= {v: r for v, r in zip(equation.outvars, results, strict=True) if r is not None}
            continue
        if name == "gather" and values[1] is not None:
            _check_gather(equation, values[1])
        elif name == "dynamic_slice":
            _check_slice(equation, values[1:])
        elif name in _FOLDED and all(v is not None for v in values) and _is_small_integers(equation.outvars[0].aval):
            with np.errstate(all="ignore"):  # integers wrap, as JAX's do
                static_values[equation.outvars[0]] = np.asarray(_FOLDED[name](equation.params, *values))
    return [value_of(atom) for atom in jaxpr.outvars]


_CALLS = ("jit", "pjit")
"""Functions that a user compiles, and those of jax.numpy."""


def _is_small_integers(type_: Any) -> bool:
    dtype = getattr(type_, "dtype", None)
    return getattr(dtype, "kind", "") in "iub" and math.prod(type_.shape) <= MOST_ELEMENTS


def _broadcast(params: Mapping[str, Any], x: NDArray[Any]) -> NDArray[Any]:
    shape, places = params["shape"], params["broadcast_dimensions"]
    spread = [1] * len(shape)
    for place, length in zip(places, x.shape, strict=True):
        spread[place] = length
    return np.broadcast_to(x.reshape(spread), shape)


_FOLDED: dict[str, Callable[..., NDArray[Any]]] = {
    "add": lambda _, x, y: x + y,
    "sub": lambda _, x, y: x - y,
    "lt": lambda _, x, y: np.less(x, y),
    "select_n": lambda _, which, *arms: np.choose(which.astype("int32"), arms),
    "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda params, *arrays: np.concatenate(arrays, axis=params["dimension"]),
    "reshape": lambda params, x: x.reshape(params["new_sizes"]),
    "squeeze": lambda params, x: np.squeeze(x, axis=params["dimensions"]),
}
"""What jax.numpy does to indices, by the name of the primitive: of its parameters and arguments."""


def _check_gather(equation: Any, indices: NDArray[Any]) -> None:
    if equation.params["mode"] != lax.GatherScatterMode.PROMISE_IN_BOUNDS:
        return
    for column, axis in enumerate(equation.params["dimension_numbers"].start_index_map):
        _check(equation, axis, indices[..., column])


def _check_slice(equation: Any, starts: list[NDArray[Any] | None]) -> None:
    for axis, start in enumerate(starts):
        if start is not None:
            _check(equation, axis, start)


def _check(equation: Any, axis: int, indices: NDArray[Any]) -> None:
    if equation.params["slice_sizes"][axis] != 1:  # a window, which moves inside by definition
        return
    length = equation.invars[0].aval.shape[axis]
    error = index_error(indices, length, shift=length)
    if error is not None:
        traceback = equation.source_info.traceback
        raise error.with_traceback(traceback.as_python_traceback() if traceback is not None else None)
