"""Writing groups to a netCDF file as xarray writes them, without importing it.

The arrays, names, types and attributes in the file are those that xarray's own writer makes (tests/mcmc/test_netcdf.py
compares both). What is rare, times among labels say, is left to that writer: `plain` says what is written here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.groups import Group, Named

if TYPE_CHECKING:
    import h5netcdf

_KINDS = "iufU"
"""Of arrays: integers, floats and texts; truth values besides where they are no labels."""


def plain(group: Group) -> bool:
    """Whether `write_group` can write it."""
    arrays = all(_is_plain(array, f"{_KINDS}b") for array in group.arrays.values())
    return arrays and all(_is_plain(array, _KINDS) for array in group.coords.values())


def _is_plain(array: Named, kinds: str) -> bool:
    values = array.values
    return isinstance(values, np.ndarray) and values.dtype.kind in kinds and values.dtype != np.float16


def write_group(file: h5netcdf.File, name: str | None, group: Group) -> None:
    """Add a plain group to a file; name None: to its root."""
    place = file if name is None else file.create_group(name)
    for attribute, value in group.attrs.items():
        place.attrs[attribute] = value
    every = {**group.arrays, **group.coords}
    for array in every.values():
        for dim, length in zip(array.dims, array.values.shape, strict=True):
            if dim not in place.dimensions:
                place.dimensions[dim] = length
    for variable, array in every.items():
        _write(place, variable, array, _along(group, variable, array))


def _along(group: Group, name: str, array: Named) -> str:
    """The names of the coordinates of an array that do not label an axis, which is how readers find them."""
    if name in group.coords:
        return ""
    others = (other for other, coord in group.coords.items() if coord.dims != (other,))
    return " ".join(other for other in others if set(group.coords[other].dims) <= set(array.dims))


def _write(place: Any, name: str, array: Named, along: str) -> None:
    values: NDArray[Any] = np.asarray(array.values)
    attributes, fill = dict(array.attrs), None
    dtype: Any = values.dtype
    if values.dtype.kind == "U":
        import h5py

        dtype, values = h5py.string_dtype(), values.astype(object)
    elif values.dtype.kind == "b":
        dtype, values = np.dtype("i1"), values.astype("i1")
        attributes["dtype"] = "bool"
    elif values.dtype.kind == "f":
        fill = dtype.type(np.nan)
    variable = place.create_variable(name, dimensions=array.dims, dtype=dtype, fillvalue=fill)
    for attribute, value in attributes.items():
        variable.attrs[attribute] = value
    if along:
        variable.attrs["coordinates"] = along
    variable[...] = values
