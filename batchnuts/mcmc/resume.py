"""Reading the checkpoint of a run that has not ended: `python -m batchnuts.sample --resume RUN`."""

from __future__ import annotations

from pathlib import Path

from batchnuts.mcmc.chain_program import ChainInputs, ChainResult, Record
from batchnuts.mcmc.chain_states import ChainStates, InDraws
from batchnuts.mcmc.checkpoint.file import CheckpointError
from batchnuts.mcmc.checkpoint.keeper import NAME, read_saved_run
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.cluster.messages import Rows, SavedChains, SavedGroup, SavedRegion
from batchnuts.mcmc.draws import WarmupReport, WindowTuning
from batchnuts.mcmc.execution.attempt import MergePosition
from batchnuts.mcmc.execution.runner import Counts, SavedCalls
from batchnuts.mcmc.execution.saved_stretch import SavedChunk, SavedStretch
from batchnuts.mcmc.history import HistoryKeeper, Row
from batchnuts.mcmc.interim_analyses import Ended, SavedInterimAnalyses
from batchnuts.mcmc.metric_estimates import MetricParameters
from batchnuts.mcmc.step_size import DualAveraging
from batchnuts.mcmc.stopping_rule import Decision
from batchnuts.mcmc.stored_run import is_interrupted, is_run
from batchnuts.mcmc.tuning import Tuning
from batchnuts.mcmc.until import Condition
from batchnuts.mcmc.url import OutputLocation, Url, folder_of
from batchnuts.mcmc.warmup.metric_draws import DrawsWithGradients
from batchnuts.mcmc.warmup.moments import Centre, Moments
from batchnuts.mcmc.warmup.phase import InWarmup, Pooled
from batchnuts.mcmc.warmup.reduced import ReducedWindow

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
