"""A run that has ended, made longer: `python -m batchnuts.sample --resume RUN sampler.draws=+1000`, and `extend`.

Its groups say where chains ended, with the gradients there, so further draws are those that a longer run would have
made, bit for bit; but where `sampler.until` had ended it in the middle of other draws, gradients are evaluated again.
The further draws are laid out as a run of their own, and each group is joined to that of the file. Those of a Zarr
store go to a store of their own first, and then to a copy of it whose chunks are hard links: so the run stays as it was
until the copy takes its place. Under a URL there are no such links: the further draws are appended to the store itself,
where readers do not look yet, what is known of all draws is put beside what was, and the root's metadata, which are put
last, lead to all of it in one instant.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from batchnuts.files.saving import OutputError, reason_of
from batchnuts.files.sealed_file import CheckpointError
from batchnuts.files.url import OutputLocation, Url
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.diagnostics import kept_diagnostics
from batchnuts.mcmc.run.saving_and_resuming import saved_of_file
from batchnuts.mcmc.statistics.chain_means import ChainMeans
from batchnuts.mcmc.statistics.draw_blocks import VariableBlock
from batchnuts.mcmc.statistics.rounding import rounding_of
from batchnuts.mcmc.storage.earlier_run import read_groups
from batchnuts.mcmc.storage.layout import GROUP_OF_FUNCTION
from batchnuts.mcmc.storage.place import LocalPlace
from batchnuts.mcmc.storage.stored_run import is_zarr, open_zarr
from batchnuts.mcmc.storage.url_place import place_of
from batchnuts.process.signals import say
from batchnuts.settings.schema import SettingsError

if TYPE_CHECKING:
    import xarray

    from batchnuts.mcmc.storage.zarr_files import ZarrFiles

_OF_WARMUP = frozenset({"warmup_posterior", "warmup_sample_stats"})
"""Groups that the further draws leave as they are."""

_COMPUTED = frozenset(GROUP_OF_FUNCTION.values()) - {"posterior"}
"""Groups that have nothing but what functions of the model give."""

NEEDED = ("made_with", "model_described", "metric", "dtype")
"""Attributes of the group `adaptation` that files of earlier versions lack."""

NOT_ALL_STARTED = "not every chain had started when its extension ended"


@dataclass(frozen=True, eq=False)
class EndedRun:
    """A run that has ended, as its file has it."""

    path: OutputLocation
    draws: int
    """Draws of each chain."""
    saved: SavedRun

    @property
    def further(self) -> OutputLocation:
        """Where the further draws of a store are, until it has them."""
        return self.path.with_name(f".{self.path.name}.further")


def ended_run(path: OutputLocation, further_draws: int) -> EndedRun:
    """The run in a file, with a config that asks for `further_draws` more of each chain.

    Raises CheckpointError for a file that cannot be made longer: of something else, of an earlier version, of a run
    that was interrupted, or that was sampled from Python.
    """
    recover(path)
    try:
        names = ("adaptation", "progress") if is_zarr(path) else ("sample_stats", "adaptation", "progress")
        groups = read_groups(str(path), names, "--resume")
        if is_zarr(path):
            groups |= {name: group for name, group in open_zarr(path).items() if name == "sample_stats"}
    except SettingsError as error:
        raise CheckpointError(str(error)) from error
    saved = ended_of_groups(groups, further_draws, str(path))
    if "output" not in saved.config:
        raise CheckpointError(
            f"{path} cannot be extended here: it was sampled from Python, and the file does not have the model. In "
            "Python, batchnuts.extend(batchnuts.open_run(path), draws, model=model) gives the longer run."
        )
    return EndedRun(path, groups["sample_stats"].sizes["draw"], saved)


def ended_of_groups(groups: Mapping[str, xarray.Dataset], further_draws: int, name: str) -> SavedRun:
    """The run in groups of this name, as its state after its last draw; see `ended_run`. Raises CheckpointError."""

    def refused(why: str) -> CheckpointError:
        return CheckpointError(f"{name} cannot be extended: {why}.")

    if "sample_stats" not in groups:
        raise refused(
            "its draws were not saved (output.draws, or keep_draws of sample_chains), or it is not a batchnuts run"
        )
    if "adaptation" not in groups:
        raise refused("it has no group adaptation: it is one of many fits, or was written by an earlier version")
    adaptation, stats = groups["adaptation"], groups["sample_stats"]
    about = adaptation.attrs
    if missing := [key for key in NEEDED if key not in about]:
        raise refused(f"it was written by an earlier version, and has no attribute {missing[0]}")
    if about["interrupted"]:
        raise refused("it was interrupted, and has no checkpoint; it would be another run")
    if "lp" not in stats or "last_position" not in adaptation:
        raise refused("it has no draws")
    if stats.sizes["draw"] != int(about["draws_complete"]):
        raise refused(
            "it lacks some of its draws (output.thin); start another run from its tuning, sampler.warmup.from"
        )
    return saved_of_file(stats, adaptation, groups.get("progress"), further_draws)


def joined(ended: EndedRun, further: Mapping[str, xarray.Dataset]) -> dict[str, xarray.Dataset]:
    """The groups of the longer run, from those of its further draws and its file as it is. All are in memory.

    Raises CheckpointError where the file has changed meanwhile.
    """
    earlier = read_groups(str(ended.path), tuple({**further, **dict.fromkeys(_COMPUTED | _OF_WARMUP)}), "--resume")
    if earlier["sample_stats"].sizes["draw"] != ended.draws:
        raise CheckpointError(f"{ended.path} has changed while it was being extended; the new draws are discarded.")
    return joined_groups(earlier, further, ended.draws)


def joined_groups(
    earlier: Mapping[str, xarray.Dataset], further: Mapping[str, xarray.Dataset], draws: int
) -> dict[str, xarray.Dataset]:
    """The groups of the longer run, from those of its first `draws` draws and of the further ones.

    Raises CheckpointError where the further draws ended before every chain had started on them.
    """
    if not np.array_equal(earlier["sample_stats"]["chain"], further["sample_stats"]["chain"]):
        raise CheckpointError(f"The run is unchanged: {NOT_ALL_STARTED}.")
    attributes = further["posterior"].attrs = _attributes(earlier, further)
    log_density = [groups["sample_stats"]["lp"].values for groups in (earlier, further)]
    attributes["log_density_rounding"] = rounding_of(np.concatenate(log_density, axis=1))
    lacking = _lacking(earlier, further)
    groups = (
        {} if further["sample_stats"].sizes["draw"] else {name: earlier[name] for name in earlier.keys() & _COMPUTED}
    )
    groups |= {name: earlier[name] for name in earlier.keys() & _OF_WARMUP}
    for name, of_further in further.items():
        group = of_further.drop_vars(lacking.get(name, ()), errors="ignore")
        if name in lacking and not group.data_vars:
            continue
        along = "divergence" if name == "divergences" else "draw"
        if name in earlier and along in group.dims and _grows(name):
            shorter_group = earlier[name].drop_vars(lacking.get(name, ()), errors="ignore")
            group = _one_after_the_other([shorter_group, group], along)
        groups[name] = group.copy()
        groups[name].attrs = _with_own(attributes, further[name])  # none of the shorter run's, such as why it ended
    groups["adaptation"] = _of_all_draws(earlier["adaptation"], groups, draws)
    return groups


def _attributes(earlier: Mapping[str, xarray.Dataset], further: Mapping[str, xarray.Dataset]) -> dict[str, Any]:
    """The attributes of the further draws; and why the earlier ones lack groups, which the longer run lacks, too."""
    left_out = {name: reason for name, reason in earlier["posterior"].attrs.items() if name == "left_out"}
    return {**left_out, **further["posterior"].attrs}


def _lacking(earlier: Mapping[str, xarray.Dataset], further: Mapping[str, xarray.Dataset]) -> dict[str, list[str]]:
    """What functions of the model made of the earlier draws only, or of the further ones only, by group.

    A function had failed, or a signal had left its results out. The longer run would have them of some draws, so it has
    them of none, which is said. Nothing is lacking where there are no further draws.
    """
    if not further["sample_stats"].sizes["draw"]:
        return {}
    lacking = {}
    for name in sorted({"posterior", *_COMPUTED} & (earlier.keys() | further.keys())):
        of_earlier, of_further = (
            {str(v) for v in groups[name].data_vars} if name in groups else set() for groups in (earlier, further)
        )
        if of_earlier ^ of_further:
            lacking[name] = sorted(of_earlier ^ of_further)
        if name == "posterior" and not of_earlier & of_further:
            raise CheckpointError(
                f"The run is unchanged: its draws have {sorted(of_earlier)}, the new ones {sorted(of_further)}."
            )
    if lacking:
        named = ", ".join(f"{name} ({', '.join(variables)})" for name, variables in lacking.items())
        say(
            f"warning: {named}: not computed for the earlier draws, or not for the new ones; the extended run is saved "
            "without it. To have it for all draws, run again."
        )
    return lacking


def _grows(name: str) -> bool:
    """Whether a group with draws has those of the run, that all chains have."""
    return not name.startswith("prior") and name != "unfinished"


def _one_after_the_other(parts: list[xarray.Dataset], along: str) -> xarray.Dataset:
    """Join parts along `draw`; along `divergence` in the order of chains and their draws."""
    import xarray

    joined = xarray.concat(parts, along, data_vars="minimal", coords="minimal", compat="override", join="override")
    if along == "divergence":
        joined = joined.isel(divergence=np.lexsort((joined["draw"], joined["chain"])))
    return joined


def _with_own(attributes: Mapping[str, Any], group: xarray.Dataset) -> dict[str, Any]:
    """The attributes of all groups, and those that this one has besides."""
    return {**attributes, **{key: value for key, value in group.attrs.items() if key not in attributes}}


# ---- Zarr stores -----------------------------------------------------------------------------------------------------


def _longer_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.longer")


def _shorter_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.shorter")


def recover(path: OutputLocation) -> None:
    """Put a store in its place where a process was killed between the two renames of `replace_store`."""
    if isinstance(path, Path) and not path.exists() and is_zarr(_shorter_path(path)):
        _shorter_path(path).rename(path)


def replace_store(ended: EndedRun) -> dict[str, xarray.Dataset]:
    """Put the longer run in the place of a store that has ended, and give its groups, read when they are used.

    Its further draws are in the store `ended.further`, which is deleted. Raises CheckpointError where the store has
    changed meanwhile, or some chains had not begun; OutputError where something cannot be written.
    """
    from batchnuts.mcmc.storage.zarr_files import ZarrFiles, ZarrFilesBeside

    path = ended.path
    further, earlier = open_zarr(ended.further), open_zarr(path)
    if earlier["sample_stats"].sizes["draw"] != ended.draws:
        raise CheckpointError(f"{path} has changed while it was being extended; the new draws are discarded.")
    if not np.array_equal(earlier["posterior"]["chain"], further["posterior"]["chain"]):
        raise CheckpointError(f"{path} is unchanged: {NOT_ALL_STARTED}.")
    lacking = _lacking(earlier, further)
    if isinstance(path, Url):
        beside = ZarrFilesBeside.of_store(place_of(path))
        try:
            _append(beside, ended, earlier, further, lacking)
        except OSError as error:
            raise OutputError(
                f"{path} could not be extended, {reason_of(error)}: it has {_draws_there(path)} draws of each chain."
            ) from error
        _clear_away(beside.forget, place_of(ended.further).discard)
        return open_zarr(path)
    longer = _longer_path(path)
    try:
        shutil.rmtree(longer, ignore_errors=True)
        shutil.copytree(path, longer, copy_function=_linked)
        _append(ZarrFiles.of_store(LocalPlace(longer)), ended, earlier, further, lacking)
        shutil.rmtree(_shorter_path(path), ignore_errors=True)
        path.rename(_shorter_path(path))
        longer.rename(path)
    except OSError as error:
        shutil.rmtree(longer, ignore_errors=True)
        recover(path)
        raise OutputError(f"{path} is unchanged, {reason_of(error)}.") from error
    shutil.rmtree(_shorter_path(path), ignore_errors=True)
    place_of(ended.further).discard()
    return open_zarr(path)


def _draws_there(url: Url) -> str:
    """The number of draws in the store, in words, where that can be read."""
    try:
        return str(open_zarr(url)["sample_stats"].sizes["draw"])
    except (OSError, KeyError, ValueError):
        return "the earlier or all"


def _clear_away(*calls: Callable[[], None]) -> None:
    """Delete what is left of a run that was made longer: it has its draws, whether this can be deleted or not."""
    for call in calls:
        try:
            call()
        except OutputError as error:
            say(f"warning: leftover files were not deleted: {error}")


def _append(
    files: ZarrFiles,
    ended: EndedRun,
    earlier: Mapping[str, xarray.Dataset],
    further: Mapping[str, xarray.Dataset],
    lacking: Mapping[str, list[str]],
) -> None:
    """Write the further draws, and what is known of all draws; readers see all of it at once.

    lacking: see `_lacking`.
    """
    attributes = _attributes(earlier, further)
    lengths = {}
    for name, variables in lacking.items():
        if present := [variable for variable in variables if variable in files.arrays.get(name, {})]:
            files.drop(name, present if {*map(str, earlier[name].data_vars)} - {*variables} else None)
    for name in (
        earlier.keys() - further.keys() - _COMPUTED - _OF_WARMUP
    ):  # `unfinished`, of a run that an interim analysis has ended, say
        if name in files.arrays or name == kept_diagnostics.GROUP:
            files.drop(name)
    for name, group in further.items():
        if name in earlier and name in files.arrays and _grows(name):
            lengths[name] = files.append(name, group)
        elif name == "adaptation":
            files.replace(name, _of_all_draws(earlier[name].load(), further, ended.draws))
        elif name == "divergences" and name in earlier:
            files.replace(name, _one_after_the_other([earlier[name].load(), group.load()], "divergence"))
        elif name in ("progress", "unfinished", "divergences"):
            files.replace(name, group.load())
    log_density = VariableBlock(files.read("sample_stats")["lp"].variable)
    attributes["log_density_rounding"] = rounding_of(log_density)
    files.set_attributes("", attributes)
    for name, group in further.items():
        if f"{name}/zarr.json" in files.store.metadata:
            files.set_attributes(name, _with_own(attributes, group))
    files.commit(lengths, first="sample_stats")  # as while it was written
    files.sync()


def _linked(source: str, target: str) -> None:
    """Make a file of the copy. None of these is written again: it is replaced, and so stays in the store as it was."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


