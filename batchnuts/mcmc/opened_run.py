"""The file of a run, or its store, as ArviZ's object."""

from __future__ import annotations

import os
from typing import Any

from batchnuts.mcmc.output import to_arviz
from batchnuts.mcmc.stored_run import is_zarr, open_zarr


def open_run(path: str | os.PathLike[str]) -> Any:
    """The draws of a run as ArviZ's object, from its netCDF file or Zarr store; values are read when they are used.

    A store can be opened while it is written: all groups have the draws of one instant, equally many of each chain.
    """
    if not is_zarr(path):
        import arviz

        return arviz.from_netcdf(os.fspath(path))
    return to_arviz(open_zarr(path))
