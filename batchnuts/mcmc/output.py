"""A run's draws in ArviZ's schema, as they are saved (saving.py) and returned.

Groups: `posterior`, `sample_stats`, `observed_data`, `constant_data`, `adaptation` (the metric), and, for a run that
was interrupted, `unfinished` (the draws that only some chains had made). Dimensions are (chain, draw, ...).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import batchnuts
from batchnuts.mcmc.diagnostics import rounding_of
from batchnuts.mcmc.draws import Draws, draw_bytes
from batchnuts.mcmc.model import Data, Model
from batchnuts.mcmc.saving import OVERHEAD
from batchnuts.mcmc.settings import SamplerSettings

if TYPE_CHECKING:
    import xarray

Attributes = dict[str, Any]

_SAMPLES = ("posterior", "sample_stats")


def to_datasets(draws: Draws, model: Model, config: Mapping[str, Any] | None = None) -> dict[str, xarray.Dataset]:
    """Lay out a run as xarray Datasets, by group name.

    `posterior` and `sample_stats` hold the rectangle of draws that every chain completed. If the run was interrupted,
    chains that had not begun are left out, and the further draws of faster chains are in `unfinished`, padded with NaN,
    with the count of each chain. `config` is kept in the attributes as JSON (default: the run's settings).
    """
    import xarray

    complete = draws.complete
    attributes = _attributes(draws, model, config)
    samples = {"chain": draws.chains, "draw": np.arange(complete)}
    labels = {dim: list(names) for variable in model.variables for dim, names in variable.coords.items()}
    groups = {
        "posterior": xarray.Dataset(
            _named(draws.rectangle(draws.position), model), coords={**samples, **labels}, attrs=attributes
        ),
        "sample_stats": xarray.Dataset(
            {name: (("chain", "draw"), draws.rectangle(array)) for name, array in draws.stats.items()},
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


def file_size(model: Model, sampler: SamplerSettings) -> int:
    """Bytes that the draws of a run take on the disk, about: at least those of its arrays."""
    return OVERHEAD + sampler.chains * sampler.draws * draw_bytes(model.dimension, model.dtype)


def to_arviz(datasets: Mapping[str, xarray.Dataset]) -> Any:
    """The same groups as the object of the installed ArviZ: InferenceData in 0.x, xarray.DataTree in 1.x."""
    root = dict(datasets["posterior"].attrs)
    with warnings.catch_warnings():
        # ArviZ 0.x announces its successor when imported, and warns of every group outside its schema.
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing a major refactor", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".* group is not defined", category=UserWarning)
        import arviz

        # By version: ArviZ 1.x still answers to the name InferenceData, with a warning.
        if int(arviz.__version__.split(".")[0]) < 1:
            return arviz.InferenceData(attrs=root, **datasets)
        import xarray

        return xarray.DataTree.from_dict({"/": xarray.Dataset(attrs=root), **datasets})


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
        "draws_made": int(draws.done.sum()),
        "chains_requested": draws.settings.chains,
        "chains_begun": len(draws.chains),
        "interrupted": int(draws.interrupted),
        "log_density_rounding": rounding_of(draws.rectangle(draws.stats["lp"])),
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
    numbers, done = np.arange(first, last), draws.done[draws.chains]
    missing = numbers[None, :] >= done[:, None]
    position = np.where(missing[:, :, None], np.nan, draws.position[draws.chains, first:last])
    entries: dict[str, Any] = _named(position.astype(draws.position.dtype), model)
    for name, array in draws.stats.items():
        values = np.where(missing, np.nan, array[draws.chains, first:last].astype(np.float64))
        # A parameter may have the name of a statistic; the file keeps both.
        entries[name if name not in entries else f"sample_stats_{name}"] = (("chain", "draw"), values)
    entries["draws_done"] = (("chain",), np.asarray(done, dtype=np.int64))
    coords = {"chain": draws.chains, "draw": numbers, **labels}
    return xarray.Dataset(entries, coords=coords, attrs=attributes)
