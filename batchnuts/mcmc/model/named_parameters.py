"""Parameters of a model of another library, which computes positions from their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model.supports import SupportError


@dataclass(frozen=True, eq=False)
class NamedParameters:
    """What a position is made of, under the other library's names."""

    shapes: Mapping[str, tuple[int, ...]]
    unconstrained: Callable[[Mapping[str, NDArray[np.float64]]], NDArray[np.float64]]
    """A position [dimension] of one value [*shape] for each name. Raises SupportError for one outside of its support.
    """

    def positions(self, values: Mapping[str, Any]) -> NDArray[np.float64]:
        """Values [..., *shape] by name to positions [..., dimension]. Raises SupportError."""
        if set(values) != set(self.shapes):
            raise SupportError(f"got values for {sorted(values)}; expected {sorted(self.shapes)}")
        arrays, leads = {}, set()
        for name, shape in self.shapes.items():
            array = arrays[name] = np.asarray(values[name], np.float64)
            lead = array.ndim - len(shape)
            if lead < 0 or array.shape[lead:] != shape:
                raise SupportError(f"{name!r} has shape {array.shape}; expected it to end with {shape}")
            leads.add(array.shape[:lead])
        if len(leads) > 1:
            raise SupportError(f"the values have leading axes {sorted(leads)}; expected the same for all")
        (lead_shape,) = leads
        rows = [
            self.unconstrained({name: array[index] for name, array in arrays.items()})
            for index in np.ndindex(lead_shape)
        ]
        return np.stack(rows).reshape(*lead_shape, -1)
