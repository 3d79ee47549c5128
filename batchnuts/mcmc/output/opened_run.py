"""The file of a run, or its store, as ArviZ's object."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from batchnuts.files.saving import OutputError, reason_of
from batchnuts.files.url import OutputLocation, Url, location_of
from batchnuts.mcmc.output.datasets import to_arviz
from batchnuts.mcmc.output.result import Result
from batchnuts.mcmc.storage.stored_run import is_zarr, open_zarr, without_draws

Read = TypeVar("Read")


def open_run(path: str | os.PathLike[str]) -> Result:
    """The draws of a run as ArviZ's object, from its netCDF file or Zarr store; values are read when they are used.

    path: of either, or the URL of a store. A store can be opened while it is written: all groups have the draws of one
    instant, equally many of each chain. Raises OutputError where there is neither, or it cannot be read.
    """
    location = location_of(path)
    if is_zarr(location):
        groups = _read(location, "Zarr", lambda: open_zarr(location))
        if none := without_draws(location, groups):
            raise OutputError(none)
        result: Result = _read(location, "Zarr", lambda: to_arviz(groups))
        return result
    if isinstance(location, Url):
        raise OutputError(f"There is no Zarr store at {location}. Check the URL, and that the run has started to draw.")
    if location.is_dir():
        raise OutputError(f"{location} is a folder, but not a Zarr store. Give the path of the file or store in it.")
    if not location.exists():
        raise OutputError(
            f"There is no file {location}. Check the path and the current folder, and that the run has finished "
            "(netCDF) or started to draw (Zarr)."
        )
    import arviz

    inference_data: Result = _read(location, "netCDF", lambda: arviz.from_netcdf(str(location)))
    return inference_data


def _read(location: OutputLocation, kind: str, read: Callable[[], Read]) -> Read:
    """What `read` gives. Raises OutputError where it fails: a damaged file can make any part of HDF5 fail."""
    try:
        return read()
    except (OutputError, MemoryError):
        raise
    except Exception as error:
        raise OutputError(
            f"{location} cannot be read as {kind} ({reason_of(error)}). If a run wrote it, it is truncated or damaged: "
            "copy it again, or run again."
        ) from error
