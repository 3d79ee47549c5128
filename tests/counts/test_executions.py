"""How often blocks and primitives run: what batching over call depths is for, in exact numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import fibonacci

from batchnuts.autobatch import PrimOp, batch, primitive
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend

LANES = np.array([3, 7, 4, 5])

active_lanes: list[int] = []
"""Filled by `counted_add`, which NumPy calls once for each execution, with the rows of active lanes."""


@primitive(batched=True)
def counted_add(left, right):
    active_lanes.append(len(left))
    return left + right


@batch
def counted_fibonacci(n):
    if n <= 1:
        return 1
    left = counted_fibonacci(n - 2)
    right = counted_fibonacci(n - 1)
    return counted_add(left, right)


def additions(**options: Any) -> list[int]:
    counted_fibonacci.run(LANES, backend="numpy", **options)  # compiles: type inference calls primitives too
    active_lanes.clear()
    np.testing.assert_array_equal(counted_fibonacci.run(LANES, backend="numpy", **options), [3, 21, 5, 8])
    return list(active_lanes)


def test_stackless_runs_the_addition_once_per_node_of_the_widest_call_tree() -> None:
    counts = additions(executor="stackless")
    assert len(counts) == 20  # inner nodes of fib(7)'s call tree, of which the other lanes' trees are part
    assert sum(counts) == 2 + 20 + 4 + 7


def test_the_virtual_machine_runs_it_at_most_as_often() -> None:
    counts = additions(schedule="earliest")
    assert len(counts) <= 20
    assert sum(counts) == 2 + 20 + 4 + 7


@pytest.mark.parametrize(("backend", "mode"), [("numpy", "eager"), ("tensorflow", "xla")])
def test_the_machines_own_counters(backend: str, mode: str) -> None:
    """`executions` and `active` of the state agree with the counting primitive, on every backend."""
    target = get_backend(backend, mode)
    machine = fibonacci.machine((as_type("int64"),), len(LANES), target, "earliest", 8)
    state = machine.run((LANES,))
    assert machine.is_finished(state)
    np.testing.assert_array_equal(target.to_numpy(machine.results(state)[0]), [3, 21, 5, 8])
    at = {label: i for i, label in enumerate(machine.schedule.order)}
    (adding,) = (
        block.label
        for block in machine.program.graph.blocks
        if any(isinstance(op, PrimOp) and op.function.text == "left + right" for op in block.ops)
    )
    executions, active = (target.to_numpy(state[name]) for name in ("executions", "active"))
    expected = additions(schedule="earliest")
    assert executions[at[adding]] == len(expected)
    assert active[at[adding]] == sum(expected)
    # every call enters the body once: 2 * additions + 1 calls a lane
    assert active[at["fibonacci.entry"]] == 2 * 33 + 4
    assert (active <= executions * len(LANES)).all()


def test_lanes_share_the_addition_across_depths() -> None:
    """Eight lanes of equal depth: as few additions as one lane; lanes out of step: fewer than the sum."""
    machine = fibonacci.machine((as_type("int64"),), 8, get_backend("numpy", ""), "earliest", 8)
    state = machine.run((np.full(8, 6),))
    alone = fibonacci.machine((as_type("int64"),), 1, get_backend("numpy", ""), "earliest", 8)
    single = alone.run({alone.program.vars_in[0]: np.array([6])})
    np.testing.assert_array_equal(state["executions"], single["executions"])
    np.testing.assert_array_equal(state["active"], 8 * single["active"])
