"""The group `diagnostics` of a Zarr store: what its draws were judged by, so that a report need not do it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

import batchnuts
from batchnuts.mcmc.diagnostics import COLUMNS, Diagnostics
from batchnuts.mcmc.saving import OutputError, reason_of
from batchnuts.mcmc.storage.url_place import place_of
from batchnuts.mcmc.url import Target

if TYPE_CHECKING:
    import xarray

GROUP = "diagnostics"
VERSION = "inference_library_version"
ARRAYS = ("nested", "persistence")
"""Fields of Diagnostics that are arrays [coefficients] where they are not None."""


def keep_diagnostics(target: Target, found: Diagnostics) -> None:
    """Put what was found of all draws of a Zarr store into it; readers see it whole or not at all.

    Raises OutputError where it cannot be written: the store is as it was then.
    """
    from batchnuts.mcmc.storage.zarr_files import ZarrFilesBeside

    try:
        files = ZarrFilesBeside.of_store(place_of(target))
        files.replace(GROUP, diagnostics_group(found))
        files.commit({})
        files.sync()
        files.forget()
    except OSError as error:
        raise OutputError(f"The diagnostics cannot be written to {target}: {reason_of(error)}.") from error


def diagnostics_group(found: Diagnostics) -> xarray.Dataset:
    """Along `coefficient`: the columns, nested R-hat and persistence; along `stuck`: the numbers of stuck chains.

    Raises ValueError for those of draws that were not kept.
    """
    import xarray

    kept = {field.name: getattr(found, field.name) for field in fields(found)}
    arrays = {name: kept.pop(name) for name in ARRAYS}
    columns, names, apart = kept.pop("columns"), kept.pop("names"), kept.pop("apart")
    if kept.pop("running"):
        raise ValueError("Of draws that were not kept, the group `summary` has the diagnostics.")
    of_each = columns | {name: values for name, values in arrays.items() if values is not None}
    return xarray.Dataset(
        {name: ("coefficient", values) for name, values in of_each.items()}
        | {"apart": ("stuck", np.array(apart, np.int64))},
        coords={"coefficient": np.array(names)},
        attrs=kept | {VERSION: batchnuts.__version__},
    )


def kept_diagnostics(groups: Mapping[str, xarray.Dataset]) -> Diagnostics | None:
    """What was found of the draws in these groups, of a file's.

    None where that was not kept, was found by another version of batchnuts, or of another number of chains or draws.
    """
    group, sizes = groups.get(GROUP), groups["posterior"].sizes
    if group is None or group.attrs.get(VERSION) != batchnuts.__version__:
        return None
    if (group.attrs["chains"], group.attrs["draws"]) != (sizes["chain"], sizes["draw"]):
        return None
    numbers = {str(name): value for name, value in group.attrs.items() if name != VERSION}
    arrays: dict[str, Any] = {name: group[name].values for name in ARRAYS if name in group}
    return Diagnostics(
        names=tuple(str(name) for name in group["coefficient"].values),
        columns={name: group[name].values for name in COLUMNS},
        apart=tuple(group["apart"].values.tolist()),
        **arrays,
        **numbers,
    )
