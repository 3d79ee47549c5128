"""Schedules at work: every one gives plain Python's results, none hangs, and each runs the blocks it says it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from examples import examples
from gated_programs import GATED, Gated, majority, uneven, uneven_without_gate
from hypothesis import given
from hypothesis import strategies as st
from programs import Case, collatz, covering_by_default, fibonacci
from ways import rotating

from batchnuts.autobatch import Schedule, Slot
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.backend import SweepPlan
from batchnuts.autobatch.backends.numpy import NumpyBackend
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.engines.sweep import SweepEngine
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.scheduling.dispatch import OnHost, Rule

POLICIES = ("earliest", "most_active", "sweep", "drain")
PLACES = {
    "numpy": {"backend": "numpy"},
    "xla": {"backend": "tensorflow", "mode": "xla"},
    "eager": {"backend": "tensorflow", "mode": "eager"},
    "graph": {"backend": "tensorflow", "mode": "graph"},
}
ON_TENSORFLOW = {f"xla-{policy}": ("xla", policy) for policy in POLICIES} | {
    m: (m, "sweep") for m in ("eager", "graph")
}

every_policy = pytest.mark.parametrize("policy", POLICIES)
every_gated = pytest.mark.parametrize("case", GATED, ids=[case.name for case in GATED])


def assert_like_plain_python(case: Case | Gated, **options: Any) -> None:
    expected = flatten(case.function.run(*case.inputs, executor="unbatched"))[0]
    for found, wanted in zip(flatten(case.function.run(*case.inputs, **options))[0], expected, strict=True):
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))


# ---- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["most_active", "sweep"])
@covering_by_default()
def test_the_corpus_agrees_with_plain_python(case: Case, policy: str) -> None:
    assert_like_plain_python(case, backend="numpy", schedule=policy)


@pytest.mark.parametrize(("policy", "where"), rotating({policy: policy for policy in POLICIES}, PLACES))
def test_recursion_under_every_schedule(policy: str, where: dict[str, str]) -> None:
    n = np.array([3, 7, 4, 5])
    np.testing.assert_array_equal(fibonacci.run(n, schedule=policy, **where), [3, 21, 5, 8])


def assert_ends_like_plain_python(case: Gated, backend: Any, policy: str) -> None:
    """Driven by hand, so that a machine which waits forever fails instead of running forever."""
    types = (as_type("int64"),) * len(case.inputs)
    machine = case.function.machine(types, len(case.inputs[0]), backend, policy, 16)
    state = machine.start(case.inputs)
    state = machine.advance(state, 5000)
    assert machine.is_finished(state)
    expected = case.function.run(*case.inputs, executor="unbatched")
    np.testing.assert_array_equal(backend.to_numpy(machine.results(state)[0]), expected)


@every_policy
@every_gated
def test_gates_do_not_hang_on_numpy(case: Gated, policy: str) -> None:
    assert_ends_like_plain_python(case, get_backend("numpy", ""), policy)


@pytest.mark.parametrize(("case", "how"), rotating({case.name: case for case in GATED}, ON_TENSORFLOW, always=0))
def test_gates_do_not_hang_on_tensorflow(case: Gated, how: tuple[str, str]) -> None:
    mode, policy = how
    assert_ends_like_plain_python(case, get_backend("tensorflow", mode), policy)


@every_gated
def test_gates_keep_the_order_under_stackless(case: Gated) -> None:
    assert_like_plain_python(case, backend="numpy", executor="stackless")


@examples(40)
@given(st.data())
def test_any_schedule_gives_the_results_and_moves_some_lane_in_each_sweep(data: st.DataObject) -> None:
    """Random groups, orders, repeats and gates on a program that has gates of its own."""
    case = data.draw(st.sampled_from(GATED))
    types = ("int64",) * len(case.inputs)
    labels = data.draw(st.permutations(case.function.schedule(*types, backend="numpy").order))
    choose = data.draw(st.sampled_from(["in_turn", "most_active"]))
    gate = st.sampled_from([None, 0.0, 0.3, 0.5, 0.9, 1.0])
    gates = {label: data.draw(gate) for label in labels}
    groups: list[list[Slot]] = [[]]
    for label in labels:
        if groups[-1] and data.draw(st.booleans()):
            groups.append([])
        groups[-1].append(Slot(label, gates[label]))
    if choose == "in_turn":
        groups = [group + [s for s in group if data.draw(st.booleans())] for group in groups]
    schedule = Schedule(groups, choose)
    found, profile = case.function.run(*case.inputs, backend="numpy", schedule=schedule, profile=True)
    np.testing.assert_array_equal(found, case.function.run(*case.inputs, executor="unbatched"))
    (run,) = profile.runs
    assert run.sweeps is not None
    assert run.sweeps <= run.total.executions <= run.total.active
    if choose == "most_active":
        assert run.sweeps == run.total.executions


# ---- what a gate does -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "where"), rotating({policy: policy for policy in POLICIES}, PLACES))
def test_a_full_gate_runs_once_for_all_lanes_that_are_live(policy: str, where: dict[str, str]) -> None:
    """Each time round, the gated block serves all lanes that have not halted, and no more often than the longest."""
    n, k = np.array([5, 0, 2, 7, 6]), np.array([1, 2, 3, 4, 2])
    found, profile = uneven.run(n, k, schedule=policy, profile=True, **where)
    np.testing.assert_array_equal(found, uneven_without_gate.run(n, k, executor="unbatched"))
    gated = profile.blocks()["uneven", "virtual_machine", "uneven.sync"]
    assert (gated.executions, gated.active) == (n.max(), n.sum())


def test_without_the_gate_it_would_run_more_often() -> None:
    n, k = np.array([5, 0, 2, 7, 6]), np.array([1, 2, 3, 4, 2])
    labels = uneven_without_gate.schedule("int64", "int64", backend="numpy", policy="sweep").order
    _, profile = uneven_without_gate.run(n, k, backend="numpy", schedule=Schedule([labels]), profile=True)
    assert after_inner_loop(profile).executions > n.max()


def after_inner_loop(profile: Any) -> Any:
    return profile.blocks()["uneven_without_gate", "virtual_machine", "uneven_without_gate.endwhile.2"]


def test_a_gate_opens_for_the_few_when_the_many_are_gone() -> None:
    """The lanes at the gate of the few go on last, together, when no other lane is live."""
    n = np.array([30, -1, 31, 29, 30, 28, 27, 30, -2, 30])
    _, profile = majority.run(n, backend="numpy", schedule="earliest", profile=True)
    (run,) = profile.runs
    label = {i: block.label for i, block in enumerate(run.blocks)}
    order = [label[b] for b in run.timeline.blocks]
    few = [active for at, active in zip(order, run.timeline.active, strict=True) if at == "majority.sync"]
    assert few == [2]
    assert order.index("majority.sync") < len(order) - 1


def test_a_schedule_of_ones_own_may_set_and_lift_gates() -> None:
    n, k = np.array([5, 0, 2, 7, 6]), np.array([1, 2, 3, 4, 2])
    labels = uneven.schedule("int64", "int64", policy="sweep").order
    lifted = Schedule([[Slot(label, 0.0) for label in labels]])
    _, free = uneven.run(n, k, backend="numpy", schedule=lifted, profile=True)
    assert free.blocks()["uneven", "virtual_machine", "uneven.sync"].executions > n.max()
    labels = uneven_without_gate.schedule("int64", "int64", policy="sweep").order
    closed = Schedule([[Slot(label, 1.0 if label.endswith(".endwhile.2") else None) for label in labels]])
    _, gated = uneven_without_gate.run(n, k, backend="numpy", schedule=closed, profile=True)
    assert after_inner_loop(gated).executions == n.max()


# ---- the rule, by hand ----------------------------------------------------------------------------------------------

GATES = Schedule([["a", Slot("b", 0.5)], [Slot("c", 0.25), "d"]])
OPEN = [
    ([0, 0, 1, 1], "ab", "half of the lanes wait at b, which opens it"),
    ([0, 0, 0, 1], "a", "too few at b"),
    ([4, 4, 0, 1], "ab", "halted lanes do not count: one of two is half"),
    ([1, 2, 2, 4], "c", "c has its share, b has not"),
    ([1, 3, 3, 3], "d", "d needs no share"),
    ([1, 4, 4, 4], "b", "the last live lane"),
    ([4, 4, 4, 4], "", "none is live"),
]
backends = pytest.mark.parametrize("backend", ["numpy", "tensorflow"])


def waiting_at(pc: list[int], blocks: int, backend: str) -> tuple[Any, Any]:
    """How many lanes wait at each block, as that backend has it, and its reductions."""
    counts = np.bincount(np.array(pc), minlength=blocks + 1)
    tensors = get_backend("tensorflow", "eager")
    return (counts, OnHost()) if backend == "numpy" else (tensors.asarray(counts, "int64"), tensors)


@backends
@pytest.mark.parametrize(("pc", "expected", "why"), OPEN, ids=[why for _, _, why in OPEN])
def test_which_gates_are_open(backend: str, pc: list[int], expected: str, why: str) -> None:
    is_open = Rule(GATES, len(pc)).open(*waiting_at(pc, 4, backend))
    assert "".join(label for label, o in zip("abcd", np.asarray(is_open), strict=True) if o) == expected


@backends
@pytest.mark.parametrize(("pc", "expected", "why"), OPEN, ids=[why for _, _, why in OPEN])
def test_earlier_groups_come_first(backend: str, pc: list[int], expected: str, why: str) -> None:
    rule, starts = Rule(GATES, len(pc)), GATES.group_starts
    due = [
        label for i, label in enumerate("abcd") if rule.is_due(i, starts[label], *waiting_at(pc, 4, backend))
    ]  # fmt: skip
    first_group = [label for label in expected if label in "ab"]
    assert due == (first_group or list(expected))


@backends
def test_all_live_lanes_at_closed_gates_opens_them(backend: str) -> None:
    rule = Rule(Schedule([[Slot("a", 0.75), Slot("b", 0.75)], ["c"]]), 4)
    assert np.asarray(rule.open(*waiting_at([0, 0, 1, 1], 3, backend))).tolist() == [True, True, False]


@backends
@pytest.mark.parametrize(
    ("groups", "pc", "expected"),
    [
        ([["a", "b", "c"]], [0, 1, 1, 2], 1),
        ([["a", "b", "c"]], [2, 2, 1, 1], 1),  # ties to the earliest
        ([["a"], ["b", "c"]], [0, 2, 2, 2], 0),  # an earlier group comes first, however few its lanes
        ([["a", Slot("b", 0.9)], ["c"]], [1, 1, 1, 2], 2),  # lanes at a closed gate are not there
        ([["a", "b", "c"]], [3, 3, 3, 3], 3),  # none
    ],
)
def test_the_most_active_block(backend: str, groups: Any, pc: list[int], expected: int) -> None:
    rule = Rule(Schedule(groups, "most_active"), 4)
    assert int(rule.most_active(*waiting_at(pc, 3, backend))) == expected


# ---- which block runs next ------------------------------------------------------------------------------------------


class Watched(NumpyBackend):
    """NumPy's backend that notes the counters before each dispatch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, np.ndarray]] = []

    def sweep(self, plan: SweepPlan, state: Any, budget: Any, leave_at: Any) -> Any:
        def noted(step: Any) -> Any:
            def run(before: Any) -> Any:
                self.seen.append((step.index, before["pc"]))
                return step.run(before)

            return replace(step, run=run)

        return super().sweep(replace(plan, steps=tuple(map(noted, plan.steps))), state, budget, leave_at)


