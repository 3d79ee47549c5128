"""Chains on a cluster: the runner of a run, and what is computed for chains besides."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.cluster.connect import ready_workers, workers_of
from batchnuts.cluster.direct import DirectZarrRun
from batchnuts.cluster.errors import Failure
from batchnuts.cluster.groups import lanes_of, sizes_of
from batchnuts.cluster.machines import pickled, require_alike, versions_of
from batchnuts.cluster.messages import Plan, ProgramSpec, SavedChains, Stretch
from batchnuts.cluster.plugins import PlanPlugin, ProgramPlugin
from batchnuts.cluster.segment import evaluated, isokinetic_steps, prepare, searched
from batchnuts.cluster.stretch import StretchOnCluster
from batchnuts.cluster.tasks import Tasks, error_of
from batchnuts.files.sealed_file import CheckpointError
from batchnuts.mcmc.execution.attempt import part
from batchnuts.mcmc.execution.chain_states import ChainStates
from batchnuts.mcmc.execution.chunk_plan import Chunking, maximum_width
from batchnuts.mcmc.execution.evaluation import GradientService
from batchnuts.mcmc.execution.in_parts import width_for
from batchnuts.mcmc.execution.lane_program import lane_program
from batchnuts.mcmc.execution.model_description import described
from batchnuts.mcmc.execution.runner import Runner
from batchnuts.mcmc.execution.window_reduction import Reduction
from batchnuts.mcmc.kernel.chain_program import ChainInputs
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.run.chain_execution import ChainExecution, ExecutedRun, chain_program
from batchnuts.mcmc.run.run import Run
from batchnuts.mcmc.storage.contract import MakeStorage
from batchnuts.mcmc.storage.draws import Arrangement
from batchnuts.mcmc.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from distributed import Client


class OnCluster(ChainExecution, GradientService):
    """Executes chains on a cluster. client: the cluster's; position [dimension]: where the density can be evaluated."""

    def __init__(self, client: Client, run: Run, position: NDArray[Any]) -> None:
        self.client = client
        self.run = run
        self.model = run.model
        self.tasks = Tasks(client, run.stop)
        self.name = uuid.uuid4().hex
        self.width = width_for(run.sampler.chain_count)
        versions = versions_of(run.execution.backend)
        require_alike(client, versions)
        log_density, gradient = run.gradients.evaluate(position[None])
        plan = Plan(
            self.name,
            pickled(run.model),
            described(run.model),
            versions,
            run.sampler,
            run.execution,
            position,
            (np.asarray(log_density), np.asarray(gradient)),
            run.density_library.in_machine_code,
        )
        self.plugins: list[str] = []
        self.lanes = self.width
        """Chains of a chunk, once there is a runner."""
        self.register(PlanPlugin(plan))

    def register(self, plugin: PlanPlugin | ProgramPlugin) -> None:
        """Bring a plugin to all workers, also to those that come later."""
        self.client.register_plugin(plugin)
        self.plugins.append(plugin.name)

    def close(self) -> None:
        """Make workers forget the run."""
        for name in self.plugins:
            with suppress(Exception):  # the cluster may be gone
                self.client.unregister_worker_plugin(name)

    @override
    def gradients(self, run: ExecutedRun) -> OnCluster:
        return self

    @override
    def evaluate(self, position: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        log_density, gradient = self._in_parts(evaluated, (position,))
        return log_density, gradient

    @override
    def searched(
        self, run: ExecutedRun, metric: MetricParameters, arguments: Sequence[NDArray[Any]]
    ) -> tuple[Any, ...]:
        identity = uuid.uuid4().hex  # of this search: others may have other parameters
        return self._in_parts(searched, tuple(arguments), metric, identity)

    @override
    def isokinetic_steps(
        self, run: ExecutedRun, metric: MetricParameters, arguments: Sequence[NDArray[Any]]
    ) -> tuple[Any, ...]:
        return self._in_parts(isokinetic_steps, tuple(arguments), metric, uuid.uuid4().hex, self.lanes)

    def _in_parts(self, function: Any, arrays: tuple[NDArray[Any], ...], *leading: Any) -> tuple[NDArray[Any], ...]:
        chains, threads = len(arrays[0]), max(1, sum(workers_of(self.client).values()))
        size = self.width * max(1, -(-chains // (threads * self.width)))
        arrays = tuple(np.asarray(array) for array in arrays)
        calls = []
        for first in range(0, chains, size):
            part = tuple(array[first : first + size] for array in arrays)
            calls.append((self.name, *leading, part if leading else part[0]))
        results = self.tasks.all(function, calls, self.model)
        return tuple(np.concatenate(parts) for parts in zip(*results, strict=True))

    @override
    def find_runner(self, run: ExecutedRun, states: ChainStates) -> ClusterRunner:
        example = run.inputs(states, 0, False)
        chains = len(example.key)
        lanes = run.saved.lanes if run.saved is not None else None
        if lanes is None:
            max_width = chains
            if run.execution.chunk_lanes is None:
                program = chain_program(run.programs, run.sampler, run.model, run.rows, run.divergences)
                max_width = maximum_width(lane_program(program, example, run.execution))
            lanes = lanes_of(chains, run.execution, max_width)
        self.lanes = lanes
        of_chunk = part(example, Chunking(-(-chains // lanes), lanes, 1), 0)
        self.register(ProgramPlugin(self.name, ProgramSpec(of_chunk, run.rows, run.divergences)))
        return ClusterRunner(self, self.run, chains, lanes)

    def keep(self, run: ExecutedRun, runner: Runner) -> None:
        """Do nothing: workers keep what they compile for as long as they know the run."""


class ClusterRunner(Runner):
    """Runs chains in groups on the workers of a cluster."""

    def __init__(self, cluster: OnCluster, run: Run, chains: int, lanes: int) -> None:
        self.cluster = cluster
        self.run_of = run
        self.chains = chains
        self.lanes = lanes
        self.compiled = False
        self.policy: str | None = None
        self.threads = sum(workers_of(cluster.client).values())
        self.metric: MetricParameters | None = None
        self.stretches = 0
        self.running: StretchOnCluster | None = None

    @property
    @override
    def arrangement(self) -> Arrangement:
        return Arrangement(self.lanes, self.policy, -(-self.chains // self.lanes), self.threads)

    @override
    def wait_until_compiled(self) -> None:
        # one worker of each machine compiles first: others there may find its programs
        if self.compiled:
            return
        machines: dict[str, list[str]] = {}
        for worker in ready_workers(self.cluster.client):
            machines.setdefault(worker.rpartition(":")[0], []).append(worker)
        self._prepare([workers[0] for workers in machines.values()])
        self._prepare([worker for workers in machines.values() for worker in workers[1:]])
        self.compiled = True

    def _prepare(self, workers: list[str]) -> None:
        tasks = self.cluster.tasks
        name = self.cluster.name
        pending = {worker: tasks.give(("prepare", worker, 0), prepare, name, worker=worker) for worker in workers}
        while pending:
            tasks.stop.check()
            present = tasks.workers()
            lost = [pending.pop(worker) for worker in list(pending) if not present.get(worker)]
            tasks.cancel(lost)  # those that come compile later
            item = tasks.next(0.25)
            if item is None or item[0][0] != "prepare":
                continue
            (_, worker, _), outcome = item
            pending.pop(worker, None)
            if isinstance(outcome.result, Failure):
                raise error_of(outcome.result, self.run_of.model, "warmup")
            if outcome.done:  # else it has died
                self.policy = outcome.result

    @override
    def run(
        self,
        inputs: ChainInputs,
        transitions: int,
        leave: float = 0.0,
        make_storage: MakeStorage = MemoryStorage,
        resumed: SavedChains | None = None,
        reduction: Reduction | None = None,
        wanted: int = 0,
    ) -> StretchOnCluster:
        if resumed is not None and not isinstance(resumed, SavedChains):
            raise CheckpointError(
                "The checkpoint is from a run on threads of one process: continue it as it was, without "
                "execution.cluster."
            )
        self.wait_until_compiled()
        if self.running is not None:
            self.running.drop()
        self.stretches += 1
        phase = "sampling" if reduction is None else "warmup"
        sends = not isinstance(make_storage, DirectZarrRun) or self.run_of.checks is not None
        stretch = Stretch(self.stretches, transitions, leave, phase, reduction, sends)
        self.threads = max(1, sum(self.cluster.tasks.workers().values()))
        sizes = sizes_of(self.chains, self.lanes, self.threads) if resumed is None else resumed.sizes
        self.running = StretchOnCluster(
            self.run_of,
            self.cluster.tasks,
            self.cluster.name,
            stretch,
            sizes,
            self.lanes,
            inputs,
            self.run_of.metric_now(),
            make_storage,
            resumed,
        )
        return self.running
