"""Positions of a NumPyro model by values of its latent sites, as initial values and files of earlier runs have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np
from numpy.typing import NDArray
from numpyro import infer

from batchnuts.bridges import numpyro_traces as traces
from batchnuts.bridges.numpyro_sites import Sites
from batchnuts.bridges.tracing import LIBRARY
from batchnuts.mcmc.model.named_parameters import NamedParameters
from batchnuts.mcmc.model.supports import SupportError

Arrays = Mapping[str, NDArray[Any]]

TOLERANCE = 1e-3
"""How far a value may be, relative to the largest of its site, from what its real numbers give: more is outside of its
support, less may be rounding."""


@dataclass(frozen=True, eq=False)
class SiteValues:
    """The functions of `NamedParameters` for the latent sites of a model."""

    bound: traces.Bound
    names: Mapping[str, str]
    """By names in files, those in NumPyro."""
    free: Mapping[str, tuple[int, ...]]
    """The shapes of unconstrained values, by names in files and in order."""
    dtype: str

    def positions(self, values: Arrays) -> NDArray[np.float64]:
        """name -> [n, *shape] to positions [n, dimension]. Raises SupportError for a value outside of its support."""
        given = {name: np.asarray(values[name], self.dtype) for name in self.names}
        there, again = self._compiled("positions", self._position)(*given.values())
        for name, array in given.items():
            scale = float(np.abs(array).max())
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
        with traces.HANDLERS:
            there = dict(zip(self.names.values(), values, strict=True))
            trace = traces.first_trace(self.bound, traces.key_of(0), infer.init_to_value(values=there))
            free = [traces.unconstrained(trace[name]) for name in self.names.values()]
        position = jax.numpy.concatenate([jax.numpy.ravel(value) for value in free])
        return position, self._values(position)

    def _values(self, position: Any) -> dict[str, Any]:
        free, start = {}, 0
        for name, shape in self.free.items():
            size = int(np.prod(shape))
            free[traces.free_name(name)] = position[start : start + size].reshape(shape)
            start += size
        sites = traces.constrained(*self.bound, free)
        return {name: sites[name] for name in self.names}

    def _compiled(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        made = _compiled.setdefault(self, {})
        if name not in made:
            made[name] = LIBRARY.compiled(jax.vmap(function))
        return made[name]


_compiled: WeakKeyDictionary[SiteValues, dict[str, Callable[..., Any]]] = WeakKeyDictionary()
"""What this process has compiled of each; not among its attributes, by which a changed model is found."""


def parameters_of(bound: traces.Bound, sites: Sites, dtype: str) -> NamedParameters | None:
    """Those of a model under the names of its latent sites; None where some of a site is observed."""
    if sites.parts or sites.empty:
        return None
    own = {in_files: name for name, in_files in sites.saved.items()}
    names = {name: own[name] for name in sites.free}
    values = SiteValues(bound, names, dict(sites.free), dtype)
    shapes = {name: sites.shapes[name] for name in sites.free}
    return NamedParameters(shapes, values.position, constrained=values.values, at_once=values.positions)
