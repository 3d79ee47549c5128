"""Writing groups to a netCDF file as xarray writes them, without importing it.

The arrays, names, types and attributes in the file are those that xarray's own writer makes (tests/mcmc/test_netcdf.py
compares both). What is rare, times among labels say, is left to that writer: `plain` says what is written here.

A group of netCDF is one of HDF5, in which an axis is a dataset, its *scale*: the labels, or one that only has the
axis's length. Arrays refer to the scales of their axes, and have their numbers in `_Netcdf4Coordinates` (NetCDF-4 file
format, docs.unidata.ucar.edu/netcdf-c). h5netcdf looks each up by name many times; here they are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.files.groups import Group, Named

if TYPE_CHECKING:
    import h5py

_KINDS = "iufU"
"""Of arrays: integers, floats and texts; truth values besides where they are no labels."""
_ONLY_AN_AXIS = b"This is a netCDF dimension but not a netCDF variable.%10d"
"""The name of a scale that holds no labels; with the axis's length."""


def plain(group: Group) -> bool:
    """Whether `write_group` can write it. Of names and lengths that contradict each other xarray says what is wrong."""
    if group.arrays.keys() & group.coords.keys() or not _agree(group):
        return False
    arrays_and_coords = {**group.arrays, **group.coords}
    axes = {dim for array in arrays_and_coords.values() for dim in array.dims}
    if any((name in axes and array.dims != (name,)) or "/" in name for name, array in arrays_and_coords.items()):
        return False
    attributes = [group.attrs, *(array.attrs for array in arrays_and_coords.values())]
    if any(np.asarray(value).dtype.kind not in _KINDS for entries in attributes for value in entries.values()):
        return False
    arrays = all(_is_plain(array, f"{_KINDS}b") for array in group.arrays.values())
    return arrays and all(_is_plain(array, _KINDS) for array in group.coords.values())


def _agree(group: Group) -> bool:
    """Whether each axis has one length."""
    lengths: dict[str, int] = {}
    arrays = (*group.arrays.values(), *group.coords.values())
    sizes = (size for array in arrays for size in zip(array.dims, array.values.shape, strict=True))
    return all(lengths.setdefault(dim, length) == length for dim, length in sizes)


def _is_plain(array: Named, kinds: str) -> bool:
    values = array.values
    return isinstance(values, np.ndarray) and values.dtype.kind in kinds and values.dtype != np.float16


def write_group(file: h5py.File, name: str, group: Group, first: int) -> int:
    """Add a plain group to a file, in which axes have numbers, from `first` on in this one; gives the next group's."""
    place = file.create_group(name, track_order=True)
    _set_attributes(place, group.attrs)
    arrays = {**group.arrays, **group.coords}
    lengths: dict[str, int] = {}
    for array in arrays.values():
        lengths |= dict(zip(array.dims, array.values.shape, strict=True))
    numbers = {dim: first + k for k, dim in enumerate(lengths)}
    datasets: dict[str, h5py.Dataset] = {}
    for dim, length in lengths.items():
        if dim not in arrays:
            most = None if length else (None,)
            datasets[dim] = place.create_dataset(dim, (length,), ">f4", maxshape=most, track_order=True)
            datasets[dim].make_scale(_ONLY_AN_AXIS % length)
            datasets[dim].attrs["_Netcdf4Dimid"] = np.int32(numbers[dim])
    for variable, array in arrays.items():
        datasets[variable] = _write(place, variable, array, _along(group, array) if variable in group.arrays else [])
        if array.dims:
            datasets[variable].attrs["_Netcdf4Dimid"] = np.int32(numbers[array.dims[0]])
            datasets[variable].attrs["_Netcdf4Coordinates"] = np.array([numbers[dim] for dim in array.dims], np.int32)
    for variable, array in arrays.items():
        for axis, dim in enumerate(array.dims):
            if dim != variable:
                datasets[variable].dims[axis].attach_scale(datasets[dim])
    referenced = {coordinate for array in group.arrays.values() for coordinate in _along(group, array)}
    if alone := [
        name for name, coord in sorted(group.coords.items()) if coord.dims != (name,) and name not in referenced
    ]:
        place.attrs["coordinates"] = " ".join(alone)
    return first + len(lengths)


def _set_attributes(place: h5py.Group | h5py.Dataset, attributes: Mapping[str, Any]) -> None:
    """A number is an array of one, as netCDF has it."""
    for name, value in attributes.items():
        is_number = np.isscalar(value) and not isinstance(value, str)
        place.attrs[name] = np.atleast_1d(value) if is_number else value


def _along(group: Group, array: Named) -> list[str]:
    """The names of the coordinates of an array that do not label an axis, which is how readers find them."""
    names = sorted(name for name, coord in group.coords.items() if coord.dims != (name,))
    return [name for name in names if set(group.coords[name].dims) <= set(array.dims)]


def _write(place: h5py.Group, name: str, array: Named, along: list[str]) -> h5py.Dataset:
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
    most = None if values.size else tuple(length or None for length in values.shape)
    variable = place.create_dataset(
        name, values.shape, dtype, maxshape=most, fillvalue=fill, track_order=True, data=values
    )
    if array.dims == (name,):
        variable.make_scale(name)
    _set_attributes(variable, {**({} if fill is None else {"_FillValue": fill}), **attributes})
    if along:
        variable.attrs["coordinates"] = " ".join(along)
    return variable
