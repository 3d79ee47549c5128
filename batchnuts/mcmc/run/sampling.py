"""Whole runs: initial positions, warmup windows with pooling between them, then draws.

positions -> check -> first step size, or an earlier run's -> [window -> pool metric and step size]* -> draws -> Draws
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from batchnuts.autobatch import random
from batchnuts.disk_cache.folder import keeping
from batchnuts.mcmc.checkpoint.keeper import Keeper
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.execution.chain_states import InDraws
from batchnuts.mcmc.execution.program_cache import check_disk_cache, give_back
from batchnuts.mcmc.execution.runner import Runner
from batchnuts.mcmc.model.content import Content
from batchnuts.mcmc.model.library_choice import likely_backend
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.model.quantities import begin_quantities
from batchnuts.mcmc.run.chain_execution import ChainExecution
from batchnuts.mcmc.run.chains_choice import with_chains
from batchnuts.mcmc.run.checked_model import checked_model
from batchnuts.mcmc.run.choose_by_time import choose_by_time
from batchnuts.mcmc.run.forecast import Size, memory_problem
from batchnuts.mcmc.run.run import ProgressCallback, Run
from batchnuts.mcmc.run.saving_and_resuming import Beginning, place_of_saved, resumed
from batchnuts.mcmc.run.spent import Spent
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.starts.methods import Proposals, make_proposals
from batchnuts.mcmc.starts.tuning import read_tuning
from batchnuts.mcmc.stopping.interim_analyses import interim_analyses_of
from batchnuts.mcmc.storage.contract import Stream
from batchnuts.mcmc.storage.draws import Draws
from batchnuts.mcmc.storage.progress import Progress
from batchnuts.mcmc.warmup.phase import warm_up
from batchnuts.mcmc.warmup.place import CHECK, ENSEMBLE, InWarmup
from batchnuts.process.freed_memory import give_back_freed
from batchnuts.process.signals import StopSignals
from batchnuts.settings.schema import SettingsError

NO_DIRECTIONS = "; it began with windows: one coordinate has no directions to turn to"
"""Why there was no ensemble start, of a run that asked for one."""

Where = Callable[[Run, NDArray[Any]], AbstractContextManager[ChainExecution]]
"""Opens what executes the chains of a run, of a model whose density can be evaluated at this position [dimension]."""


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
    where: Where | None = None,
) -> Draws:
    """Run warmup and draws; exactly `sampler.draws` draws of every chain, unless interrupted.

    Ctrl-C, SIGTERM and SIGHUP (where `stop` handles them) and a KeyboardInterrupt of `progress` end the run early and
    give what was drawn so far, with `interrupted` set. Any other error after the first draw becomes a RunFailed, which
    has the draws. The model is checked first. content: what will be saved of the draws. stream: where
    draws go while they are made; the result then has none. keeper: of checkpoints, one of which the run may go on from;
    CheckpointError where that is not of this run. ended: a run of fewer draws, of which the further ones are made.
    where: opens what executes the chains; None: threads of this process.
    """
    where = where or in_this_process
    content = content or Content()
    if not content.draws and sampler.until is not None:
        raise SettingsError(
            "sampler.until: found conditions, which need all draws, but draws are not kept; expected null, or kept "
            "draws (output.draws: true, keep_draws=True)."
        )
    size, backend = Size.of(model, content), likely_backend(model, execution)
    streamed = stream is not None
    if too_large := memory_problem(sampler, execution, size, content=content, streamed=streamed, backend=backend):
        raise SettingsError(f"{too_large}.")
    saved = keeper.saved if keeper is not None else ended
    check_disk_cache(execution.cache, goes_on=saved is not None)
    with keeping(execution.cache):
        begin = _begin(model, sampler, execution, content, streamed) if saved is None else resumed(model, saved)
        sampler = with_chains(sampler, begin.chains)
        execution = execution if saved is None else execution.model_copy(update={"backend": saved.backend})
        proposals = begin.proposals or make_proposals(model, sampler, execution, begin.tuning)
        checked = checked_model(model, sampler, execution, content, proposals, begin.checked)
        density_library, execution = checked.density_library, checked.execution
        checks = interim_analyses_of(model, density_library, sampler, execution)
        run = Run(
            model,
            density_library,
            sampler,
            execution,
            progress or (lambda _: None),
            stop or StopSignals(),
            checked.borrow_programs(),
            random.lane_keys(sampler.seed, sampler.chain_count),
            divergences=content.divergences,
            keeps_warmup=content.warmup,
            spent=begin.spent,
            checks=checks,
            tuning=begin.tuning,
            chains_reason=begin.chains_reason,
            storage=None if stream is None else stream.begin(sampler, execution),
            keeper=keeper,
            saved=saved,
        )
        with where(run, checked.first) as chains:
            draws = phases(replace(run, chains=chains), proposals, checked.computed)
        give_back(model, sampler, execution, run.programs)  # not after an error: then their state is unknown
        give_back_freed()
        return draws


@contextmanager
def in_this_process(run: Run, position: NDArray[Any]) -> Iterator[ChainExecution]:
    """Threads of this process; raises SettingsError where the settings name a cluster."""
    if run.execution.cluster is not None:
        raise SettingsError(
            "execution.cluster: found one where chains run in this process; expected null, or a run by sample_chains "
            "or the command line."
        )
    yield run.chains


def _begin(
    model: Model, sampler: SamplerSettings, execution: ExecutionSettings, content: Content, streamed: bool
) -> Beginning:
    """The beginning of a new run."""
    tuning, start = read_tuning(model, sampler), time.perf_counter()
    chains, reason, checked = sampler.chains, "", None
    if chains == "auto":
        choice = choose_by_time(model, sampler, execution, content=content, streamed=streamed)
        chains, reason, checked = choice.chains, choice.reason, choice.checked
    spent = Spent()
    spent.seconds["compile"] += time.perf_counter() - start
    return Beginning(chains, reason, tuning, spent, checked=checked)


def phases(run: Run, proposals: Proposals, computed: Model) -> Draws:
    """Warmup from starts that were proposed, then draws; or the rest of them. computed: the model with the functions
    whose results are saved."""
    saved, not_numbers = run.saved, 0
    if saved is None:
        states, not_numbers = run.timed("compile", lambda: run.first_states(proposals))
        place: InWarmup | InDraws | None = None
    else:
        place = place_of_saved(saved, run.gradients)
        states = place.states
        run.use(states.metric)
    runner: Runner | None = None
    try:
        run.spent.note("compile")
        run.progress(Progress("compile", 0, 1, 0.0))
        begin_quantities(computed)
        runner = run.find_runner(states)
        states = run.compile(runner, states)
        run.spent.note("compile")
        run.progress(Progress("compile", 1, 1, run.spent.seconds["compile"]))
        if not isinstance(place, InDraws):
            window = ENSEMBLE if run.begins_with_ensemble else CHECK if run.check is not None else 0
            refused = run.sampler.start == "ensemble" and window != ENSEMBLE
            first = InWarmup(states, window, not_numbers=not_numbers, checked=NO_DIRECTIONS if refused else "")
            states, report = warm_up(run, runner, place or first)
            place = InDraws(states, report)
    except KeyboardInterrupt:
        run.keep()
        return run.nothing_drawn(states, runner)
    return run.draw(runner, place)
