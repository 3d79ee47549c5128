"""Profiles: exact counts for programs small enough to count by hand, and sums that must agree for all others."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gated_programs import uneven
from programs import Case, covering_by_default, declared_primitives, fibonacci, is_even
from ways import rotating

from batchnuts import autobatch
from batchnuts.autobatch import BatchnutsError, LaneInputError, batch
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.profiling import profile as profile_module
from batchnuts.autobatch.profiling.profile import Count, Profile, RunProfile
from batchnuts.autobatch.runtime import virtual_machine

LANES = np.array([3, 7, 4, 5])
FIBONACCI = "fibonacci", "virtual_machine"


@batch
def triangle(n):
    total = 0
    while n > 0:
        total += n
        n -= 1
    return total


START = inspect.getsourcelines(triangle.python_function)[1] + 1
"""The line of `def triangle`."""


@batch
def nested(n):
    """Calls nest one deeper than n has bits; `n` is needed after the inner call, and half of it does not determine
    it."""
    if n == 0:
        return 0
    below = nested(n // 2)
    return n + below


@batch
def deep_then_shallow(n):
    if n <= 0:
        return 1
    deep = deep_then_shallow(n - 1)
    shallow = deep_then_shallow(n - 3)
    return deep + shallow


def profiled(function: Any, *inputs: Any, **options: Any) -> RunProfile:
    (run,) = function.run(*inputs, profile=True, **{"backend": "numpy", **options})[1].runs
    return run


def counts(run: RunProfile) -> dict[str, Count]:
    return {block.label: block.count for block in run.blocks}


# ---- counts by hand -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [{}, {"backend": "tensorflow", "mode": "xla"}, {"executor": "stackless"}], ids=str)
def test_a_loop_counted_by_hand(where: dict[str, str]) -> None:
    """n = 3, 0, 1: the first test for all lanes; the body, with the next test, for 2, 1, 1; the end for all at once."""
    run = profiled(triangle, np.array([3, 0, 1]), schedule="earliest", **where)
    assert counts(run) == {
        "main.entry": Count(1, 3, 3),
        "triangle.body": Count(3, 4, 9),
        "triangle.endwhile": Count(1, 3, 3),
    }
    assert run.total == Count(5, 10, 15)
    assert run.total.utilization == 10 / 15
    names = [block.label.split(".")[1] for block in run.blocks]
    timeline = [(names[b], active) for b, active in zip(run.timeline.blocks, run.timeline.active, strict=True)]
    assert timeline == [("entry", 3), ("body", 2), ("body", 1), ("body", 1), ("endwhile", 3)]


def test_source_lines_counted_by_hand() -> None:
    """Lines from START: def, total = 0, while, total += n, n -= 1, return (a line without an operation)."""
    (_, profile) = triangle.run(np.array([3, 0, 1]), backend="numpy", schedule="earliest", profile=True)
    by_line = {line - START: (file, count) for (file, line), count in profile.lines().items()}
    assert {file for file, _ in by_line.values()} == {__file__}
    assert {line: count for line, (_, count) in by_line.items()} == {
        1: Count(1, 3, 3),
        2: Count(4, 7, 12),
        3: Count(3, 4, 9),
        4: Count(3, 4, 9),
    }


def addition(run: RunProfile) -> Count:
    """Of the block that computes `left + right`, which stands four lines beneath the first."""
    line = inspect.getsourcelines(fibonacci.python_function)[1] + 6
    assert "return left + right" in inspect.getsource(fibonacci.python_function).splitlines()[6]
    (count,) = (b.count for b in run.blocks if any(n == line for _, n in b.lines))
    return count


@pytest.mark.parametrize("schedule", ["earliest", "most_active", "sweep", "drain"])
def test_the_addition_of_fibonacci_under_the_machine(schedule: str) -> None:
    run = profiled(fibonacci, LANES, schedule=schedule)
    assert addition(run).active == 2 + 20 + 4 + 7
    assert addition(run).executions <= (20 if schedule == "earliest" else 33)


def test_the_addition_of_fibonacci_under_stackless() -> None:
    run = profiled(fibonacci, LANES, executor="stackless")
    assert addition(run) == Count(20, 33, 80)
    assert (run.stacks, run.sweeps, run.schedule) == ((), None, None)


@pytest.mark.parametrize(("n", "depth"), [([3, 7, 4], 7), ([1], 1), ([0, 2], 2)])
def test_peaks_are_the_depth_of_the_recursion(n: list[int], depth: int) -> None:
    """fibonacci(7) is entered 7 deep: 7, 6, ..., 1; `left` is saved by all of them but the last. `n` has no stack."""
    run = profiled(fibonacci, np.array(n))
    peaks = {stack.variable: stack.peak for stack in run.stacks}
    assert peaks == {"fibonacci.left": depth - 1, "return addresses": depth}
    assert run.call_depth == depth
    assert profiled(fibonacci, np.array(n), executor="stackless").call_depth == depth


def test_peaks_of_a_linear_recursion() -> None:
    """1, 6 and 4 calls: of 0; 16, 8, 4, 2, 1, 0; and 4, 2, 1, 0. Each pushes its parameter and a return address."""
    run = profiled(nested, np.array([0, 16, 4]))
    assert run.call_depth == 6
    assert {s.variable: (s.pushes, s.pops, s.peak) for s in run.stacks} == {
        "return addresses": (11, 11, 6),
        "nested.n": (11, 11, 6),
    }


def test_a_peak_stays_when_later_calls_are_shallow() -> None:
    run = profiled(deep_then_shallow, np.array([6, 2]))
    assert run.call_depth == 7
    assert {s.variable: s.peak for s in run.stacks}["return addresses"] == 7


def test_costly_primitives() -> None:
    x, n = np.array([[1.0, 2.0], [0.0, 0.5], [-1.0, 1.0]]), np.array([0, 4, 2])
    _, profile = declared_primitives.run(x, n, backend="numpy", profile=True)
    costly = profile.costly()
    assert set(costly) == {"costly_step", "costly_one_lane"}
    (run,) = profile.runs
    for name, count in costly.items():
        blocks = [b for b in run.blocks for primitive in b.costly if primitive == name]
        assert {block.kind for block in blocks} == {"costly"}
        assert count == sum((block.count for block in blocks), Count())


def test_kinds_of_blocks() -> None:
    kinds = {block.label: block.kind for block in profiled(fibonacci, LANES).blocks}
    assert kinds == {
        "main.entry": "call",
        "main.resume": "return",
        "fibonacci.entry": "branch",
        "fibonacci.then": "return",
        "fibonacci.endif": "call",
        "fibonacci.resume": "call",
        "fibonacci.resume.2": "return",
    }
    gated = {block.label: block.kind for block in profiled(uneven, np.array([2]), np.array([2])).blocks}
    assert gated["uneven.sync"] == "gated"
    assert gated["uneven.body.2"] == "branch"
    jumping = {block.label: block.kind for block in profiled(is_even, np.array([2])).blocks}
    assert jumping["is_even.endif"] == "plain"  # a tail call


# ---- sums -----------------------------------------------------------------------------------------------------------


DEPTHS_WITH_TAIL_CALLS = {
    "is_even": (1, 9),  # of 8
    "climb": (6, 7),  # climb(9), climb(7), ..., climb(-1), whose tail call is descend
    "ping": (1, 9),  # ping(12), pong(11), ping(9), ..., pong(2), ping(0); pong's tail calls of pong are a loop
    "tuples_of_functions": (1, 2),  # square, called last by first_of_two
    "calls_in_conditions": (7, 10),  # of 6, 5, ..., 0, which is 7; of 6, ..., 1 and then is_odd(3), ..., is_even(0)
}
"""How deep calls nest on the virtual machine, where a tail call is a jump, and under `stackless`."""


@pytest.mark.parametrize("schedule", ["earliest", "sweep"])
@covering_by_default()
def test_sums_agree_for_the_corpus(case: Case, schedule: str) -> None:
    run = profiled(case.function, *case.inputs, schedule=schedule)
    assert run.timeline.stride == 1
    for i, block in enumerate(run.blocks):
        here = run.timeline.blocks == i
        assert (here.sum(), run.timeline.active[here].sum()) == (block.count.executions, block.count.active)
    for stack in run.stacks:
        assert stack.pushes == stack.pops
        assert (stack.peak > 0) == (stack.pushes > 0)
    on_host = profiled(case.function, *case.inputs, executor="stackless").call_depth
    assert (run.call_depth, on_host) == DEPTHS_WITH_TAIL_CALLS.get(case.name, (run.call_depth, run.call_depth))


def facts(run: RunProfile) -> Any:
    timeline = (run.timeline.blocks.tolist(), run.timeline.active.tolist(), run.timeline.stride)
    return run.blocks, run.stacks, run.sweeps, run.call_depth, timeline


@pytest.mark.parametrize(
    ("schedule", "mode"),
    rotating({s: s for s in ("earliest", "most_active", "sweep")}, {m: m for m in ("eager", "graph", "xla")}, always=0),
)
def test_the_same_on_every_backend(schedule: str, mode: str) -> None:
    inputs = np.array([5, 0, 2, 7, 6]), np.array([1, 2, 3, 4, 2])
    on_numpy = profiled(uneven, *inputs, schedule=schedule)
    assert facts(profiled(uneven, *inputs, schedule=schedule, backend="tensorflow", mode=mode)) == facts(on_numpy)


def test_recursion_is_the_same_under_xla() -> None:
    assert facts(profiled(fibonacci, LANES, backend="tensorflow", mode="xla")) == facts(profiled(fibonacci, LANES))


@covering_by_default()
def test_lanes_that_run_by_themselves_run_the_same_blocks(case: Case) -> None:
    """In machine code: for as many lanes each, with as many frames; but for one lane at a time."""
    pytest.importorskip("llvmlite")
    run, together = (profiled(case.function, *case.inputs, backend=backend) for backend in ("native", "numpy"))
    if {(b.label, b.kind) for b in run.blocks} != {(b.label, b.kind) for b in together.blocks}:
        pytest.skip("compiled to other blocks where whole arrays are computed one by one")
    assert {b.label: b.count.active for b in run.blocks} == {b.label: b.count.active for b in together.blocks}
    assert {s.variable: s for s in run.stacks} == {s.variable: s for s in together.stacks}
    assert run.call_depth == together.call_depth
    for block in run.blocks:
        assert block.count.executions <= block.count.active <= block.count.lanes_computed


def test_what_is_evaluated_for_lanes_that_wait() -> None:
    pytest.importorskip("llvmlite")
    x, n = np.array([[1.0, 2.0], [0.0, 0.5], [-1.0, 1.0]]), np.array([0, 4, 2])
    _, profile = declared_primitives.run(x, n, backend="native", profile=True)
    _, expected = declared_primitives.run(x, n, backend="numpy", profile=True)
    assert {k: v.active for k, v in profile.costly().items()} == {k: v.active for k, v in expected.costly().items()}
    for count in profile.costly().values():
        assert count.executions < count.active or count.active == 1, "for lanes that wait together"
    assert profile.total.active == expected.total.active


# ---- timelines ------------------------------------------------------------------------------------------------------


def test_a_long_run_is_taken_out_of_the_state_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = profiled(fibonacci, LANES, schedule="earliest", max_stack_depth=9)
    monkeypatch.setattr(virtual_machine, "TIMELINE_ROWS", 10)
    pieces = profiled(fibonacci, LANES, schedule="earliest", max_stack_depth=10)
    assert len(pieces.timeline.active) == 143
    assert facts(pieces) == facts(whole)


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
def test_a_timeline_beyond_the_limit_is_thinned_out(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = profiled(fibonacci, LANES, executor=executor)
    monkeypatch.setattr(profile_module, "TIMELINE_LIMIT", 40)
    monkeypatch.setattr(virtual_machine, "TIMELINE_ROWS", 17)
    _, profile = fibonacci.run(LANES, executor=executor, backend="numpy", profile=True, max_stack_depth=11)
    (thin,) = profile.runs
    assert thin.timeline.stride == 4
    assert thin.timeline.active.tolist() == whole.timeline.active[::4].tolist()
    assert thin.timeline.blocks.tolist() == whole.timeline.blocks[::4].tolist()
    assert thin.total == whole.total
    assert "the timeline keeps one dispatch in 4" in str(profile)


# ---- collecting -----------------------------------------------------------------------------------------------------


def test_runs_inside_the_block_are_kept_apart_and_summed() -> None:
    with autobatch.profile() as outer:
        fibonacci.run(LANES, backend="numpy")
        with autobatch.profile() as inner:
            fibonacci.run(LANES[:2], backend="numpy")
            triangle.run(LANES, backend="numpy", executor="stackless")
            triangle.run(LANES, executor="unbatched")
    fibonacci.run(LANES, backend="numpy")
    assert [(run.function, run.lanes) for run in outer.runs] == [("fibonacci", 4), ("fibonacci", 2), ("triangle", 4)]
    assert inner.runs == outer.runs[1:]
    one, two, three = outer.runs
    assert outer.total == one.total + two.total + three.total
    label = "fibonacci.entry"
    assert outer.blocks()[*FIBONACCI, label] == counts(one)[label] + counts(two)[label]
    assert outer.blocks()["triangle", "stackless", "triangle.body"] == counts(three)["triangle.body"]
    stacks = {stack.variable: stack for stack in one.stacks}
    summed = outer.stacks()["fibonacci", "fibonacci.left"]
    assert summed.pushes == sum(s.pushes for r in (one, two) for s in r.stacks if s.variable == "fibonacci.left")
    assert summed.peak == stacks["fibonacci.left"].peak == 6
    (file,) = {file for run in (three,) for block in run.blocks for file, _ in block.lines}
    assert outer.lines()[file, START + 3] == counts(three)["triangle.body"]


def test_a_run_that_fails_is_not_counted() -> None:
    with autobatch.profile() as p, pytest.raises(LaneInputError):
        fibonacci.run(np.zeros((2, 3))[:, 0], np.zeros(3), backend="numpy")
    assert p.runs == []
    assert str(p) == "no run was profiled"


def test_results_are_those_of_an_unprofiled_run() -> None:
    found, profile = fibonacci.run(LANES, backend="numpy", profile=True)
    np.testing.assert_array_equal(found, fibonacci.run(LANES, backend="numpy"))
    assert isinstance(profile, Profile)
    with autobatch.profile():
        np.testing.assert_array_equal(fibonacci.run(LANES, backend="numpy"), found)


def test_without_profiling_the_state_has_nothing_of_it() -> None:
    target = get_backend("numpy", "")
    plain = fibonacci.machine((as_type("int64"),), 4, target, "earliest", 8)
    noting = fibonacci.machine((as_type("int64"),), 4, target, "earliest", 8, profiled=True)
    n = np.arange(4)
    more = noting.start((n,)).keys() - plain.start((n,)).keys()
    assert {name.split(":")[0] for name in more} == {"peak", "timeline"}
    assert not any(name.startswith(("peak", "timeline")) for name in plain.start((n,)))


def test_only_the_last_attempt_counts_when_stacks_grow() -> None:
    n = np.array([3, 2**40, 0])
    grown = profiled(nested, n)
    assert grown.restarts >= 1
    assert grown.stack_depth is not None
    assert grown.stack_depth >= grown.call_depth == 42
    enough = profiled(nested, n, max_stack_depth=grown.stack_depth)
    assert enough.restarts == 0
    assert facts(enough) == facts(grown)


@pytest.mark.parametrize("executor", ["unbatched", "reference"])
def test_what_runs_lane_by_lane_has_no_profile(executor: str) -> None:
    with pytest.raises(ValueError, match=f"profile counts what batching executors run; '{executor}' runs lane by lane"):
        fibonacci.run(LANES, executor=executor, profile=True)


def test_no_lanes() -> None:
    """Nothing runs."""
    found, profile = triangle.run(np.zeros(0, "int64"), backend="numpy", profile=True)
    assert found.shape == (0,)
    assert profile.runs == []
    assert profile.total == Count(0, 0, 0)
    assert profile.total.utilization is None


# ---- what is given out ----------------------------------------------------------------------------------------------


def test_the_table_over_the_source() -> None:
    _, profile = triangle.run(np.array([3, 0, 1]), backend="numpy", schedule="earliest", profile=True)
    lines = str(profile).splitlines()
    assert lines[0].startswith(
        "triangle: 3 lanes, virtual_machine on numpy, earliest: 5 dispatches in 3 sweeps, 66.7 % of lanes active, "
        "calls 0 deep; "
    )
    at = lines.index(__file__) + 2
    source, _ = inspect.getsourcelines(triangle.python_function)
    expected = ["", "1 3 100.0 %", "4 7 58.3 %", "3 4 44.4 %", "3 4 44.4 %", ""]
    for i, (text, numbers) in enumerate(zip(source[1:], expected, strict=True)):
        row = lines[at + i]
        assert row.split()[0] == str(START + i)
        assert row.endswith(text.rstrip("\n"))
        assert " ".join(row.removesuffix(text.rstrip("\n")).split()[1:]) == numbers
    assert [line.split() for line in lines if line.startswith("triangle.body")] == [
        ["triangle.body", "3", "4", "44.4", "%", "branch"]
    ]


def test_json(tmp_path: Path) -> None:
    with autobatch.profile() as profile:
        fibonacci.run(LANES, backend="numpy")
        fibonacci.run(LANES, backend="numpy", executor="stackless")
    path = tmp_path / "profile.json"
    text = profile.to_json(str(path))
    content = json.loads(path.read_text())
    assert content == json.loads(text) == json.loads(profile.to_json())
    assert content["version"] == 1
    machine, host = content["runs"]
    assert (machine["executor"], host["executor"]) == ("virtual_machine", "stackless")
    assert machine["timeline"]["active"] == profile.runs[0].timeline.active.tolist()
    assert [b["label"] for b in machine["blocks"]] == [b.label for b in profile.runs[0].blocks]
    assert machine["executions"] + host["executions"] == content["total"]["executions"] == profile.total.executions
    assert {s["variable"]: s["peak"] for s in machine["stacks"]} == {"fibonacci.left": 6, "return addresses": 7}
    assert {(row["file"], row["line"]): row["active"] for row in content["total"]["lines"]} == {
        line: count.active for line, count in profile.lines().items()
    }
    assert host["sweeps"] is None


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with autobatch.profile() as profile:
        fibonacci.run(LANES, backend="numpy")
        triangle.run(LANES, backend="numpy", executor="stackless")
    path = tmp_path / "active.svg"
    profile.plot(str(path))
    assert path.read_text().startswith("<?xml")
    with pytest.raises(ValueError, match="no run was profiled"):
        Profile().plot(str(path))


def test_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    _, profile = triangle.run(LANES, backend="numpy", profile=True)
    with pytest.raises(BatchnutsError, match=r"pip install 'batchnuts\[plot\]'"):
        profile.plot(str(tmp_path / "active.png"))
