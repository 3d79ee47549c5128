"""Blocks with a width: they serve lanes in turn, change no result, starve nobody, and compute no more than that."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gated_programs import GATED, Gated
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Case, covering_by_default, fibonacci

from batchnuts.autobatch import Schedule, Slot, batch, ops, write
from batchnuts.autobatch.api import as_type, get_backend
from batchnuts.autobatch.ir.program import PushOp, reads
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.runtime.compaction import written_in_place

NUMPY = get_backend("numpy", "")
BACKENDS = [("numpy", ""), ("tensorflow", "eager"), ("tensorflow", "graph"), ("tensorflow", "xla")]

everywhere = pytest.mark.parametrize(("backend", "mode"), BACKENDS, ids=["-".join(b) for b in BACKENDS])


@everywhere
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_lanes_in_turn(backend: str, mode: str, data: st.DataObject) -> None:
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=1, max_size=9)))
    after = data.draw(st.integers(0, len(mask) - 1))
    count = data.draw(st.integers(1, len(mask)))
    b = get_backend(backend, mode)
    found = b.to_numpy(b.in_turn(b.asarray(mask, "bool"), b.asarray([after], "int32"), count))
    cycle = [(after + 1 + step) % len(mask) for step in range(len(mask))]
    expected = [lane for lane in cycle if mask[lane]] + [lane for lane in cycle if not mask[lane]]
    assert found.dtype == "int32"
    assert found.tolist() == expected[:count]


@pytest.mark.parametrize("mode", ["eager", "xla"])
def test_many_lanes_in_turn(mode: str) -> None:
    """More than are compared with each other."""
    mask = np.random.default_rng(0).random(1500) < 0.4
    after = np.array([700], "int32")
    b = get_backend("tensorflow", mode)
    found = b.to_numpy(b.in_turn(b.asarray(mask, "bool"), b.asarray(after, "int32"), 800))
    np.testing.assert_array_equal(found, NUMPY.in_turn(mask, after, 800))


# ---- results --------------------------------------------------------------------------------------------------------


def narrow(case: Any, width: float = 0.4, gate: float | None = None) -> Schedule:
    """One group, in which every block has the width."""
    types = case.function.lane_types(case.inputs)
    policy = case.function.machine(types, len(flatten(case.inputs)[0][0]), NUMPY, "earliest", 16).schedule
    return Schedule([[Slot(label, gate, width) for label in policy.order]])


def assert_like_plain_python(case: Any, **options: Any) -> None:
    expected = flatten(case.function.run(*case.inputs, executor="unbatched"))[0]
    for found, wanted in zip(flatten(case.function.run(*case.inputs, **options))[0], expected, strict=True):
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))


@covering_by_default()
def test_the_corpus_agrees_with_plain_python(case: Case) -> None:
    assert_like_plain_python(case, backend="numpy", schedule=narrow(case))


@batch
def squares(n, k):
    """Recursion, a buffer that rows are written into, and one that is read as a whole."""
    kept = np.zeros((4, 2))
    i = 0
    while i < n:
        kept = write(kept, i % 4, ops.stack([i * i + 0.0, k + 0.0]))
        i += 1
    if n > 0:
        kept = kept + squares(n - 1, k) * 0.5
    return kept


SQUARES = Gated(squares, (np.array([3, 0, 5, 1, 4]), np.array([1, 2, 3, 4, 5])))
FIBONACCI = Gated(fibonacci, (np.array([3, 7, 4, 5, 1, 6]),))


@everywhere
@pytest.mark.parametrize("case", [SQUARES, FIBONACCI], ids=["squares", "fibonacci"])
@pytest.mark.parametrize("width", [0.1, 0.6])
def test_a_width_changes_no_result(backend: str, mode: str, case: Gated, width: float) -> None:
    where = {"backend": backend, **({"mode": mode} if mode else {})}
    assert_like_plain_python(case, schedule=narrow(case, width), **where)


def test_in_style_gather() -> None:
    from batchnuts.autobatch.backends.numpy import NumpyBackend

    assert_like_plain_python(SQUARES, backend=NumpyBackend(style="gather"), schedule=narrow(SQUARES))


def test_the_state_given_in_stays_as_it_is() -> None:
    machine = squares.machine(squares.lane_types(SQUARES.inputs), 5, NUMPY, narrow(SQUARES), 16)
    state = machine.start(dict(zip(machine.program.vars_in, SQUARES.inputs, strict=True)))
    for _ in range(30):
        before = {name: array.copy() for name, array in state.items()}
        after = machine.advance(state, 1)
        for name, array in before.items():
            np.testing.assert_array_equal(state[name], array, err_msg=name)
        state = after


def test_buffers_stay_whole_where_rows_are_written_only() -> None:
    blocks = squares.compiled(squares.lane_types(SQUARES.inputs), NUMPY).lowered.graph.blocks
    found = {block.label: written_in_place(block) for block in blocks if written_in_place(block)}
    assert found == {"squares.body": {"squares.kept"}}
    one = next(block for block in blocks if block.label == "squares.body")
    pushed = replace(one, ops=(PushOp("squares.kept"), *one.ops))
    read = replace(one, ops=(*one.ops, *(op for b in blocks for op in b.ops if "squares.kept" in reads(op))))
    assert written_in_place(pushed) == written_in_place(read) == frozenset()


# ---- who is served --------------------------------------------------------------------------------------------------


@batch
def count_down(n):
    while n > 0:
        n -= 1
    return n


def served(schedule: Schedule, n: np.ndarray, sweeps: int) -> list[list[int]]:
    """In each sweep, the lanes that count down."""
    machine = count_down.machine((as_type("int64"),), len(n), NUMPY, schedule, 4)
    state = machine.start({machine.program.vars_in[0]: n})
    seen = []
    for _ in range(sweeps):
        name = f"value:{machine.live_name('count_down.n')}"
        before = state[name]
        state = machine.advance(state, 1)
        seen.append(np.flatnonzero(state[name] < before).tolist())
    return seen


def test_lanes_are_served_in_turn() -> None:
    """Two of five at a time, round and round; the lowest numbers first would starve the others."""
    labels = count_down.schedule("int64", backend="numpy", policy="earliest").order
    body = next(label for label in labels if "body" in label)
    schedule = Schedule([[Slot(label, width=0.4 if label == body else None) for label in labels]])
    assert served(schedule, np.array([9, 9, 9, 9, 9]), 6) == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4], [0, 1]]
    assert served(schedule, np.array([9, 0, 9, 9, 0]), 4) == [[0, 2], [0, 3], [2, 3], [0, 2]]


def test_what_a_dispatch_serves_and_computes_is_counted() -> None:
    labels = count_down.schedule("int64", backend="numpy", policy="earliest").order
    body = next(label for label in labels if "body" in label)
    schedule = Schedule([[Slot(label, width=0.4 if label == body else None) for label in labels]])
    n = np.array([3, 1, 4, 1, 5])
    for backend, mode in BACKENDS:
        _, profile = count_down.run(
            n, schedule=schedule, backend=backend, profile=True, **({"mode": mode} if mode else {})
        )
        count = profile.blocks()["count_down", "virtual_machine", body]
        assert count.active == n.sum()
        assert count.lanes_computed == 2 * count.executions
        assert math.ceil(n.sum() / 2) <= count.executions <= n.sum()


def longest_wait(case: Gated, schedule: Schedule, sweeps: int) -> int:
    """Most sweeps in a row in which nothing of some live lane changed."""
    types = (as_type("int64"),) * len(case.inputs)
    machine = case.function.machine(types, len(case.inputs[0]), NUMPY, schedule, 16)
    state = machine.start(dict(zip(machine.program.vars_in, case.inputs, strict=True)))
    waited = np.zeros(machine.lanes, int)
    longest = 0
    for _ in range(sweeps):
        before = state
        if machine.is_finished(before):
            break
        state = machine.advance(state, 1)
        same = machine.live(before)
        for name, array in state.items():
            if name == "pc" or name.startswith(("value:", "height:")):
                same &= (array == before[name]).reshape(machine.lanes, -1).all(1)
        waited = np.where(same, waited + 1, 0)
        longest = max(longest, int(waited.max()))
    return longest


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_schedule_with_widths_ends_and_starves_nobody(data: st.DataObject) -> None:
    """Within patience times the runs that it takes to serve all lanes, as scheduling/schedule.py says."""
    case = data.draw(st.sampled_from([*GATED, Gated(count_down, (np.array([3, 19, 4, 1, 25]),))]))
    types = ("int64",) * len(case.inputs)
    labels = data.draw(st.permutations(case.function.schedule(*types, backend="numpy", policy="earliest").order))
    patience = data.draw(st.integers(1, 10))
    groups: list[list[Slot]] = [[]]
    for label in labels:
        if groups[-1] and data.draw(st.booleans()):
            groups.append([])
        gate = data.draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
        groups[-1].append(Slot(label, gate, data.draw(st.sampled_from([None, 0.01, 0.3, 0.7]))))
    schedule = Schedule(groups, patience=patience)
    lanes = len(case.inputs[0])
    rounds = max(math.ceil(lanes / (slot.lanes_of(lanes) or lanes)) for slot in schedule.slots)
    assert longest_wait(case, schedule, 400) < patience * rounds
    assert_like_plain_python(case, backend="numpy", schedule=schedule)


@pytest.mark.parametrize("choose", ["in_turn", "most_active"])
def test_the_narrowest_blocks_and_full_gates_do_not_hang(choose: str) -> None:
    for case in GATED:
        schedule = narrow(case, 0.01, 1.0)
        assert {slot.lanes_of(len(case.inputs[0])) for slot in schedule.slots} == {1}
        assert_like_plain_python(case, backend="numpy", schedule=Schedule(schedule.groups, choose))


# ---- schedules ------------------------------------------------------------------------------------------------------


def test_widths_in_lanes() -> None:
    schedule = Schedule([[Slot("a", width=0.25), Slot("b", 0.5, 1.0), Slot("c", width=0.07), "d"]])
    assert [slot.lanes_of(64) for slot in schedule.slots] == [16, None, 5, None]
    assert [slot.lanes_of(100) for slot in schedule.slots] == [25, None, 7, None]
    assert [slot.lanes_of(1) for slot in schedule.slots] == [None] * 4
    assert str(schedule).splitlines()[1] == "  1. a [width 0.25], b [gate 0.5, width 1.0], c [width 0.07], d"


@pytest.mark.parametrize("width", [0, 0.0, -0.1, 1.5, True, "half"])
def test_a_width_is_a_share(width: Any) -> None:
    with pytest.raises(ValueError, match=r"the width of block 'a' is .*, expected a number in \(0, 1\]"):
        Schedule([[Slot("a", width=width)]])


def test_a_block_in_two_slots_of_different_width() -> None:
    """All lanes first, and those that come round again in the same sweep among two of five."""
    labels = count_down.schedule("int64", backend="numpy", policy="earliest").order
    body = next(label for label in labels if "body" in label)
    schedule = Schedule([[*labels, Slot(body, width=0.4)]])
    assert served(schedule, np.array([9, 9, 9, 9, 9]), 2) == [[0, 1, 2, 3, 4]] * 2
    n = np.array([3, 1, 4, 1, 5])
    for backend, mode in BACKENDS:
        where: Any = {"backend": backend, **({"mode": mode} if mode else {})}
        result, profile = count_down.run(n, schedule=schedule, profile=True, **where)
        np.testing.assert_array_equal(result, 0)
        count = profile.blocks()["count_down", "virtual_machine", body]
        assert count.active == n.sum()
        assert count.executions == 6
        assert count.lanes_computed == 3 * 5 + 3 * 2
