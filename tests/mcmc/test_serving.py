"""In which order the machine serves a chain program: what counts as costly, and the sweep for cheap gradients."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from mcmc_models import gaussian

from batchnuts import Model
from batchnuts.autobatch import Schedule, TensorType
from batchnuts.autobatch.api import get_backend
from batchnuts.autobatch.compiler.schedule import costly_blocks, make_schedule
from batchnuts.mcmc.adaptation import DualAveraging
from batchnuts.mcmc.chain_program import make_chain
from batchnuts.mcmc.hamiltonian import value_and_gradient
from batchnuts.mcmc.nuts import NutsOptions
from batchnuts.mcmc.serving import GATE, LEAF, TRAJECTORY, cheap_schedule, choose_schedule, gradient_work, is_costly
from batchnuts.mcmc.settings import ExecutionSettings


def lowered(model: Model) -> Any:
    scalar, vector = TensorType(model.dtype), TensorType(model.dtype, (model.dimension,))
    types = (TensorType("uint32", (2,)), vector, scalar, vector, vector, DualAveraging(*[scalar] * 6))
    types += (TensorType("bool"), TensorType("int64"), TensorType("int64"))
    chain = make_chain(value_and_gradient(model), NutsOptions(dtype=model.dtype), 0.8, 5, model.dimension)
    return chain.compiled(types, get_backend("tensorflow", "xla")).lowered


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
    return gradient_work(program, op)


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
    assert not is_costly(cheap)
    assert is_costly(lowered(of_rows(10_000)))


def test_the_sweep_for_cheap_gradients_fits_the_program(cheap: Any) -> None:
    """Every block stands in it, those of a subtree several times; what is left out would be refused."""
    schedule = make_schedule(cheap, cheap_schedule(cheap))
    assert set(schedule.order) == set(cheap.graph.labels)
    assert {label for label in cheap.graph.labels if label.startswith("build_subtree.")} == set(TRAJECTORY)
    assert costly_blocks(cheap) == (LEAF,)
    assert {float(gate) for gate in schedule.gates.values()} == {GATE}
    assert len(schedule.gates) == 2


@pytest.mark.parametrize("settings", [{"schedule": "drain"}, {"backend": "numpy"}, {"mode": "graph"}], ids=str)
def test_what_the_settings_say_comes_first(cheap: Any, settings: dict[str, Any]) -> None:
    execution = ExecutionSettings(**settings)
    assert choose_schedule(cheap, execution) == execution.schedule
    assert isinstance(choose_schedule(cheap, ExecutionSettings()), Schedule)
