"""`python -m batchnuts.sample --resume RUN`: a run goes on from its checkpoint, or one that has ended is lengthened."""

from __future__ import annotations

import argparse
from pathlib import Path

from batchnuts.cli.config import config_of
from batchnuts.cli.ending import Ending
from batchnuts.cli.new_run import Task
from batchnuts.cli.output_path import checked_path
from batchnuts.cluster.messages import Rows, SavedChains, SavedGroup, SavedRegion
from batchnuts.files.saving import OutputError
from batchnuts.files.sealed_file import CheckpointError
from batchnuts.files.url import OutputLocation, Url, folder_of, location_of
from batchnuts.mcmc.checkpoint.keeper import NAME, Keeper, read_saved_run
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.execution.attempt import MergePosition
from batchnuts.mcmc.execution.call_runner import SavedCalls
from batchnuts.mcmc.execution.chain_states import ChainStates, InDraws
from batchnuts.mcmc.execution.metric_draws import DrawsWithGradients
from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.execution.saved_stretch import SavedChunk, SavedStretch
from batchnuts.mcmc.execution.window_reduction import ReducedWindow
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.kernel.step_size import DualAveraging
from batchnuts.mcmc.run.lengthen import ended_run
from batchnuts.mcmc.settings.until import Condition
from batchnuts.mcmc.starts.tuning import Tuning
from batchnuts.mcmc.statistics.window_moments import Centre, Moments
from batchnuts.mcmc.stopping.interim_analyses import Ended, SavedInterimAnalyses
from batchnuts.mcmc.stopping.stopping_rule import Decision
from batchnuts.mcmc.storage.draws import WarmupReport, WindowRecords, WindowTuning
from batchnuts.mcmc.storage.history import HistoryKeeper, Row
from batchnuts.mcmc.storage.stored_run import is_complete, is_interrupted, is_run
from batchnuts.mcmc.storage.url_place import place_of
from batchnuts.mcmc.warmup.ensemble import BurnIn, Ensemble, EnsembleWindow, Snapshot
from batchnuts.mcmc.warmup.place import InWarmup, Pooled

TYPES = (
    *(BurnIn, Ensemble, Snapshot, EnsembleWindow),
    *(InWarmup, InDraws, ChainStates, Pooled, Moments, MetricParameters, Tuning, Centre),
    *(WarmupReport, WindowTuning, WindowRecords),
    *(SavedStretch, SavedChunk, MergePosition, SavedCalls, ChainInputs, ChainResult, Record, DualAveraging, Counts),
    *(SavedChains, SavedGroup, SavedRegion, Rows, ReducedWindow, DrawsWithGradients),
    *(SavedInterimAnalyses, Ended, Decision, Condition, HistoryKeeper, Row),
)
"""All that a checkpoint is made of; nothing else is made when one is read."""


def resume(arguments: argparse.Namespace, ending: Ending) -> Task | None:
    """The task to go on with a run; None if it had come to its end, which is then said."""
    location = _output_of(arguments.resume)
    saved = saved_run_of(location)
    if is_complete(location, saved.config):  # it was killed after it had written its output
        Keeper(folder_of(location), None, saved.config, saved).remove()
        ending.say("the run had already finished; its output is complete.")
        ending.content["path"] = str(location)
        print(location, flush=True)
        return None
    config = config_of(saved.config, folder_of(location) / NAME, arguments.overrides)
    # the draws that were saved when it was interrupted, or a store that had just been begun
    replaces = arguments.force or is_interrupted(location) or place_of(location).is_own()
    checked_path(config, location, force=replaces)
    if is_interrupted(location):
        ending.untouched = f"{location} is unchanged"
    return Task(config, replaces, arguments.quiet, location, saved=saved)


def lengthen(arguments: argparse.Namespace, ending: Ending, further: int) -> Task:
    """The task to make a run longer that has ended: its output is replaced once it has all draws."""
    location = _output_of(arguments.resume)
    if (folder_of(location) / NAME).exists():
        raise OutputError(f"The run in {location} has not finished. Continue it with --resume {location} first.")
    ended = ended_run(location, further)
    config = config_of(
        {**ended.saved.config, "output": ended.saved.config["output"] | {"path": str(location)}},
        Path(str(location)),
        arguments.overrides,
    )
    checked_path(config, location, force=True)
    ending.untouched = f"{location} is unchanged, with {ended.draws} draws of each chain"
    return Task(config, True, arguments.quiet, location, ended=ended)


def _output_of(text: str) -> OutputLocation:
    """The absolute path of a run's output, or its URL."""
    location = location_of(text)
    return location.resolve() if isinstance(location, Path) else location


def saved_run_of(output: OutputLocation) -> SavedRun:
    """The last checkpoint of the run whose output has, or will have, this path.

    Raises CheckpointError where there is none, or it cannot be read.
    """
    folder = folder_of(output)
    if not (folder / NAME).exists():
        raise CheckpointError(f"There is no checkpoint of {output} ({folder / NAME}): {_why_none(output)}.")
    return read_saved_run(folder, TYPES)


def _why_none(output: OutputLocation) -> str:
    elsewhere = ", or it was started in another folder, where its checkpoint is" if isinstance(output, Url) else ""
    if is_interrupted(output):
        return f"the run was interrupted before its first one{elsewhere}, or it was deleted; the draws so far are saved"
    if is_run(output):
        return "the run has finished; to extend it, add sampler.draws=+1000"
    if isinstance(output, Path) and output.exists():
        return "it is not the output of a batchnuts run"
    return f"there is no such run here{elsewhere}, or it ended before its first one (output.checkpoint_seconds)"
