"""Schedules as data: what each policy makes, what may be made by hand, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from gated_programs import gated_fibonacci, uneven
from programs import declared_primitives, fibonacci

from batchnuts.autobatch import Schedule, Slot, batch
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.autobatch.scheduling.policies import ending_early, make_schedule

LABELS = tuple(fibonacci.schedule("int64", policy="earliest").order)


# ---- policies -------------------------------------------------------------------------------------------------------


def test_earliest_is_one_group_per_block() -> None:
    schedule = fibonacci.schedule("int64")
    assert schedule.policy == "earliest"
    assert [len(group) for group in schedule.groups] == [1] * len(LABELS)
    assert schedule.order == LABELS


def test_most_active_is_one_group_with_a_choice() -> None:
    schedule = fibonacci.schedule("int64", policy="most_active")
    assert schedule.choose == "most_active"
    assert [[slot.label for slot in group] for group in schedule.groups] == [list(LABELS)]


def test_drain_puts_costly_blocks_after_control() -> None:
    schedule = declared_primitives.schedule("float64[2]", "int64", policy="drain")
    assert schedule.policy == "drain"
    assert declared_primitives.schedule("float64[2]", "int64", backend="numpy").policy == "drain", (
        "its cost is not known"
    )
    groups = [{slot.label for slot in group} for group in schedule.groups]
    assert len(groups) == 3
    assert groups[2] >= {"main.entry"}
    for earlier, later in zip(schedule.order, schedule.order[1:], strict=False):
        assert schedule.group_of[earlier] <= schedule.group_of[later]


def test_lanes_that_have_come_to_their_end_need_not_wait_for_all() -> None:
    """What runs once stands with the control blocks and has a gate; nothing else moves."""
    program = declared_primitives.compiled((as_type("float64[2]"), as_type("int64")), get_backend("numpy", "")).lowered
    drain = make_schedule(program, "drain")
    early = ending_early(program, drain)
    assert early.policy == "drain"
    assert [len(group) for group in early.groups] == [len(drain.groups[0]) + len(drain.groups[2]), len(drain.groups[1])]
    assert early.groups[0][: len(drain.groups[0])] == drain.groups[0]
    assert early.groups[1] == drain.groups[1]
    assert early.gates == {slot.label: Fraction(1, 4) for slot in drain.groups[2]}
    for policy in ("earliest", "most_active"):
        other = make_schedule(program, policy)
        assert ending_early(program, other) is other
    swept = make_schedule(program, "sweep")
    assert ending_early(program, swept) is swept
    assert not set(swept.gates) & {slot.label for slot in drain.groups[2]}, "what runs once waits for nobody"


def test_how_often_the_end_runs() -> None:
    """Not once for each lane: a lane waits there until it is one of a quarter of those that are left."""
    n = np.arange(1, 65)
    backend = get_backend("numpy", "")
    inputs = (np.zeros((len(n), 2)), n)
    counts = {}
    for early in (False, True):
        types = (as_type("float64[2]"), as_type("int64"))
        program = declared_primitives.compiled(types, backend).lowered
        drain = make_schedule(program, "drain")
        machine = VirtualMachine(program, backend, len(n), 4, ending_early(program, drain) if early else drain)
        state = machine.run(inputs)
        ends = [machine.index[slot.label] for slot in drain.groups[2]]
        counts[early] = state["executions"][ends]
        assert (state["active"][ends] == len(n)).all()
    assert counts[False].tolist() == [1] * len(counts[False])
    assert 1 < counts[True].max() <= 1 + 4 * np.log(len(n))


@pytest.mark.parametrize("policy", ["earliest", "most_active", "sweep", "drain"])
def test_every_policy_takes_the_gates_of_the_program(policy: str) -> None:
    schedule = gated_fibonacci.schedule("int64", policy=policy)
    assert schedule.policy == policy
    own = {"gated_fibonacci.sync": Fraction(3, 4), "gated_fibonacci.sync.2": Fraction(1, 2)}
    assert schedule.gates == own


def test_a_sweep_has_each_block_once_and_gates_what_computes() -> None:
    program = fibonacci.lowered("int64", backend="numpy")
    schedule = make_schedule(program, "sweep")
    assert schedule.policy == "sweep"
    (group,) = schedule.groups
    assert sorted(slot.label for slot in group) == sorted(LABELS)
    computing = {"fibonacci.entry", "fibonacci.endif", "fibonacci.resume", "fibonacci.resume.2", "fibonacci.then"}
    assert schedule.gates == dict.fromkeys(computing, Fraction(35, 100))


def test_a_sweep_follows_lanes_through_calls_and_returns() -> None:
    """From each block to what a lane comes to next, so that one sweep takes it far."""
    program = fibonacci.lowered("int64", backend="numpy")
    order = make_schedule(program, "sweep").order
    place = {label: i for i, label in enumerate(order)}
    assert order[0] == "main.entry"
    assert place["fibonacci.entry"] < place["fibonacci.then"] < place["fibonacci.resume"], "from a return to a caller"
    assert order[-1] == "main.resume"


@pytest.mark.parametrize(("work", "policy"), [(None, "drain"), (1.0, "sweep"), (400_001.0, "drain")])
def test_what_costs_much_or_an_unknown_amount_is_waited_for(work: float | None, policy: str) -> None:
    program = declared_primitives.lowered("float64[2]", "int64", backend="numpy")
    assert make_schedule(program, "auto", lambda: work).policy == policy
    assert make_schedule(program, "auto").policy == "drain"
    free = fibonacci.lowered("int64", backend="numpy")
    assert make_schedule(free, "auto", lambda: work).policy == "earliest"


def test_gates_are_the_fractions_that_were_meant() -> None:
    schedule = Schedule([[Slot("a", 0.07), Slot("b", 1 / 3), Slot("c", 1), "d", Slot("e", 0.0)]])
    assert schedule.gates == {"a": Fraction(7, 100), "b": Fraction(1, 3), "c": Fraction(1)}


def test_a_schedule_prints_its_groups() -> None:
    assert str(Schedule([["f.a", Slot("f.b", 0.5), "f.a"], ["f.c"]])) == (
        "custom: each in turn\n  1. f.a, f.b [gate 0.5], f.a\n  2. f.c"
    )
    assert str(uneven.schedule("int64", "int64", policy="most_active")).startswith("most_active: the most active block")


def test_types_may_be_structures() -> None:
    @batch
    def ends(pair):
        return pair[0] + pair[1]

    one = as_type("int64")
    assert ends.schedule((one, one), backend="numpy").order == ("main.entry",)


def test_a_label_stands_for_a_slot() -> None:
    by_label, by_slot = Schedule([["a"]]), Schedule(((Slot("a"),),))
    assert by_label == by_slot
    assert hash(by_label) == hash(by_slot)


def test_group_starts_count_each_block_once() -> None:
    schedule = Schedule([["a", "b", "a"], ["c", "d"]])
    assert schedule.order == ("a", "b", "c", "d")
    assert schedule.group_starts == {"a": 0, "b": 0, "c": 2, "d": 2}


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ([[Slot("a", 1.5)]], {}, r"the gate of block 'a' is 1.5, expected a number in \[0, 1\]"),
        ([[Slot("a", -0.1)]], {}, "the gate of block 'a' is -0.1"),
        ([[Slot("a", float("nan"))]], {}, "the gate of block 'a' is nan"),
        ([[Slot("a", "half")]], {}, "the gate of block 'a' is 'half'"),
        ([["a"], ["b", "a"]], {}, "block 'a' is in two groups"),
        ([["a", Slot("a", 0.5)]], {}, "block 'a' has two different gates"),
        ([["a"], []], {}, "group 2 of the schedule has no blocks"),
        ([[3]], {}, "a schedule consists of labels and Slots; found 3"),
        ([["a"]], {"choose": "random"}, "choose must be one of in_turn, most_active; found 'random'"),
        ([["a", "a"]], {"choose": "most_active"}, "names each block once"),
        (["ab"], {}, r"found 'ab': write \[\['ab'\]\]"),
    ],
)
def test_a_schedule_that_makes_no_sense(groups: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(groups, **options)


def test_a_schedule_must_fit_its_program() -> None:
    @batch
    def plain(n):
        return n + 1

    with pytest.raises(ValueError, match=r"does not have: f\.typo\. The program's blocks are main\.entry\."):
        plain.run([1][0], backend="numpy", schedule=Schedule([["main.entry", "f.typo"]]))
    with pytest.raises(ValueError, match=r"leaves out blocks, whose lanes would wait forever: fibonacci\.entry"):
        fibonacci.run(3, backend="numpy", schedule=Schedule([[x for x in LABELS if x != "fibonacci.entry"]]))
