"""What a function computes, as one key: by which a program that contains it is found without tracing the program.

A function is known by its jaxpr: each equation's primitive, parameters, context and operands, and all constants. That
says all only if the primitives are JAX's own (or ours) and no parameter is a Python function: a rule that a user wrote,
for batching say, may change and the jaxpr stay as it was. Where anything is not known for certain, there is no key. (A
user's code may also replace a rule of JAX's own primitives; that is not seen.)
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.extend.core
import numpy as np

from batchnuts.store.identity import MOST_CONSTANT_BYTES

_KNOWN = ("jax", "jaxlib", "batchnuts")
"""Packages whose primitives mean the same as long as their files do."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), slice, np.dtype, enum.Enum)
"""Types whose `repr` says all of a value."""

_PLACES = ("AbstractMesh", "Mesh", "NamedSharding", "PartitionSpec", "UnspecifiedValue")
"""The same of JAX's own types: where arrays are. There is one device."""

_OF_LOOPS = ("jax._src.flattree", "jax._src.util")
"""Where, from 0.12 on, the types are by which a loop says how its arguments are put together."""

_DERIVATIVES = {
    "custom_jvp_call": ("jvp_jaxpr_fun",),
    "custom_vjp_call": ("fwd_jaxpr_thunk", "bwd", "out_trees"),
}
"""Parameters that say how a function is differentiated, which is not asked any more."""

_ADDRESS = " at 0x"
"""In what prints as where it is, and not as what it is."""


class _Unknown(Exception):
    """Something that a key cannot be made of."""


def identity_of(function: Callable[..., Any], *arrays: Any) -> str | None:
    """64 hexadecimal digits that two functions share only if they compute the same of such arrays; None: not known.

    Their derivatives may differ: ask for the identity of a function that computes them.
    """
    try:
        closed, shapes = jax.make_jaxpr(lambda *given: function(*given), return_shape=True)(*arrays)
        if closed.effects:
            return None
        digest = hashlib.sha256()
        for part in (repr(jax.tree.structure(shapes)), *_of_closed(closed)):
            data = part.encode() if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()
    except Exception:  # what is not known, and what is new in this JAX
        return None


def _of_closed(closed: Any) -> Iterable[str | bytes]:
    for constant in closed.consts:
        yield from _of_value(constant)
    yield from _of_jaxpr(closed.jaxpr)


def _of_jaxpr(jaxpr: Any) -> Iterable[str | bytes]:
    numbers: dict[Any, int] = {}

    def atom(x: Any) -> Iterable[str | bytes]:
        if isinstance(x, jax.extend.core.Literal):
            yield from _of_value(x.val)
            yield _type(x.aval)
        else:
            yield f"{numbers.setdefault(x, len(numbers))}: {_type(x.aval)}"

    for variable in (*jaxpr.constvars, *jaxpr.invars):
        yield from atom(variable)
    for equation in jaxpr.eqns:
        primitive = equation.primitive
        if id(primitive) not in _primitives():
            raise _Unknown
        context = repr(equation.ctx)
        if _ADDRESS in context:
            raise _Unknown
        yield f"{primitive.name} {len(equation.invars)} {len(equation.outvars)} {context}"
        for x in (*equation.invars, *equation.outvars):
            yield from atom(x)
        rules = _DERIVATIVES.get(primitive.name, ())
        yield from _of_value({name: value for name, value in equation.params.items() if name not in rules})
    yield "returns"
    for x in jaxpr.outvars:
        yield from atom(x)


def _type(aval: Any) -> str:
    return f"{aval.str_short()} {getattr(aval, 'weak_type', False)}"


def _of_value(value: Any) -> Iterable[str | bytes]:
    """A constant or a parameter."""
    if isinstance(value, jax.extend.core.ClosedJaxpr):
        yield from _of_closed(value)
    elif isinstance(value, jax.extend.core.Jaxpr):
        yield from _of_jaxpr(value)
    elif isinstance(value, jax.core.Tracer):
        raise _Unknown
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        if value.nbytes > MOST_CONSTANT_BYTES or value.dtype.kind == "O":
            raise _Unknown
        yield f"{value.dtype} {value.shape} {getattr(value, 'weak_type', False)}"
        yield np.asarray(value).tobytes()
    elif isinstance(value, dict):
        yield f"dict {len(value)}"
        for name in sorted(value, key=repr):
            yield from _of_value(name)
            yield from _of_value(value[name])
    elif isinstance(value, (tuple, list)):
        yield f"{type(value).__name__} {len(value)}"
        for element in value:
            yield from _of_value(element)
    elif isinstance(value, (set, frozenset)):
        yield from _of_value(sorted(value, key=repr))
    elif isinstance(value, _PLAIN) or _says_all(type(value)):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, type) and issubclass(value, np.generic):
        yield value.__name__
    elif isinstance(value, jax.tree_util.PyTreeDef) and _ADDRESS not in repr(value):
        yield repr(value)
    elif type(value).__module__ in _OF_LOOPS and hasattr(value, "__dict__"):
        yield type(value).__name__
        yield from _of_value({name: part for name, part in vars(value).items() if not name.startswith("_hash")})
    else:
        raise _Unknown


def _says_all(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "jax" and kind.__name__ in _PLACES


@functools.cache
def _primitives_of(modules: int) -> frozenset[int]:
    """The primitives in all modules of the known packages. modules: how many are imported, so that later ones count."""
    found: set[int] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _KNOWN:
            values = list(vars(module).values())
            found |= {id(value) for value in values if isinstance(value, jax.extend.core.Primitive)}
    return frozenset(found)


def _primitives() -> frozenset[int]:
    return _primitives_of(len(sys.modules))
