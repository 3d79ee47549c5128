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
from batchnuts.files.groups import Group, datasets_of
from batchnuts.files.saving import root_attributes
from batchnuts.mcmc.execution.model_description import described, made_with
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import DATA_GROUPS, Data, Model
from batchnuts.mcmc.model.quantities import PRIOR_DRAWS, Between
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.settings.superchains import count_superchains
from batchnuts.mcmc.starts.tuning import tuning_of
from batchnuts.mcmc.statistics.chain_means import ChainMeans, chain_means
from batchnuts.mcmc.statistics.draw_blocks import DrawBlock
from batchnuts.mcmc.statistics.rounding import rounding_of
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.history import History
from batchnuts.mcmc.storage.layout import Entries, Layout
from batchnuts.settings.schema import dump_settings

if TYPE_CHECKING:
    import xarray

Attributes = dict[str, Any]


def to_datasets(
    draws: Draws,
    model: Model,
    config: Mapping[str, Any] | None = None,
    *,
    content: Content | None = None,
    between: Between | None = None,
) -> dict[str, xarray.Dataset]:
    """The groups of `to_groups` as xarray Datasets."""
    return datasets_of(to_groups(draws, model, config, content=content, between=between))


def to_groups(
    draws: Draws,
    model: Model,
    config: Mapping[str, Any] | None = None,
    *,
    content: Content | None = None,
    between: Between | None = None,
) -> dict[str, Group]:
    """Lay out a run whose draws are in memory, by group name.

    `posterior` and `sample_stats` hold the rectangle of draws that every chain completed. If the run was interrupted,
    chains that had not begun are left out, and the further draws of faster chains are in `unfinished`, padded with NaN,
    with the count of each chain. `divergences` is there if the draws have the ends of their trajectories. `config` is
    kept in the attributes as JSON (default: the run's settings). `content`: what is saved (default: all variables).
    Where a function of the model fails, its group is left out, with a line on stderr and the attribute `left_out`.
    `between`: see Quantities.
    """
    content = content or Content()
    layout = Layout(model, content, draws.execution, draws.settings.seed, between)
    chains, complete = draws.chains, draws.complete
    stats = {name: draws.rectangle(array) for name, array in draws.stats.items()}
    numbers = draws.first + np.arange(complete)
    by_group = layout.of_draws(draws.rectangle(draws.position), stats, chains, numbers)
    attributes = attributes_of(draws, model, config, by_group["sample_stats"]["lp"][1])
    groups = {
        name: sample_group(name, by_group[name], draws, layout, attributes) for name in ("posterior", "sample_stats")
    }
    groups |= other_groups(draws, model, layout, attributes)
    groups |= {
        name: sample_group(name, by_group[name], draws, layout, attributes) for name in by_group if name not in groups
    }
    means = chain_means(draws.position, draws.stats["step_size"], draws.done)
    groups["adaptation"] = adaptation(draws, model, means, attributes)
    if (last := int(draws.done.max())) > complete:
        numbers = draws.first + np.arange(complete, last)
        further = {name: array[chains, complete:last] for name, array in draws.stats.items()}
        draws_done = draws.first + draws.done[chains]
        entries = layout.of_unfinished(draws.position[chains, complete:last], further, draws_done, numbers)
        groups["unfinished"] = unfinished(entries, draws, numbers, layout, attributes)
    if draws.last_position is not None:
        groups["divergences"] = divergences(*_diverged(draws), layout, attributes)
    if layout.left_out is not None:
        groups = {name: group.with_attrs(left_out=layout.left_out) for name, group in groups.items()}
    return groups


# ---- groups: each from what is in memory of it -----------------------------------------------------------------------


def sample_group(name: str, entries: Entries, draws: Draws, layout: Layout, attributes: Attributes) -> Group:
    """A group of draws that every chain has."""
    numbers = draws.first + np.arange(draws.complete)
    samples = {"chain": draws.chains, "draw": numbers[layout.content.kept(numbers)]}
    own = statistics_attributes(draws) if name == "sample_stats" else {}
    return group_of(entries, samples, layout.model.labels(), {**attributes, **own})


def statistics_attributes(draws: Draws) -> Attributes:
    """Attributes that only the group `sample_stats` has."""
    return {"useful_gradients": draws.useful_gradients, "utilization": float(draws.utilization)}


def other_groups(draws: Draws, model: Model, layout: Layout, attributes: Attributes) -> dict[str, Group]:
    """Data, the prior where there are draws, and what the run had done at which time."""
    labels = model.labels()
    groups = {name: data_group(data, labels, attributes) for name in DATA_GROUPS if (data := getattr(model, name))}
    if draws.complete:
        samples = {"chain": [0], "draw": np.arange(PRIOR_DRAWS)}
        prior = layout.of_prior().items()
        groups |= {name: group_of(entries, samples, labels, attributes) for name, entries in prior}
    if draws.warmup.records:
        groups |= _warmup(draws, layout, attributes)
    if draws.history is not None:
        groups["progress"] = progress(draws.history, attributes)
    return groups


def _warmup(draws: Draws, layout: Layout, attributes: Attributes) -> dict[str, Group]:
    """The draws of warmup and their statistics, of all chains; draws are numbered from its first transition on."""
    windows = draws.warmup.records
    settings = draws.settings
    deepest = settings.max_tree_depth_warmup or settings.max_tree_depth
    numbers = np.arange(sum(window.records["lp"].shape[1] for window in windows))
    samples = {"chain": np.arange(len(windows[0].done)), "draw": numbers[layout.content.kept(numbers)]}
    labels = layout.model.labels()
    return {
        name: group_of(entries, samples, labels, attributes)
        for name, entries in layout.of_warmup(windows, deepest).items()
    }


