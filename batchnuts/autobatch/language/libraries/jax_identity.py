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
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core
import numpy as np

from batchnuts.disk_cache.identity import MOST_CONSTANT_BYTES

_KNOWN = ("jax", "jaxlib", "batchnuts")
"""Packages whose primitives mean the same as long as their files do."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), slice, np.dtype, enum.Enum)
"""Types whose `repr` says all of a value."""

_PLACES = ("AbstractMesh", "Mesh", "NamedSharding", "PartitionSpec", "UnspecifiedValue")
"""JAX's own types of which the same is true: the places of arrays. There is one device."""

_OF_LOOPS = ("jax._src.flattree", "jax._src.util")
"""The modules, from 0.12 on, of the types by which a loop says how its arguments are put together."""

_DERIVATIVES = {
    "custom_jvp_call": ("jvp_jaxpr_fun",),
    "custom_vjp_call": ("fwd_jaxpr_thunk", "bwd", "out_trees"),
}
"""Parameters that say how a function is differentiated, which is not asked any more."""

_ADDRESS = " at 0x"
"""Part of the text of an object that is printed by its address and not by its value."""


class _Unknown(Exception):
    """Something that a key cannot be made of."""


def identity_of(function: Callable[..., Any], *arrays: Any) -> str | None:
    """64 hexadecimal digits that two functions share only if they compute the same of such arrays; None: not known.

    Their derivatives may differ: ask for the identity of a function that computes them.
    """
    try:
        closed, shapes = jax.make_jaxpr(lambda *operands: function(*operands), return_shape=True)(*arrays)
    except Exception:
        return None
    return identity_of_jaxpr(closed, shapes)


def identity_of_jaxpr(closed: Any, shapes: Any) -> str | None:
    """`identity_of` for a function that was traced. shapes: its result, as a tree."""
    try:
        if closed.effects:
            return None
        digest = _Digest()
        digest.add(repr(jax.tree.structure(shapes)))
        digest.closed(closed)
        return digest.hexdigest()
    except Exception:  # what is not known, and what is new in this JAX
        return None


class _Digest:
    """A digest of parts, one after another, each with its length."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._primitives = _primitives()
        self._jaxprs: dict[int, Any] = {}
        """The jaxprs that were added, by id: a function that is called again has the same one."""
        self._contexts: dict[int, tuple[Any, str]] = {}
        """By id: the context of an equation, and its text."""
        self._bytes = 0
        """The bytes of arrays that were added."""

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add(self, part: str | bytes) -> None:
        data = part.encode() if isinstance(part, str) else part
        self._hash.update(len(data).to_bytes(8, "little"))
        self._hash.update(data)

    def closed(self, closed: Any) -> None:
        for constant in closed.consts:
            self.value(constant)
        self.jaxpr(closed.jaxpr)

    def jaxpr(self, jaxpr: Any) -> None:
        if id(jaxpr) in self._jaxprs:
            self.add(f"jaxpr {list(self._jaxprs).index(id(jaxpr))}")
            return
        self._jaxprs[id(jaxpr)] = jaxpr
        numbers: dict[Any, int] = {}
        for variable in (*jaxpr.constvars, *jaxpr.invars):
            self._atom(variable, numbers)
        for equation in jaxpr.eqns:
            primitive = equation.primitive
            if id(primitive) not in self._primitives:
                raise _Unknown
            context = self._context(equation.ctx)
            self.add(f"{primitive.name} {len(equation.invars)} {len(equation.outvars)} {context}")
            for x in (*equation.invars, *equation.outvars):
                self._atom(x, numbers)
            rules = _DERIVATIVES.get(primitive.name, ())
            self.value({name: value for name, value in equation.params.items() if name not in rules})
        self.add("returns")
        for x in jaxpr.outvars:
            self._atom(x, numbers)

    def _atom(self, x: Any, numbers: dict[Any, int]) -> None:
        if isinstance(x, jax.extend.core.Literal):
            self.value(x.val)
            self.add(_type(x.aval))
        else:
            self.add(f"{numbers.setdefault(x, len(numbers))}: {_type(x.aval)}")

    def _context(self, context: Any) -> str:
        _, text = self._contexts.get(id(context), (None, None))
        if text is None:
            text = repr(context)
            if _ADDRESS in text:
                raise _Unknown
            self._contexts[id(context)] = context, text
        return text

    def value(self, value: Any) -> None:
        """Add a constant or a parameter."""
        if isinstance(value, jax.extend.core.ClosedJaxpr):
            self.closed(value)
        elif isinstance(value, jax.extend.core.Jaxpr):
            self.jaxpr(value)
        elif isinstance(value, jax.core.Tracer):
            raise _Unknown
        elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
            self._bytes += value.nbytes
            if self._bytes > MOST_CONSTANT_BYTES or value.dtype.kind == "O":
                raise _Unknown
            self.add(f"{value.dtype} {value.shape} {getattr(value, 'weak_type', False)}")
            self.add(np.asarray(value).tobytes())
        elif isinstance(value, dict):
            self.add(f"dict {len(value)}")
            for name in sorted(value, key=repr):
                self.value(name)
                self.value(value[name])
        elif isinstance(value, (tuple, list)):
            self.add(f"{type(value).__name__} {len(value)}")
            for element in value:
                self.value(element)
        elif isinstance(value, (set, frozenset)):
            self.value(sorted(value, key=repr))
        elif isinstance(value, _PLAIN) or _says_all(type(value)):
            self.add(f"{type(value).__name__} {value!r}")
        elif isinstance(value, type) and issubclass(value, np.generic):
            self.add(value.__name__)
        elif isinstance(value, jax.tree_util.PyTreeDef) and _ADDRESS not in repr(value):
            self.add(repr(value))
        elif type(value).__module__ in _OF_LOOPS and hasattr(value, "__dict__"):
            self.add(type(value).__name__)
            self.value({name: part for name, part in vars(value).items() if not name.startswith("_hash")})
        else:
            raise _Unknown


def _type(aval: Any) -> str:
    return f"{aval.str_short()} {getattr(aval, 'weak_type', False)}"


def _says_all(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "jax" and kind.__name__ in _PLACES


@functools.cache
def _primitives_of(modules: int) -> frozenset[int]:
    """The primitives in all modules of the known packages. modules: how many are imported, so that later ones count."""
    primitives: set[int] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _KNOWN:
            values = list(vars(module).values())
            primitives |= {id(value) for value in values if isinstance(value, jax.extend.core.Primitive)}
    return frozenset(primitives)


def _primitives() -> frozenset[int]:
    return _primitives_of(len(sys.modules))
