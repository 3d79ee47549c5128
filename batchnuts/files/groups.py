"""Groups of arrays with named axes: what xarray calls a Dataset, for runs that can do without xarray.

xarray imports pandas, and both take as long as the draws of a short run (docs/decisions/0059-short-starts.md). So the
command line writes a netCDF file (netcdf.py) and judges its draws from these; what is returned to users, and all else,
is a Dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import xarray

Values: TypeAlias = "NDArray[Any] | xarray.Variable"
"""An array, or what is read from a file when it is used."""


@dataclass(frozen=True, eq=False)
class Named:
    """An array with a name for each axis."""

    dims: tuple[str, ...]
    values: Values
    attrs: Mapping[str, Any]

    @classmethod
    def of(cls, dims: str | Iterable[str], values: Any, attrs: Mapping[str, Any] | None = None) -> Named:
        """An array and its axes as xarray takes them: one axis may be its name alone, and the array a list."""
        return cls((dims,) if isinstance(dims, str) else tuple(dims), np.asarray(values), dict(attrs or {}))

    def ordered(self, *dims: str) -> Values:
        """The array with its axes in this order."""
        if dims == self.dims:
            return self.values
        if isinstance(self.values, np.ndarray):
            return self.values.transpose([self.dims.index(dim) for dim in dims])
        return self.values.transpose(*dims)


@dataclass(frozen=True, eq=False)
class Group:
    """Arrays by name, labels of axes (and other arrays along them) by name, and attributes."""

    arrays: Mapping[str, Named]
    coords: Mapping[str, Named]
    attrs: Mapping[str, Any]

    @classmethod
    def of(cls, arrays: Mapping[str, tuple[Any, ...]], coords: Mapping[str, Any], attrs: Mapping[str, Any]) -> Group:
        """The group of what xarray.Dataset takes: arrays as (dims, values) or (dims, values, attributes); labels as a
        list or (dims, values)."""
        labels = {
            name: Named.of(*value) if isinstance(value, tuple) else Named.of(name, value)
            for name, value in coords.items()
        }
        return cls({name: Named.of(*value) for name, value in arrays.items()}, labels, dict(attrs))

    @classmethod
    def of_dataset(cls, dataset: xarray.Dataset) -> Group:
        """The group of a Dataset; if that was opened lazily, its arrays are read when they are used."""

        def arrays_of(variables: Mapping[Any, xarray.DataArray]) -> dict[str, Named]:
            return {
                str(name): Named(tuple(map(str, array.dims)), array.variable, array.attrs)
                for name, array in variables.items()
            }

        return cls(arrays_of(dataset.data_vars), arrays_of(dataset.coords), dataset.attrs)

    def dataset(self) -> xarray.Dataset:
        """The Dataset of the group, which shares the arrays."""
        import xarray

        arrays, coords = (
            {name: (array.dims, array.values, array.attrs) for name, array in entries.items()}
            for entries in (self.arrays, self.coords)
        )
        return xarray.Dataset(arrays, coords=coords, attrs=self.attrs)

    def with_attrs(self, **attrs: Any) -> Group:
        """The group with further attributes."""
        return replace(self, attrs={**self.attrs, **attrs})

    def length(self, dim: str) -> int:
        """The length of an axis. Raises KeyError for one that no array has."""
        for array in (*self.arrays.values(), *self.coords.values()):
            if dim in array.dims:
                return int(array.values.shape[array.dims.index(dim)])
        raise KeyError(dim)

    def labels(self, dim: str) -> NDArray[Any]:
        """The labels of an axis [its length]; numbers from 0 where it has none."""
        if dim in self.coords:
            return np.asarray(self.coords[dim].values)
        return np.arange(self.length(dim))


AnyGroup: TypeAlias = "Group | xarray.Dataset"


def datasets_of(groups: Mapping[str, AnyGroup]) -> dict[str, xarray.Dataset]:
    """All groups as Datasets."""
    return {name: group.dataset() if isinstance(group, Group) else group for name, group in groups.items()}


def dataset_in(result: Any, name: str) -> xarray.Dataset | None:
    """A group of InferenceData, a DataTree or another mapping of names to datasets; None where it has none."""
    try:
        group = result[name]
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        return None
    if hasattr(group, "children"):  # a node of a DataTree, which has no numbers for a dimension without labels
        group = group.to_dataset(inherit=False)
    return group if hasattr(group, "data_vars") else None
