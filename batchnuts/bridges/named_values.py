"""Positions of a model of a library on JAX by the values of its own parameters, as initial values and files of earlier
runs have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np
from numpy.typing import NDArray

from batchnuts.bridges.tracing import LIBRARY
from batchnuts.mcmc.model.named_parameters import NamedParameters
from batchnuts.mcmc.model.supports import SupportError

Arrays = Mapping[str, NDArray[Any]]

TOLERANCE = 1e-3
"""How far a value may be, relative to the largest of its array, from what its real numbers give: more is outside of its
support, less may be rounding."""


@dataclass(frozen=True, eq=False)
class NamedValues:
    """The functions of `NamedParameters`, of two functions of JAX for one draw."""

    names: Sequence[str]
    free: Mapping[str, tuple[int, ...]]
    """The shapes of the model's variables, in the order of the position."""
    dtype: str
    forward: Callable[[Mapping[str, Any]], Sequence[Any]]
    """Values by name to the arrays of the variables."""
    backward: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Arrays by variable to values by name, among others."""

    def positions(self, values: Arrays) -> NDArray[np.float64]:
        """name -> [n, *shape] to positions [n, dimension]. Raises SupportError for a value outside of its support."""
        given = {name: np.asarray(values[name], self.dtype) for name in self.names}
        there, again = self._compiled("positions", self._position)(*given.values())
        for name, array in given.items():
            scale = float(np.abs(array).max(initial=0.0))
            near = np.isclose(np.asarray(again[name]), array, rtol=TOLERANCE, atol=TOLERANCE * scale)
            if not near.all():
                row = int(np.argmin(near.reshape(len(near), -1).all(axis=1)))
                raise SupportError(f"{name!r} is {array[row].tolist()}, which is outside of its support")
        return np.asarray(there, np.float64)

    def position(self, values: Arrays) -> NDArray[np.float64]:
        """name -> [*shape] to a position [dimension]. Raises SupportError for a value outside of its support."""
        row: NDArray[np.float64] = self.positions({name: np.asarray(value)[None] for name, value in values.items()})[0]
        return row

    def values(self, position: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """[dimension] to name -> [*shape]."""
        found = self._compiled("values", self._values)(np.asarray(position, self.dtype)[None])
        return {name: np.asarray(value)[0] for name, value in found.items()}

    def _position(self, *values: Any) -> tuple[Any, dict[str, Any]]:
        """Of the values of one draw: its position, and the values there."""
        free = self.forward(dict(zip(self.names, values, strict=True)))
        position = jax.numpy.concatenate([jax.numpy.ravel(value) for value in free])
        return position, self._values(position)

    def _values(self, position: Any) -> dict[str, Any]:
        free, start = {}, 0
        for name, shape in self.free.items():
            size = int(np.prod(shape))
            free[name] = position[start : start + size].reshape(shape)
            start += size
        found = self.backward(free)
        return {name: found[name] for name in self.names}

    def _compiled(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        made = _compiled.setdefault(self, {})
        if name not in made:
            made[name] = LIBRARY.compiled(jax.vmap(function))
        return made[name]

    def parameters(self, shapes: Mapping[str, tuple[int, ...]]) -> NamedParameters:
        """What the model says of its parameters, of these shapes."""
        return NamedParameters(shapes, self.position, constrained=self.values, at_once=self.positions)


_compiled: WeakKeyDictionary[NamedValues, dict[str, Callable[..., Any]]] = WeakKeyDictionary()
"""What this process has compiled of each; not among its attributes, by which a changed model is found."""
