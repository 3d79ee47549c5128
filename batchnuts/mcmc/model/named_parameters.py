"""Values by name, checked; and parameters of another library, which makes positions of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model.supports import SupportError


def arrays_by_name(
    values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], dtype: str
) -> tuple[dict[str, NDArray[Any]], tuple[int, ...]]:
    """Arrays [..., *shape] of a dtype, and their leading axes, which are the same for all.

    Raises SupportError for a missing or unknown name, a shape that does not end as given, and what is no number.
    """
    if set(values) != set(shapes):
        raise SupportError(f"got values for {sorted(values)}; expected {sorted(shapes)}")
    arrays, leads = {}, set()
    for name, shape in shapes.items():
        try:
            array = arrays[name] = np.asarray(values[name], dtype)
        except (TypeError, ValueError):
            raise SupportError(f"{name!r} is not an array of real numbers") from None
        lead = array.ndim - len(shape)
        if lead < 0 or array.shape[lead:] != shape:
            raise SupportError(f"{name!r} has shape {array.shape}; expected {shape}, or several of these")
        leads.add(array.shape[:lead])
    if len(leads) > 1:
        raise SupportError(f"the values have leading axes {sorted(leads)}; expected the same for all")
    return arrays, leads.pop()


@dataclass(frozen=True, eq=False)
class NamedParameters:
    """What a position is made of, under the other library's names."""

    shapes: Mapping[str, tuple[int, ...]]
    unconstrained: Callable[[Mapping[str, NDArray[np.float64]]], NDArray[np.float64]]
    """A position [dimension] of one value [*shape] for each name. Raises SupportError for one outside of its support.
    """
    free_names: Sequence[str] = ()
    """A name for each number of the position, where the library has names for them."""
    constrained: Callable[[NDArray[np.float64]], Mapping[str, NDArray[np.float64]]] | None = None
    """The values [*shape] by name at a position [dimension], where the library can say."""
    at_once: Callable[[Mapping[str, NDArray[np.float64]]], NDArray[np.float64]] | None = None
    """`unconstrained` of several, [n, *shape] to [n, dimension], where the library can do that."""

    def positions(self, values: Mapping[str, Any]) -> NDArray[np.float64]:
        """Values [..., *shape] by name to positions [..., dimension]. Raises SupportError."""
        arrays, lead = arrays_by_name(values, self.shapes, "float64")
        if self.at_once is not None and lead:
            flat = {name: array.reshape(-1, *self.shapes[name]) for name, array in arrays.items()}
            return self.at_once(flat).reshape(*lead, -1)
        rows = [self.unconstrained({name: array[i] for name, array in arrays.items()}) for i in np.ndindex(lead)]
        return np.stack(rows).reshape(*lead, -1)
