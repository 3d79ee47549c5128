"""Where the chains of a run are executed (threads here, or a cluster); their program, made of kernel and settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch import BatchedFunction
from batchnuts.mcmc.checkpoint.saved_run import SavedRun
from batchnuts.mcmc.execution.chain_states import ChainStates
from batchnuts.mcmc.execution.chunk_runner import ChunkRunner, make_runner
from batchnuts.mcmc.execution.evaluation import GradientService, ProgramGradients, of_lanes
from batchnuts.mcmc.execution.in_parts import in_parts, width_for
from batchnuts.mcmc.execution.program_cache import Programs
from batchnuts.mcmc.execution.runner import Runner
from batchnuts.mcmc.kernel.chain_program import ChainInputs, make_chain
from batchnuts.mcmc.kernel.make_transition import make_adaptation, make_transition
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.model.data_argument import Leaves, leaves_of
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings


class ExecutedRun(Protocol):
    """The part of a run (run.py) that executions read."""

    @property
    def model(self) -> Model:
        """The model that is sampled."""

    @property
    def sampler(self) -> SamplerSettings:
        """The settings by which it is sampled."""

    @property
    def execution(self) -> ExecutionSettings:
        """The settings of the execution, with the backend decided."""

    @property
    def programs(self) -> Programs:
        """The programs, compiled or to be compiled."""

    @property
    def divergences(self) -> bool:
        """Whether the ends of trajectories are recorded."""

    @property
    def rows(self) -> int:
        """The minimum capacity of the runner's buffers."""

    @property
    def saved(self) -> SavedRun | None:
        """The checkpoint that it goes on from, if it does."""

    def inputs(self, states: ChainStates, transitions: int, adapting: bool) -> ChainInputs:
        """The arguments of `run_chain` from the states of all chains."""


class ChainExecution(Protocol):
    """What executes all chains of a run."""

    def gradients(self, run: ExecutedRun) -> GradientService:
        """What evaluates the density at the positions of its chains."""

    def searched(
        self, run: ExecutedRun, metric: MetricParameters, arguments: Sequence[NDArray[Any]]
    ) -> tuple[Any, ...]:
        """What the search for a step size gives for all chains; metric: that which they have."""

    def isokinetic_steps(
        self, run: ExecutedRun, metric: MetricParameters, arguments: Sequence[NDArray[Any]]
    ) -> tuple[Any, ...]:
        """What some steps of the isokinetic dynamics give for all chains; metric: that which they have; arguments: of
        `isokinetic_langevin`."""

    def find_runner(self, run: ExecutedRun, states: ChainStates) -> Runner:
        """The runner of chains with these states; it may begin to compile."""

    def keep(self, run: ExecutedRun, runner: Runner) -> None:
        """Keep a compiled runner for a later run of the model, where it can serve one."""


class LocalExecution(ChainExecution):
    """Executes chains on threads of this process."""

    @override
    def gradients(self, run: ExecutedRun) -> GradientService:
        programs = run.programs
        return ProgramGradients(run.model, programs.evaluate, run.execution, outlined=programs.outlined)

    @override
    def searched(
        self, run: ExecutedRun, metric: MetricParameters, arguments: Sequence[NDArray[Any]]
    ) -> tuple[Any, ...]:
        leaves = leaves_of(run.model.data)
        return search(run.programs, run.execution, arguments, width_for(run.sampler.chain_count), leaves)

    @override
    def isokinetic_steps(
        self, run: ExecutedRun, metric: MetricParameters, arguments: Sequence[NDArray[Any]]
    ) -> tuple[Any, ...]:
        programs, chains, leaves = run.programs, run.sampler.chain_count, leaves_of(run.model.data)
        program, runner = programs.isokinetic_langevin, programs.runner
        if programs.outlined or not isinstance(runner, ChunkRunner):  # machine code has its own threads
            width = chains if programs.outlined else width_for(chains)
            return for_all(program, run.execution, arguments, width, leaves)
        return for_all(program, run.execution, arguments, runner.chunking.lanes, leaves, runner.workers.map)

    @override
    def find_runner(self, run: ExecutedRun, states: ChainStates) -> Runner:
        """Give that of an earlier run, if its buffers are long enough; else a new one."""
        programs, rows = run.programs, run.rows
        long_enough = programs.rows >= rows if run.saved is None else programs.rows == rows
        if programs.runner is not None and long_enough and programs.divergences == run.divergences:
            return programs.runner
        programs.runner = None
        program = chain_program(programs, run.sampler, run.model, rows, run.divergences)
        lanes = None if run.saved is None else run.saved.lanes
        return make_runner(program, run.inputs(states, 0, False), run.execution, deepest_of(run.sampler), lanes)

    @override
    def keep(self, run: ExecutedRun, runner: Runner) -> None:
        """Keep it with the model's programs."""
        programs = run.programs
        if programs.runner is None:
            programs.runner, programs.rows, programs.divergences = runner, run.rows, run.divergences


def chain_program(
    programs: Programs, sampler: SamplerSettings, model: Model, rows: int, divergences: bool
) -> BatchedFunction:
    """The program `run_chain` of a run, with buffers of so many rows."""
    transition = make_transition(programs.value_and_gradient, sampler, model.dtype, programs.metric)
    program = make_chain(
        transition, make_adaptation(sampler), rows, model.dimension, model.dtype, divergences=divergences
    )
    if programs.identity is not None:
        program.identity = programs.identity.with_text(repr((rows, divergences)))
    return program


def deepest_of(sampler: SamplerSettings) -> int:
    """How often a trajectory doubles at most, in warmup or afterwards."""
    return max(sampler.max_tree_depth, sampler.max_tree_depth_warmup or 0)


def search(
    programs: Programs, execution: ExecutionSettings, arguments: Sequence[NDArray[Any]], width: int, leaves: Leaves = ()
) -> tuple[NDArray[Any], ...]:
    """What `first_step_size` gives for some chains, `width` of them at a time; arguments: its own. leaves: the arrays
    of the data that the density takes."""
    return for_all(programs.first_step_size, execution, arguments, width, leaves)


def for_all(
    program: BatchedFunction,
    execution: ExecutionSettings,
    arguments: Sequence[NDArray[Any]],
    width: int,
    leaves: Leaves = (),
    each: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]] = map,
) -> tuple[NDArray[Any], ...]:
    """What a short program gives for some chains, `width` of them at a time. leaves: the arrays of the data that the
    density takes, its last argument. each: see in_parts."""
    options = execution.run_options
    if options["schedule"] == "auto" and not execution.at_own_pace:
        options["schedule"] = "earliest"  # each block once in a sweep: a search is short, and so compiles sooner

    def call(*arrays: NDArray[Any]) -> Any:
        data = (of_lanes(leaves, len(arrays[0])),) if leaves else ()
        return program.run(*arrays, *data, **options)

    return in_parts(call, arguments, width, each)