def dispatches(function: Any, n: np.ndarray, policy: str) -> tuple[list[tuple[int, np.ndarray]], int]:
    backend = Watched()
    machine = function.machine((as_type("int64"),), len(n), backend, policy, 16)
    machine.run((n,))
    return backend.seen, machine.halted


@pytest.mark.parametrize("function", [fibonacci, collatz])
def test_earliest_runs_the_earliest_block(function: Any) -> None:
    seen, _ = dispatches(function, np.array([3, 7, 4, 5]), "earliest")
    assert seen
    assert all(ran == pc.min() for ran, pc in seen)


@pytest.mark.parametrize("function", [fibonacci, collatz])
def test_most_active_runs_the_fullest_block(function: Any) -> None:
    seen, halted = dispatches(function, np.array([3, 7, 4, 5]), "most_active")
    assert any(ran != pc.min() for ran, pc in seen)
    for ran, pc in seen:
        assert ran == np.bincount(pc[pc < halted], minlength=halted).argmax()


@pytest.mark.parametrize("policy", ["most_active", "sweep"])
def test_a_run_in_pieces_is_the_run(policy: str) -> None:
    """The view is no part of the state, so a machine may stop between any two sweeps."""
    n, k = np.array([5, 0, 2, 7, 6]), np.array([1, 2, 3, 4, 2])
    target = get_backend("tensorflow", "xla")
    machine = uneven.machine((as_type("int64"),) * 2, len(n), target, policy, 4)
    whole, state = machine.run((n, k)), machine.start((n, k))
    while not machine.is_finished(state):
        state = machine.advance(state, 3)
    for name in whole:
        np.testing.assert_array_equal(target.to_numpy(state[name]), target.to_numpy(whole[name]), err_msg=name)


def test_the_machine_is_kept_for_the_next_run_of_a_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    machine = SweepEngine.machine
    monkeypatch.setattr(SweepEngine, "machine", lambda *a, **k: made.append(1) or machine(*a, **k))
    schedule = Schedule([list(fibonacci.schedule("int64", backend="numpy").order)])
    for _ in range(2):
        fibonacci.run(np.array([3, 4]), backend="numpy", schedule=Schedule(schedule.groups))
    assert len(made) == 1
