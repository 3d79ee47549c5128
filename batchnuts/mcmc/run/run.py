"""A run: what it is made of, and its steps, in which it looks at progress, signals, checkpoints and stopping rules.

`sampling.py` puts the steps together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import random
from batchnuts.mcmc.checkpoint.keeper import Keeper
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.execution.chain_states import ChainStates, InDraws
from batchnuts.mcmc.execution.chunk_plan import buffer_rows
from batchnuts.mcmc.execution.evaluation import GradientService, of_lanes
from batchnuts.mcmc.execution.program_cache import Programs
from batchnuts.mcmc.execution.runner import Counts, Interrupted, Runner, RunningStretch, UnboundedDensity
from batchnuts.mcmc.execution.window_reduction import ReducedWindow, Reduction, reduce_window
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult
from batchnuts.mcmc.kernel.isokinetic import IsokineticSteps
from batchnuts.mcmc.kernel.make_transition import make_adaptation
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters, unit_metric
from batchnuts.mcmc.kernel.sample_statistics import Record
from batchnuts.mcmc.model.check_model import UnboundedDensityError, density_failure, refuse_unbounded
from batchnuts.mcmc.model.data_argument import leaves_of
from batchnuts.mcmc.model.library_choice import DensityLibrary
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.chain_execution import ChainExecution, LocalExecution, deepest_of
from batchnuts.mcmc.run.saving_and_resuming import saved_now
from batchnuts.mcmc.run.spent import Spent
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings
from batchnuts.mcmc.settings.superchains import count_superchains, superchain_of
from batchnuts.mcmc.starts.find_starts import find_starts
from batchnuts.mcmc.starts.methods import Proposals
from batchnuts.mcmc.starts.tuning import Tuning
from batchnuts.mcmc.stopping.interim_analyses import InterimAnalyses
from batchnuts.mcmc.storage.contract import MakeStorage
from batchnuts.mcmc.storage.draws import Draws, RunFailed, WarmupReport, statistics
from batchnuts.mcmc.storage.memory import MemoryStorage
from batchnuts.mcmc.storage.progress import Progress, RunPhase
from batchnuts.mcmc.warmup.ensemble import Ensemble
from batchnuts.mcmc.warmup.pooling import groups_of, pooled_step_sizes
from batchnuts.mcmc.warmup.windows import SETTLE_STEP, Window, check_window, windows_of
from batchnuts.process.signals import StopSignals

FIRST_KEY = 2**31
"""Of the numbers that a chain's key is folded with in a burn-in: those of transitions are below."""

ProgressCallback = Callable[[Progress], None]

Result = TypeVar("Result")


@dataclass
class UnderWay:
    """What runs at present."""

    stretch: RunningStretch | None = None
    """The stretch under way, or that has ended last; None before it begins."""


