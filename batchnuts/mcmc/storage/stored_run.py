"""Opening what a run has saved, or is saving."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchnuts.files.saving import OutputError
from batchnuts.files.url import OutputLocation, Url, location_of
from batchnuts.mcmc.storage.place import METADATA
from batchnuts.mcmc.storage.url_place import place_of

if TYPE_CHECKING:
    import xarray


OLDEST = "3.1.3"
"""The first version of zarr that puts each file in its place in one instant."""

INSTALL = f"the package zarr, {OLDEST} or later, which is not installed; install it (pip install 'batchnuts[zarr]')"


MANY_FITS = "batchnuts_many"
"""The attribute of a store of many fits that has the version of its format."""


def has_zarr() -> bool:
    """Whether the library is installed."""
    from packaging.version import Version

    try:
        return Version(importlib.metadata.version("zarr")) >= Version(OLDEST)
    except importlib.metadata.PackageNotFoundError:
        return False


def is_zarr(path: str | os.PathLike[str] | Url) -> bool:
    """Whether there is a Zarr store. Raises OutputError where a URL cannot be read."""
    return place_of(location_of(path)).exists(METADATA)


def open_zarr(path: str | os.PathLike[str] | Url) -> dict[str, xarray.Dataset]:
    """The groups of a store by name, in the state of one instant; values are read when they are used.

    Raises OutputError where zarr is not installed, and what xarray and Zarr raise for a place without a store.
    """
    import xarray

    location = location_of(path)
    if not has_zarr():
        raise OutputError(f"Reading {location} needs {INSTALL}.")
    if has_many_fits(location):
        raise OutputError(
            f"{location} has many fits, not one run: batchnuts.open_many(path) reads it, and "
            "results[label].to_netcdf(...) writes the run of one."
        )
    store: Any = str(location)
    if isinstance(location, Url):
        from batchnuts.mcmc.storage.place_store import PlaceStore

        store = PlaceStore(place_of(location), read_only=True)
    tree = xarray.open_datatree(store, engine="zarr", consolidated=True)
    return {name: child.to_dataset(inherit=False) for name, child in tree.children.items()}


def has_many_fits(location: OutputLocation) -> bool:
    """Whether there is a Zarr store of many fits (many/store.py). Raises OutputError where a URL cannot be read."""
    root = place_of(location).root()
    return root is not None and MANY_FITS in root["attributes"]


def without_draws(location: OutputLocation, groups: Mapping[str, Any]) -> str | None:
    """What to say of a store of ours that has neither draws nor a summary yet; None of others."""
    if {"posterior", "summary"} & set(groups) or not is_run(location):
        return None
    return (
        f"There are no draws in {location} yet. The first are written as a block, which is a twentieth of the run or "
        f"32 MB: try again later. If the run has stopped: python -m batchnuts.sample --resume {location}"
    )


def is_run(location: OutputLocation) -> bool:
    """Whether there is the file, or the Zarr store, of a run of ours."""
    return bool(_attributes_of_run(location))


def is_interrupted(location: OutputLocation) -> bool:
    """Whether a file, or a Zarr store, is that of a run of ours which was interrupted."""
    return bool(_attributes_of_run(location).get("interrupted", 0))


def is_complete(location: OutputLocation, config: Mapping[str, Any]) -> bool:
    """Whether a file, or a Zarr store, is that of a run with this config which came to its end."""
    attributes = _attributes_of_run(location)
    return not attributes.get("interrupted", 1) and attributes.get("config") == json.dumps(config)


def _attributes_of_run(location: OutputLocation) -> Mapping[str, Any]:
    """Those of all groups of a run of ours; empty where there is nothing, or something else. Raises OutputError where a
    URL cannot be read."""
    import h5netcdf

    try:
        root = place_of(location).root()
        if root is not None:
            attributes = root["attributes"]
        elif isinstance(location, Path):
            with h5netcdf.File(location, "r") as file:
                attributes = dict(file.attrs)
        else:
            return {}
    except OutputError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return attributes if attributes.get("inference_library") == "batchnuts" else {}
