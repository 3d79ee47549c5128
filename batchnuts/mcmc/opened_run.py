"""The file of a run, or its store, as ArviZ's object."""

from __future__ import annotations

import os
from typing import Any

from batchnuts.mcmc.output import to_arviz
from batchnuts.mcmc.saving import OutputError
from batchnuts.mcmc.stored_run import is_zarr, open_zarr
from batchnuts.mcmc.url import Url, target_of


def open_run(path: str | os.PathLike[str]) -> Any:
    """The draws of a run as ArviZ's object, from its netCDF file or Zarr store; values are read when they are used.

    path: of either, or the URL of a store. A store can be opened while it is written: all groups have the draws of one
    instant, equally many of each chain. Raises OutputError where there is no store under a URL, or it cannot be read.
    """
    target = target_of(path)
    if is_zarr(target):
        return to_arviz(open_zarr(target))
    if isinstance(target, Url):
        raise OutputError(f"There is no Zarr store at {target}. Check the URL, and that the run has begun to draw.")
    import arviz

    return arviz.from_netcdf(str(target))