@dataclass(frozen=True)
class Run:
    """The constants of a run. The states of its chains are passed from step to step."""

    model: Model
    density_library: DensityLibrary
    sampler: SamplerSettings
    execution: ExecutionSettings
    """The settings of the execution, with the backend decided."""
    progress: ProgressCallback
    stop: StopSignals
    programs: Programs
    keys: np.ndarray
    """uint32 [chains, 2]."""
    divergences: bool = False
    """Whether the ends of trajectories are recorded."""
    keeps_warmup: bool = False
    """Whether the records of warmup's windows are kept."""
    spent: Spent = field(default_factory=Spent)
    checks: InterimAnalyses | None = None
    """The interim analyses of the draws, where the run may end before all are made."""
    tuning: Tuning | None = None
    """The tuning of an earlier run, from which warmup starts."""
    chains_reason: str = ""
    """Why there are so many chains, where the number was chosen."""
    storage: MakeStorage | None = None
    """Makes the storage of the draws. None: they are in memory, as records of warmup are; with checkpoints also in the
    folder of these."""
    keeper: Keeper | None = None
    """Writes checkpoints, if any are written."""
    saved: SavedRun | None = None
    """The checkpoint that the run goes on from, if it does."""
    chains: ChainExecution = field(default_factory=LocalExecution)
    """The execution of its chains."""
    under_way: UnderWay = field(default_factory=UnderWay)

    @property
    def superchain(self) -> NDArray[np.int64]:
        """[chains]: the number of each chain's superchain."""
        return superchain_of(self.sampler.chain_count, count_superchains(self.sampler))

    @property
    def group(self) -> NDArray[np.int64]:
        """[chains]: the number of the group of chains that each shares its step size and metric with."""
        return groups_of(self.sampler.warmup.pool, self.superchain)

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows of warmup: those that are made, or, where it ends by itself, those that may be."""
        transitions = 0 if self.check is None else self.check.transitions
        if self.begins_with_ensemble and self.sampler.warmup.transitions == "auto":
            transitions = SETTLE_STEP
        return windows_of(self.sampler.warmup, self.sampler.chain_count, transitions)

    @property
    def check(self) -> Window | None:
        """The window before these, where a warmup that ends by itself begins with an earlier run's tuning."""
        settings, chains = self.sampler.warmup, self.sampler.chain_count
        if self.tuning is None or settings.transitions != "auto":
            return None
        return check_window(chains, count_superchains(self.sampler) == chains, settings.maximum)

    @property
    def begins_with_ensemble(self) -> bool:
        """Whether warmup begins with an ensemble's burn-in."""
        return self.sampler.begins_with_ensemble(self.model.dimension)

    def timed(self, phase: RunPhase, work: Callable[[], Result]) -> Result:
        """The result of `work`, its time added to the phase."""
        start = time.perf_counter()
        result = work()
        self.spent.seconds[phase] += time.perf_counter() - start
        return result

    # ---- compile ---------------------------------------------------------------------------------------------------

    def first_states(self, proposals: Proposals) -> tuple[ChainStates, int]:
        """Starts that all chains can use, from the proposed ones; and how many of these were no numbers' (Starts)."""
        model, sampler = self.model, self.sampler
        starts = find_starts(model, self.gradients, proposals)
        tuning = self.tuning
        metric = unit_metric(model.dimension, sampler.metric) if tuning is None else tuning.metric
        step_size = np.full(sampler.chain_count, sampler.step_size or (1.0 if tuning is None else tuning.step_size))
        return ChainStates(*starts[:3], metric, self.use(metric), step_size), starts.not_numbers

    def use(self, metric: MetricParameters) -> np.ndarray:
        """Let programs that start from now on have this metric; returns the chains' inverse masses [chains,
        dimension]."""
        self.programs.parameters = metric
        inverse_mass = self.programs.metric.set(metric).astype(self.model.dtype)
        return np.broadcast_to(inverse_mass, (self.sampler.chain_count, self.model.dimension))

    def metric_now(self) -> MetricParameters:
        """The metric that `use` was given last."""
        parameters = self.programs.parameters
        assert parameters is not None, "the first states have a metric"
        return parameters

    @property
    def depth(self) -> int:
        """The initial depth of the stacks: a tree of depth d is built by at most d + 1 calls, one in another."""
        return deepest_of(self.sampler) + 1

    @property
    def rows(self) -> int:
        """The minimum capacity of the runner's buffers; where a run goes on, what it was."""
        if self.saved is not None and (rows := self.saved.rows) is not None:
            return rows
        checks = () if self.check is None else (self.check,)
        # of any start, so that one compiled program serves with a tuning or an ensemble, and without
        windows = windows_of(self.sampler.warmup, self.sampler.chain_count)
        longest = max([self.sampler.draws, *(w.transitions for w in (*checks, *windows))])
        model = self.model
        return buffer_rows(
            longest, self.sampler.chain_count, model.dimension, model.dtype, self.execution, self.divergences
        )

    def find_runner(self, states: ChainStates) -> Runner:
        """The runner of its chains."""
        return self.timed("compile", lambda: self.chains.find_runner(self, states))

    def compile(self, runner: Runner, states: ChainStates) -> ChainStates:
        """Compile everything that the run needs, the runner in the background. Returns the states with a first step
        size."""
        searched = self.tuning is None and self.saved is None and not self.begins_with_ensemble
        if self.sampler.step_size is None and searched:
            states = self.timed("compile", lambda: self.with_searched_step_size(states))
        self.timed("compile", runner.wait_until_compiled)
        self.chains.keep(self, runner)
        return states

    def with_searched_step_size(self, states: ChainStates) -> ChainStates:
        """The states with the median of the reasonable step sizes of all chains of a group at their positions."""
        n = self.sampler.chain_count
        when = "the search for a first step size"
        arguments = (
            random.lane_keys(self.sampler.seed, n, first=n * (1 + states.transitions_done)),
            states.position,
            states.log_density,
            states.gradient,
            states.inverse_mass,
            states.step_size.astype(self.model.dtype),
        )
        try:
            step_size, position, log_density = self.searched(states.metric, arguments)
        except Exception as error:
            if failed := density_failure(self.model, error.__cause__ or error, when):
                raise failed from error
            raise
        refuse_unbounded(self.model, log_density, position, when)
        with np.errstate(divide="ignore"):
            return replace(states, step_size=pooled_step_sizes(np.log(step_size), self.group, np.ones(n, bool)))

    def searched(self, metric: MetricParameters, arguments: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        """What the search for a step size gives for all chains; metric: that which they have."""
        return self.chains.searched(self, metric, arguments)

    def isokinetic_steps(self, ensemble: Ensemble, count: int) -> IsokineticSteps:
        """So many steps of all chains of an ensemble's burn-in, which signals may interrupt after them."""
        chains, dtype, start = self.sampler.chain_count, self.model.dtype, time.perf_counter()
        numbers = (ensemble.step, ensemble.decoherence)
        step, decoherence = (np.full(chains, number, dtype) for number in numbers)
        inverse_mass = np.broadcast_to(ensemble.metric.inverse_mass.astype(dtype), ensemble.position.shape)
        first, counts = (np.full(chains, number, "int64") for number in (FIRST_KEY + ensemble.done, count))
        state = ensemble.position, ensemble.velocity, ensemble.log_density, ensemble.gradient
        when, control = "warmup", (step, decoherence, first, counts)
        arguments = (self.keys, *state, inverse_mass, *control)
        try:
            steps = self.chains.isokinetic_steps(self, ensemble.metric, arguments)
        except Exception as error:
            if failed := density_failure(self.model, error.__cause__ or error, when):
                raise failed from error
            raise
        self.spent.counts["warmup"] += Counts(useful_gradients=chains * count, executed_gradients=chains * count)
        self.spent.note("warmup")
        elapsed = self.spent.seconds["warmup"] + time.perf_counter() - start
        self.progress(
            replace(self.spent.report(Progress("warmup", 0, 0, 0.0), chains, Counts(), None), elapsed=elapsed)
        )
        if (keeper := self.keeper) is not None:
            keeper.went_on()
        self.stop.check()
        if keeper is not None and keeper.due():
            self.keep()
        return IsokineticSteps(*steps)

    # ---- stretches -------------------------------------------------------------------------------------------------

    def inputs(
        self,
        states: ChainStates,
        transitions: int,
        adapting: bool,
        max_tree_depth: int | None = None,
        *,
        settled: bool = False,
    ) -> ChainInputs:
        """The arguments of `run_chain` from the states of all chains.

        max_tree_depth: None takes that of the draws. settled: the step size is about right before the first transition.
        """
        n, dtype = self.sampler.chain_count, self.model.dtype
        settled = settled or states.transitions_done > 0 or self.tuning is not None
        return ChainInputs.begin(
            self.keys,
            states.position,
            states.log_density,
            states.gradient,
            states.inverse_mass,
            make_adaptation(self.sampler).start(np.log(states.step_size).astype(dtype), settled),
            np.full(n, adapting),
            first=np.full(n, states.transitions_done, "int64"),
            transitions=np.full(n, transitions, "int64"),
            max_tree_depth=max_tree_depth or self.sampler.max_tree_depth,
            data=of_lanes(leaves_of(self.model.data), n),
        )

    def stretch(
        self,
        runner: Runner,
        inputs: ChainInputs,
        transitions: int,
        phase: RunPhase,
        total: int,
        before: int,
        leave: float = 0.0,
        checks: InterimAnalyses | None = None,
        storage: MakeStorage | None = None,
        missing: tuple[str, ...] = (),
        reduction: Reduction | None = None,
    ) -> ChainResult | ReducedWindow:
        """Run all chains for some transitions, `before` of the phase's `total` being done, and report on the way.

        total: 0 where it is not known. leave, storage, reduction: see Runner.run. checks: the stretch may end at any of
        these. missing: see Progress.
        """
        spent, chains = self.spent, self.sampler.chain_count
        start, seconds_before, counts_before = time.perf_counter(), spent.seconds[phase], spent.counts[phase]
        window = (before + 1, before + transitions) if phase == "warmup" else None
        place = Progress(phase, before, total, 0.0, window=window, missing=missing)
        result: ChainResult | ReducedWindow | None = None
        resumed: Any = None
        if (keeper := self.keeper) is not None:
            start, storage = keeper.began, storage or keeper.make_storage
            if (saved := keeper.go_on()) is not None:
                resumed = saved.stretch
                if checks is not None and saved.interim_analyses is not None:
                    checks.go_on(saved.interim_analyses)
        spent.begin(phase)
        try:
            running = self.under_way.stretch = runner.run(
                inputs,
                transitions,
                leave,
                storage or MemoryStorage,
                resumed,
                reduction,
                wanted=checks.next if checks is not None else 0,
            )
            for counts, finished in running:
                result = finished
                if keeper is not None:
                    keeper.goes_on = False
                spent.counts[phase] = counts_before + counts
                spent.seconds[phase] = seconds_before + time.perf_counter() - start
                spent.note(phase)
                self.progress(spent.report(place, chains, counts, checks))
                self.stop.check()
                if keeper is not None and finished is None and keeper.due():
                    self.keep()
                if checks is not None and (ended := checks.look(running, counts, time.perf_counter() - start)):
                    interrupted = running.close()
                    assert interrupted is not None, "it has draws"
                    spent.seconds[phase] = seconds_before + time.perf_counter() - start  # with the last look
                    spent.note(phase)
                    self.progress(spent.report(place, chains, counts, checks))
                    return ended.of(interrupted.result)
        except UnboundedDensity as met:
            raise UnboundedDensityError(self.model, met.chain, met.position, phase) from met
        except Exception as error:
            if failed := density_failure(self.model, error, phase):
                raise failed from error
            raise
        assert result is not None, "the last thing that a runner yields is the finished stretch"
        return result

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def enter(self, place: Any) -> None:
        """A stretch begins, of which checkpoints have to say where: InWarmup or InDraws."""
        self.under_way.stretch = None  # it belongs to the place before
        if self.keeper is not None:
            elapsed = 0.0 if self.keeper.saved is None else self.keeper.saved.elapsed
            self.keeper.enter(place, Spent(dict(self.spent.seconds), dict(self.spent.counts)), elapsed)

    def keep(self) -> None:
        """Write a checkpoint, if the run has any; the stretch is paused meanwhile. Says where that cannot be done."""
        keeper, running = self.keeper, self.under_way.stretch
        if keeper is None or keeper.place is None or keeper.goes_on:
            return
        if running is not None:
            running.pause()
        try:
            keeper.make_folder()
            keeper.write(saved_now(self, keeper, running))
        except OSError as error:
            keeper.failed(error)

    def reduced(self, result: ChainResult | ReducedWindow, states: ChainStates, reduction: Reduction) -> ReducedWindow:
        """A window's result, reduced; states: those before it."""
        window = result
        if not isinstance(window, ReducedWindow):  # its draws are here
            window = reduce_window(window, states.position, reduction, self.gradients)
        if (drawn := window.drawn) is not None:
            counts = Counts(useful_gradients=drawn.useful, executed_gradients=drawn.evaluated)
            self.spent.counts["warmup"] += counts
        return window

    @property
    def gradients(self) -> GradientService:
        """What evaluates the density at positions of chains."""
        return self.chains.gradients(self)

    # ---- draws -----------------------------------------------------------------------------------------------------

    def draw(self, runner: Runner, place: InDraws) -> Draws:
        """The draws. From here on a signal takes effect after a report, where all draws are available.

        Raises RunFailed for an error after the first of them.
        """
        draws, states = self.sampler.draws, place.states
        try:
            self.enter(place)
            self.stop.hold()
            inputs = self.inputs(states, draws, False)
            earlier = np.full_like(inputs.done, place.earlier)
            inputs = inputs._replace(done=earlier, first_row=earlier)
            result = self.stretch(
                runner, inputs, draws, "sampling", draws, before=0, checks=self.checks, storage=self.storage
            )
            assert not isinstance(result, ReducedWindow), "only windows of warmup are reduced"
            return self.drawn(place, runner, result)
        except KeyboardInterrupt:
            interrupted = self.close()
            self.keep()
            return (
                self.nothing_drawn(states, runner)
                if interrupted is None
                else self.drawn(place, runner, interrupted.result, interrupted.begun)
            )
        except Exception as error:
            draws_so_far = None
            with suppress(Exception):  # the first error is reported
                interrupted = self.close()
                self.keep()
                if interrupted is not None and (interrupted.result.done > place.earlier).any():
                    draws_so_far = self.drawn(place, runner, interrupted.result, interrupted.begun)
            if draws_so_far is None:
                raise
            raise RunFailed(error, draws_so_far) from error

    def close(self) -> Interrupted | None:
        """End the stretch under way; its results so far, if it has any."""
        return None if self.under_way.stretch is None else self.under_way.stretch.close()

    def drawn(
        self, place: InDraws, runner: Runner, result: ChainResult, begun: NDArray[np.bool_] | None = None
    ) -> Draws:
        """The result object. begun: which chains had started, where some may not have."""
        recorded, these = result.records._asdict().items(), slice(place.earlier, self.sampler.draws)
        records = {name: array[:, these] for name, array in recorded if not isinstance(array, tuple)}
        done = np.asarray(result.done)
        draws = self.given_out(place.states, runner, records, done, place.warmup, begun)
        at_end = begun is None and bool((done == self.sampler.draws).all())
        return replace(
            draws,
            done=np.maximum(done - place.earlier, 0),
            first=place.earlier,
            last_gradient=np.asarray(result.gradient) if at_end else None,
        )

    def nothing_drawn(self, states: ChainStates, runner: Runner | None) -> Draws:
        """The result object of a run that was interrupted before its first draw."""
        chains, draws, dimension = self.sampler.chain_count, self.sampler.draws, self.model.dimension
        records = {name: np.zeros((chains, draws), "float64") for name in Record._fields}
        records["diverging"] = np.zeros((chains, draws), bool)
        records["position"] = np.full((chains, draws, dimension), np.nan, self.model.dtype)
        records["last_position"] = records["position"]
        warmup = WarmupReport(states.transitions_done, "interrupted")
        return self.given_out(states, runner, records, np.zeros(chains, "int64"), warmup, np.ones(chains, bool))

    def given_out(
        self,
        states: ChainStates,
        runner: Runner | None,
        records: dict[str, Any],
        done: np.ndarray,
        warmup: WarmupReport,
        begun: NDArray[np.bool_] | None,
    ) -> Draws:
        """The result object from records [chains, draws, ...]. begun None: the run came to its end."""
        sampler = self.sampler
        counts = self.spent.counts["warmup"] + self.spent.counts["sampling"]
        return Draws(
            position=records["position"],
            stats=statistics(records, sampler.max_tree_depth),
            done=done,
            begun=np.ones(sampler.chain_count, bool) if begun is None else begun,
            interrupted=begun is not None and bool((done < sampler.draws).any()),
            metric=states.metric,
            warmup=warmup,
            timings=dict(self.spent.seconds),
            useful_gradients=counts.useful_gradients,
            utilization=counts.utilization,
            settings=sampler,
            execution=self.execution,
            backend_reason=self.density_library.reason,
            arrangement=runner.arrangement if runner is not None else None,
            last_position=records["last_position"] if self.divergences else None,
            start=states.position if self.divergences else None,
            step_size=states.step_size,
            chains_reason=self.chains_reason,
            ended=self.checks.ended.reason if begun is None and self.checks and self.checks.ended else "",
            history=self.spent.history.history(),
        )
