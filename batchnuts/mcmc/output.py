"""One netCDF file per run, laid out by ArviZ's schema, written so that no existing file can be lost.

Groups: `posterior`, `sample_stats`, `observed_data`, `constant_data`, `adaptation` (the metric), and, for a run that
was interrupted, `unfinished` (the draws that only some chains had made). Dimensions are (chain, draw, ...).
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import batchnuts
from batchnuts.autobatch.errors import BatchnutsError
from batchnuts.mcmc.draws import Draws
from batchnuts.mcmc.model import Data, Model

if TYPE_CHECKING:
    import xarray

Attributes = dict[str, Any]

_SAMPLES = ("posterior", "sample_stats")


class OutputError(BatchnutsError):
    """The output file cannot be written: it exists, or its folder is missing, unwritable or full."""


def check_path(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Refuse an output path before any time is spent on sampling; gives back the absolute path.

    Raises OutputError where the folder is missing or cannot be written, where the path is a folder, and, unless
    `force`, where the file exists.
    """
    target = Path(path).expanduser()
    try:
        target = target.resolve()
        folder = target.parent
        if not folder.is_dir():
            raise OutputError(
                f"Cannot write {target}: the folder {folder} does not exist. Make it, or set output.path."
            )
        if target.is_dir():
            raise OutputError(f"Cannot write {target}: it is a folder. Set output.path to a file's name.")
        if os.path.lexists(target) and not force:
            raise OutputError(
                f"{target} exists and is not overwritten. Give --force to replace it, or another output.path."
            )
        # Permission bits do not tell the whole truth (read-only mounts, quotas, root): make a file and drop it.
        with tempfile.TemporaryFile(dir=folder, prefix=".batchnuts-"):
            pass
    except (OSError, RuntimeError, ValueError) as error:
        raise OutputError(f"Cannot write {target}: {getattr(error, 'strerror', None) or error}.") from error
    return target


def to_datasets(draws: Draws, model: Model, config: Mapping[str, Any] | None = None) -> dict[str, xarray.Dataset]:
    """Lay out a run as xarray Datasets, by group name.

    `posterior` and `sample_stats` hold the rectangle of draws that every chain completed. If the run was interrupted,
    the further draws of faster chains are in `unfinished`, padded with NaN, with the count of each chain. `config` is
    kept in the attributes as JSON (default: the run's settings).
    """
    import xarray

    complete = draws.complete
    attributes = _attributes(draws, model, config)
    chains = np.arange(draws.position.shape[0])
    samples = {"chain": chains, "draw": np.arange(complete)}
    labels = {dim: list(names) for variable in model.variables for dim, names in variable.coords.items()}
    groups = {
        "posterior": xarray.Dataset(
            _named(draws.position[:, :complete], model), coords={**samples, **labels}, attrs=attributes
        ),
        "sample_stats": xarray.Dataset(
            {name: (("chain", "draw"), array[:, :complete]) for name, array in draws.stats.items()},
            coords=samples,
            attrs={**attributes, "useful_gradients": draws.useful_gradients, "utilization": float(draws.utilization)},
        ),
    }
    for name, data in (("observed_data", model.observed_data), ("constant_data", model.constant_data)):
        if data:
            groups[name] = _data_group(data, labels, attributes)
    groups["adaptation"] = xarray.Dataset(
        {"inverse_mass": (("coefficient",), np.asarray(draws.inverse_mass))},
        coords={"coefficient": model.coefficient_names()},
        attrs=attributes,
    )
    if int(draws.done.max()) > complete:
        groups["unfinished"] = _unfinished(draws, model, labels, attributes)
    return groups


def to_arviz(datasets: Mapping[str, xarray.Dataset]) -> Any:
    """The same groups as the object of the installed ArviZ: InferenceData in 0.x, xarray.DataTree in 1.x."""
    root = dict(datasets["posterior"].attrs)
    with warnings.catch_warnings():
        # ArviZ 0.x announces its successor when imported, and wonders at every group outside its schema.
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing a major refactor", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".* group is not defined", category=UserWarning)
        import arviz

        # By version: ArviZ 1.x still answers to the name InferenceData, with a warning.
        if int(arviz.__version__.split(".")[0]) < 1:
            return arviz.InferenceData(attrs=root, **datasets)
        import xarray

        return xarray.DataTree.from_dict({"/": xarray.Dataset(attrs=root), **datasets})


