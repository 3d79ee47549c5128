"""A run that has ended, made longer: `python -m batchnuts.sample --resume RUN sampler.draws=+1000`.

Its file says where chains ended, with the gradients there, so further draws are those that a longer run would have
made, bit for bit; but where `sampler.until` had ended it in the middle of other draws, gradients are evaluated again.
The further draws are laid out as a run of their own, and each group is joined to that of the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from batchnuts.mcmc.chain_means import ChainMeans
from batchnuts.mcmc.checkpoint.file import CheckpointError
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.diagnostics import rounding_of
from batchnuts.mcmc.draws import WarmupReport
from batchnuts.mcmc.earlier_run import read_groups
from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.history import HistoryKeeper
from batchnuts.mcmc.metric_estimates import MetricParameters
from batchnuts.mcmc.run import ChainStates, InDraws
from batchnuts.mcmc.stored_run import is_zarr
from batchnuts.settings.schema import SettingsError

if TYPE_CHECKING:
    import xarray

NEEDED = ("made_with", "model_described", "metric", "dtype")
"""Attributes of the group `adaptation` that files of earlier versions lack."""


@dataclass(frozen=True, eq=False)
class EndedRun:
    """What is taken from the file of one."""

    path: Path
    draws: int
    """Of each chain."""
    saved: SavedRun


def ended_run(path: Path, more: int) -> EndedRun:
    """The run in a file, whose config asks for `more` draws than it has.

    Raises CheckpointError for a file that cannot be made longer: of something else, of an earlier version, of a run
    that was interrupted.
    """

    def refused(why: str) -> CheckpointError:
        return CheckpointError(f"{path} cannot be made longer: {why}.")

    try:
        groups = read_groups(str(path), ("sample_stats", "adaptation", "progress"), "--resume")
    except SettingsError as error:
        raise CheckpointError(str(error)) from error
    if "adaptation" not in groups or "sample_stats" not in groups:
        raise refused("it has no group adaptation, or no sample_stats")
    adaptation, stats = groups["adaptation"], groups["sample_stats"]
    if "lp" not in stats or "last_position" not in adaptation:
        raise refused("it has no draws")
    about = adaptation.attrs
    if lacking := [name for name in NEEDED if name not in about]:
        raise refused(f"it was written by an earlier version, and has no attribute {lacking[0]}")
    if about["interrupted"]:
        raise refused("it was interrupted, and has no checkpoint; it would be another run")
    arrays = {str(name): array.values for name, array in adaptation.data_vars.items()}
    made, dtype = int(about["draws_complete"]), about["dtype"]
    if is_zarr(path):
        raise refused("a Zarr store takes no further draws; begin another run, with sampler.warmup.from")
    if stats["lp"].shape[1] != made:
        raise refused("some of its draws were not saved (output.thin)")
    config = json.loads(about["config"])
    config["sampler"] |= {"draws": made + more, "until": None, "chains": len(arrays["last_position"])}
    metric = MetricParameters(
        about["metric"],
        arrays["inverse_mass"],
        arrays.get("metric_eigenvectors", np.zeros((arrays["last_position"].shape[1], 0))),
        arrays.get("metric_eigenvalues", np.zeros(0)),
    )
    position, log_density = arrays["last_position"], stats["lp"].values[:, -1]
    gradient = arrays.get("last_gradient", np.full_like(position, np.nan))
    inverse_mass = np.broadcast_to(metric.inverse_mass.astype(dtype), position.shape)
    states = ChainStates(
        position, log_density, gradient, metric, inverse_mass, arrays["step_size"], int(about["warmup"])
    )
    outliers = tuple(int(number) for number in about["outlier_chains"].split(", ") if number)
    agreed = None if about["warmup_agreed"] < 0 else bool(about["warmup_agreed"])
    warmup = WarmupReport(int(about["warmup"]), about["warmup_ended"], agreed, outliers)
    useful = int(stats.attrs["useful_gradients"])
    counts = Counts(useful_gradients=useful, executed_gradients=round(useful / max(stats.attrs["utilization"], 1e-9)))
    history, phases = HistoryKeeper(), {"compile": Counts(), "warmup": Counts(), "sampling": counts}
    if "progress" in groups:
        history = HistoryKeeper.of({str(name): column.values for name, column in groups["progress"].items()})
        phases |= {row.phase: Counts(*row[2:]) for row in history.rows}  # the last of each
        before = phases["warmup"]
        phases["sampling"] = replace(
            phases["sampling"],
            transitions=0,  # chains count on from where they were
            useful_gradients=useful - before.useful_gradients,
            executed_gradients=counts.executed_gradients - before.executed_gradients,
        )
    saved = SavedRun(
        config=config,
        made_with=json.loads(about["made_with"]),
        model=json.loads(about["model_described"]),
        chains=len(position),
        chains_reason=about.get("chains_reason", ""),
        backend=about["backend"],
        place=InDraws(states, warmup, made),
        density=(log_density, gradient),
        tuning=None,
        seconds={phase: float(about[f"{phase}_time"]) for phase in ("compile", "warmup", "sampling")},
        counts=phases,
        elapsed=0.0,
        stretch=None,
        parts=(),
        check_points=None,
        history=history,
    )
    return EndedRun(path, made, saved)


def joined(ended: EndedRun, further: Mapping[str, xarray.Dataset]) -> dict[str, xarray.Dataset]:
    """The groups of the longer run, from those of its further draws and its file as it is. All are in memory.

    Raises CheckpointError where the file has changed meanwhile.
    """
    import xarray

    before = read_groups(str(ended.path), tuple(further), "--resume")
    if before["sample_stats"].sizes["draw"] != ended.draws:
        raise CheckpointError(f"{ended.path} has changed while it was made longer; the further draws are given up.")
    attributes = further["posterior"].attrs
    log_density = [groups["sample_stats"]["lp"].values for groups in (before, further)]
    attributes["log_density_rounding"] = rounding_of(np.concatenate(log_density, axis=1))
    groups = {}
    for name, group in further.items():
        along = "divergence" if name == "divergences" else "draw"
        if name in before and along in group.dims and not name.startswith("prior") and name != "unfinished":
            parts = [before[name].sel(chain=group["chain"]) if along == "draw" else before[name], group]
            group = xarray.concat(
                parts, along, data_vars="minimal", coords="minimal", compat="override", join="override"
            )
        own = {key: value for key, value in further[name].attrs.items() if key not in attributes}
        groups[name] = group.assign_attrs({**attributes, **own})
    groups["adaptation"] = _of_all_draws(before["adaptation"], groups["adaptation"], ended.draws)
    return groups


def _of_all_draws(before: xarray.Dataset, now: xarray.Dataset, draws: int) -> xarray.Dataset:
    """Means of all draws, from the sums that both groups have."""
    chains = now["chain"].values
    if "total" not in now:
        return now
    one = before.sel(chain=chains)
    means = ChainMeans(len(chains), now.sizes["coefficient"], now["last_position"].dtype, now["step_size"].dtype)
    means.first[:], means.last[:] = one["first_position"].values, now["last_position"].values
    made = int(now.attrs["draws_complete"]) - draws
    # about the first draw of all: the sum of the later ones less that
    moved = now["first_position"].values.astype(np.float64) - means.first
    means.total[:] = one["total"].values + (now["total"].values + made * moved)
    means.count[:] = draws + made
    centre = means.centre(np.arange(len(chains)))
    return now.assign(
        first_position=one["first_position"],
        total=(("chain", "coefficient"), means.total),
        mean=(("coefficient",), centre.mean),
        mean_error=(("coefficient",), np.sqrt(centre.squared_error)),
    )
