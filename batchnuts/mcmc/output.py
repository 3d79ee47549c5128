"""A run's draws in ArviZ's schema, as they are saved (saving.py) and returned.

Groups: `posterior` (the values of the model's variables, and what it generates from them), `sample_stats`,
`observed_data`, `constant_data`, `ground_truth`, `adaptation` (step sizes and metric, of the real numbers that the
sampler moves, and where chains ended: tuning.py), for a run that was interrupted, `unfinished` (the draws that only
some chains had made), `progress` (what the run had done at which time: history.py), where asked for, `divergences`, and
as the model has functions for them: `log_likelihood`, `posterior_predictive`, `prior`, `prior_predictive`.
Dimensions are (chain, draw, ...).
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
from batchnuts.mcmc.draws import Draws
from batchnuts.mcmc.history import History
from batchnuts.mcmc.model import DATA_GROUPS, Data, Model, ModelError
from batchnuts.mcmc.quantities import PRIOR_DRAWS, Arrays, Quantities, has_quantities
from batchnuts.mcmc.superchains import count_superchains
from batchnuts.mcmc.tuning import tuning_of
from batchnuts.stopping import say

if TYPE_CHECKING:
    import xarray

Attributes = dict[str, Any]

_SAMPLES = ("posterior", "sample_stats")


def to_datasets(
    draws: Draws, model: Model, config: Mapping[str, Any] | None = None, *, unconstrained: bool = False
) -> dict[str, xarray.Dataset]:
    """Lay out a run as xarray Datasets, by group name.

    `posterior` and `sample_stats` hold the rectangle of draws that every chain completed. If the run was interrupted,
    chains that had not begun are left out, and the further draws of faster chains are in `unfinished`, padded with NaN,
    with the count of each chain. `divergences` is there if the draws have the ends of their trajectories. `config` is
    kept in the attributes as JSON (default: the run's settings). `unconstrained` adds the group
    `unconstrained_posterior`. Where a function of the model fails, its group is left out, with a line on stderr.
    """
    import xarray

    complete = draws.complete
    attributes = _attributes(draws, model, config)
    samples = {"chain": draws.chains, "draw": np.arange(complete)}
    labels = model.labels()
    position = draws.rectangle(draws.position)
    found = _from_draws(draws, model, position)
    own = _named(position, model) if model.reports_variables or "posterior" not in found else {}
    groups = {
        "posterior": _of_samples({**own, **found.pop("posterior", {})}, samples, labels, attributes),
        "sample_stats": xarray.Dataset(
            {name: (("chain", "draw"), draws.rectangle(array)) for name, array in draws.stats.items()},
            coords=samples,
            attrs={**attributes, "useful_gradients": draws.useful_gradients, "utilization": float(draws.utilization)},
        ),
    }
    for name in DATA_GROUPS:
        if data := getattr(model, name):
            groups[name] = _data_group(data, labels, attributes)
    for name, arrays in found.items():
        there = {"chain": [0], "draw": np.arange(PRIOR_DRAWS)} if name.startswith("prior") else samples
        groups[name] = _of_samples(arrays, there, labels, attributes)
    if unconstrained:
        groups["unconstrained_posterior"] = _of_samples(_free(position, model), samples, {}, attributes)
    groups["adaptation"] = _adaptation(draws, model, attributes)
    if int(draws.done.max()) > complete:
        groups["unfinished"] = _unfinished(draws, model, labels, attributes)
    if draws.history is not None:
        groups["progress"] = _progress(draws.history, attributes)
    if draws.last_position is not None:
        groups["divergences"] = _divergences(draws, model, labels, attributes)
    return groups


def _progress(history: History, attributes: Attributes) -> xarray.Dataset:
    """The rows of a run's history, along the dimension `report`."""
    import xarray

    return xarray.Dataset({name: ("report", column) for name, column in history.columns.items()}, attrs=attributes)


def _adaptation(draws: Draws, model: Model, attributes: Attributes) -> xarray.Dataset:
    """The metric, the step sizes and where chains ended: what a later run may take over."""
    import xarray

    entries, own = tuning_of(draws, model)
    return xarray.Dataset(
        entries,
        coords={"chain": draws.chains, "coefficient": model.free_names()},
        attrs={**attributes, **own},
    )


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
        "sampler": draws.settings.model_dump(mode="json", by_alias=True),
        "execution": draws.execution.model_dump(mode="json"),
    }
    attributes: Attributes = {
        "created_at": datetime.now(UTC).isoformat(),
        "inference_library": "batchnuts",
        "inference_library_version": batchnuts.__version__,
        "model": model.name,
        "config": json.dumps(resolved),
        "seed": draws.settings.seed,
        "warmup": draws.warmup.transitions,
        "warmup_ended": draws.warmup.reason,
        "warmup_agreed": -1 if draws.warmup.agreed is None else int(draws.warmup.agreed),
        "outlier_chains": ", ".join(map(str, draws.warmup.outliers)),
        "superchains": count_superchains(draws.settings),
        "draws_requested": draws.settings.draws,
        "draws_complete": draws.complete,
        "draws_made": int(draws.done.sum()),
        "chains_requested": draws.settings.chains,
        "chains_begun": len(draws.chains),
        "backend": draws.execution.backend,
        "interrupted": int(draws.interrupted),
        "log_density_rounding": rounding_of(draws.rectangle(draws.stats["lp"])),
    }
    if draws.chains_reason:
        attributes["chains_reason"] = draws.chains_reason
    if draws.ended:
        attributes["sampling_ended"] = draws.ended
    if draws.arrangement is not None:
        attributes.update({name: value for name, value in asdict(draws.arrangement).items() if value is not None})
    attributes.update({f"{phase}_time": float(seconds) for phase, seconds in draws.timings.items()})
    return attributes


