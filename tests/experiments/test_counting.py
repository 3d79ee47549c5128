"""Gradients, useful and executed, are the same by every count: the draws, the executor, the profiler, plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchnuts.experiments.samplers.ours import make_task_chain, prepare
from batchnuts.experiments.samplers.problems import Problem
from batchnuts.experiments.samplers.task import Outcome, Task
from batchnuts.models.correlated_gaussian import CorrelatedGaussianOptions

CHAINS, TRANSITIONS, LEAPFROGS = 6, 3, 2
GAUSS = CorrelatedGaussianOptions(dimension=4, covariance="ar1", correlation=0.9, dtype="float64")


def task(**options: Any) -> Task:
    return Task(
        sampler="batchnuts",
        options=options,
        problem=GAUSS.model_dump(),
        chains=CHAINS,
        transitions=TRANSITIONS,
        step_size=0.15,
        max_tree_depth=6,
        leapfrogs_per_leaf=LEAPFROGS,
        start="typical",
        device="cpu",
        measure_ess=True,
    )


@pytest.fixture(scope="module")
def alone() -> Outcome:
    """Each chain by itself in plain Python."""
    return prepare(task(executor="unbatched", mode="eager"), Problem(GAUSS))(5)()


def test_plain_python_wastes_nothing(alone: Outcome) -> None:
    assert alone.leapfrogs.shape == (CHAINS, TRANSITIONS)
    assert alone.executed_gradients == alone.leapfrogs.sum()
    # trees of different depth, or the comparisons below would not compare much
    assert len(np.unique(alone.leapfrogs)) >= 3
    # a leaf has LEAPFROGS of them, and the first tree to turn has at least one leaf
    assert np.all(alone.leapfrogs % LEAPFROGS == 0)
    assert alone.leapfrogs.min() >= LEAPFROGS


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"backend": "numpy", "schedule": "earliest"}, marks=pytest.mark.slow),
        {"backend": "numpy", "schedule": "drain"},
        pytest.param({"schedule": "auto", "chunk_lanes": CHAINS}, marks=pytest.mark.slow),
        {"backend": "numpy", "schedule": "drain", "chunk_lanes": 4, "shards": 2},
        pytest.param({"executor": "stackless", "mode": "eager"}, marks=pytest.mark.slow),
        {"executor": "stackless", "backend": "numpy"},
        {"backend": "jax", "chunk_lanes": CHAINS},
        pytest.param({"backend": "jax", "schedule": "drain", "chunk_lanes": 4, "shards": 2}, marks=pytest.mark.slow),
        pytest.param({"backend": "jax", "mode": "eager", "schedule": "drain"}, marks=pytest.mark.slow),
        pytest.param({"executor": "stackless", "backend": "jax", "mode": "eager"}, marks=pytest.mark.slow),
        pytest.param({"executor": "stackless", "backend": "jax"}, marks=pytest.mark.slow),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_every_executor_needs_the_gradients_of_plain_python_lane_by_lane(options: Any, alone: Outcome) -> None:
    batched = prepare(task(**options), Problem(GAUSS))(5)()
    np.testing.assert_array_equal(batched.leapfrogs, alone.leapfrogs)
    assert batched.executed_gradients is not None
    # it executes whole batches: no more than one chain at a time would, no fewer than the longest chain needs
    width = options.get("chunk_lanes", CHAINS)
    assert batched.executed_gradients % width == 0
    totals = alone.leapfrogs.sum(axis=1)
    assert int(totals.max()) * width <= batched.executed_gradients <= int(totals.sum()) * width
    assert batched.executed_gradients >= int(totals.sum())


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "numpy", "schedule": "drain"},
        {"backend": "numpy", "schedule": "sweep"},
        {"executor": "stackless", "backend": "numpy"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_the_profiler_counts_the_same(options: Any) -> None:
    asked = task(**options)
    outcome = prepare(asked, Problem(GAUSS))(5)()
    chain = make_task_chain(asked, Problem(GAUSS))
    _, profile = chain.program.run(*chain.arguments(5), profile=True, **chain.execution.run_options)
    (gradient,) = profile.costly().values()
    assert gradient.active == outcome.leapfrogs.sum()
    assert gradient.lanes_computed == outcome.executed_gradients


def test_local_static_autobatching_waits_for_the_longest_chain_of_each_trajectory() -> None:
    outcome = prepare(task(executor="stackless", backend="numpy"), Problem(GAUSS))(5)()
    lockstep = outcome.leapfrogs.max(axis=0).sum() * CHAINS
    assert outcome.executed_gradients is not None
    # it may wait more than that: chains also meet at each level of the recursion
    assert lockstep <= outcome.executed_gradients <= 2 * lockstep
