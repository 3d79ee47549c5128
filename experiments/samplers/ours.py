"""batchnuts itself: the program of a run on any of its executors, with a fixed step size and the identity metric."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np

from batchnuts.autobatch import BatchedFunction, random
from batchnuts.autobatch.machine import has_jax
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.registry import OursOptions
from batchnuts.experiments.samplers.task import MissingSampler, Outcome, Prepared, Task
from batchnuts.mcmc.execution.chunk_plan import buffer_rows, own_threads
from batchnuts.mcmc.execution.chunk_runner import make_runner
from batchnuts.mcmc.execution.evaluation import ProgramGradients, make_evaluate
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult, make_chain
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts
from batchnuts.mcmc.kernel.step_size import DualAveragingAdaptation, start_adaptation
from batchnuts.mcmc.model.library_choice import choose_density_library
from batchnuts.mcmc.settings.run_settings import ExecutionSettings
from batchnuts.mcmc.starts.find_starts import values_at


@dataclasses.dataclass(frozen=True)
class Chain:
    """The program `run_chain` of a task, how it is run, and its arguments for a seed."""

    program: BatchedFunction
    execution: ExecutionSettings
    arguments: Callable[[int], ChainInputs]


def make_task_chain(task: Task, problem: Problem) -> Chain:
    """The program of a task. The first log-density and gradient are evaluated with its arguments, so are not timed."""
    options = OursOptions.model_validate(task.options)
    execution = _execution(task)
    model = problem.model
    if options.density == "single":
        model = dataclasses.replace(model, batched_value_and_gradient=None)
    position = problem.starts(task.start, 1, 0)[0]
    density_library, execution = choose_density_library(model, execution, position, task.chains)
    density = value_and_gradient(model, density_library, chains=task.chains)
    evaluate = make_evaluate(density)
    options_of_nuts = NutsOptions(task.max_tree_depth, task.leapfrogs_per_leaf, dtype=model.dtype)
    transition = make_nuts(density, options_of_nuts)
    chains = task.chains
    rows = buffer_rows(task.transitions, chains, model.dimension, model.dtype, execution)
    program = make_chain(
        transition, DualAveragingAdaptation(0.8), rows, model.dimension, model.dtype
    )  # nothing adapts to the 0.8
    log_step = np.full(chains, np.log(task.step_size), model.dtype)

    def arguments(seed: int) -> ChainInputs:
        position = problem.starts(task.start, chains, seed)
        return ChainInputs.begin(
            random.lane_keys(seed, chains),
            position,
            *values_at(model, ProgramGradients(model, evaluate, execution), position),
            np.ones((chains, model.dimension), model.dtype),
            start_adaptation(log_step, settled=False),
            np.full(chains, False),
            first=np.zeros(chains, "int64"),
            transitions=np.full(chains, task.transitions, "int64"),
            max_tree_depth=task.max_tree_depth,
        )

    return Chain(program, execution, arguments)


def _execution(task: Task) -> ExecutionSettings:
    return OursOptions.model_validate(task.options).execution


def prepare(task: Task, problem: Problem) -> Prepared:
    """Prepare batchnuts. A run counts its gradients twice, by the draws' records and by the executor, and compares."""
    execution = _execution(task)
    if execution.backend == "jax" and not has_jax():
        needs = "needs jax: pip install 'batchnuts[jax]'"
        raise MissingSampler(f"Sampler batchnuts with backend {execution.backend} {needs}")
    own_threads(task.chains, execution)  # as the command line does
    chain = make_task_chain(task, problem)
    runner = make_runner(chain.program, chain.arguments(0), chain.execution, task.max_tree_depth)
    runner.wait_until_compiled()

    def lay_out(seed: int) -> Callable[[], Outcome]:
        return partial(run, chain.arguments(seed))

    def run(arguments: ChainInputs) -> Outcome:
        *_, (counts, result) = runner.run(arguments, task.transitions)
        assert isinstance(result, ChainResult)
        leapfrogs = np.asarray(result.records.n_steps)[:, : task.transitions]
        if counts.useful_gradients != leapfrogs.sum():
            raise AssertionError(
                f"the executor counted {counts.useful_gradients} useful gradients, the chains {leapfrogs.sum()}"
            )
        return Outcome(
            leapfrogs=leapfrogs,
            executed_gradients=counts.executed_gradients,
            draws=np.asarray(result.records.position) if task.measure_ess else None,
        )

    return lay_out
