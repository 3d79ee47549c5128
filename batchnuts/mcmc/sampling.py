"""Whole runs: initial positions, warmup windows with pooling between them, then draws.

positions -> check -> first step size, or an earlier run's -> [window -> pool metric and step size]* -> draws -> Draws
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import random
from batchnuts.disk_cache.folder import keeping
from batchnuts.mcmc.chain_states import InDraws
from batchnuts.mcmc.chains_choice import with_chains
from batchnuts.mcmc.checkpoint.keeper import Keeper
from batchnuts.mcmc.checkpoint.saved_run import SavedRun, require_same, require_same_density
from batchnuts.mcmc.choose_by_time import choose_by_time
from batchnuts.mcmc.content import Content, check_content, chosen_groups
from batchnuts.mcmc.draws import Draws, Progress
from batchnuts.mcmc.engine import choose_engine, likely_backend
from batchnuts.mcmc.execution.program_cache import borrow, check_disk_cache, give_back
from batchnuts.mcmc.execution.runner import Runner
from batchnuts.mcmc.forecast import Size, memory_problem
from batchnuts.mcmc.freed_memory import give_back_freed
from batchnuts.mcmc.initialization import Proposals, make_proposals, positions_to_check
from batchnuts.mcmc.interim_analyses import interim_analyses_of
from batchnuts.mcmc.model import Model, ModelError
from batchnuts.mcmc.options import Options, Result, with_options
from batchnuts.mcmc.quantities import check_quantities
from batchnuts.mcmc.run import ProgressCallback, Run
from batchnuts.mcmc.settings import ExecutionSettings, SamplerSettings, split_settings
from batchnuts.mcmc.spent import Spent
from batchnuts.mcmc.starts import Checked, check_at_starts
from batchnuts.mcmc.storage.contract import Stream
from batchnuts.mcmc.tuning import Tuning, read_tuning
from batchnuts.mcmc.warmup.phase import CHECK, InWarmup, warm_up
from batchnuts.mcmc.wrapping import how_to_wrap
from batchnuts.settings.schema import SettingsError, shown
from batchnuts.stopping import StopSignals, say

if TYPE_CHECKING:
    from batchnuts.mcmc.summarizing import SummaryRun


@with_options
def sample_chains(
    model: Model,
    *,
    progress: ProgressCallback | bool | None = None,
    unconstrained: bool = False,
    divergences: bool = False,
    keep_draws: bool = True,
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
    from batchnuts.mcmc.output import to_arviz, to_datasets
    from batchnuts.progress.choice import default_view

    if not isinstance(model, Model):
        raise ModelError(
            f"sample_chains takes a Model, found {type(model).__name__}. Make one from a density with "
            f"batchnuts.Model.from_function(log_density, dimension=...).{how_to_wrap(model)}"
        )
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise SettingsError(f"progress: found {progress!r}; expected true, false, None, or a function of a Progress.")
    for name, given in (("unconstrained", unconstrained), ("divergences", divergences), ("keep_draws", keep_draws)):
        if not isinstance(given, bool | np.bool_):
            raise SettingsError(f"{name}: found {shown(given)}; expected True or False.")
    if signals not in ("keep", "raise"):
        raise SettingsError(f"signals: found {shown(signals)}; expected 'keep' or 'raise'.")
    sampler, execution = split_settings(settings)
    content = Content(
        unconstrained=unconstrained,
        draws=keep_draws,
        divergences=divergences,
        groups=chosen_groups(groups),
    )
    if not keep_draws and (unconstrained or divergences):
        named = "unconstrained" if unconstrained else "divergences"
        raise SettingsError(
            f"keep_draws: found False with {named}=True, which needs the draws; give only one of the two."
        )
    view = nullcontext(progress) if callable(progress) else default_view(progress)
    with StopSignals() as stop, nullcontext() if keep_draws else _summaries(model, content) as stream:

        def result_of(draws: Draws) -> Result:
            made: Result = to_arviz(
                to_datasets(draws, model, content=content) if stream is None else stream.finish(draws)
            )
            return made

        try:
            with view as report:
                draws = run_chains(model, sampler, execution, report, stop, content=content, stream=stream)
        except Exception as error:
            if hasattr(error, "draws_so_far"):
                error.result = result_of(error.draws_so_far)  # type: ignore[attr-defined]
                error.add_note("The draws made before are in this exception's attribute `result`.")
            raise
        if not draws.done.any():
            raise KeyboardInterrupt(f"{stop.name}; nothing was drawn yet")
        stop.hold()
        result = result_of(draws)
    if signals == "raise" and (draws.interrupted or stop.first is not None):
        raise _interrupt(stop, draws, result, keep_draws)
    if draws.interrupted:
        say(f"{stop.name}; {draws.what_there_is(keep_draws)}.")
    return result


def _interrupt(stop: StopSignals, draws: Draws, result: Result, kept: bool) -> KeyboardInterrupt:
    """What ended the run, with its draws."""
    error = KeyboardInterrupt(f"{stop.name}; {draws.what_there_is(kept)}, in this exception's attribute `result`")
    error.result, error.signal = result, stop.first  # type: ignore[attr-defined]
    return error


@contextmanager
def _summaries(model: Model, content: Content) -> Iterator[SummaryRun]:
    """What reduces draws that are not kept, with a folder for as long as it is needed."""
    from batchnuts.mcmc.summarizing import SummaryRun, require_sketches

    require_sketches()
    with TemporaryDirectory(prefix="batchnuts-") as folder:
        run = SummaryRun(Path(folder) / "blocks", model, content)
        try:
            yield run
        finally:
            run.close()


def run_chains(
    model: Model,
    sampler: SamplerSettings,
    execution: ExecutionSettings,
    progress: ProgressCallback | None = None,
    stop: StopSignals | None = None,
    *,
    content: Content | None = None,
    stream: Stream | None = None,
    keeper: Keeper | None = None,
    ended: SavedRun | None = None,
) -> Draws:
    """Run warmup and draws; exactly `sampler.draws` draws of every chain, unless interrupted.

    Ctrl-C, SIGTERM and SIGHUP (where `stop` handles them) and a KeyboardInterrupt of `progress` end the run early and
    give what was drawn so far, with `interrupted` set. Any other error after the first draw is raised with the draws in
    its attribute `draws_so_far`. The model is checked first. content: what will be saved of the draws. stream: where
    draws go while they are made; the result then has none. keeper: of checkpoints, one of which the run may go on from;
    CheckpointError where that is not of this run. ended: a run of fewer draws, of which the further ones are made.
    """
    content = content or Content()
    if not content.draws and sampler.until is not None:
        raise SettingsError(
            "sampler.until: found conditions for draws that are not kept, and it looks at all draws; expected null, or "
            "that they are kept (output.draws: true, keep_draws=True)."
        )
    size, backend = Size.of(model, content), likely_backend(model, execution)
    streamed = stream is not None
    if too_large := memory_problem(sampler, execution, size, content=content, streamed=streamed, backend=backend):
        raise SettingsError(f"{too_large}.")
    saved = keeper.saved if keeper is not None else ended
    check_disk_cache(execution.cache, goes_on=saved is not None)
    with keeping(execution.cache):
        begin = _begin(model, sampler, execution, content, streamed) if saved is None else _go_on(model, saved)
        sampler = with_chains(sampler, begin.chains)
        execution = execution if saved is None else execution.model_copy(update={"backend": saved.backend})
        proposals = begin.proposals or make_proposals(model, sampler, execution, begin.tuning)
        position = positions_to_check(model, sampler, proposals)
        engine, execution = choose_engine(model, execution, position[0])
        checked = begin.checked
        if checked is None or not checked.is_of(position[0]):
            checked = check_at_starts(model, engine, proposals, position)
        first = checked.position
        computed = content.computed(model)
        check_quantities(computed, engine, first, whole=computed is model)
        check_content(model, lambda: engine, content)
        checks = interim_analyses_of(model, engine, sampler, execution)
        run = Run(
            model,
            engine,
            sampler,
            execution,
            progress or (lambda _: None),
            stop or StopSignals(),
            borrow(model, engine, sampler, execution, first, checked),
            random.lane_keys(sampler.seed, sampler.chain_count),
            divergences=content.divergences,
            spent=begin.spent,
            checks=checks,
            tuning=begin.tuning,
            chains_reason=begin.chains_reason,
            storage=None if stream is None else stream.begin(sampler, execution),
            keeper=keeper,
            saved=saved,
        )
        with _on_cluster(run, first) as run:
            draws = _phases(run, proposals)
        give_back(model, sampler, execution, run.programs)  # not after an error: then their state is unknown
        give_back_freed()
        return draws


@contextmanager
def _on_cluster(run: Run, position: NDArray[Any]) -> Iterator[Run]:
    """The run on its cluster, if it has one; position [dimension]: where its density can be evaluated."""
    if run.execution.cluster is None:
        yield run
        return
    from batchnuts.mcmc.cluster.connect import connected
    from batchnuts.mcmc.cluster.runner import OnCluster

    with connected(run.execution.cluster, run.stop) as client:
        cluster = OnCluster(client, run, position)
        try:
            yield replace(run, cluster=cluster)
        finally:
            cluster.close()


@dataclass(frozen=True, eq=False)
class Beginning:
    """What a run starts or resumes with: its number of chains, an earlier run's tuning, what was spent, positions."""

    chains: int
    chains_reason: str
    tuning: Tuning | None
    spent: Spent
    proposals: Proposals | None = None
    """None: as the settings say."""
    checked: Checked | None = None
    """Where the model was checked already."""