def save(datasets: Mapping[str, xarray.Dataset], path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write the groups to one netCDF file and give back its absolute path.

    The file appears whole or not at all. Raises OutputError where it cannot be written; if, meanwhile, a file of that
    name has come into being (and `force` is false), the draws are kept beside it and the message says where.
    """
    import xarray

    target = Path(path).expanduser().resolve()
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}-", suffix=".tmp")
        os.close(handle)
        temporary = Path(name)
        root = xarray.Dataset(attrs=datasets["posterior"].attrs)
        root.to_netcdf(temporary, mode="w", engine="h5netcdf")
        for group, dataset in datasets.items():
            dataset.to_netcdf(temporary, mode="a", group=group, engine="h5netcdf")
        _settle(temporary)
        if force:
            os.replace(temporary, target)
            return target
        placed = _place(temporary, target)
    except OSError as error:
        reason = (error.strerror or str(error)).splitlines()[0].split(" (file ")[0]
        elsewhere = Path(tempfile.gettempdir()).resolve()
        if target.parent == elsewhere:
            raise OutputError(f"Cannot write {target}: {reason}. The draws of this run are not saved.") from error
        kept = save(datasets, elsewhere / target.name)
        raise OutputError(f"Cannot write {target}: {reason}. The draws are kept in {kept}; move them.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    if placed != target:
        raise OutputError(f"{target} came into being during the run and is not overwritten; the draws are in {placed}.")
    return target


def _settle(path: Path) -> None:
    """Give the file the permissions of an ordinary new one and push it to the disk."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _place(temporary: Path, target: Path) -> Path:
    """Give the finished file its name, or the first free `name-2.nc`, `name-3.nc`, ...; never replaces a file."""
    number = 1
    while True:
        candidate = target if number == 1 else target.with_name(f"{target.stem}-{number}{target.suffix}")
        try:
            # A hard link fails if the name is taken, and takes it in the same instant: no gap for another writer.
            os.link(temporary, candidate)
            return candidate
        except FileExistsError:
            number += 1
        except OSError:
            break
    # A file system without hard links: claim the name with an empty file of our own, then replace that.
    while True:
        candidate = target if number == 1 else target.with_name(f"{target.stem}-{number}{target.suffix}")
        try:
            os.close(os.open(candidate, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            number += 1
            continue
        os.replace(temporary, candidate)
        return candidate


def _attributes(draws: Draws, model: Model, config: Mapping[str, Any] | None) -> Attributes:
    resolved = config or {
        "sampler": draws.settings.model_dump(mode="json"),
        "execution": draws.execution.model_dump(mode="json"),
    }
    attributes: Attributes = {
        "created_at": datetime.now(UTC).isoformat(),
        "inference_library": "batchnuts",
        "inference_library_version": batchnuts.__version__,
        "model": model.name,
        "config": json.dumps(resolved),
        "seed": draws.settings.seed,
        "warmup": draws.settings.warmup,
        "draws_requested": draws.settings.draws,
        "draws_complete": draws.complete,
        "interrupted": int(draws.interrupted),
    }
    if draws.arrangement is not None:
        attributes.update({name: value for name, value in asdict(draws.arrangement).items() if value is not None})
    attributes.update({f"{phase}_time": float(seconds) for phase, seconds in draws.timings.items()})
    return attributes


def _named(position: NDArray[Any], model: Model) -> dict[str, tuple[tuple[str, ...], NDArray[Any]]]:
    parts = model.unflatten(position)
    return {
        variable.name: (("chain", "draw", *variable.axis_names), parts[variable.name]) for variable in model.variables
    }


def _data_group(data: Data, labels: Mapping[str, list[Any]], attributes: Attributes) -> xarray.Dataset:
    import xarray

    used = {dim for dims, _ in data.values() for dim in dims}
    coords = {dim: names for dim, names in labels.items() if dim in used}
    entries = {name: (tuple(dims), np.asarray(array)) for name, (dims, array) in data.items()}
    return xarray.Dataset(entries, coords=coords, attrs=attributes)


def _unfinished(draws: Draws, model: Model, labels: Mapping[str, list[Any]], attributes: Attributes) -> xarray.Dataset:
    """Draws `complete` to `max(done)`: the numbering goes on where the posterior stops; NaN where a chain has none."""
    import xarray

    first, last = draws.complete, int(draws.done.max())
    numbers = np.arange(first, last)
    missing = numbers[None, :] >= draws.done[:, None]
    position = np.where(missing[:, :, None], np.nan, draws.position[:, first:last])
    entries: dict[str, Any] = _named(position.astype(draws.position.dtype), model)
    for name, array in draws.stats.items():
        values = np.where(missing, np.nan, array[:, first:last].astype(np.float64))
        # A parameter may bear a statistic's name; the file keeps both.
        entries[name if name not in entries else f"sample_stats_{name}"] = (("chain", "draw"), values)
    entries["draws_done"] = (("chain",), np.asarray(draws.done, dtype=np.int64))
    coords = {"chain": np.arange(len(draws.done)), "draw": numbers, **labels}
    return xarray.Dataset(entries, coords=coords, attrs=attributes)
