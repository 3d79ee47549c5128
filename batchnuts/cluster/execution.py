"""What executes the chains of a run: the cluster that its settings name, or threads of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from batchnuts.mcmc.run.chain_execution import ChainExecution
from batchnuts.mcmc.run.run import Run


@contextmanager
def execution_of(run: Run, position: NDArray[Any]) -> Iterator[ChainExecution]:
    """The execution that the settings ask for; position [dimension]: where the density can be evaluated."""
    if run.execution.cluster is None:
        yield run.chains
        return
    from batchnuts.cluster.connect import connected, require_dask

    require_dask()
    from batchnuts.cluster.runner import OnCluster

    with connected(run.execution.cluster, run.stop) as client:
        cluster = OnCluster(client, run, position)
        try:
            yield cluster
        finally:
            cluster.close()
