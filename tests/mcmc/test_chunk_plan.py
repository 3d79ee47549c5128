"""In which order the machine serves a chain program, and what counts as costly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from mcmc_models import gaussian

from batchnuts import Model
from batchnuts.autobatch import random
from batchnuts.autobatch.machine import COSTLY_WORK, LaneProgram
from batchnuts.autobatch.scheduling.policies import GATE
from batchnuts.mcmc.execution.chunk_plan import (
    ALONE,
    COSTLY_CHUNK_LANES,
    MAX_WIDTH,
    buffer_rows,
    chains_alone,
    maximum_width,
)
from batchnuts.mcmc.kernel.chain_program import ChainInputs, make_chain
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts
from batchnuts.mcmc.kernel.step_size import DualAveragingAdaptation, start_adaptation
from batchnuts.mcmc.settings.run_settings import ExecutionSettings


def compiled(model: Model, mode: str = "xla") -> LaneProgram:
    """`run_chain` for one chain of the model, on TensorFlow."""
    nuts = make_nuts(value_and_gradient(model), NutsOptions(dtype=model.dtype))
    chain = make_chain(nuts, DualAveragingAdaptation(0.8), 5, model.dimension, model.dtype)
    scalar, vector, none = np.zeros(1, model.dtype), np.zeros((1, model.dimension), model.dtype), np.zeros(1, "int64")
    key, adaptation = random.lane_keys(0, 1), start_adaptation(scalar)
    example = ChainInputs.begin(
        key, vector, scalar, vector, vector, adaptation, np.array([False]), first=none, transitions=none,
        max_tree_depth=10,
    )  # fmt: skip
    return LaneProgram(chain, example, "tensorflow", mode)


@pytest.fixture(scope="module")
def cheap() -> LaneProgram:
    return compiled(gaussian(20))


def of_rows(rows: int, wrapped: bool = False) -> Model:
    """A quadratic form of 30 coordinates through a [rows, 30] matrix; `wrapped` puts that into a tf.function."""
    matrix = tf.ones((rows, 30), "float64")

    def log_density(x: Any) -> Any:
        return -0.5 * tf.reduce_sum(tf.square(tf.linalg.matvec(matrix, x)))

    return Model.from_function(tf.function(log_density) if wrapped else log_density, dimension=30, dtype="float64")


@pytest.fixture(scope="module")
def costly() -> LaneProgram:
    return compiled(of_rows(10_000))


@pytest.mark.parametrize("wrapped", [False, True])
def test_matrix_products_are_counted(wrapped: bool) -> None:
    """Value and gradient go through the matrix once each; the rest is a handful of operations on vectors.

    A function that is called and differentiated stands in the graph more than once.
    """
    found = compiled(of_rows(1000, wrapped)).costly_work
    products = 2 * 1000 * 30
    assert products <= found <= (3 if wrapped else 1) * products + 20 * 1000


def test_a_batched_twin_counts_for_one_chain(cheap: LaneProgram) -> None:
    assert 20 * 20 <= cheap.costly_work <= 20 * 20 + 10 * 20


def test_what_is_costly(cheap: LaneProgram, costly: LaneProgram) -> None:
    assert cheap.costly_work < COSTLY_WORK < costly.costly_work


def test_the_width_of_a_chunk(cheap: LaneProgram, costly: LaneProgram) -> None:
    assert maximum_width(cheap) == MAX_WIDTH
    assert maximum_width(costly) == COSTLY_CHUNK_LANES


def test_few_chains_run_alone_where_a_second_one_gains_nothing(cheap: LaneProgram, costly: LaneProgram) -> None:
    assert chains_alone(cheap) == ALONE
    assert chains_alone(costly) == 1


def policy(program: LaneProgram, asked: str = "auto") -> str:
    """Of the schedule that a machine of 8 lanes makes."""
    return program.machine(8, 11, asked).schedule.policy


def test_a_cheap_gradient_is_swept_and_a_costly_one_waited_for(cheap: LaneProgram, costly: LaneProgram) -> None:
    assert policy(cheap) == "sweep"
    assert policy(costly) == "drain"


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_where_costs_are_not_known_the_gradient_is_waited_for(mode: str) -> None:
    assert policy(compiled(gaussian(20), mode)) == "drain"


def test_a_policy_that_is_named_is_taken(cheap: LaneProgram, costly: LaneProgram) -> None:
    assert policy(cheap, "drain") == "drain"
    assert policy(costly, "sweep") == "sweep"


def test_what_computes_waits_for_company(cheap: LaneProgram) -> None:
    """And what only calls or returns does not."""
    machine = cheap.machine(8, 11, "sweep")
    gates = {label: float(gate) for label, gate in machine.schedule.gates.items()}
    for label in ("main.resume", "run_chain.body", "build_subtree.entry", "build_subtree.resume"):
        assert gates[label] == GATE
    assert not {"build_subtree.body", "build_subtree.endwhile", "run_chain.endwhile"} & set(gates)


@pytest.mark.parametrize(
    ("transitions", "chains", "dimension", "execution", "expected"),
    [
        (100, 1024, 100, {}, 16_000_000 // (256 * 438)),
        (10_000, 1024, 100, {}, 16_000_000 // (256 * 438)),
        (10_000, 1024, 100, {"chunk_lanes": 64}, 16_000_000 // (64 * 438)),
        (100, 1, 100, {}, 1024),
        (10_000, 1, 100, {}, 1024),
        (1_000, 256, 100_000, {}, 8),
        (100, 1024, 100, {"backend": "numpy"}, 35),
        (30, 1024, 100, {"backend": "numpy"}, 30),
        (10_000, 1024, 100, {"backend": "numpy"}, 16_000_000 // (1024 * 438)),
        (10_000, 1024, 100, {"expert": {"executor": "stackless"}}, 5),
        (3, 1024, 100, {"expert": {"executor": "unbatched"}}, 3),
    ],
)
def test_rows_of_the_buffers(
    transitions: int, chains: int, dimension: int, execution: dict[str, Any], expected: int
) -> None:
    """438 bytes: 100 coordinates, six scalars, three whole numbers, and two bits, in single precision."""
    rows = buffer_rows(transitions, chains, dimension, "float32", ExecutionSettings(**execution))
    assert rows == expected
