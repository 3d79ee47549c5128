"""The model of the policy `sweep`: where lanes go, what a sweep costs them, and what the search finds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from programs import fibonacci
from programs.buffers import quicksort

from batchnuts.autobatch import BatchedFunction, batch
from batchnuts.autobatch.ir.loops import innermost_loops
from batchnuts.autobatch.ir.program import Block, BranchOp, ControlFlowGraph, GotoOp, IndirectGotoOp, PushGotoOp
from batchnuts.autobatch.scheduling import sweep_search
from batchnuts.autobatch.scheduling.lane_flow import STAYS, STAYS_RECURSIVE, LaneFlow, counted_flow, estimated_flow
from batchnuts.autobatch.scheduling.sweep_search import (
    GATE,
    LANES,
    MOST_GATHERED,
    SKIP,
    Sweep,
    best_sweep,
    drain_price,
    forecast,
    sweep_gates,
)


def graph(**edges: str) -> ControlFlowGraph:
    """A graph from each label to where its block goes: two labels branch, none returns."""

    def block(label: str, targets: str) -> Block:
        match targets.split():
            case []:
                return Block(label, (), IndirectGotoOp())
            case [one]:
                return Block(label, (), GotoOp(one))
            case [yes, no]:
                return Block(label, (), BranchOp("c", yes, no))
        raise AssertionError(targets)

    return ControlFlowGraph(tuple(block(label, targets) for label, targets in edges.items()))


LOOPS = graph(start="outer", outer="inner done", inner="inner end", end="outer", done="")
"""A loop within a loop."""


def flow_of(chances: list[list[float]]) -> LaneFlow:
    """A flow with these chances."""
    matrix = np.array(chances)
    values, vectors = np.linalg.eig(matrix.T)
    visits = np.real(vectors[:, np.argmin(abs(values - 1))])
    return LaneFlow(tuple("abcdefgh"[: len(matrix)]), matrix, visits / visits.sum())


@batch
def mostly_straight(n):
    total = 0
    for _ in range(5):
        while n > 0:
            total += n
            n -= 1
        total += 1
    return total


RARE = flow_of([[0.995, 0.005], [1.0, 0.0]])
"""a, and b so seldom that most sweeps find nobody there."""
CYCLE = flow_of([[0.0, 1.0, 0.0], [0.0, 0.75, 0.25], [1.0, 0.0, 0.0]])
"""a, then b four times on average, then c."""


# ---- where lanes go -------------------------------------------------------------------------------------------------


def test_loops_are_found_within_loops() -> None:
    loops = innermost_loops(LOOPS)
    assert loops == {
        "outer": {"outer", "inner", "end"}, "inner": {"inner"}, "end": {"outer", "inner", "end"},
    }  # fmt: skip


def test_lanes_stay_in_loops_and_begin_again() -> None:
    flow = estimated_flow(LOOPS)
    at = {label: i for i, label in enumerate(flow.labels)}
    assert flow.chances[at["inner"], at["inner"]] == pytest.approx(STAYS, rel=1e-5)
    assert flow.chances[at["outer"], at["inner"]] == pytest.approx(STAYS, rel=1e-5)
    assert flow.chances[at["done"], at["start"]] == 1.0
    np.testing.assert_allclose(flow.chances.sum(1), 1.0)
    np.testing.assert_allclose(flow.visits @ flow.chances, flow.visits, atol=1e-9)
    trips = flow.visits[at["inner"]] / flow.visits[at["end"]]
    np.testing.assert_allclose(trips, 1 / (1 - STAYS), rtol=1e-4)


def test_a_lane_stays_on_either_branch_that_stays() -> None:
    flow = estimated_flow(graph(start="test", test="done body", body="test", done=""))
    at = {label: i for i, label in enumerate(flow.labels)}
    assert flow.chances[at["test"], at["body"]] == pytest.approx(STAYS, rel=1e-5)


def test_a_return_goes_where_calls_come_from() -> None:
    """f is called from x always, and from y on every fourth trip or so: its return goes to each as often."""
    blocks = [
        Block("x", (), PushGotoOp("x2", "f"), "main"),
        Block("x2", (), BranchOp("c", "y", "x"), "main"),
        Block("y", (), PushGotoOp("y2", "f"), "main"),
        Block("y2", (), GotoOp("x"), "main"),
        Block("f", (), IndirectGotoOp(), "f"),
    ]
    flow = estimated_flow(ControlFlowGraph(tuple(blocks)))
    visits = dict(zip(flow.labels, flow.visits))
    back = dict(zip(flow.labels, flow.chances[flow.labels.index("f")]))
    np.testing.assert_allclose(back["x2"] / back["y2"], visits["x"] / visits["y"], rtol=1e-4)
    np.testing.assert_allclose(visits["x2"], visits["x"], rtol=1e-4)
    np.testing.assert_allclose(visits["y2"], visits["y"], rtol=1e-4)


def test_a_loop_that_calls_its_own_function_ends_sooner() -> None:
    blocks = [
        Block("main", (), PushGotoOp("end", "f"), "main"),
        Block("end", (), IndirectGotoOp(), "main"),
        Block("f", (), BranchOp("c", "again", "out"), "f"),
        Block("again", (), PushGotoOp("back", "f"), "f"),
        Block("back", (), BranchOp("c", "again", "out"), "f"),
        Block("out", (), IndirectGotoOp(), "f"),
    ]
    flow = estimated_flow(ControlFlowGraph(tuple(blocks)))
    at = {label: i for i, label in enumerate(flow.labels)}
    assert flow.chances[at["f"], at["again"]] == pytest.approx(0.5, rel=1e-5)
    assert flow.chances[at["back"], at["again"]] == pytest.approx(STAYS_RECURSIVE, rel=1e-5)
    np.testing.assert_allclose(flow.visits @ flow.chances, flow.visits, atol=1e-6)


def test_every_block_of_a_program_is_visited() -> None:
    flow = estimated_flow(fibonacci.lowered("int64").graph)
    assert (flow.visits > 0).all()
    np.testing.assert_allclose(flow.visits.sum(), 1.0)


# ---- where lanes went ------------------------------------------------------------------------------------------------


def test_counts_show_where_lanes_went() -> None:
    """A walk at random by known chances, all of them far from the guess; each path can be found from the counts."""
    true = {("start", "outer"): 1.0, ("outer", "inner"): 0.3, ("outer", "done"): 0.7, ("inner", "inner"): 0.05}
    true |= {("inner", "end"): 0.95, ("end", "outer"): 1.0, ("done", "start"): 1.0}
    rng, served = np.random.default_rng(5), dict.fromkeys(LOOPS.labels, 0)
    at = "start"
    for _ in range(100_000):
        served[at] += 1
        ways = [(there, chance) for (here, there), chance in true.items() if here == at]
        at = str(rng.choice([there for there, _ in ways], p=[chance for _, chance in ways]))
    flow = counted_flow(LOOPS, served)
    for (here, there), chance in true.items():
        found = flow.chances[flow.labels.index(here), flow.labels.index(there)]
        np.testing.assert_allclose(found, chance, atol=0.01, err_msg=f"{here} {there}")
    np.testing.assert_allclose(flow.visits, [served[label] / 100_000 for label in flow.labels], rtol=0.01, atol=1e-4)


def test_blocks_that_no_lane_reached_stay_possible() -> None:
    flow = counted_flow(LOOPS, {"start": 10, "outer": 10, "done": 10})
    np.testing.assert_allclose(flow.chances.sum(1), 1.0)
    assert np.isfinite(flow.chances).all()
    price = best_sweep(flow, np.ones(len(flow.labels)))[1]
    assert 0 < price < np.inf


def test_a_schedule_from_a_profile_goes_by_its_counts() -> None:
    """A loop that is hardly ever entered, against the guess: its body waits for company then."""
    n = np.where(np.arange(200) % 50 == 0, 30, 0)
    found, profile = mostly_straight.run(n, backend="numpy", schedule="sweep", profile=True)
    guessed = mostly_straight.schedule("int64", policy="sweep", backend="numpy")
    made = mostly_straight.schedule("int64", policy="sweep", backend="numpy", profile=profile)
    assert set(made.order) == set(guessed.order)
    assert str(made) != str(guessed)
    np.testing.assert_array_equal(mostly_straight.run(n, backend="numpy", schedule=made), found)


def test_a_profile_of_something_else_is_refused() -> None:
    _, other = fibonacci.run(np.array([3, 4]), backend="numpy", profile=True)
    _, stackless = mostly_straight.run(np.array([1, 2]), backend="numpy", executor="stackless", profile=True)
    for profile in (other, stackless):
        with pytest.raises(ValueError, match="no run of 'mostly_straight' on the virtual machine"):
            mostly_straight.schedule("int64", policy="sweep", profile=profile)


# ---- what a sweep costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flow", "slots"), [(CYCLE, (0, 1, 2)), (CYCLE, (0, 1, 1, 2)), (CYCLE, (2, 1, 0, 1, 1)), (RARE, (0, 1))]
)
def test_the_price_is_what_lanes_pay(flow: LaneFlow, slots: tuple[int, ...]) -> None:
    """Beside lanes that walk at random: LANES of them, for 4,000 sweeps."""
    blocks = len(flow.labels)
    costs = np.array([3.0, 1.0, 8.0] if flow is CYCLE else [1.0, 50.0])
    rng = np.random.default_rng(1)
    lanes, moved, spent = np.zeros(LANES, int), 0, 0.0
    for sweep in range(4_100):
        for b in slots:
            here = lanes == b
            if sweep >= 100:
                spent += SKIP + costs[b] * here.any()
                moved += here.sum()
            lanes[here] = rng.choice(blocks, p=flow.chances[b], size=here.sum())
    ((price,), _) = forecast(flow, costs, [Sweep(slots, (1,) * blocks)])
    np.testing.assert_allclose(price / LANES, spent / moved, rtol=0.03)


@pytest.mark.parametrize(("share", "period"), [(0.02, 8), (0.1, 4), (0.02, 16)])
def test_a_gated_block_gathers_as_many_lanes_as_the_model_says(share: float, period: int) -> None:
    """That is its gate. Beside lanes that walk at random, for 4,000 sweeps."""
    flow = flow_of([[1 - share, share], [1.0, 0.0]])
    rng = np.random.default_rng(1)
    lanes, found = np.zeros(LANES, int), []
    for sweep in range(4_000):
        lanes[lanes == 0] = rng.random(np.count_nonzero(lanes == 0)) < share
        if sweep % period == 0:
            found.append(np.count_nonzero(lanes) / LANES)
            lanes[:] = 0
    _, ((_, gathered),) = forecast(flow, np.ones(2), [Sweep((0, 1), (1, period))])
    np.testing.assert_allclose(gathered, np.mean(found[10:]), rtol=0.04)


def test_a_gate_for_nearly_all_lanes_has_no_price() -> None:
    """With larger shares, those who wait no longer come in evenly."""
    flow = flow_of([[0.9, 0.1], [1.0, 0.0]])
    prices, gathered = forecast(flow, np.ones(2), [Sweep((0, 1), (1, 12)), Sweep((0, 1), (1, 16))])
    assert np.isfinite(prices).tolist() == [True, False]
    assert gathered[0, 1] < MOST_GATHERED < gathered[1, 1]


def test_sweeps_are_priced_alike_alone_and_together() -> None:
    costs = np.array([3.0, 1.0, 8.0])
    sweeps = [Sweep((0, 1, 2), (1, 1, 1)), Sweep((0, 1, 1, 2), (1, 1, 4)), Sweep((1, 2, 0, 1, 1), (1, 1, 1))]
    together, _ = forecast(CYCLE, costs, sweeps)
    for sweep, price in zip(sweeps, together):
        np.testing.assert_allclose(forecast(CYCLE, costs, [sweep])[0], price, rtol=1e-12)


def test_cheap_and_frequent_blocks_are_served_more_often() -> None:
    sweep, price, _ = best_sweep(CYCLE, np.array([20.0, 0.5, 20.0]))
    assert sweep.slots.count(1) > 1
    assert sweep.slots.count(0) == sweep.slots.count(2) == 1
    assert price < forecast(CYCLE, np.array([20.0, 0.5, 20.0]), [Sweep((0, 1, 2), (1, 1, 1))])[0][0]


def test_what_is_rare_and_costs_much_waits_for_company() -> None:
    rare = flow_of([[0.98, 0.02], [1.0, 0.0]])
    sweep, _, gathered = best_sweep(rare, np.array([1.0, 50.0]))
    assert sweep.periods[0] == 1 < sweep.periods[1]
    assert 0.02 < gathered[1] <= MOST_GATHERED


def test_expensive_blocks_wait_for_a_third_of_the_lanes_and_rare_ones_for_as_many_as_come() -> None:
    """The last four are expensive: 2 stands twice, 4 and 5 are rare, and 4 finds fewer lanes than the gate."""
    costs = np.array([1.0, 2.0, 2.1, 50.0, 50.0, 50.0])
    sweep = Sweep((0, 1, 2, 3, 4, 5, 0, 2), (1, 4, 1, 1, 8, 8))
    found = sweep_gates(sweep, costs, np.array([0.9, 0.123, 0.2, 0.2, 0.1, 0.512]))
    np.testing.assert_array_equal(found, [0.0, 0.12, GATE, GATE, GATE, 0.51])


def test_where_all_blocks_cost_the_same_none_is_expensive() -> None:
    for blocks in (1, 3):
        sweep = Sweep(tuple(range(blocks)), (1,) * blocks)
        assert not sweep_gates(sweep, np.ones(blocks), np.full(blocks, 0.9)).any()


def test_draining_pays_where_one_block_costs_nearly_all() -> None:
    """The more expensive b is relative to a and c, the better draining compares with the best sweep."""
    ratios = []
    for expensive in (1.0, 10.0, 100.0, 1000.0):
        costs = np.array([1.0, expensive, 1.0])
        branching = flow_of([[0.5, 0.3, 0.2], [0.4, 0.0, 0.6], [0.6, 0.2, 0.2]])
        ratios.append(drain_price(branching, costs, [1]) / best_sweep(branching, costs)[1])
    assert all(more > less for more, less in pairwise(ratios))
    assert ratios[0] > 1 > ratios[-1]


# ---- whatever the program -------------------------------------------------------------------------------------------

TRAPS = {
    "two loops without a way out": graph(start="left right", left="left", right="more", more="right"),
    "the entry in a loop without a way out": graph(start="again", again="start"),
    "a costly block before a loop without a way out": graph(start="costly", costly="spin", spin="spin"),
    "a block that is never reached": graph(start="done", costly="done", done=""),
}


@pytest.mark.parametrize(("program", "types"), [(quicksort, ("int64[16]", "int64", "int64")), (fibonacci, ("int64",))])
def test_rounding_does_not_decide_the_schedule(
    program: BatchedFunction, types: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linear algebra rounds differently on each kind of processor; changes that gain the same are tried in order."""
    expected = program.schedule(*types, policy="sweep", backend="numpy")
    solved = sweep_search._stationary
    for seed in range(4):
        noise = np.random.default_rng(seed)

        def rounded(maps: np.ndarray) -> np.ndarray:
            shares = solved(maps)
            return shares * (1.0 + 1e-14 * noise.normal(size=shares.shape))  # noqa: B023

        monkeypatch.setattr(sweep_search, "_stationary", rounded)
        assert program.schedule(*types, policy="sweep", backend="numpy") == expected


