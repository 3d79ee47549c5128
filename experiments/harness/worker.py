"""The process of a task, or of several that share it: `python -m batchnuts.experiments.harness.worker SOCKET`.

A request that fails is answered with the reason, and the other tasks go on.
"""

from __future__ import annotations

from batchnuts.experiments.harness.processes import serve
from batchnuts.experiments.harness.task import Figures, Preparation, Prepare, Run, Runnable


class Answering:
    """Answers requests with tasks that it has made ready, by fingerprint."""

    def __init__(self) -> None:
        self.ready: dict[str, Runnable] = {}

    def __call__(self, request: Prepare | Run) -> Preparation | Figures:
        """Make a task ready, or run it once."""
        if isinstance(request, Run):
            return self.ready[request.fingerprint].run(request.seed)
        runnable = request.task.prepare()
        self.ready[request.task.fingerprint()] = runnable
        return runnable.preparation


if __name__ == "__main__":
    serve(Answering())
