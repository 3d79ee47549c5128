"""In which order the machine serves a chain program, and what counts as costly."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from mcmc_models import gaussian

from batchnuts import Model
from batchnuts.autobatch import TensorType
from batchnuts.autobatch.api import get_backend
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.autobatch.scheduling.policies import costly_blocks
from batchnuts.autobatch.scheduling.sweep_search import GATE, GATED_PATIENCE
from batchnuts.mcmc.chain_program import make_chain
from batchnuts.mcmc.execution.chunk_plan import (
    COSTLY_CHUNK_LANES,
    GREATEST_WIDTH,
    LEAST_WIDTH,
    buffer_rows,
    bytes_of_a_chain,
    greatest_width,
    is_costly,
)
from batchnuts.mcmc.hamiltonian import value_and_gradient
from batchnuts.mcmc.nuts import NutsOptions, make_nuts
from batchnuts.mcmc.settings import ExecutionSettings
from batchnuts.mcmc.step_size import DualAveraging

COMPILED = get_backend("tensorflow", "xla")


def lowered(model: Model) -> Any:
    scalar, vector = TensorType(model.dtype), TensorType(model.dtype, (model.dimension,))
    types = (TensorType("uint32", (2,)), vector, scalar, vector, vector, DualAveraging(*[scalar] * 6))
    types += (TensorType("bool"), *[TensorType("int64")] * 5)
    nuts = make_nuts(value_and_gradient(model), NutsOptions(dtype=model.dtype))
    chain = make_chain(nuts, 0.8, 5, model.dimension, model.dtype)
    return chain.compiled(types, COMPILED).lowered


@pytest.fixture(scope="module")
def cheap() -> Any:
    return lowered(gaussian(20))


def of_rows(rows: int, wrapped: bool = False) -> Model:
    """A quadratic form of 30 coordinates through a [rows, 30] matrix; `wrapped` puts that into a tf.function."""
    matrix = tf.ones((rows, 30), "float64")

    def log_density(x: Any) -> Any:
        return -0.5 * tf.reduce_sum(tf.square(tf.linalg.matvec(matrix, x)))

    return Model.from_function(tf.function(log_density) if wrapped else log_density, dimension=30, dtype="float64")


def work(program: Any) -> float:
    (label,) = costly_blocks(program)
    (op,) = [op for op in program.graph.block(label).ops if getattr(getattr(op, "function", None), "costly", False)]
    found = COMPILED.work(op.function, tuple(program.var_defs[v] for v in op.vars_in))
    assert found is not None
    return found.products + found.elements


@pytest.mark.parametrize("wrapped", [False, True])
def test_matrix_products_are_counted(wrapped: bool) -> None:
    """Value and gradient go through the matrix once each; the rest is a handful of operations on vectors.

    A function that is called and differentiated stands in the graph more than once.
    """
    found = work(lowered(of_rows(1000, wrapped)))
    products = 2 * 1000 * 30
    assert products <= found <= (3 if wrapped else 1) * products + 20 * 1000


def test_a_batched_twin_counts_for_one_chain(cheap: Any) -> None:
    assert 20 * 20 <= work(cheap) <= 20 * 20 + 10 * 20


def test_what_is_costly(cheap: Any) -> None:
    assert not is_costly(cheap, COMPILED)
    assert is_costly(lowered(of_rows(10_000)), COMPILED)


def test_the_width_of_a_chunk_follows_what_a_chain_keeps(cheap: Any) -> None:
    """Widest where chains are small, least where a few dozen fill a cache; its own where gradients are costly."""
    medium, large = lowered(gaussian(60)), lowered(gaussian(300))
    per_coordinate = (bytes_of_a_chain(medium) - bytes_of_a_chain(cheap)) / 40
    assert per_coordinate % 8 == 0
    assert 10 <= per_coordinate / 8 <= 40, "vectors of float64"
    assert greatest_width(cheap, COMPILED) == GREATEST_WIDTH
    assert LEAST_WIDTH < greatest_width(medium, COMPILED) < GREATEST_WIDTH
    assert greatest_width(large, COMPILED) == LEAST_WIDTH
    assert greatest_width(lowered(of_rows(10_000)), COMPILED) == COSTLY_CHUNK_LANES


def policy(program: Any, mode: str, asked: str = "auto") -> str:
    """Of the schedule that a machine of 8 lanes makes."""
    return VirtualMachine(program, get_backend("tensorflow", mode), 8, 11, asked).schedule.policy


def test_a_cheap_gradient_is_swept_and_a_costly_one_waited_for(cheap: Any) -> None:
    assert policy(cheap, "xla") == "sweep"
    assert policy(lowered(of_rows(10_000)), "xla") == "drain"


def test_where_costs_are_not_known_the_gradient_is_waited_for(cheap: Any) -> None:
    assert policy(cheap, "graph") == policy(cheap, "eager") == "drain"


def test_a_policy_that_is_named_is_taken(cheap: Any) -> None:
    assert policy(cheap, "xla", "drain") == "drain"
    assert policy(lowered(of_rows(10_000)), "xla", "sweep") == "sweep"


def test_what_computes_waits_for_company(cheap: Any) -> None:
    """And what only calls or returns does not."""
    machine = VirtualMachine(cheap, COMPILED, 8, 11, "sweep")
    gates = {label: float(gate) for label, gate in machine.schedule.gates.items()}
    for label in ("main.resume", "run_chain.body", "build_subtree.entry", "build_subtree.resume"):
        assert gates[label] >= GATE
    assert not {"build_subtree.body", "build_subtree.endwhile"} & set(gates)
    assert machine.schedule.patience == GATED_PATIENCE
    assert max(gates.values()) < 0.5


@pytest.mark.parametrize(
    ("transitions", "chains", "dimension", "execution", "expected"),
    [
        (100, 1024, 100, {}, 100),
        (10_000, 1024, 100, {}, 16_000_000 // (256 * 425)),
        (10_000, 1024, 100, {"chunk_lanes": 64}, 16_000_000 // (64 * 425)),
        (10_000, 1, 100, {}, 10_000),
        (1_000, 256, 100_000, {}, 8),
        (10_000, 1024, 100, {"backend": "numpy"}, 16_000_000 // (1024 * 425)),
        (10_000, 1024, 100, {"executor": "stackless"}, 5),
        (3, 1024, 100, {"executor": "unbatched"}, 3),
    ],
)
def test_rows_of_the_buffers(
    transitions: int, chains: int, dimension: int, execution: dict[str, Any], expected: int
) -> None:
    """425 bytes: 100 coordinates, four scalars, two whole numbers, and a bit, in single precision."""
    rows = buffer_rows(transitions, chains, dimension, "float32", ExecutionSettings(**execution))
    assert rows == expected
