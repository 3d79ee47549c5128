"""A whole run: initial positions, warmup windows with pooling between them, then draws.

positions -> check -> first step size -> [window -> pool metric and step size]* -> draws -> Draws
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchnuts.autobatch import random
from batchnuts.mcmc.assertions import warn_of_assertions
from batchnuts.mcmc.chain_program import ChainInputs, ChainResult, Record, make_chain
from batchnuts.mcmc.check_model import UnboundedDensityError, refuse_unbounded
from batchnuts.mcmc.draws import Draws, Phase, Progress
from batchnuts.mcmc.execution.chunk_plan import buffer_rows
from batchnuts.mcmc.execution.chunk_runner import make_runner
from batchnuts.mcmc.execution.program_cache import borrow, give_back
from batchnuts.mcmc.execution.runner import Counts, Runner, UnboundedDensity
from batchnuts.mcmc.metric import pooled_inverse_mass
from batchnuts.mcmc.model import Model, ModelError
from batchnuts.mcmc.nuts import NutsOptions, make_nuts
from batchnuts.mcmc.required_memory import memory_problem
from batchnuts.mcmc.settings import ExecutionSettings, SamplerSettings, split_settings
from batchnuts.mcmc.starts import find_starts, first_starts
from batchnuts.mcmc.step_size import pooled_step_size, start_adaptation
from batchnuts.mcmc.warmup import Window, warmup_windows
from batchnuts.settings.schema import SettingsError
from batchnuts.stopping import StopSignals, tell

ProgressCallback = Callable[[Progress], None]


def sample_chains(model: Model, *, progress: ProgressCallback | bool | None = None, **settings: Any) -> Any:
    """Sample a model with NUTS and give the draws as an ArviZ object, the same that the command line saves.

    settings: the fields of SamplerSettings and ExecutionSettings, by keyword. progress: a function that is called a few
    times a second, True or False for progress on stderr or none; by default there is some in a terminal or notebook.
    `batchnuts.check` judges the result.

    Ctrl-C ends the run and gives the draws made so far, marked as interrupted, with a line on stderr; in a program's
    main thread SIGTERM and SIGHUP do too, unless the program handles them. KeyboardInterrupt is raised if there are no
    draws, or if, after a warning, it is pressed again. Any other error that comes while there are draws is raised with
    these as its attribute `result`.
    Raises SettingsError for settings that do not fit, ModelError for a model that cannot be sampled.
    """
    from batchnuts.mcmc.output import to_arviz, to_datasets
    from batchnuts.progress import default_view

    if not isinstance(model, Model):
        raise ModelError(
            f"sample_chains takes a Model, found {type(model).__name__}. Make one from a density with "
            "batchnuts.Model.from_function(log_density, dimension=...)."
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
        result = to_arviz(to_datasets(draws, model))
    if draws.interrupted:
        tell(f"{stop.name}; {draws.what_there_is()}.")
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
    give what was drawn so far, with `interrupted` set. Any other error that comes while there are draws is raised with
    these as its attribute `draws_so_far`. The model is checked first.
    """
    run = _Run(model, sampler, execution, progress or (lambda _: None), stop or StopSignals())
    draws = run.run()
    run.give_back()
    return draws


@dataclass
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
class _Tally:
    """What a phase has counted so far."""

    counts: Counts = field(default_factory=Counts)
    seconds: float = 0.0


