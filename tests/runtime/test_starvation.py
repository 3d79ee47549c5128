"""No live lane waits for long, whatever the others do: programs and schedules made to starve lanes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from examples import examples
from gated_programs import GATED, Gated
from hypothesis import given
from hypothesis import strategies as st

from batchnuts.autobatch import Schedule, Slot, batch, primitive, sync
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.scheduling.policies import GATED_PATIENCE, costly_blocks, make_schedule
from batchnuts.autobatch.scheduling.schedule import PATIENCE

SWEEPS = 2000


@batch
def spin_or_wait(n):
    """Odd lanes go round and round; even ones wait at a gate that opens for all live lanes together."""
    total = 0
    while n > 0:
        if n % 2 == 0:
            sync()
            total += 1
            n -= 2
        else:
            total += 3
            n -= 2
    return total


@batch
def deep_or_shallow(n):
    """Even lanes recurse; odd ones count down in a loop of the caller's, earlier in the program's order."""
    while n % 2 == 1 and n > 1:
        n -= 2
    if n <= 1:
        return n
    return deep_or_shallow(n - 2) + 1


HOSTILE = [
    Gated(spin_or_wait, (np.array([1601, 6, 1801, 8, 1999, 2, 4]),)),
    Gated(deep_or_shallow, (np.array([1601, 6, 1801, 8, 1999, 2, 4]),)),
]


def longest_wait(case: Gated, schedule: str | Schedule, backend: Any, sweeps: int = SWEEPS) -> int:
    """Most sweeps in a row in which some live lane took no step. A block that runs moves all lanes that wait at it."""
    types = (as_type("int64"),) * len(case.inputs)
    machine = case.function.machine(types, len(case.inputs[0]), backend, schedule, 16)
    state = machine.start(case.inputs)
    waited = np.zeros(machine.lanes, int)
    longest = 0
    for _ in range(sweeps):
        before = {name: backend.to_numpy(state[name]) for name in ("pc", "executions")}
        if (before["pc"] == machine.halted).all():
            break
        state = machine.advance(state, 1)
        ran = np.append(backend.to_numpy(state["executions"]) > before["executions"], True)
        waited = np.where(ran[before["pc"]], 0, waited + 1)
        longest = max(longest, int(waited.max()))
    return longest


def all_labels(case: Gated) -> tuple[str, ...]:
    return case.function.schedule(*("int64",) * len(case.inputs), backend="numpy", policy="earliest").order


def hostile_schedules(case: Gated, patience: int | None) -> list[Schedule]:
    """Full gates everywhere but at one block; and each block in a group of its own, in either order."""
    labels = all_labels(case)
    return [
        Schedule([[Slot(label, 1.0) for label in labels[:-1]] + [labels[-1]]], patience=patience),
        Schedule([[label] for label in labels], patience=patience),
        Schedule([[label] for label in reversed(labels)], patience=patience),
    ]


hostile = pytest.mark.parametrize("case", HOSTILE, ids=[case.name for case in HOSTILE])


@hostile
def test_without_patience_lanes_starve(case: Gated) -> None:
    """So that the next tests can fail."""
    numpy = get_backend("numpy", "")
    assert max(longest_wait(case, schedule, numpy) for schedule in hostile_schedules(case, None)) > 500


@pytest.mark.parametrize("patience", [1, pytest.param(7, marks=pytest.mark.slow), 50])
@hostile
def test_every_live_lane_takes_a_step_within_patience(case: Gated, patience: int) -> None:
    numpy = get_backend("numpy", "")
    for schedule in hostile_schedules(case, patience):
        assert longest_wait(case, schedule, numpy) < patience


@pytest.mark.parametrize("mode", [pytest.param("graph", marks=pytest.mark.slow), "xla"])
def test_patience_where_tensorflow_runs_the_sweeps(mode: str) -> None:
    case, there, here = HOSTILE[0], get_backend("tensorflow", mode), get_backend("numpy", "")
    waits = [longest_wait(case, schedule, there, 60) for schedule in hostile_schedules(case, 7)]
    assert waits == [longest_wait(case, schedule, here, 60) for schedule in hostile_schedules(case, 7)]
    assert max(waits) == 6


@examples(25)
@given(st.data())
def test_any_schedule_with_patience_starves_nobody(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from([*GATED, *HOSTILE]))
    labels = data.draw(st.permutations(all_labels(case)))
    patience = data.draw(st.integers(1, 30))
    groups: list[list[Slot]] = [[]]
    for label in labels:
        if groups[-1] and data.draw(st.booleans()):
            groups.append([])
        groups[-1].append(Slot(label, data.draw(st.sampled_from([None, 0.0, 0.5, 1.0]))))
    assert longest_wait(case, Schedule(groups, patience=patience), get_backend("numpy", ""), 300) < patience


@primitive(costly=True)
def heavy(x: Any) -> Any:
    """Stands for what is worth waiting for, so no branch around it becomes a select."""
    return x + 1


@batch
def circle_or_work(n):
    """Lanes with n = 0 go round a cheap loop; the others work, by the remainder of n in one of three places."""
    i, total = 0, 0
    if n == 0:
        while i < 3000:
            i += 1
    while n > 0:
        if n % 3 == 0:
            total = heavy(total)
        elif n % 3 == 1:
            total = 2 * heavy(total)
        else:
            total = 3 * heavy(total)
        n -= 3
    return total


def test_lanes_at_three_gates_do_not_wait_for_many_in_a_loop() -> None:
    case = Gated(circle_or_work, (np.array([0, 0, 0, 39, 40, 41, 42]),))
    program = circle_or_work.lowered("int64", backend="numpy")
    expensive = costly_blocks(program)
    assert len(expensive) == 3
    swept = make_schedule(program, "sweep")
    assert all(swept.gates[label] == Fraction(35, 100) for label in expensive)
    for patience in (GATED_PATIENCE, 7):
        schedule = Schedule(swept.groups, patience=patience)
        assert patience - 3 < longest_wait(case, schedule, get_backend("numpy", "")) < patience
    assert swept.patience == GATED_PATIENCE


def test_patience_changes_no_result() -> None:
    for case in HOSTILE:
        expected = case.function.run(*case.inputs, executor="unbatched")
        for schedule in hostile_schedules(case, 3):
            found = case.function.run(*case.inputs, backend="numpy", schedule=schedule, max_stack_depth=1200)
            np.testing.assert_array_equal(found, expected)


def test_a_run_in_slices_has_its_sweeps_for_all_at_the_same_places() -> None:
    case, schedule, numpy = HOSTILE[0], hostile_schedules(HOSTILE[0], 5)[0], get_backend("numpy", "")
    machine = case.function.machine((as_type("int64"),), len(case.inputs[0]), numpy, schedule, 16)
    start = machine.start(case.inputs)
    sliced = start
    for sweeps in (3, 1, 9, 11):
        sliced = machine.advance(sliced, sweeps)
    whole = machine.advance(start, 24)
    for name in whole:
        np.testing.assert_array_equal(sliced[name], whole[name], err_msg=name)


@pytest.mark.parametrize(("policy", "patience"), [
    ("earliest", None), ("most_active", None), ("sweep", PATIENCE), ("drain", PATIENCE),
])  # fmt: skip
def test_the_patience_of_policies(policy: str, patience: int | None) -> None:
    assert spin_or_wait.schedule("int64", backend="numpy", policy=policy).patience == patience


@pytest.mark.parametrize("patience", [0, -3, 1.5, True, "often"])
def test_patience_is_a_count(patience: Any) -> None:
    with pytest.raises(ValueError, match=r"patience is .*, expected a whole number from 1 on, or None"):
        Schedule([["a"]], patience=patience)


def test_the_most_active_block_has_no_patience() -> None:
    with pytest.raises(ValueError, match="patience is 5, expected None where choose='most_active'"):
        Schedule([["a"]], "most_active", patience=5)
