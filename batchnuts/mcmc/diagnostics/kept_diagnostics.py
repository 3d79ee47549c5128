"""The group `diagnostics` of a Zarr store: what its draws were judged by, so that a report need not do it again.

It is only read where it is whole, of these draws, and found by the estimators that would be used now. Else draws are
judged again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from batchnuts.disk_cache.identity import digest_of, own_sources
from batchnuts.files.saving import OutputError, reason_of
from batchnuts.files.url import OutputLocation
from batchnuts.mcmc.diagnostics.columns import COLUMNS
from batchnuts.mcmc.diagnostics.diagnose import Diagnostics
from batchnuts.mcmc.storage.url_place import place_of

if TYPE_CHECKING:
    import xarray

GROUP = "diagnostics"
ESTIMATORS, DIGEST = "estimators", "digest"
"""Attributes: a digest of the package's source code, and one of the group's arrays."""

ARRAYS = ("nested", "limits", "persistence")
"""Fields of Diagnostics that are arrays [coefficients] where they are not None."""

TEXTS = ("not_finite", "coarse")
"""Fields of Diagnostics that are attributes as JSON."""

LISTS = {
    "stuck": "stuck_chains",
    "low": "low_chains",
    "high": "high_chains",
    "late": "late_chains",
    "furthest": "furthest_coefficients",
}
"""Fields of Diagnostics that are numbers of chains, or of coefficients: each is an array along its own dimension."""

_OTHERS = ("names", "columns", "running", *LISTS, *ARRAYS, *TEXTS)
NUMBERS = tuple(field.name for field in fields(Diagnostics) if field.name not in _OTHERS)
"""Fields of Diagnostics that are attributes."""


def keep_diagnostics(location: OutputLocation, diagnostics: Diagnostics) -> None:
    """Put what was found of all draws of a Zarr store into it; readers see it whole or not at all.

    Raises OutputError where it cannot be written: the store is as it was then.
    """
    from batchnuts.mcmc.storage.zarr_files import ZarrFilesBeside

    try:
        files = ZarrFilesBeside.of_store(place_of(location))
        files.replace(GROUP, diagnostics_group(diagnostics))
        files.commit({})
        files.sync()
        files.forget()
    except OSError as error:
        raise OutputError(f"The diagnostics cannot be written to {location}: {reason_of(error)}.") from error


def diagnostics_group(diagnostics: Diagnostics) -> xarray.Dataset:
    """Along `coefficient`: the columns, nested R-hat, limits of R-hat, persistence; and the numbers of LISTS.

    Raises ValueError for those of draws that were not kept.
    """
    import xarray

    if diagnostics.running:
        raise ValueError("Of draws that were not kept, the group `summary` has the diagnostics.")
    arrays = {name: getattr(diagnostics, name) for name in ARRAYS}
    of_each = diagnostics.columns | {name: values for name, values in arrays.items() if values is not None}
    group = xarray.Dataset(
        {name: ("coefficient", values) for name, values in of_each.items()}
        | {array: (name, np.array(getattr(diagnostics, name), np.int64)) for name, array in LISTS.items()},
        coords={"coefficient": np.array(diagnostics.names)},
        attrs={name: getattr(diagnostics, name) for name in NUMBERS}
        | {name: json.dumps(getattr(diagnostics, name)) for name in TEXTS},
    )
    return group.assign_attrs({ESTIMATORS: _estimators() or "", DIGEST: _digest(group)})


def kept_diagnostics(groups: Mapping[str, xarray.Dataset]) -> Diagnostics | None:
    """What was found of the draws in these groups, of a file's.

    None where that was not kept, is damaged, is of another number of chains or draws, or was found by other estimators.
    """
    group, sizes = groups.get(GROUP), groups["posterior"].sizes
    if group is None:
        return None
    try:
        attributes = group.attrs
        if attributes[ESTIMATORS] != _estimators() or attributes[DIGEST] != _digest(group):
            return None
        if (attributes["chains"], attributes["draws"]) != (sizes["chain"], sizes["draw"]):
            return None
        arrays: dict[str, Any] = {name: group[name].values for name in ARRAYS if name in group}
        arrays |= {name: tuple(group[array].values.tolist()) for name, array in LISTS.items()}
        return Diagnostics(
            names=tuple(str(name) for name in group["coefficient"].values),
            columns={name: group[name].values for name in COLUMNS},
            not_finite=json.loads(attributes["not_finite"]),
            coarse=tuple(json.loads(attributes["coarse"])),
            **arrays,
            **{name: attributes[name] for name in NUMBERS},
        )
    except Exception:  # a damaged group can make any part of Zarr and xarray fail; its draws can still be judged
        return None


def _estimators() -> str | None:
    """What the result depends on beside the draws: this package's code. None where the process has read other files."""
    return own_sources()


def _digest(group: xarray.Dataset) -> str:
    """Of all arrays, by name: a chunk that is lost is read as if it were never written, as zeros or NaN."""
    parts: list[str | bytes] = [str(name) for name in group["coefficient"].values]
    for name in sorted(map(str, group.data_vars)):
        values = group[name].values
        parts += [f"{name} {values.dtype} {values.shape}", values.tobytes()]
    return digest_of(*parts)
