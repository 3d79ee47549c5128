"""A whole run: initial positions, warmup windows with pooling between them, then draws.

positions -> check -> first step size -> [window -> pool metric and step size]* -> draws -> Draws
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import random
from batchnuts.mcmc.chain_program import ChainInputs, ChainResult, Record, make_chain
from batchnuts.mcmc.check_model import UnboundedDensityError, density_failure, refuse_unbounded
from batchnuts.mcmc.draws import Draws, Phase, Progress
from batchnuts.mcmc.engine import Engine, choose_engine
from batchnuts.mcmc.execution.chunk_plan import buffer_rows
from batchnuts.mcmc.execution.chunk_runner import make_runner
from batchnuts.mcmc.execution.program_cache import Programs, borrow, give_back
from batchnuts.mcmc.execution.runner import Counts, Runner, UnboundedDensity
from batchnuts.mcmc.metric import pooled_inverse_mass
from batchnuts.mcmc.model import Model, ModelError, how_to_wrap
from batchnuts.mcmc.nuts import NutsOptions, make_nuts
from batchnuts.mcmc.quantities import check_quantities
from batchnuts.mcmc.required_memory import memory_problem
from batchnuts.mcmc.settings import ExecutionSettings, SamplerSettings, split_settings
from batchnuts.mcmc.starts import check_at_starts, find_starts, proposed_starts
from batchnuts.mcmc.step_size import pooled_step_size, start_adaptation
from batchnuts.mcmc.warmup import Window, warmup_windows
from batchnuts.settings.schema import SettingsError
from batchnuts.stopping import StopSignals, say
from batchnuts.store.folder import keeping

ProgressCallback = Callable[[Progress], None]

Result = TypeVar("Result")


def sample_chains(
    model: Model,
    *,
    progress: ProgressCallback | bool | None = None,
    unconstrained: bool = False,
    **settings: Any,
) -> Any:
    """Sample a model with NUTS and give the draws as an ArviZ object, the same that the command line saves.

    settings: the fields of SamplerSettings and ExecutionSettings, by keyword. progress: a function that is called a few
    times a second, True or False for progress on stderr or none; by default there is some in a terminal or notebook.
    unconstrained: whether to add the group `unconstrained_posterior`, the real numbers that the sampler moved.
    `batchnuts.check` judges the result.

    Ctrl-C ends the run and gives the draws made so far, marked as interrupted, with a line on stderr; in a program's
    main thread SIGTERM and SIGHUP do too, unless the program handles them. KeyboardInterrupt is raised if there are no
    draws, or if it is pressed again after a warning. Any other error after the first draw is raised with the draws in
    its attribute `result`. Raises SettingsError for settings that do not fit, ModelError for a model that cannot be
    sampled.
    """
    from batchnuts.mcmc.output import to_arviz, to_datasets
    from batchnuts.progress import default_view

    if not isinstance(model, Model):
        raise ModelError(
            f"sample_chains takes a Model, found {type(model).__name__}. Make one from a density with "
            f"batchnuts.Model.from_function(log_density, dimension=...).{how_to_wrap(model)}"
        )
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise SettingsError(f"progress: found {progress!r}; expected true, false, None, or a function of a Progress.")
    sampler, execution = split_settings(settings)
    view = nullcontext(progress) if callable(progress) else default_view(progress)
    with StopSignals() as stop:
        try:
            with view as report:
                draws = run_chains(model, sampler, execution, report, stop)
        except Exception as error:
            if hasattr(error, "draws_so_far"):
                error.result = to_arviz(to_datasets(error.draws_so_far, model))  # type: ignore[attr-defined]
                error.add_note("The draws made before are in this exception's attribute `result`.")
            raise
        if not draws.done.any():
            raise KeyboardInterrupt
        stop.hold()
        result = to_arviz(to_datasets(draws, model, unconstrained=unconstrained))
    if draws.interrupted:
        say(f"{stop.name}; {draws.what_there_is()}.")
    return result


def run_chains(
    model: Model,
    sampler: SamplerSettings,
    execution: ExecutionSettings,
    progress: ProgressCallback | None = None,
    stop: StopSignals | None = None,
) -> Draws:
    """Run warmup and draws; exactly `sampler.draws` draws of every chain, unless interrupted.

    Ctrl-C, SIGTERM and SIGHUP (where `stop` handles them) and a KeyboardInterrupt of `progress` end the run early and
    give what was drawn so far, with `interrupted` set. Any other error after the first draw is raised with the draws in
    its attribute `draws_so_far`. The model is checked first.
    """
    if too_large := memory_problem(sampler, model.dimension, model.dtype):
        raise SettingsError(f"{too_large}.")
    with keeping(execution.cache):
        return _run_chains(model, sampler, execution, progress, stop)


def _run_chains(
    model: Model,
    sampler: SamplerSettings,
    execution: ExecutionSettings,
    progress: ProgressCallback | None,
    stop: StopSignals | None,
) -> Draws:
    position = proposed_starts(model, sampler)
    engine, execution = choose_engine(model, execution, position[0])
    first = check_at_starts(model, engine, sampler, position)
    check_quantities(model, engine, first)
    programs = borrow(model, engine, sampler, execution, first)
    keys = random.lane_keys(sampler.seed, sampler.chains)
    run = _Run(model, engine, sampler, execution, progress or (lambda _: None), stop or StopSignals(), programs, keys)
    draws = run.run(position)
    give_back(model, sampler, execution, programs)  # not after an error: then their state is unknown
    return draws


@dataclass(frozen=True)
class _State:
    """All chains between stretches, on the host; every array [chains, ...]."""

    position: np.ndarray
    log_density: np.ndarray
    gradient: np.ndarray
    inverse_mass: np.ndarray
    """[dimension], the same for all chains."""
    step_size: float
    transitions_done: int = 0


@dataclass
class _Spent:
    """The times and counts of the phases so far: the mutable state of a run."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(get_args(Phase), 0.0))
    counts: dict[str, Counts] = field(default_factory=lambda: dict.fromkeys(get_args(Phase), Counts()))