# ---- means of all draws ----------------------------------------------------------------------------------------------


def _of_all_draws(earlier: xarray.Dataset, groups: Mapping[str, xarray.Dataset], draws: int) -> xarray.Dataset:
    """The group `adaptation` with means of all draws, from the sums that it has in both runs.

    groups: of the run with the further draws. draws: of each chain before it.
    """
    further = groups["adaptation"].load()
    chains = further["chain"].values
    if "total" not in further:
        return further
    of_chains = earlier.sel(chain=chains)
    means = ChainMeans(
        len(chains), further.sizes["coefficient"], further["last_position"].dtype, further["step_size"].dtype
    )
    means.first[:], means.last[:] = of_chains["first_position"].values, further["last_position"].values
    # of an interrupted run, each chain's own draws
    done = groups["unfinished"]["draws_done"].values if "unfinished" in groups else further.attrs["draws_complete"]
    means.count[:] = done
    further_draws = (means.count - draws)[:, None]
    # about the first draw of all: the sum of the later ones less that
    moved = further["first_position"].values.astype(np.float64) - means.first
    means.total[:] = of_chains["total"].values + (further["total"].values + further_draws * moved)
    centre = means.centre(np.arange(len(chains)))
    return further.assign(
        first_position=of_chains["first_position"],
        total=(("chain", "coefficient"), means.total),
        mean=(("coefficient",), centre.mean),
        mean_error=(("coefficient",), np.sqrt(centre.squared_error)),
    )
