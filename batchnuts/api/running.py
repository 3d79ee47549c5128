"""A run from Python, once its settings are known: its chains, what a signal or an error does, its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from batchnuts.api.fitted_models import remember
from batchnuts.cluster.execution import execution_of
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.output.result import Result
from batchnuts.mcmc.run.lengthen import NOT_ALL_STARTED, joined_groups
from batchnuts.mcmc.run.run import ProgressCallback
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.storage.draws import Draws, RunFailed
from batchnuts.process.signals import StopSignals, say
from batchnuts.settings.schema import SettingsError, shown

if TYPE_CHECKING:
    import xarray

    from batchnuts.mcmc.output.summarizing import SummaryRun


@dataclass(frozen=True, eq=False)
class EarlierDraws:
    """A run that has ended and is made longer."""

    groups: dict[str, xarray.Dataset]
    position: NDArray[Any] | None
    """[chains, draws, dimension], where they are kept (fitted_models.py)."""
    saved: SavedRun

    def joined(
        self, further: Mapping[str, xarray.Dataset], position: NDArray[Any] | None
    ) -> tuple[dict[str, xarray.Dataset], NDArray[Any] | None]:
        """The groups and positions of the longer run."""
        draws = self.groups["sample_stats"].sizes["draw"]
        groups = joined_groups(self.groups, further, draws)
        if self.position is None or position is None:
            return groups, None
        return groups, np.concatenate([self.position, position], axis=1)


def check_choices(progress: Any, signals: Any) -> None:
    """Raise SettingsError for values that these arguments do not take."""
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise SettingsError(f"progress: found {progress!r}; expected true, false, None, or a function of a Progress.")
    if signals not in ("keep", "raise"):
        raise SettingsError(f"signals: found {shown(signals)}; expected 'keep' or 'raise'.")


def run_from_python(
    model: Model,
    sampler: SamplerSettings,
    execution: ExecutionSettings,
    content: Content,
    progress: ProgressCallback | bool | None,
    signals: Literal["keep", "raise"],
    earlier: EarlierDraws | None = None,
) -> Result:
    """The result of a run; of one that is made longer, with its earlier draws. See `sample_chains`."""
    from batchnuts.mcmc.output.datasets import to_arviz, to_datasets
    from batchnuts.progress.choice import default_view

    view = nullcontext(progress) if callable(progress) else default_view(progress)
    with StopSignals() as stop, nullcontext() if content.draws else _summaries(model, content) as stream:

        def result_of(draws: Draws) -> Result:
            groups = to_datasets(draws, model, content=content) if stream is None else stream.finish(draws)
            position: NDArray[Any] | None = draws.rectangle(draws.position)
            if earlier is not None:
                groups, position = earlier.joined(groups, position)
            data: Result = to_arviz(groups)
            remember(data, model, position)
            return data

        failure: RunFailed | None = None
        try:
            with view as report:
                draws = run_chains(
                    model,
                    sampler,
                    execution,
                    report,
                    stop,
                    content=content,
                    stream=stream,
                    ended=None if earlier is None else earlier.saved,
                    where=execution_of,
                )
        except RunFailed as failed:
            failure = failed
        if failure is not None:  # not while that is handled: a user sees the error alone
            error = failure.cause
            try:
                error.result = result_of(failure.draws)  # type: ignore[attr-defined]
            except BaseException as second:
                raise second from error
            error.add_note("The draws made so far are in this exception's attribute `result`.")
            raise error
        if not draws.done.any():
            further = "" if earlier is None else " further"
            raise KeyboardInterrupt(f"{stop.name}; no{further} draws were made yet")
        if earlier is not None and len(draws.chains) < len(draws.done):
            raise KeyboardInterrupt(f"{stop.name}; {NOT_ALL_STARTED}, and there are no further draws")
        stop.hold()
        result = result_of(draws)
    if signals == "raise" and (draws.interrupted or stop.first is not None):
        raise _interrupt(stop, draws, result, content.draws)
    if draws.interrupted:
        say(f"{stop.name}; {draws.what_there_is(content.draws)}.")
    return result


def _interrupt(stop: StopSignals, draws: Draws, result: Result, keeps_draws: bool) -> KeyboardInterrupt:
    """The interrupt that ended the run, with its draws."""
    error = KeyboardInterrupt(
        f"{stop.name}; {draws.what_there_is(keeps_draws)}, in this exception's attribute `result`"
    )
    error.result, error.signal = result, stop.first  # type: ignore[attr-defined]
    return error


@contextmanager
def _summaries(model: Model, content: Content) -> Iterator[SummaryRun]:
    """Give what reduces draws that are not kept, with a folder for as long as it is needed."""
    from batchnuts.mcmc.output.summarizing import SummaryRun, require_sketches

    require_sketches()
    with TemporaryDirectory(prefix="batchnuts-") as folder:
        run = SummaryRun(Path(folder) / "blocks", model, content)
        try:
            yield run
        finally:
            run.close()
