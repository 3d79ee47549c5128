"""`extend`: further draws of a run that has ended, from Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from batchnuts.api.fitted_models import fitted
from batchnuts.api.running import EarlierDraws, check_choices, run_from_python
from batchnuts.files.groups import dataset_in
from batchnuts.files.sealed_file import CheckpointError
from batchnuts.mcmc.model.content import FUNCTION_OF_GROUP, Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.result import Result
from batchnuts.mcmc.run.lengthen import ended_of_groups
from batchnuts.mcmc.run.run import ProgressCallback
from batchnuts.mcmc.settings.cluster_settings import ClusterSettings
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.settings.schema import SettingsError, shown


def extend(
    result: Any,
    draws: int,
    *,
    model: Model | None = None,
    progress: ProgressCallback | bool | None = None,
    signals: Literal["keep", "raise"] = "keep",
    cluster: str | Mapping[str, Any] | ClusterSettings | None = None,
) -> Result:
    """Make a run longer: the result of a run of more draws, which begins with those of this one.

    The further draws are those that a longer run would have made: chains go on where they ended, with their step size
    and metric, and no warmup. `until`, by which the run may have ended, does not apply to them.

    result: of `sample_chains`, or of `open_run` with `model`, the model of that run; it stays as it is.
    draws: how many more of each chain.
    model: the fitted one, where `result` is not what this process got of `sample_chains`.
    progress, signals, cluster: as in `sample_chains`. All other settings are those of the run.

    Returns the same groups as `result` has. Raises ModelError where it is not known of which model the result is;
    SettingsError for arguments that do not fit; CheckpointError for a result that cannot be made longer: one without
    all its draws, of a run that was interrupted, of other versions of what its numbers depend on, or of a model that
    has changed.
    """
    model, position = fitted("extend", result, model)
    check_choices(progress, signals)
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 1:
        raise SettingsError(f"draws: found {shown(draws)}; expected a positive integer, how many more of each chain.")
    groups = _groups_of(result)
    saved = ended_of_groups(groups, int(draws), "This result")
    axes = [groups[name].sizes if name in groups else {} for name in ("posterior", "sample_stats")]
    if any(sizes.get(dim) != axes[1][dim] for sizes in axes for dim in ("chain", "draw")):
        raise CheckpointError("This result cannot be extended: its group posterior lacks some of the run's draws.")
    config = saved.config
    split_settings({"cluster": cluster})  # a mistake of the caller's
    try:
        sampler, execution = split_settings({**config["sampler"], **config["execution"], "cluster": cluster})
    except SettingsError as error:  # settings of another version
        raise CheckpointError(f"This result cannot be extended: {error}") from None
    content = Content(
        variables=tuple(map(str, groups["posterior"].data_vars)),
        dtype=config.get("output", {}).get("dtype"),
        unconstrained="unconstrained_posterior" in groups,
        divergences="divergences" in groups,
        groups=tuple(name for name in FUNCTION_OF_GROUP if name in groups),
    )
    return run_from_python(model, sampler, execution, content, progress, signals, EarlierDraws(groups, position, saved))


def _groups_of(result: Any) -> dict[str, Any]:
    """All groups of a result of either ArviZ, as Datasets in memory."""
    named = getattr(result, "groups", ())
    names = [str(name).strip("/") for name in (named() if callable(named) else named)]
    found = {name: dataset_in(result, name) for name in names if name}
    return {name: group.load() for name, group in found.items() if group is not None}
