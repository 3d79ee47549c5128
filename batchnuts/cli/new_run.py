"""A run of the command line, from its settings to its draws; what becomes of these: finish.py.

Libraries are imported on the way, the large ones once the run cannot be refused any more.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchnuts.cli.ending import Ending
from batchnuts.process.signals import StopSignals, say

if TYPE_CHECKING:
    from batchnuts.cli.config import RunConfig
    from batchnuts.files.url import OutputLocation
    from batchnuts.mcmc.checkpoint.keeper import Keeper
    from batchnuts.mcmc.checkpoint.saved_run import SavedRun
    from batchnuts.mcmc.model.model import Model
    from batchnuts.mcmc.output.streaming import ZarrRun
    from batchnuts.mcmc.output.summarizing import SummaryRun
    from batchnuts.mcmc.run.lengthen import EndedRun
    from batchnuts.mcmc.storage.draws import Draws
    from batchnuts.progress.views import View


@dataclass(frozen=True)
class Task:
    """The run that is to be made and saved."""

    config: RunConfig
    force: bool
    """Whether the output may replace what is there."""
    quiet: bool
    location: OutputLocation | None = None
    """Where the draws go; None: as the config says."""
    saved: SavedRun | None = None
    """A checkpoint to go on from."""
    ended: EndedRun | None = None
    """A run that is made longer."""


@dataclass
class Prepared:
    """All that is known before the first chain moves."""

    config: RunConfig
    """That of the task, with the format and path of the output decided."""
    model: Model
    location: OutputLocation
    keeper: Keeper | None
    stream: ZarrRun | SummaryRun | None
    """What takes the draws while they are made. Dropped once it is finished: it holds memory."""


def prepare(task: Task, view: View, stop: StopSignals) -> Prepared:
    """Import the libraries, build the model, and decide where the draws go; a run that cannot be is refused."""
    from batchnuts.cli.config import build_model
    from batchnuts.cli.first_imports import import_first, import_for
    from batchnuts.cli.output_path import path_of_new_run, require_space
    from batchnuts.cli.size_and_format import decided, forecast_of
    from batchnuts.disk_cache.folder import keeping
    from batchnuts.files.saving import short_bytes
    from batchnuts.process.memory import available_memory
    from batchnuts.progress.views import phase

    with phase(view, "start"):
        import_first(task.config)
        if "tensorflow" not in sys.modules:  # whose objects, out of the collector's sight, would hold the user's
            # The last collection of the process goes through the user's objects, which may be open files, but not
            # through those of libraries, which takes a tenth of a short run.
            gc.freeze()
        begun_in = Path.cwd()
        with keeping(task.config.execution.cache):
            model = build_model(task.config.model)
        import_for(model, task.config)
        config = decided(task.config.from_folder(begun_in), model)
        location = task.location
        if location is None:
            location = path_of_new_run(config, force=task.force, begun_in=begun_in)
        expected = forecast_of(config, model)
        require_space(location, expected.file_at_least, config)
        if expected.peak > (free := available_memory()):
            say(
                f"warning: the run takes about {short_bytes(expected.peak)} of memory, and {short_bytes(free)} are "
                "available now. End other programs, or lower sampler.draws."
            )
        from batchnuts.files.url import folder_of
        from batchnuts.mcmc.checkpoint.keeper import Keeper

        keeper = None
        if config.output.checkpoint_seconds is not None and task.ended is None:
            keeper = Keeper(folder_of(location), config.output.checkpoint_seconds, config.resolved(), task.saved)
        stop.check()  # an import may have swallowed what the signal raised
        return Prepared(config, model, location, keeper, _stream(task, config, model, location))


def _stream(task: Task, config: RunConfig, model: Model, location: OutputLocation) -> ZarrRun | SummaryRun | None:
    """What takes the draws of the run while they are made; None where they are kept in memory."""
    from batchnuts.files.url import folder_of
    from batchnuts.mcmc.checkpoint.keeper import BLOCKS
    from batchnuts.mcmc.output.streaming import ZarrRun
    from batchnuts.mcmc.output.summarizing import SummaryRun

    content, resumed = config.output.content, task.saved is not None
    if config.output.streams:
        place, earlier = (location, 0) if task.ended is None else (task.ended.further, task.ended.draws)
        kind = ZarrRun
        if config.execution.cluster is not None:
            from batchnuts.cluster.direct import DirectZarrRun as kind
        return kind(place, model, content, config.resolved(), replace=task.force, resumed=resumed, earlier=earlier)
    if not content.draws:
        return SummaryRun(folder_of(location) / BLOCKS, model, content, config.resolved(), resumed=resumed)
    return None


def draw(task: Task, prepared: Prepared, view: View, stop: StopSignals) -> tuple[Draws, Exception | None]:
    """The draws, and the error that ended them early, if one did."""
    from batchnuts.cluster.execution import execution_of
    from batchnuts.mcmc.run.sampling import run_chains
    from batchnuts.mcmc.storage.draws import RunFailed
    from batchnuts.mcmc.storage.progress import Progress

    with view as progress:
        if progress is not None:
            progress(Progress("compile", 0, 1, 0.0))
        try:
            with _warnings_reported():
                draws = run_chains(
                    prepared.model,
                    prepared.config.sampler,
                    prepared.config.execution,
                    progress,
                    stop,
                    content=prepared.config.output.content,
                    stream=prepared.stream,
                    keeper=prepared.keeper,
                    ended=None if task.ended is None else task.ended.saved,
                    where=execution_of,
                )
        except RunFailed as failed:
            return failed.draws, failed.cause
        except Exception:
            if prepared.stream is not None:
                prepared.stream.close()
            raise
    return draws, None


def view_of(ending: Ending, quiet: bool) -> View:
    """The view in which progress is shown."""
    if quiet:
        return nullcontext()
    if ending.lines is not None:
        return ending.lines
    from batchnuts.progress.choice import view_on_stderr

    return view_on_stderr(own_descriptor=True)


@contextmanager
def _warnings_reported() -> Iterator[None]:
    """Print warnings about a model as lines of ours."""
    from batchnuts.autobatch import AssertionWarning

    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if issubclass(category, AssertionWarning):
                say(f"warning: {message}")
            else:
                shown(message, category, *place, **options)

        warnings.showwarning = show
        yield