def progress(history: History, attributes: Attributes) -> Group:
    """The rows of a run's history, along the dimension `report`."""
    return group_of({name: (("report",), column) for name, column in history.columns.items()}, {}, {}, attributes)


def adaptation(draws: Draws, model: Model, means: ChainMeans, attributes: Attributes) -> Group:
    """The metric, the step sizes and where chains ended: what a later run may take over. means: of all draws."""
    entries, own_attributes = tuning_of(draws, model, means)
    own_attributes |= {
        "made_with": json.dumps(made_with(draws.execution.backend)),
        "model_described": json.dumps(described(model)),
    }
    return Group.of(
        entries, {"chain": draws.chains, "coefficient": model.free_names()}, {**attributes, **own_attributes}
    )


def unfinished(
    entries: Entries, draws: Draws, numbers: NDArray[np.int64], layout: Layout, attributes: Attributes
) -> Group:
    """Draws `complete` to `max(done)`, by their `numbers`: it goes on where the posterior stops."""
    arrays: Mapping[str, Any] = {**entries, "draws_done": (("chain",), draws.first + draws.done[draws.chains])}
    samples = {"chain": draws.chains, "draw": numbers[layout.content.kept(numbers)]}
    return group_of(arrays, samples, layout.model.labels(), attributes)


def divergences(
    chain: NDArray[np.int64], draw: NDArray[np.int64], points: NDArray[Any], layout: Layout, attributes: Attributes
) -> Group:
    """The group `divergences`: the variables' values where each trajectory that diverged began, and where it diverged.

    chain, draw [n]: their numbers, in this order. points [n, 2, dimension]. Dimensions are (divergence, point, ...),
    with `chain` and `draw` of each divergence, those in `unfinished` included.
    """
    samples = {"point": ["start", "end"], "chain": ("divergence", chain), "draw": ("divergence", draw)}
    return group_of(layout.of_divergences(points), samples, layout.model.labels(), attributes)


def _diverged(draws: Draws) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
    """The arguments of `divergences`."""
    assert draws.last_position is not None
    assert draws.start is not None
    completed = np.arange(draws.position.shape[1]) < draws.done[:, None]
    chain, draw = np.nonzero(draws.stats["diverging"] & completed)
    start = np.where(draw[:, None] > 0, draws.position[chain, draw - 1], draws.start[chain])
    return chain, draws.first + draw, np.stack([start, draws.last_position[chain, draw]], axis=1)


def group_of(
    entries: Mapping[str, tuple[Any, ...]],
    samples: Mapping[str, Any],
    labels: Mapping[str, list[Any]],
    attributes: Attributes,
) -> Group:
    """A group of arrays, with the coordinates `samples`, and the labels of the other axes that it has."""
    used_dims = {dim for dims, *_ in entries.values() for dim in dims}
    coords = {dim: names for dim, names in labels.items() if dim in used_dims}
    return Group.of(entries, {**coords, **samples}, attributes)


def data_group(data: Data, labels: Mapping[str, list[Any]], attributes: Attributes) -> Group:
    """A group of arrays without draws."""
    return group_of(
        {name: (tuple(dims), np.asarray(array)) for name, (dims, array) in data.items()}, {}, labels, attributes
    )


# ---- objects of ArviZ, attributes ------------------------------------------------------------------------------------


def to_arviz(datasets: Mapping[str, xarray.Dataset]) -> Any:
    """The same groups as the object of the installed ArviZ: InferenceData in 0.x, xarray.DataTree in 1.x."""
    root = root_attributes(datasets)
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


def attributes_of(
    draws: Draws, model: Model, config: Mapping[str, Any] | None, log_density: NDArray[Any] | DrawBlock
) -> Attributes:
    """The attributes of every group. log_density: that of the saved draws which every chain has."""
    attributes = {
        **settings_attributes(model, draws.settings, draws.execution, config),
        "warmup": draws.warmup.transitions,
        "warmup_ended": draws.warmup.reason,
        "warmup_agreed": -1 if draws.warmup.agreed is None else int(draws.warmup.agreed),
        "outlier_chains": ", ".join(map(str, draws.warmup.outliers)),
        "restarted_chains": ", ".join(map(str, draws.warmup.restarted)),
        "late_chains": ", ".join(map(str, draws.warmup.late)),
        "starts_not_numbers": draws.warmup.not_numbers,
        "warmup_burn_in": draws.warmup.burn_in,
        "draws_complete": draws.first + draws.complete,
        "draws_made": int((draws.first + draws.done).sum()),
        "chains_begun": len(draws.chains),
        "interrupted": int(draws.interrupted),
        "log_density_rounding": rounding_of(log_density),
    }
    if draws.chains_reason:
        attributes["chains_reason"] = draws.chains_reason
    if draws.ended:
        attributes["sampling_ended"] = draws.ended
    if draws.arrangement is not None:
        attributes.update({name: value for name, value in asdict(draws.arrangement).items() if value is not None})
    attributes.update({f"{phase}_time": float(seconds) for phase, seconds in draws.timings.items()})
    return attributes


def settings_attributes(
    model: Model, settings: SamplerSettings, execution: ExecutionSettings, config: Mapping[str, Any] | None
) -> Attributes:
    """Attributes that are known before a run; config: as for `to_datasets`."""
    resolved = config or {"sampler": dump_settings(settings), "execution": dump_settings(execution)}
    return {
        "created_at": datetime.now(UTC).isoformat(),
        "inference_library": "batchnuts",
        "inference_library_version": batchnuts.__version__,
        "model": model.name,
        "dtype": str(np.dtype(model.dtype)),
        "config": json.dumps(resolved),
        "seed": settings.seed,
        "superchains": count_superchains(settings),
        "draws_requested": settings.draws,
        "chains_requested": settings.chains,
        "backend": execution.backend,
    }
