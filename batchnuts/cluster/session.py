"""What a worker keeps for a run: the model, compiled programs, and the groups of chains that it works on.

A plan comes to every worker once, also to those that start later, as a plugin of Dask's. The first task makes a
session of it; tasks on a worker's threads share that.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import prepare_disk_cache, tensor_library, use_own_threads
from batchnuts.cluster.errors import ClusterError, DiffersError
from batchnuts.cluster.messages import Plan, ProgramSpec, StorePlan
from batchnuts.cluster.versions import differences, own_versions
from batchnuts.disk_cache.folder import keeping
from batchnuts.mcmc.execution.chain_machine import ChainMachine
from batchnuts.mcmc.execution.evaluation import GradientService, ProgramGradients
from batchnuts.mcmc.execution.in_parts import width_for
from batchnuts.mcmc.execution.lane_program import lane_program
from batchnuts.mcmc.execution.model_description import described
from batchnuts.mcmc.execution.program_cache import Programs, borrow
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.model.library_choice import LIBRARIES, density_library_for, library_of_gradients
from batchnuts.mcmc.model.model import Model
from batchnuts.mcmc.run.chain_execution import chain_program, deepest_of
from batchnuts.mcmc.storage.layout import Layout
from batchnuts.process.quiet import import_tensorflow, without_jax

if TYPE_CHECKING:
    from batchnuts.cluster.open_store import OpenStore

_lock = threading.Lock()
_plans: dict[str, tuple[Plan, str, int]] = {}
"""The plan of each run, with the worker's address and threads."""
_programs: dict[str, ProgramSpec] = {}
"""What the programs of each run are compiled for."""
_sessions: dict[str, Session] = {}

ROUNDING = 1000
"""A density here and on a worker may differ by so many units of it: processors of another kind add in another order."""


def _import_library(backend: str, threads: int, *, keeps: bool) -> None:
    """Its options and threads have to be settled before the model makes its first array."""
    library = library_of_gradients(backend)
    if library == "tensorflow":
        with without_jax():
            import_tensorflow()
    if keeps:
        prepare_disk_cache(backend)
    use_own_threads(threads, backend)
    if library in LIBRARIES:
        tensor_library(library)


def keep_plan(plan: Plan, address: str, threads: int) -> None:
    """A worker at this address takes part in a run."""
    with _lock:
        _plans[plan.run] = plan, address, threads


def keep_program(run: str, program: ProgramSpec) -> None:
    """Keep what chains' programs are compiled for."""
    with _lock:
        _programs[run] = program


def forget(run: str) -> None:
    """Drop what is kept of a run that has ended."""
    with _lock:
        for registry in (_plans, _programs, _sessions):
            registry.pop(run, None)


def session_of(run: str) -> Session:
    """That of a run, made where there is none yet; others wait meanwhile. Raises ClusterError."""
    with _lock:
        if run not in _sessions:
            if run not in _plans:
                raise ClusterError(
                    "This worker does not know the run: it has ended, or was started by another process."
                )
            _sessions[run] = Session(*_plans[run])
        return _sessions[run]


class Session:
    """A run on one worker: its model, its compiled programs, and groups of chains that the worker has.

    Methods are called by the worker's threads.
    """

    def __init__(self, plan: Plan, address: str, threads: int) -> None:
        import cloudpickle

        self.plan = plan
        self.address = address
        differing = differences(plan.versions, {address: own_versions(plan.versions)})
        if differing:
            raise DiffersError("\n".join(differing))
        _import_library(plan.execution.backend, threads, keeps=plan.execution.cache is not None)
        self.model: Model = cloudpickle.loads(plan.model)
        by_library = density_library_for(self.model, plan.execution.backend)
        self.density_library = replace(by_library, in_machine_code=plan.in_machine_code)
        self._check_model()
        with keeping(plan.execution.cache):
            self.programs: Programs = borrow(
                self.model, self.density_library, plan.sampler, plan.execution, plan.position
            )
        self.width = width_for(plan.sampler.chain_count)
        self.machine: ChainMachine | None = None
        """The machine that runs chains; None until it is asked for."""
        self.live: dict[int, Any] = {}
        """By number: groups (`WorkerGroup`, segment.py) at the end of their last segment here."""
        self.changed = threading.Condition()
        """Guards all but `machine`; notified when a task ends."""
        self.making = threading.Lock()
        self.store: OpenStore | None = None
        """The store to which draws go; None before they do."""
        self.users = 0
        """Tasks that use the metric."""
        self.metric: Any = None
        """The identity of the metric whose parameters the programs have."""

    def _check_model(self) -> None:
        current = described(self.model)
        names = [name for name in self.plan.described if current.get(name) != self.plan.described[name]]
        if names:
            raise DiffersError(f"the model: other {', '.join(names)} on {self.address}")

    def compile(self) -> str | None:
        """Compile the chains' program, unless it is; gives the policy of its schedule.

        Raises ClusterError where the density has other values than where the run began.
        """
        with self.making:
            if self.machine is None:
                plan = self.plan
                program = _programs[plan.run]
                with keeping(plan.execution.cache):
                    values = self.gradients.evaluate(plan.position[None])
                    self._check_density(values)
                    of_chains = chain_program(
                        self.programs, plan.sampler, self.model, program.rows, program.divergences
                    )
                    compiled = lane_program(of_chains, program.example, plan.execution)
                    machine = ChainMachine(compiled, program.example, plan.execution, deepest_of(plan.sampler) + 1)
                    machine.compiled.result()
                self.machine = machine
            return self.machine.machine.policy

    def _check_density(self, values: tuple[NDArray[Any], NDArray[Any]]) -> None:
        for quantity, actual, expected in zip(("log-density", "gradient"), values, self.plan.density, strict=True):
            size = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
            if not np.allclose(
                actual, expected, rtol=0.0, atol=ROUNDING * np.finfo(expected.dtype).eps * size, equal_nan=True
            ):
                raise DiffersError(f"the model: its {quantity} has other values on {self.address}")

    def own_machine(self, depth: int | None) -> ChainMachine:
        """The machine for one group, whose stacks may grow without the others'."""
        assert self.machine is not None, "it is compiled first"
        machine = copy.copy(self.machine)
        if depth is not None:
            machine.set_stack_depth(depth)
        return machine

    @property
    def gradients(self) -> GradientService:
        """Evaluates the density for chains of a group."""
        programs = self.programs
        return ProgramGradients(self.model, programs.evaluate, self.plan.execution, self.width, programs.outlined)

    def opened(self, plan: StorePlan) -> OpenStore:
        """The store of the run, for all groups on this worker. Raises ClusterError."""
        from batchnuts.cluster.open_store import OpenStore

        with self.making:
            if self.store is None or self.store.plan.token != plan.token:
                execution, seed = self.plan.execution, self.plan.sampler.seed
                self.store = OpenStore(plan, Layout(self.model, plan.content, execution, seed))
            return self.store

    @contextmanager
    def using(self, parameters: MetricParameters, identity: Any) -> Iterator[None]:
        """Programs that start within have this metric; `identity` is the same for the same parameters."""
        with self.changed:
            while self.metric != identity and self.users:
                self.changed.wait()
            if self.metric != identity:
                self.programs.metric.set(parameters)
                self.metric = identity
            self.users += 1
        try:
            yield
        finally:
            with self.changed:
                self.users -= 1
                self.changed.notify_all()