@dataclass(frozen=True)
class _Run:
    """The constants of a run. The state of its chains is passed from step to step."""

    model: Model
    engine: Engine
    sampler: SamplerSettings
    execution: ExecutionSettings
    """With the backend decided."""
    progress: ProgressCallback
    stop: StopSignals
    programs: Programs
    keys: np.ndarray
    """uint32 [chains, 2]."""
    spent: _Spent = field(default_factory=_Spent)

    def run(self, position: np.ndarray) -> Draws:
        """Warmup from positions [chains, dimension], then draws."""
        state = self.timed("compile", lambda: self.first_state(position))
        runner: Runner | None = None
        try:
            self.progress(Progress("compile", 0, 1, 0.0))
            runner = self.find_runner(state)
            state = self.compile(runner, state)
            self.progress(Progress("compile", 1, 1, self.spent.seconds["compile"]))
            for window in self.windows:
                state = self.warm_up(runner, state, window)
        except KeyboardInterrupt:
            return self.nothing_drawn(state, runner)
        return self.draw(runner, state)

    @property
    def windows(self) -> tuple[Window, ...]:
        """Of warmup."""
        return warmup_windows(self.sampler.warmup)

    def timed(self, phase: Phase, work: Callable[[], Result]) -> Result:
        """The result of `work`, its time added to the phase."""
        start = time.perf_counter()
        result = work()
        self.spent.seconds[phase] += time.perf_counter() - start
        return result

    def first_state(self, position: np.ndarray) -> _State:
        """Starts that all chains can use, from the proposed ones."""
        model, sampler = self.model, self.sampler
        position, log_density, gradient = find_starts(model, self.programs.evaluate, sampler, self.execution, position)
        inverse_mass = np.ones(model.dimension, model.dtype)
        return _State(position, log_density, gradient, inverse_mass, sampler.step_size or 1.0)

    @property
    def rows(self) -> int:
        """The minimum capacity of the runner's buffers."""
        longest = max([self.sampler.draws, *(w.transitions for w in self.windows)])
        model = self.model
        return buffer_rows(longest, self.sampler.chains, model.dimension, model.dtype, self.execution)

    def find_runner(self, state: _State) -> Runner:
        """The runner of an earlier run, if its buffers are long enough; else a new one."""
        sampler, model, programs = self.sampler, self.model, self.programs
        rows = self.rows
        if programs.runner is not None and programs.rows >= rows:
            return programs.runner
        programs.runner = None
        options = NutsOptions(
            sampler.max_tree_depth, sampler.leapfrogs_per_leaf, sampler.divergence_threshold, model.dtype
        )
        transition = make_nuts(programs.value_and_gradient, options)
        program = make_chain(transition, sampler.target_acceptance, rows, model.dimension, model.dtype)
        example = self.inputs(state, 0, False)
        return self.timed("compile", lambda: make_runner(program, example, self.execution, sampler.max_tree_depth))

    def compile(self, runner: Runner, state: _State) -> _State:
        """Compile everything that the run needs, the runner in the background. Returns the state with a first step
        size."""
        if self.sampler.step_size is None:
            state = self.timed("compile", lambda: self.with_found_step_size(state))
        self.timed("compile", runner.wait_until_compiled)
        if self.programs.runner is None:
            self.programs.runner, self.programs.rows = runner, self.rows
        return state

    def with_found_step_size(self, state: _State) -> _State:
        """The state with the median of the reasonable step sizes of all chains at their positions."""
        n = self.sampler.chains
        options = self.execution.model_dump(include={"executor", "backend", "mode", "schedule", "max_stack_depth"})
        if options["schedule"] == "auto":
            options["schedule"] = "earliest"  # each block once in a sweep: a search is short, and so compiles sooner
        when = "the search for a first step size"
        try:
            found, there, log_density = self.programs.first_step_size.run(
                random.lane_keys(self.sampler.seed, n, first=n * (1 + state.transitions_done)),
                state.position,
                state.log_density,
                state.gradient,
                np.tile(state.inverse_mass, (n, 1)),
                np.full(n, state.step_size, self.model.dtype),
                **options,
            )
        except Exception as error:
            if failed := density_failure(self.model, error.__cause__ or error, when):
                raise failed from error
            raise
        refuse_unbounded(self.model, log_density, there, when)
        return replace(state, step_size=pooled_step_size(np.log(found)))

    def inputs(self, state: _State, transitions: int, adapting: bool) -> ChainInputs:
        """The arguments of `run_chain` from the state of all chains."""
        n, dtype = self.sampler.chains, self.model.dtype
        log_step = np.full(n, np.log(state.step_size), dtype)
        return ChainInputs.begin(
            self.keys,
            state.position,
            state.log_density,
            state.gradient,
            np.tile(state.inverse_mass, (n, 1)),
            start_adaptation(log_step, settled=state.transitions_done > 0),
            np.full(n, adapting),
            first=np.full(n, state.transitions_done, "int64"),
            transitions=np.full(n, transitions, "int64"),
        )

    def stretch(
        self, runner: Runner, inputs: ChainInputs, transitions: int, phase: Phase, total: int, before: int
    ) -> ChainResult:
        """Run all chains for some transitions, `before` of the phase's `total` being done, and report on the way."""
        spent, chains = self.spent, self.sampler.chains
        start, seconds_before, counts_before = time.perf_counter(), spent.seconds[phase], spent.counts[phase]
        result: ChainResult | None = None
        try:
            for counts, so_far in runner.run(inputs, transitions):
                result = so_far
                spent.counts[phase] = counts_before + counts
                spent.seconds[phase] = seconds_before + time.perf_counter() - start
                self.progress(
                    Progress(
                        phase,
                        before * chains + counts.transitions,
                        total * chains,
                        spent.seconds[phase],
                        spent.counts[phase].useful_gradients,
                        spent.counts[phase].utilization,
                        spent.counts[phase].divergences,
                    )
                )
                self.stop.check()
        except UnboundedDensity as met:
            raise UnboundedDensityError(self.model, met.chain, met.position, phase) from met
        except Exception as error:
            if failed := density_failure(self.model, error, phase):
                raise failed from error
            raise
        assert result is not None, "the last thing that a runner yields is the finished stretch"
        return result

    def warm_up(self, runner: Runner, state: _State, window: Window) -> _State:
        """One window: adapt in every chain, then pool."""
        sampler, transitions = self.sampler, window.transitions
        adapting = sampler.step_size is None
        inputs = self.inputs(state, transitions, adapting)
        result = self.stretch(runner, inputs, transitions, "warmup", sampler.warmup, state.transitions_done)
        state = replace(
            state,
            position=result.position,
            log_density=result.log_density,
            gradient=result.gradient,
            transitions_done=state.transitions_done + transitions,
        )
        if adapting:
            state = replace(state, step_size=pooled_step_size(result.adaptation.log_step_mean))
        if window.estimates_metric and sampler.adapt_metric:
            inverse_mass = pooled_inverse_mass(result.records.position[:, :transitions]).astype(self.model.dtype)
            state = replace(state, inverse_mass=inverse_mass)
            if adapting:
                pooled = state
                state = self.timed("warmup", lambda: self.with_found_step_size(pooled))
        return state

    def draw(self, runner: Runner, state: _State) -> Draws:
        """The draws. From here on a signal takes effect after a report, where all draws are available."""
        draws = self.sampler.draws
        try:
            self.stop.hold()
            result = self.stretch(runner, self.inputs(state, draws, False), draws, "sampling", draws, before=0)
            return self.drawn(state, runner, result)
        except KeyboardInterrupt:
            left = runner.interrupted()
            return (
                self.nothing_drawn(state, runner)
                if left is None
                else self.drawn(state, runner, left.result, left.begun)
            )
        except Exception as error:
            with suppress(Exception):  # the first error is reported
                left = runner.interrupted()
                if left is not None and left.result.done.any():
                    error.draws_so_far = self.drawn(state, runner, left.result, left.begun)  # type: ignore[attr-defined]
            raise

    def drawn(
        self, state: _State, runner: Runner, result: ChainResult, begun: NDArray[np.bool_] | None = None
    ) -> Draws:
        """The result object. begun: which chains had started, where some may not have."""
        records = {name: array[:, : self.sampler.draws] for name, array in result.records._asdict().items()}
        return self.given_out(state, runner, records, np.asarray(result.done), begun)

    def nothing_drawn(self, state: _State, runner: Runner | None) -> Draws:
        """The same of a run that was interrupted before its first draw."""
        chains, draws, dimension = self.sampler.chains, self.sampler.draws, self.model.dimension
        records = {name: np.zeros((chains, draws), "float64") for name in Record._fields}
        records["diverging"] = np.zeros((chains, draws), bool)
        records["position"] = np.full((chains, draws, dimension), np.nan, self.model.dtype)
        return self.given_out(state, runner, records, np.zeros(chains, "int64"), np.ones(chains, bool))

    def given_out(
        self,
        state: _State,
        runner: Runner | None,
        records: dict[str, np.ndarray],
        done: np.ndarray,
        begun: NDArray[np.bool_] | None,
    ) -> Draws:
        """From records [chains, draws, ...]. begun None: the run came to its end."""
        sampler = self.sampler
        position = records.pop("position")
        records["reached_max_treedepth"] = (records["tree_depth"] >= sampler.max_tree_depth) & ~records["diverging"]
        counts = self.spent.counts["warmup"] + self.spent.counts["sampling"]
        return Draws(
            position=position,
            stats=records,
            done=done,
            begun=np.ones(sampler.chains, bool) if begun is None else begun,
            interrupted=begun is not None and bool((done < sampler.draws).any()),
            inverse_mass=state.inverse_mass,
            timings=dict(self.spent.seconds),
            useful_gradients=counts.useful_gradients,
            utilization=counts.utilization,
            settings=sampler,
            execution=self.execution,
            engine=self.engine.reason,
            arrangement=runner.arrangement if runner is not None else None,
        )