def _named(position: NDArray[Any], model: Model) -> dict[str, tuple[Any, ...]]:
    """The variables' values at positions [chain, draw, dimension], as xarray takes them."""
    with np.errstate(all="ignore"):  # of chains that have no such draw
        values = model.constrain(position)
    return {
        variable.name: (
            ("chain", "draw", *variable.axis_names),
            np.asarray(values[variable.name]),
            {} if variable.is_real else {"support": variable.support.kind},
        )
        for variable in model.variables
    }


def _free(position: NDArray[Any], model: Model) -> dict[str, tuple[Any, ...]]:
    """The real numbers that make each variable, of positions [chain, draw, dimension]."""
    entries: dict[str, tuple[Any, ...]] = {}
    start = 0
    for variable in model.variables:
        part = position[..., start : start + variable.free]
        start += variable.free
        if variable.is_real:
            entries[variable.name] = (
                ("chain", "draw", *variable.axis_names),
                part.reshape(*part.shape[:2], *variable.shape),
            )
        elif not variable.shape:
            entries[variable.name] = (("chain", "draw"), part[..., 0])
        else:
            entries[variable.name] = (("chain", "draw", f"{variable.name}_unconstrained"), part)
    return entries


def _from_draws(draws: Draws, model: Model, position: NDArray[Any]) -> dict[str, dict[str, tuple[Any, ...]]]:
    """By group: what the model's functions make of positions [chain, draw, dimension], as xarray takes it."""
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    if not has_quantities(model) or not position.size:
        return found
    chains, length, dimension = position.shape
    order = {name: place for place, name in enumerate(model.dims)}

    def add(group: str, arrays: Arrays, shape: tuple[int, int], attributes: Attributes | None = None) -> None:
        found[group] = {
            name: (
                ("chain", "draw", *model.dims_of(name, array.shape[1:])),
                array.reshape(*shape, *array.shape[1:]),
                attributes or {},
            )
            for name, array in sorted(arrays.items(), key=lambda item: order.get(item[0], len(order)))
        }

    try:
        compiled = Quantities(model, draws.execution, draws.settings.seed)
        of_posterior = compiled.of_posterior(position.reshape(-1, dimension))
        for role, arrays in of_posterior.items():
            attributes = {"generated": 1} if role == "generated" else None
            add(_GROUPS[role], arrays, (chains, length), attributes)
        if model.prior is not None:
            values, of_prior = compiled.of_prior(PRIOR_DRAWS)
            own = values if model.reports_variables else {}
            add("prior", {**own, **of_prior.get("generated", {})}, (1, PRIOR_DRAWS))
            if "predictive" in of_prior:
                add("prior_predictive", of_prior["predictive"], (1, PRIOR_DRAWS))
    except (ModelError, MemoryError) as error:
        say(f"{error or 'There is not enough memory for what is computed from draws.'} The draws are kept without it.")
    return found


_GROUPS = {"generated": "posterior", "log_likelihood": "log_likelihood", "predictive": "posterior_predictive"}
"""Where what a function gives is put."""


def _of_samples(
    entries: Mapping[str, tuple[Any, ...]],
    samples: Mapping[str, Any],
    labels: Mapping[str, list[Any]],
    attributes: Attributes,
) -> xarray.Dataset:
    """A group of arrays [chain, draw, ...], with the labels of the axes that it has."""
    import xarray

    used = {dim for dims, *_ in entries.values() for dim in dims}
    coords = {dim: names for dim, names in labels.items() if dim in used}
    return xarray.Dataset(dict(entries), coords={**samples, **coords}, attrs=attributes)


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


def _divergences(draws: Draws, model: Model, labels: Mapping[str, list[Any]], attributes: Attributes) -> xarray.Dataset:
    """Of each draw whose trajectory diverged: the variables' values where it began, and where it diverged.

    Dimensions are (divergence, point, ...), with `chain` and `draw` of each divergence, those in `unfinished` included.
    """
    import xarray

    assert draws.last_position is not None
    assert draws.start is not None
    made = np.arange(draws.position.shape[1]) < draws.done[:, None]
    chain, draw = np.nonzero(draws.stats["diverging"] & made)
    start = np.where(draw[:, None] > 0, draws.position[chain, draw - 1], draws.start[chain])
    points = np.stack([start, draws.last_position[chain, draw]], axis=1)
    entries = {
        name: (("divergence", "point", *dims[2:]), values, *rest)
        for name, (dims, values, *rest) in _reported(draws, model, points).items()
    }
    used = {dim for dims, *_ in entries.values() for dim in dims}
    coords: dict[str, Any] = {dim: names for dim, names in labels.items() if dim in used}
    coords |= {"point": ["start", "end"], "chain": ("divergence", chain), "draw": ("divergence", draw)}
    return xarray.Dataset(entries, coords=coords, attrs=attributes)


def _reported(draws: Draws, model: Model, position: NDArray[Any]) -> dict[str, tuple[Any, ...]]:
    """The values of what the model calls its variables, at positions [chain, draw, dimension]."""
    if model.reports_variables or not position.size:
        return _named(position, model)
    return _from_draws(draws, model, position).get("posterior", {}) or _named(position, model)
