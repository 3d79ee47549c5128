"""`sample_chains`: a run from Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np

from batchnuts.api.options import Options, with_options
from batchnuts.api.predicting import remember
from batchnuts.cluster.execution import execution_of
from batchnuts.mcmc.model.content import Content, chosen_groups
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.model.wrapping import how_to_wrap
from batchnuts.mcmc.output.result import Result
from batchnuts.mcmc.run.run import ProgressCallback
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.mcmc.storage.draws import Draws, RunFailed
from batchnuts.process.signals import StopSignals, say
from batchnuts.settings.schema import SettingsError, shown

if TYPE_CHECKING:
    from batchnuts.mcmc.output.summarizing import SummaryRun


@with_options
def sample_chains(
    model: Model,
    *,
    progress: ProgressCallback | bool | None = None,
    unconstrained: bool = False,
    divergences: bool = False,
    keep_draws: bool = True,
    keep_warmup: bool = False,
    groups: Sequence[str] | None = None,
    signals: Literal["keep", "raise"] = "keep",
    **settings: Unpack[Options],
) -> Result:
    """Sample a model with NUTS and give the draws as an ArviZ object, the same that the command line saves.

    model: from Model.from_function, or of a bridge.
    progress: a function that is called with a Progress a few times a second (docs/progress.md), True or False for
        progress on stderr or none; by default there is some in a terminal or notebook.
    unconstrained: whether to add the group `unconstrained_posterior`, the real numbers that the sampler moved.
    divergences: whether to add the group `divergences`, where trajectories that diverged began and ended.
    keep_draws: False keeps only what is known of them, in memory that does not grow with draws: the group `summary` in
        place of `posterior` (docs/summaries.md). `batchnuts.check` judges the result.
    keep_warmup: whether to add the groups `warmup_posterior` and `warmup_sample_stats`, the transitions of warmup.
    groups: of `log_likelihood`, `posterior_predictive` and `prior`, those that are computed; None: all for which the
        model has functions. They may be much larger than the draws, and take longer.
    signals: what Ctrl-C does, and in a program's main thread SIGTERM and SIGHUP, unless the program handles them. The
        run ends, and `keep` gives the draws made so far, marked as interrupted, with a line on stderr: the program goes
        on. `raise` raises KeyboardInterrupt, which names the signal and has them in its attribute `result`, and the
        signal's number in `signal`: for a program that has to end in time.

    The other keywords are the fields of SamplerSettings and ExecutionSettings.

    Raises KeyboardInterrupt if a signal comes before there are draws, or Ctrl-C again after a warning; SettingsError
    for settings that do not fit, ModelError for a model that cannot be sampled. Any other error after the first draw is
    raised with the draws in its attribute `result`.
    """
    from batchnuts.mcmc.output.datasets import to_arviz, to_datasets
    from batchnuts.progress.choice import default_view

    if not isinstance(model, Model):
        raise ModelError(
            f"sample_chains takes a Model, found {type(model).__name__}. Make one from a density with "
            f"batchnuts.Model.from_function(log_density, dimension=...).{how_to_wrap(model)}"
        )
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise SettingsError(f"progress: found {progress!r}; expected true, false, None, or a function of a Progress.")
    for name, flag in (
        ("unconstrained", unconstrained),
        ("divergences", divergences),
        ("keep_draws", keep_draws),
        ("keep_warmup", keep_warmup),
    ):
        if not isinstance(flag, bool | np.bool_):
            raise SettingsError(f"{name}: found {shown(flag)}; expected True or False.")
    if signals not in ("keep", "raise"):
        raise SettingsError(f"signals: found {shown(signals)}; expected 'keep' or 'raise'.")
    sampler, execution = split_settings(settings)
    content = Content(
        unconstrained=unconstrained,
        draws=keep_draws,
        divergences=divergences,
        groups=chosen_groups(groups),
        warmup=keep_warmup,
    )
    if not keep_draws and (unconstrained or divergences or keep_warmup):
        named = "unconstrained" if unconstrained else "divergences" if divergences else "keep_warmup"
        raise SettingsError(
            f"keep_draws: found False with {named}=True, which needs the draws; give only one of the two."
        )
    view = nullcontext(progress) if callable(progress) else default_view(progress)
    with StopSignals() as stop, nullcontext() if keep_draws else _summaries(model, content) as stream:

        def result_of(draws: Draws) -> Result:
            data: Result = to_arviz(
                to_datasets(draws, model, content=content) if stream is None else stream.finish(draws)
            )
            remember(data, model, draws.rectangle(draws.position))
            return data

        failure: RunFailed | None = None
        try:
            with view as report:
                draws = run_chains(
                    model, sampler, execution, report, stop, content=content, stream=stream, where=execution_of
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
            raise KeyboardInterrupt(f"{stop.name}; no draws were made yet")
        stop.hold()
        result = result_of(draws)
    if signals == "raise" and (draws.interrupted or stop.first is not None):
        raise _interrupt(stop, draws, result, keep_draws)
    if draws.interrupted:
        say(f"{stop.name}; {draws.what_there_is(keep_draws)}.")
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