def _begin(
    model: Model, sampler: SamplerSettings, execution: ExecutionSettings, content: Content, streamed: bool
) -> Beginning:
    """The beginning of a new run."""
    tuning, began = read_tuning(model, sampler), time.perf_counter()
    chains, reason, checked = sampler.chains, "", None
    if chains == "auto":
        choice = choose_by_time(model, sampler, execution, content=content, streamed=streamed)
        chains, reason, checked = choice.chains, choice.reason, choice.checked
    spent = Spent()
    spent.seconds["compile"] += time.perf_counter() - began
    return Beginning(chains, reason, tuning, spent, checked=checked)


def _go_on(model: Model, saved: SavedRun) -> Beginning:
    """The beginning of the rest of a run: where its chains were when the stretch began."""
    require_same(saved, model, saved.backend)
    spent = Spent(dict(saved.seconds), dict(saved.counts), history=saved.history)
    spent.began -= saved.history.seconds  # the time between the two processes does not count
    proposals = functools.partial(_always, saved.place.states.position)
    return Beginning(saved.chains, saved.chains_reason, saved.tuning, spent, proposals)


def _always(position: NDArray[Any], attempt: int) -> NDArray[Any]:
    """See Proposals."""
    return position


def _phases(run: Run, proposals: Proposals) -> Draws:
    """Warmup from starts that were proposed, then draws; or the rest of them."""
    saved, not_numbers = run.saved, 0
    if saved is None:
        states, not_numbers = run.timed("compile", lambda: run.first_states(proposals))
        place: InWarmup | InDraws | None = None
    else:
        place, states = saved.place, saved.place.states
        found = run.evaluated(states.position)
        require_same_density(saved, found)
        if np.isnan(states.gradient).all():  # chains had gone beyond what was kept
            place = replace(place, states=replace(states, gradient=found[1]))
        run.use(states.metric)
    runner: Runner | None = None
    try:
        run.spent.note("compile")
        run.progress(Progress("compile", 0, 1, 0.0))
        runner = run.find_runner(states)
        states = run.compile(runner, states)
        run.spent.note("compile")
        run.progress(Progress("compile", 1, 1, run.spent.seconds["compile"]))
        if not isinstance(place, InDraws):
            first = InWarmup(states, CHECK if run.check is not None else 0, not_numbers=not_numbers)
            states, report = warm_up(run, runner, place or first)
            place = InDraws(states, report)
    except KeyboardInterrupt:
        if runner is not None:
            run.keep(runner, ends=True)
        return run.nothing_drawn(states, runner)
    return run.draw(runner, place)