class _Run:
    def __init__(
        self,
        model: Model,
        sampler: SamplerSettings,
        execution: ExecutionSettings,
        progress: ProgressCallback,
        stop: StopSignals,
    ) -> None:
        self.stop = stop
        self.model = model
        self.sampler = sampler
        self.execution = execution
        self.progress = progress
        self.windows = warmup_windows(sampler.warmup)
        self.keys = random.lane_keys(sampler.seed, sampler.chains)
        self.timings = {"compile": 0.0, "warmup": 0.0, "sampling": 0.0}
        self.warmup, self.sampling = _Tally(), _Tally()
        self.runner: Runner | None = None

    def run(self) -> Draws:
        """Warmup, then draws."""
        model, sampler = self.model, self.sampler
        if too_large := memory_problem(sampler, model.dimension, model.dtype):
            raise SettingsError(f"{too_large}.")
        position, start = first_starts(model, sampler)
        self.programs = borrow(model, sampler, self.execution, start)
        if self.programs.runner is None:  # else it has been reported
            warn_of_assertions(model, self.execution)
        position, log_density, gradient = self.timed(
            "compile", lambda: find_starts(model, self.programs.evaluate, sampler, self.execution, position)
        )
        inverse_mass = np.ones(model.dimension, model.dtype)
        self.state = _State(position, log_density, gradient, inverse_mass, sampler.step_size or 1.0)
        try:
            self.prepare()
            for window in self.windows:
                self.warm_up(window)
        except KeyboardInterrupt:
            return self.draws(None, interrupted=True)
        return self.draw()

    def give_back(self) -> None:
        """Leave what was compiled to the next run. Not after an error: then nobody knows its state."""
        give_back(self.model, self.sampler, self.execution, self.programs)

    def timed(self, phase: str, work: Callable[[], Any]) -> Any:
        """The result of `work`, its time added to the phase."""
        start = time.perf_counter()
        result = work()
        self.timings[phase] += time.perf_counter() - start
        return result

    def prepare(self) -> None:
        """Compile everything the run needs."""
        sampler, model = self.sampler, self.model
        self.progress(Progress("compile", 0, 1, 0.0))
        options = NutsOptions(
            sampler.max_tree_depth, sampler.leapfrogs_per_leaf, sampler.divergence_threshold, model.dtype
        )
        longest = max([sampler.draws, *(w.transitions for w in self.windows)])
        rows = buffer_rows(longest, sampler.chains, model.dimension, model.dtype, self.execution)
        programs, example = self.programs, self.inputs(0, False)
        self.runner = programs.runner
        if self.runner is None or programs.rows < rows:
            programs.runner = self.runner = None
            transition = make_nuts(programs.value_and_gradient, options)
            program = make_chain(transition, sampler.target_acceptance, rows, model.dimension, model.dtype)
            self.runner = self.timed(
                "compile", lambda: make_runner(program, example, self.execution, sampler.max_tree_depth)
            )
        if sampler.step_size is None:
            self.timed("compile", self.find_step_size)
        self.timed("compile", self.runner.wait_until_compiled)
        if programs.runner is None:
            programs.runner, programs.rows = self.runner, rows
        self.progress(Progress("compile", 1, 1, self.timings["compile"]))

    def find_step_size(self) -> None:
        """Set the step size to the median of what each chain finds reasonable where it stands."""
        state, n = self.state, self.sampler.chains
        options = self.execution.model_dump(include={"executor", "backend", "mode", "schedule", "max_stack_depth"})
        if options["schedule"] == "auto":
            options["schedule"] = "earliest"  # each block once in a sweep: a search is short, and so compiles sooner
        found, there, log_density = self.programs.first_step_size.run(
            random.lane_keys(self.sampler.seed, n, first=n * (1 + state.transitions_done)),
            state.position,
            state.log_density,
            state.gradient,
            np.tile(state.inverse_mass, (n, 1)),
            np.full(n, state.step_size, self.model.dtype),
            **options,
        )
        refuse_unbounded(self.model, log_density, there, "the search for a first step size")
        state.step_size = pooled_step_size(np.log(found))

    def inputs(self, transitions: int, adapting: bool) -> ChainInputs:
        """The arguments of `run_chain` from the state of all chains."""
        state, n, dtype = self.state, self.sampler.chains, self.model.dtype
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

    def stretch(self, transitions: int, adapting: bool, phase: Phase, total: int, before: int) -> ChainResult:
        """Run all chains for some transitions, `before` of the phase's `total` being done, and report on the way."""
        result: ChainResult | None = None
        tally = self.warmup if phase == "warmup" else self.sampling
        start, counts_before = time.perf_counter(), tally.counts
        seconds_before = tally.seconds
        assert self.runner is not None
        try:
            for counts, so_far in self.runner.run(self.inputs(transitions, adapting), transitions):
                result = so_far
                tally.counts = counts_before + counts
                tally.seconds = seconds_before + time.perf_counter() - start
                self.timings[phase] = tally.seconds
                done = before * self.sampler.chains + counts.transitions
                self.progress(
                    Progress(
                        phase,
                        done,
                        total * self.sampler.chains,
                        tally.seconds,
                        tally.counts.useful_gradients,
                        tally.counts.utilization,
                        tally.counts.divergences,
                    )
                )
                self.stop.check()
        except UnboundedDensity as met:
            raise UnboundedDensityError(self.model, met.chain, met.position, phase) from met
        assert result is not None
        return result

    def warm_up(self, window: Window) -> None:
        """One window: adapt in every chain, then pool."""
        state, sampler = self.state, self.sampler
        adapting = sampler.step_size is None
        result = self.stretch(window.transitions, adapting, "warmup", sampler.warmup, state.transitions_done)
        self.carry_over(result, window.transitions)
        if adapting:
            state.step_size = pooled_step_size(result.adaptation.log_step_mean)
        if window.estimates_metric and sampler.adapt_metric:
            recorded = result.records.position[:, : window.transitions]
            state.inverse_mass = pooled_inverse_mass(recorded).astype(self.model.dtype)
            if adapting:
                self.timed("warmup", self.find_step_size)

    def carry_over(self, result: ChainResult, transitions: int) -> None:
        state = self.state
        state.position, state.log_density, state.gradient = result.position, result.log_density, result.gradient
        state.transitions_done += transitions

    def draw(self) -> Draws:
        """The draws. From here on a signal is heeded where all that was drawn is at hand: after a report."""
        try:
            self.stop.hold()
            return self.draws(self.stretch(self.sampler.draws, False, "sampling", self.sampler.draws, before=0))
        except KeyboardInterrupt:
            return self.draws(self.drawn_so_far(), interrupted=True)
        except Exception as error:
            with suppress(Exception):  # what is reported is what went wrong first
                so_far = self.drawn_so_far()
                if so_far is not None and so_far.done.any():
                    error.draws_so_far = self.draws(so_far, interrupted=True)  # type: ignore[attr-defined]
            raise

    def drawn_so_far(self) -> ChainResult | None:
        """What there is of a stretch that was interrupted."""
        assert self.runner is not None
        return self.runner.interrupted()

    def draws(self, result: ChainResult | None, interrupted: bool = False) -> Draws:
        """Everything as the object that is given out."""
        sampler, model = self.sampler, self.model
        begun = np.ones(sampler.chains, bool)
        if result is None:
            shape = (sampler.chains, sampler.draws)
            names = [n for n in Record._fields if n != "position"]
            done = np.zeros(sampler.chains, "int64")
            position = np.full((*shape, model.dimension), np.nan, model.dtype)
            stats = {n: np.zeros(shape, "bool" if n == "diverging" else "float64") for n in names}
        else:
            records, done = result.records, np.asarray(result.done)
            position = records.position[:, : sampler.draws]
            stats = {n: v[:, : sampler.draws] for n, v in records._asdict().items() if n != "position"}
            if interrupted and self.runner is not None:
                begun = self.runner.begun()
        stats["reached_max_treedepth"] = (stats["tree_depth"] >= sampler.max_tree_depth) & ~stats["diverging"]
        counts = self.warmup.counts + self.sampling.counts
        return Draws(
            position=position,
            stats=stats,
            done=done,
            begun=begun,
            interrupted=interrupted and bool((done < sampler.draws).any()),
            inverse_mass=self.state.inverse_mass,
            timings=dict(self.timings),
            useful_gradients=counts.useful_gradients,
            utilization=counts.utilization,
            settings=sampler,
            execution=self.execution,
            arrangement=self.runner.arrangement if self.runner is not None else None,
        )
