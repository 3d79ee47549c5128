"""What XLA makes of the machine's loop: nothing in it copies or selects over a whole stack or a buffer of draws.

Such an op costs as much as the stack is large, in every sweep. Found by shape: the sizes here are all different.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from mcmc_models import gaussian

from batchnuts.autobatch import Schedule, random
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.backends.tensorflow import backend, work_estimate
from batchnuts.autobatch.backends.tensorflow.backend import TensorFlowBackend
from batchnuts.autobatch.language.libraries import tensorflow as tensorflow_library
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.mcmc.kernel.chain_program import ChainInputs, make_chain
from batchnuts.mcmc.kernel.hamiltonian import value_and_gradient
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts
from batchnuts.mcmc.kernel.step_size import DualAveragingAdaptation, start_adaptation

LANES, DIMENSION, CAPACITY, STACK_DEPTH = 3, 7, 13, 5
STACK = f"f64[{LANES * (STACK_DEPTH + 1)},{DIMENSION}]"
"""A stack of vectors."""
DRAWS = (f"f64[{LANES},{CAPACITY},{DIMENSION}]", f"f64[{LANES * CAPACITY},{DIMENSION}]")
"""The buffer of draws, by chain and flat."""


def make_machine(schedule: str | Schedule = "sweep") -> tuple[VirtualMachine, dict[str, Any]]:
    model = gaussian(DIMENSION)
    position = np.ones((LANES, DIMENSION))
    assert model.batched_value_and_gradient is not None
    log_density, gradient = (x.numpy() for x in model.batched_value_and_gradient(tf.constant(position)))
    state = start_adaptation(np.zeros(LANES), settled=False)
    inputs = ChainInputs.begin(
        random.lane_keys(0, LANES), position, log_density, gradient, np.ones_like(position), state,
        np.full(LANES, False), first=np.zeros(LANES, "int64"), transitions=np.full(LANES, 2, "int64"), max_tree_depth=4,
    )  # fmt: skip
    nuts = make_nuts(value_and_gradient(model), NutsOptions(4, dtype="float64"))
    chain = make_chain(nuts, DualAveragingAdaptation(0.8), CAPACITY, DIMENSION, "float64")
    backend = get_backend("tensorflow", "xla")
    program = chain.compiled(chain.lane_types(inputs), backend).lowered
    machine = VirtualMachine(program, backend, LANES, STACK_DEPTH, schedule)
    leaves = tf.nest.flatten(inputs)
    return machine, machine.start(leaves)


def within_the_loop(machine: VirtualMachine, state: dict[str, Any]) -> list[str]:
    """The optimized instructions of all computations but the entry, which runs once for a call of the machine."""
    one, none = np.asarray(1), np.asarray(0)
    text = machine._advance.compiled_text(state, one, none)
    lines: list[str] = []
    entry = False
    for line in text.splitlines():
        if line.rstrip().endswith("{") and not line.startswith(" "):
            entry = line.startswith("ENTRY")
        elif not entry and " = " in line:
            lines.append(line)
    assert any(" while(" in line for line in lines), "blocks sit in loops within the loop"
    return lines


@functools.cache
def true_machine() -> tuple[VirtualMachine, dict[str, Any]]:
    """Of the library as it is; made once for all tests."""
    return make_machine("sweep")


@functools.cache
def true_lines() -> list[str]:
    return within_the_loop(*true_machine())


def ops(lines: list[str], kind: str, shape: str) -> int:
    """How many instructions of a kind give an array of that shape."""
    return sum(bool(re.search(rf" = {re.escape(shape)}\S* {kind}\(", line)) for line in lines)


@pytest.mark.parametrize("schedule", ["sweep", pytest.param("drain", marks=pytest.mark.slow)])
def test_the_loop_copies_no_stack_and_no_draws(schedule: str) -> None:
    lines = true_lines() if schedule == "sweep" else within_the_loop(*make_machine(schedule))
    assert ops(lines, "scatter", STACK) >= 5, "five vectors are pushed, each by rows"
    assert not ops(lines, "copy", STACK)
    assert not ops(lines, "select", STACK)
    assert sum(ops(lines, "scatter", shape) for shape in DRAWS) == 1
    assert not any(ops(lines, "copy", shape) for shape in DRAWS)
    # one: the program's first block, which runs once, empties the buffer of the lanes at it
    assert sum(ops(lines, "select", shape) for shape in DRAWS) <= 1


@pytest.mark.slow
def test_a_push_by_selection_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def put_rows(self: Any, memory: Any, rows: Any, values: Any) -> Any:
        here = tf.range(memory.shape[0])[:, None] == rows[None]
        shape = (-1,) + (1,) * (len(memory.shape) - 1)
        new = tf.gather(values, tf.argmax(here, axis=1))
        return tf.where(tf.reshape(tf.reduce_any(here, axis=1), shape), new, memory)

    monkeypatch.setattr(TensorFlowBackend, "put_rows", put_rows)
    assert ops(within_the_loop(*make_machine("earliest")), "select", STACK) >= 5


def test_the_graph_is_small() -> None:
    """Each of its nodes takes Python and XLA a tenth of a millisecond and more. A cipher is traced once for all."""
    machine, state = true_machine()
    graph = machine._advance.graph(state, np.asarray(1), np.asarray(0)).as_graph_def()
    nodes = Counter(node.op for node in graph.node)
    for function in graph.library.function:
        nodes.update(node.op for node in function.node_def)
    assert nodes["PartitionedCall"] >= 5
    assert nodes["BitwiseXor"] <= 50
    assert nodes.total() <= 3600


def test_primitives_are_looked_at_in_bare_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """For costs, and for types where there are no rules: a `tf.function` of each would take three times as long."""
    looked = Counter[str]()

    def noting(place: Any) -> None:
        original = place.trace_of

        def trace_of(function: Any, specs: Any) -> Any:
            looked[place.__name__.rsplit(".", 1)[-1]] += 1
            return original(function, specs)

        monkeypatch.setattr(place, "trace_of", trace_of)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a tf.function is made before the machine is traced")

    random.normal(tf.constant([1, 2], "uint32"))  # the cipher is traced
    noting(backend)
    noting(work_estimate)
    monkeypatch.setattr(tf, "function", refuse)
    make_machine()
    assert 0 < looked["backend"] <= 5, "the density; all else is typed by rules"
    assert looked["work_estimate"] <= 5, "the density, if costs are asked for; all else is counted in expressions"


def ciphers(lines: list[str]) -> float:
    """How many words of random bits are computed: each takes a cipher of 20 rounds, each of these a rotation."""
    return sum(" shift-left(" in line for line in lines) / 20


def test_random_words_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA would compute them again for each array that depends on them: a direction for each vector that it swaps."""
    with_mark = ciphers(true_lines())
    monkeypatch.setattr(tensorflow_library, "_once", lambda words: words)
    without = ciphers(within_the_loop(*make_machine()))
    assert with_mark <= 18
    assert without >= 2 * with_mark