def test_blocks_that_are_visited_equally_often_stand_in_order() -> None:
    visits = np.array([0.1, 0.3 * (1.0 - 1e-15), 0.3, 0.05])
    assert sweep_search._by_frequency(visits) == [1, 2, 0, 3]


@pytest.mark.parametrize("name", TRAPS)
def test_lanes_that_never_end_have_a_sweep_too(name: str) -> None:
    flow = estimated_flow(TRAPS[name])
    np.testing.assert_allclose(flow.visits @ flow.chances, flow.visits, atol=1e-9)
    np.testing.assert_allclose(flow.visits.sum(), 1.0)
    sweep, price, gathered = best_sweep(flow, np.ones(len(flow.labels)))
    assert set(sweep.slots) == set(range(len(flow.labels)))
    assert 0 < price < np.inf
    assert ((gathered >= 0) & (gathered <= 1)).all()


@pytest.mark.parametrize("name", list(TRAPS)[2:])
def test_where_control_never_comes_to_the_costly_block_draining_has_no_price(name: str) -> None:
    flow = estimated_flow(TRAPS[name])
    assert drain_price(flow, np.ones(len(flow.labels)), [flow.labels.index("costly")]) == np.inf


def test_costly_blocks_that_no_lane_comes_to_have_no_price_of_draining() -> None:
    never = LaneFlow(("a", "b"), np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([1.0, 0.0]))
    assert drain_price(never, np.ones(2), [1]) == np.inf


@examples(80)
@given(st.data())
def test_any_graph_has_a_sweep(data: st.DataObject) -> None:
    labels = [f"b{i}" for i in range(data.draw(st.integers(1, 7)))]
    edges = {label: " ".join(data.draw(st.lists(st.sampled_from(labels), max_size=2, unique=True))) for label in labels}
    flow = estimated_flow(graph(**edges))
    costs = np.array([data.draw(st.sampled_from([0.5, 5.0, 500.0])) for _ in labels])
    sweep, price, _ = best_sweep(flow, costs)
    assert set(sweep.slots) == set(range(len(labels)))
    assert 0 < price < np.inf
    assert drain_price(flow, costs, [0]) > 0
