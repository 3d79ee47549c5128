"""What each worker of a run gets once, also those that start later: plugins of Dask's.

Only this module of the package imports Dask when it is imported.
"""

from __future__ import annotations

from distributed import Worker, WorkerPlugin

from batchnuts.cluster.messages import Plan, ProgramSpec
from batchnuts.cluster.session import forget, keep_plan, keep_program


class PlanPlugin(WorkerPlugin):  # type: ignore[misc]
    """Brings a plan."""

    idempotent = True

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.name = f"batchnuts-{plan.run}"

    def setup(self, worker: Worker) -> None:
        """Called when a worker starts, or is there already."""
        keep_plan(self.plan, worker.address, worker.state.nthreads)

    def teardown(self, worker: Worker) -> None:
        """Called when the run has ended."""
        forget(self.plan.run)


class ProgramPlugin(WorkerPlugin):  # type: ignore[misc]
    """Brings what chains' programs are compiled for."""

    idempotent = True

    def __init__(self, run: str, program: ProgramSpec) -> None:
        self.run = run
        self.program = program
        self.name = f"batchnuts-{run}-program"

    def setup(self, worker: Worker) -> None:
        """Called when a worker starts, or is there already."""
        keep_program(self.run, self.program)
