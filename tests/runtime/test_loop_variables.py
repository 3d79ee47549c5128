"""What the machine's loops carry: only what their blocks change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from programs import Case, covering_by_default, fibonacci

from batchnuts.autobatch import batch
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.backends.tensorflow.backend import TensorFlowBackend
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.runtime.block_code import MachineBlocks
from batchnuts.autobatch.scheduling.policies import make_schedule


@batch
def power(x, n):
    """`x` is never assigned; `n` changes in one block only."""
    result = x
    while n > 1:
        result = result * x
        n -= 1
    return result


@batch
def keeps(n):
    """`kept` is assigned in the first block, saved in the second, and restored in the third."""
    kept = n * n
    if n <= 0:
        return kept
    return keeps(n - 1) - kept


@batch
def keeps_two(n):
    """Both `a` and `b` are saved across the call."""
    a, b = n * n, n * 3
    if n <= 0:
        return a
    return keeps_two(n - 1) - a * b


ALWAYS = {"pc"}
COUNTERS = {"sweeps", "executions", "active"}
"""The sweep's own."""


def touched(function: Any, *types: str) -> dict[str, set[str]]:
    """What each block may change, but for what all of them do."""
    lowered = function.lowered(*types, backend="numpy")
    code = MachineBlocks(lowered, get_backend("numpy", ""), 1, 12, lowered.graph.labels)
    return {label: set(code.entries_changed(label)) - ALWAYS for label in lowered.graph.labels}


def test_each_block_touches_what_it_assigns() -> None:
    assert touched(power, "float64", "int64") == {
        "main.entry": {"value:main.return"},
        "power.body": {"value:main.return", "value:main.n"},
        "power.endwhile": {"height:@"},
    }


def test_a_pop_leaves_the_frames_alone_and_a_push_the_value() -> None:
    found = touched(keeps, "int64")
    stack = {"frames:keeps.kept", "height:keeps.kept"}
    assert found["keeps.endif"] == stack | {"frames:@", "height:@", "fault", "value:main.n"}
    # the frame that the pop uncovers is read at once and by nobody else: it is no value of the state
    assert found["keeps.resume"] == {"height:keeps.kept", "value:main.return", "height:@"}


def test_stacks_that_always_move_together_share_a_height() -> None:
    found = touched(keeps_two, "int64")
    assert found["keeps_two.endif"] >= {"frames:keeps_two.a", "frames:keeps_two.b", "height:keeps_two.a"}
    heights = {name for names in found.values() for name in names if name.startswith("height:")}
    assert heights == {"height:keeps_two.a", "height:@"}
    n = np.arange(6)
    assert keeps_two.run(n, backend="numpy").tolist() == keeps_two.run(n, executor="unbatched").tolist()


def test_a_block_that_only_branches_changes_nothing() -> None:
    assert touched(fibonacci, "int64")["fibonacci.entry"] == set()


@covering_by_default()
def test_no_block_changes_what_it_is_not_said_to_touch(case: Case) -> None:
    """Every block that runs in the corpus, compared with the state before it, value by value."""
    backend = get_backend("numpy", "")
    lowered = case.function.compiled(case.function.lane_types(case.inputs), backend).lowered
    labels = make_schedule(lowered, "earliest").order
    leaves = flatten(case.inputs)[0]
    code = MachineBlocks(lowered, backend, len(leaves[0]), 12, labels)
    state = code.start(dict(zip(lowered.vars_in, leaves, strict=False)))  # a default is zero here
    ran = 0
    while (first := state["pc"].min()) < code.halted:
        label = labels[first]
        before = {name: np.array(array) for name, array in state.items()}
        state = code.blocks[label](state)
        same = {n for n, a in state.items() if np.array_equal(a, before[n], equal_nan=a.dtype.kind == "f")}
        assert state.keys() - same <= set(code.entries_changed(label))
        ran += 1
    assert ran


def test_the_loops_of_tensorflow_carry_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the outer loop nor a block's own has an input that is never assigned among its variables."""
    carried: list[Any] = []
    original = tf.while_loop

    def recording(condition: Any, body: Any, variables: Any, **options: Any) -> Any:
        carried.append(variables)
        return original(condition, body, variables, **options)

    monkeypatch.setattr(tf, "while_loop", recording)
    machine = power.machine((as_type("float64"), as_type("int64")), 3, TensorFlowBackend("graph"), "earliest", 4)
    x, n = np.array([2.0, 3.0, 5.0]), np.array([1, 2, 3])
    state = machine.run((x, n))
    np.testing.assert_array_equal(machine.results(state)[0], x**n)
    np.testing.assert_array_equal(state["value:main.x"], x)
    (outer, _), *inner = carried
    carried_by_all = ALWAYS | COUNTERS | {"value:main.return", "value:main.n", "height:@"}
    assert set(outer) == carried_by_all
    assert [set(names) - ALWAYS for _, names in inner] == [
        {"value:main.return"},
        {"value:main.return", "value:main.n"},
        {"height:@"},
    ]
    assert {"value:main.x", "fault", "frames:@"} == set(state) - carried_by_all


def test_in_the_graph_too_what_is_not_assigned_passes_through() -> None:
    """The While op gives no more outputs that its body computes than there are loop variables."""
    backend = TensorFlowBackend("graph")
    machine = power.machine((as_type("float64"), as_type("int64")), 3, backend, "earliest", 4)
    state = machine.start((np.ones(3), np.ones(3, "int64")))
    limits = [np.asarray(n) for n in (5, 0)]
    graph = machine._advance.graph(state, *limits)
    (loop,) = [op for op in graph.get_operations() if op.type in ("While", "StatelessWhile")]
    body = graph._get_function(loop.get_attr("body").name).graph
    arguments = {id(tensor) for tensor in body.inputs}
    computed = [tensor for tensor in body.outputs if id(tensor) not in arguments]
    # TensorFlow's own counter and its bound, the sweeps taken, the counters, and what some block changes
    assert len(computed) == 3 + len(ALWAYS | COUNTERS | {"value:main.return", "value:main.n", "height:@"})
    assert len(body.outputs) > len(computed)  # what is only read is handed through
