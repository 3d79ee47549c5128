"""Reading the checkpoint of a run that has not ended: `python -m batchnuts.sample --resume RUN`."""

from __future__ import annotations

from pathlib import Path

from batchnuts.cluster.messages import Rows, SavedChains, SavedGroup, SavedRegion
from batchnuts.files.sealed_file import CheckpointError
from batchnuts.files.url import OutputLocation, Url, folder_of
from batchnuts.mcmc.checkpoint.keeper import NAME, read_saved_run
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.execution.attempt import MergePosition
from batchnuts.mcmc.execution.chain_states import ChainStates, InDraws
from batchnuts.mcmc.execution.metric_draws import DrawsWithGradients
from batchnuts.mcmc.execution.runner import Counts, SavedCalls
from batchnuts.mcmc.execution.saved_stretch import SavedChunk, SavedStretch
from batchnuts.mcmc.execution.window_reduction import ReducedWindow
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult, Record
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.kernel.step_size import DualAveraging
from batchnuts.mcmc.settings.until import Condition
from batchnuts.mcmc.starts.tuning import Tuning
from batchnuts.mcmc.statistics.window_moments import Centre, Moments
from batchnuts.mcmc.stopping.interim_analyses import Ended, SavedInterimAnalyses
from batchnuts.mcmc.stopping.stopping_rule import Decision
from batchnuts.mcmc.storage.draws import WarmupReport, WindowTuning
from batchnuts.mcmc.storage.history import HistoryKeeper, Row
from batchnuts.mcmc.storage.stored_run import is_interrupted, is_run
from batchnuts.mcmc.warmup.phase import InWarmup, Pooled

TYPES = (
    *(InWarmup, InDraws, ChainStates, Pooled, Moments, MetricParameters, Tuning, Centre),
    *(WarmupReport, WindowTuning),
    *(SavedStretch, SavedChunk, MergePosition, SavedCalls, ChainInputs, ChainResult, Record, DualAveraging, Counts),
    *(SavedChains, SavedGroup, SavedRegion, Rows, ReducedWindow, DrawsWithGradients),
    *(SavedInterimAnalyses, Ended, Decision, Condition, HistoryKeeper, Row),
)
"""All that a checkpoint is made of; nothing else is made when one is read."""


def saved_run_of(output: OutputLocation) -> SavedRun:
    """The last checkpoint of the run whose output has, or will have, this path.

    Raises CheckpointError where there is none, or it cannot be read.
    """
    folder = folder_of(output)
    if not (folder / NAME).exists():
        raise CheckpointError(f"There is no checkpoint of {output} ({folder / NAME}): {_why_none(output)}.")
    return read_saved_run(folder, TYPES)


def _why_none(output: OutputLocation) -> str:
    elsewhere = ", or it was begun in another folder, where its checkpoint is" if isinstance(output, Url) else ""
    if is_interrupted(output):
        return f"the run was interrupted before its first one{elsewhere}, or it was deleted; what was drawn is saved"
    if is_run(output):
        return "the run has ended; to make it longer, add sampler.draws=+1000"
    if isinstance(output, Path) and output.exists():
        return "what is there is no run of batchnuts"
    return f"there is no such run here{elsewhere}, or it ended before its first one (output.checkpoint_seconds)"
