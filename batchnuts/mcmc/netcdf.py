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
    """Whether `write_group` can write it. Of names and lengths that contradict each other xarray says what is wrong."""
    if group.arrays.keys() & group.coords.keys() or not _agree(group):
        return False
    arrays = all(_is_plain(array, f"{_KINDS}b") for array in group.arrays.values())
    return arrays and all(_is_plain(array, _KINDS) for array in group.coords.values())


def _agree(group: Group) -> bool:
    """Whether each axis has one length."""
    lengths: dict[str, int] = {}
    every = (*group.arrays.values(), *group.coords.values())
    sizes = (size for array in every for size in zip(array.dims, array.values.shape, strict=True))
    return all(lengths.setdefault(dim, length) == length for dim, length in sizes)


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
    for variable, array in group.arrays.items():
        _write(place, variable, array, _along(group, array))
    for variable, array in group.coords.items():
        _write(place, variable, array, [])
    named = {other for array in group.arrays.values() for other in _along(group, array)}
    if alone := [name for name, coord in sorted(group.coords.items()) if coord.dims != (name,) and name not in named]:
        place.attrs["coordinates"] = " ".join(alone)


def _along(group: Group, array: Named) -> list[str]:
    """The names of the coordinates of an array that do not label an axis, which is how readers find them."""
    others = sorted(other for other, coord in group.coords.items() if coord.dims != (other,))
    return [other for other in others if set(group.coords[other].dims) <= set(array.dims)]


def _write(place: Any, name: str, array: Named, along: list[str]) -> None:
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
        variable.attrs["coordinates"] = " ".join(along)
    variable[...] = values
