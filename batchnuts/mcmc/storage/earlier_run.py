"""The file of an earlier run: what a later one reads of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.files.saving import OutputError
from batchnuts.files.url import Url, location_of
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.storage.stored_run import is_zarr, open_zarr
from batchnuts.settings.schema import SettingsError

if TYPE_CHECKING:
    import xarray


def read_groups(path: str, names: Sequence[str], key: str) -> dict[str, xarray.Dataset]:
    """Read those of the named groups that the file, or Zarr store, has, into memory.

    key: the setting that names the file. Raises SettingsError for a file that cannot be read, or has none of them.
    """
    import xarray

    groups: dict[str, xarray.Dataset] = {}
    try:
        file = location_of(path)
        zarr = is_zarr(file)
    except OutputError as error:
        raise SettingsError(f"{key}: {error}") from error
    if zarr:
        try:
            groups = {name: group.load() for name, group in open_zarr(file).items() if name in names}
        except (OSError, ValueError, KeyError, OutputError) as error:
            raise SettingsError(f"{key}: {path} cannot be read ({error}).") from error
        except MemoryError:
            raise _too_large(key, path) from None
        if not groups:
            raise SettingsError(f"{key}: {path} has no {' or '.join(names)}: that run has not finished.")
        return groups
    if isinstance(file, Url):
        raise SettingsError(f"{key}: there is no Zarr store at {path}.")
    if file.is_dir():
        raise SettingsError(f"{key}: {path} is a folder, but not a Zarr store of a run.")
    for name in names:
        try:
            with xarray.open_dataset(file, group=name, engine="h5netcdf") as dataset:
                groups[name] = dataset.load()
        except FileNotFoundError:
            raise SettingsError(f"{key}: there is no file {path}.") from None
        except MemoryError:
            raise _too_large(key, path) from None
        except (OSError, ValueError, KeyError) as error:
            if not groups and name == names[-1]:
                raise SettingsError(f"{key}: {path} is not the file of an earlier run ({error}).") from error
    return groups


def _too_large(key: str, path: str) -> SettingsError:
    return SettingsError(
        f"{key}: the arrays of {path} do not fit into memory: it is damaged, or from a machine with more of it."
    )


def draws_of_run(model: Model, path: str, key: str) -> NDArray[Any]:
    """[n, dimension]: the draws in a file of an earlier run, as positions of this model.

    From the group `unconstrained_posterior`, else from the values of the variables. key: the setting that names the
    file. Raises SettingsError for a file that cannot be read or does not fit.
    """
    return positions_of(read_groups(path, ("unconstrained_posterior", "posterior"), key), model, path, key)


def positions_of(groups: Mapping[str, xarray.Dataset], model: Model, path: str, key: str) -> NDArray[Any]:
    """[n, dimension]: the draws in such groups of a run, chain by chain, as positions of this model.

    path, key: what is called what, for the SettingsError where they do not fit.
    """
    free = groups.get("unconstrained_posterior")
    names = [variable.name for variable in model.variables]
    if free is not None and set(names) <= set(free.data_vars):
        parts = [_rows(free[v.name], v.free, path, key) for v in model.variables]
        return np.concatenate(parts, axis=1)
    posterior = groups.get("posterior")
    shapes = model.value_shapes
    missing = [name for name in shapes if posterior is None or name not in posterior.data_vars]
    if missing:
        raise SettingsError(
            f"{key}: {path} has no {missing[0]!r}; expected draws of {', '.join(shapes)}. A run of this model with "
            "output.unconstrained=true has them."
        )
    assert posterior is not None
    values = {
        name: _rows(posterior[name], math.prod(shape), path, key).reshape(-1, *shape) for name, shape in shapes.items()
    }
    try:
        return model.unconstrain(values)
    except ModelError as error:
        raise SettingsError(f"{key}: {path} does not fit the model: {error}") from None


def _rows(array: Any, size: int, path: str, key: str) -> NDArray[Any]:
    """[draws of all chains, size] of one variable."""
    rest = [dim for dim in array.dims if dim not in ("chain", "draw")]
    values = array.transpose("chain", "draw", *rest).values
    rows: NDArray[Any] = values.reshape(values.shape[0] * values.shape[1], -1)
    if rows.shape[1] != size:
        raise SettingsError(
            f"{key}: in {path} {array.name!r} has {rows.shape[1]} numbers in each draw; expected {size}."
        )
    return rows
