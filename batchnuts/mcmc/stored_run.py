"""Opening what a run has saved, or is saving."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchnuts.mcmc.saving import OutputError

if TYPE_CHECKING:
    import xarray


OLDEST = "3.1.3"
"""The first version of zarr that puts each file in its place in one instant."""

INSTALL = f"the package zarr, {OLDEST} or later, which is not installed; install it (pip install 'batchnuts[zarr]')"


def has_zarr() -> bool:
    """Whether the library is installed."""
    from packaging.version import Version

    try:
        return Version(importlib.metadata.version("zarr")) >= Version(OLDEST)
    except importlib.metadata.PackageNotFoundError:
        return False


def is_zarr(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder with a Zarr store."""
    return (Path(path) / "zarr.json").exists()


def open_zarr(path: str | os.PathLike[str]) -> dict[str, xarray.Dataset]:
    """The groups of a store by name, in the state of one instant; values are read when they are used.

    Raises OutputError where zarr is not installed, and what xarray and Zarr raise for a folder that is no store.
    """
    import xarray

    if not has_zarr():
        raise OutputError(f"To read {os.fspath(path)} takes {INSTALL}.")

    tree = xarray.open_datatree(os.fspath(path), engine="zarr", consolidated=True)
    return {name: child.to_dataset(inherit=False) for name, child in tree.children.items()}


def open_run(path: str | os.PathLike[str]) -> Any:
    """The draws of a run as ArviZ's object, from its netCDF file or Zarr store; values are read when they are used.

    A store can be opened while it is written: all groups have the draws of one instant, equally many of each chain.
    """
    from batchnuts.mcmc.output import to_arviz

    if not is_zarr(path):
        import arviz

        return arviz.from_netcdf(os.fspath(path))
    return to_arviz(open_zarr(path))
