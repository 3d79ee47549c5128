"""Chains in chunks on threads: how they are divided, that it changes no draw, Ctrl-C, faults, and what is counted."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from chain_runs import CAPACITY, LANES, assert_same, drive, inputs, make_program, slice_for
from mcmc_models import gaussian
from ways import rotating

from batchnuts.autobatch import Schedule, StackOverflowError
from batchnuts.autobatch.machine import LaneProgram
from batchnuts.autobatch.runtime import virtual_machine
from batchnuts.autobatch.runtime.virtual_machine import VirtualMachine
from batchnuts.mcmc.execution import chunk_plan
from batchnuts.mcmc.execution.attempt import Bracket, MergePosition
from batchnuts.mcmc.execution.chain_machine import ChainMachine
from batchnuts.mcmc.execution.chunk import Chunk, HostState
from batchnuts.mcmc.execution.chunk_plan import Chunking, divide
from batchnuts.mcmc.execution.chunk_runner import ChunkRunner, make_runner
from batchnuts.mcmc.kernel.chain_program import ChainInputs, ChainResult
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, split_settings
from batchnuts.mcmc.storage.draws import Arrangement
from batchnuts.mcmc.storage.memory import MemoryStorage

XLA = ExecutionSettings()


@pytest.fixture(scope="module")
def program() -> Any:
    return make_program()


@pytest.fixture(scope="module")
def whole(program: Any) -> ChainResult:
    return drive(program)[1][-1][1]


@pytest.mark.parametrize(
    ("chains", "most", "cores", "expected"),
    [
        (1, 64, 2, Chunking(1, 1, 1)),
        (2, 64, 2, Chunking(2, 1, 2)),
        (4, 64, 2, Chunking(4, 1, 2)),
        (5, 64, 2, Chunking(2, 3, 2)),
        (20, 64, 2, Chunking(2, 10, 2)),
        (100, 64, 2, Chunking(2, 50, 2)),
        (100, 64, 1, Chunking(2, 50, 1)),
        (500, 64, 2, Chunking(8, 63, 2)),
        (500, 128, 2, Chunking(4, 125, 2)),
        (200, 64, 3, Chunking(6, 34, 3)),
        (64, 64, 1, Chunking(1, 64, 1)),
    ],
)
def test_automatic_chunks(chains: int, most: int, cores: int, expected: Chunking) -> None:
    chunking = divide(chains, XLA, most, cores, alone=2)
    assert chunking == expected
    assert 0 <= chunking.chunks * chunking.lanes - chains < chunking.lanes


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"chunk_lanes": 30}, Chunking(4, 30, 2)),
        ({"chunk_lanes": 30, "expert": {"shards": 3}}, Chunking(4, 30, 3)),
        ({"chunk_lanes": 1000}, Chunking(1, 100, 1)),
        ({"expert": {"shards": 1}}, Chunking(2, 50, 1)),
        ({"backend": "numpy"}, Chunking(1, 100, 1)),
        ({"expert": {"mode": "eager"}}, Chunking(1, 100, 1)),
        ({"backend": "numpy", "chunk_lanes": 50}, Chunking(2, 50, 1)),
    ],
)
def test_chunks_asked_for(settings: dict[str, Any], expected: Chunking) -> None:
    assert divide(100, ExecutionSettings(**settings), 64, 2, 4) == expected


@pytest.mark.parametrize(
    ("arrangement", "text"),
    [
        (Arrangement(1, "sweep"), "one chunk of 1 chain, schedule sweep"),
        (Arrangement(30), "one chunk of 30 chains"),
        (Arrangement(64, "drain", 4, 2), "4 chunks of 64 chains on 2 threads, schedule drain"),
        (Arrangement(64, "drain", 4, 1), "4 chunks of 64 chains on 1 thread, schedule drain"),
    ],
)
def test_how_chains_were_served_in_words(arrangement: Arrangement, text: str) -> None:
    assert str(arrangement) == text


def make(program: Any, depth: int = 8, **settings: Any) -> ChunkRunner:
    execution = ExecutionSettings(**{"backend": "numpy", "chunk_lanes": 2, "expert": {"shards": 2}, **settings})
    made = make_runner(program, inputs(0), execution, depth)
    assert isinstance(made, ChunkRunner)
    return made


@pytest.mark.parametrize(("lanes", "shards"), [(2, 1), (2, 2), (3, 2), (1, 5)])
def test_chunks_change_no_draw(program: Any, whole: Any, lanes: int, shards: int) -> None:
    """NumPy computes row by row, so not even rounding differs; five chains fill no whole number of pairs."""
    made = make(program, chunk_lanes=lanes, expert={"shards": shards})
    counts, result = list(made.run(inputs(CAPACITY), CAPACITY))[-1]
    assert result is not None
    assert_same(result, whole)
    assert counts.transitions == LANES * CAPACITY
    assert counts.useful_gradients == whole.records.n_steps.sum()
    assert counts.divergences == whole.records.diverging.sum()
    assert counts.executed_gradients >= counts.useful_gradients


def test_python_goes_on_while_the_machine_is_compiled(
    program: Any, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, advance = threading.Event(), VirtualMachine.advance

    def slow(self: VirtualMachine, state: Any, sweeps: int, leave_at: int = 0) -> Any:
        assert go_on.wait(60)
        return advance(self, state, sweeps, leave_at)

    monkeypatch.setattr(VirtualMachine, "advance", slow)
    made = make(program)
    assert not made.machine.compiled.done()
    go_on.set()
    *_, (_, result) = made.run(inputs(CAPACITY), CAPACITY)
    assert_same(result, whole)
    assert made.machine.compiled.result() is None, "else a state would be kept"


def test_what_goes_wrong_while_compiling_is_raised(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(VirtualMachine, "advance", fail)
    made = make(program)
    for wait in (made.wait_until_compiled, lambda: made.run(inputs(CAPACITY), CAPACITY)):
        with pytest.raises(RuntimeError, match="no such instruction"):
            wait()


def test_lanes_that_fill_up_a_chunk_are_counted_as_executed(program: Any, whole: Any) -> None:
    """One chain in a chunk of its own is useful all the time; with a lane beside it, half the time."""
    alone = make(program, chunk_lanes=1)
    counts = list(alone.run(inputs(CAPACITY), CAPACITY))[-1][0]
    assert counts.utilization == 1.0
    wide = make(program, chunk_lanes=4)  # chunks of four chains and of one, which is left half at once
    both = list(wide.run(inputs(CAPACITY), CAPACITY))[-1][0]
    assert both.executed_gradients % 4 == 0
    assert both.executed_gradients >= 4 * max(whole.records.n_steps.sum(axis=1))


def test_neighbours_merge_and_the_last_of_an_odd_number_waits_for_a_later_round() -> None:
    bracket = Bracket(5, 64)
    place = MergePosition(0, 4)
    seen = []
    while not bracket.is_last(place):
        seen.append((place, bracket.partner(place), bracket.leave_at(place)))
        place = bracket.next(place)
    assert seen == [
        (MergePosition(0, 4), None, 32),
        (MergePosition(1, 2), None, 32),
        (MergePosition(2, 1), MergePosition(2, 0), 32),
    ]
    assert bracket.leave_at(place) == 0
    assert bracket.partner(MergePosition(0, 3)) == MergePosition(0, 2)
    assert bracket.is_last(MergePosition(0, 0)) is False
    assert Bracket(1, 64).is_last(MergePosition(0, 0))


UNEVEN = np.array([1, CAPACITY, 2, 1, CAPACITY])
"""Transitions of each chain: most are soon done."""


def uneven_inputs() -> ChainInputs:
    return inputs(0)._replace(until=UNEVEN.astype("int64"))


@pytest.mark.parametrize("shards", [1, 2])
def test_chunks_that_are_half_done_merge(
    program: Any, whole: Any, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No draw changes, none is lost, and the sweeps of few chains are shared: three chunks come to be one."""
    merged = make(program, chunk_lanes=2, expert={"shards": shards})
    running = merged.run(uneven_inputs(), CAPACITY)
    *_, (counts, result) = running
    assert result is not None
    np.testing.assert_array_equal(result.done, UNEVEN)
    for chain, done in enumerate(UNEVEN):
        for name, array in result.records._asdict().items():
            expected = getattr(whole.records, name)[chain, :done]
            np.testing.assert_array_equal(array[chain, :done], expected, err_msg=name)
        np.testing.assert_array_equal(result.position[chain], whole.records.position[chain, done - 1])
    assert counts.useful_gradients == result.records.n_steps.sum()
    assert counts.transitions == UNEVEN.sum()
    assert list(running.chunks) == [MergePosition(2, 0)]
    (last,) = running.chunks.values()
    assert set(last.occupied()[1]) <= {1, 4}  # in one chunk at the end, which they did not begin in
    monkeypatch.setattr(Bracket, "leave_at", lambda *_: 0)
    apart = list(merged.run(uneven_inputs(), CAPACITY))[-1][0]
    assert apart.useful_gradients == counts.useful_gradients
    assert apart.executed_gradients > 1.2 * counts.executed_gradients


@pytest.mark.parametrize(
    ("division", "rows"),
    rotating({"5-1": (5, 1), "2-2": (2, 2), "3-1": (3, 1)}, {"1": 1, "5": 5}, always=0),
)
def test_buffers_of_few_rows_change_no_draw(whole: Any, division: tuple[int, int], rows: int) -> None:
    """Chains stop when their buffers are full, and go on where they stopped; merged chunks too."""
    lanes, shards = division
    made = make(make_program(rows), chunk_lanes=lanes, expert={"shards": shards})
    counts, result = list(made.run(inputs(CAPACITY), CAPACITY))[-1]
    assert result is not None
    assert made.machine.capacity == rows < CAPACITY
    assert_same(result, whole)
    assert counts.transitions == LANES * CAPACITY
    assert counts.useful_gradients == whole.records.n_steps.sum()
    assert counts.divergences == whole.records.diverging.sum()
    _, uneven = list(made.run(uneven_inputs(), CAPACITY))[-1]
    assert uneven is not None
    np.testing.assert_array_equal(uneven.done, UNEVEN)
    for chain, done in enumerate(UNEVEN):
        for name, array in uneven.records._asdict().items():
            expected = getattr(whole.records, name)[chain, :done]
            np.testing.assert_array_equal(array[chain, :done], expected, err_msg=name)


def test_what_is_carried_when_a_buffer_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of chains that adapt and diverge: the adaptation, and how often they have diverged, which every slice reports."""
    slice_for(1e-6, monkeypatch)
    transitions = 7  # the first chain diverges in the last one, the others before
    stretch = inputs(transitions, step=2.0)._replace(adapting=np.full(LANES, True))
    runner = make_runner(make_program(), stretch, ExecutionSettings(backend="numpy"), 8)
    *_, (_, whole) = runner.run(stretch, transitions)
    assert whole is not None
    program = LaneProgram(make_program(2), stretch, "numpy", "eager")
    machine = ChainMachine(program, stretch, ExecutionSettings(backend="numpy"), 9)
    chunk = Chunk.begin(machine, np.arange(LANES), stretch)
    like = machine.partial_result(chunk.state)
    host_state = HostState(like, LANES, MemoryStorage(like.records, LANES, transitions))
    seen = []
    while not chunk.slice(0, host_state):
        np.testing.assert_array_equal(host_state.ends.divergences, machine.working(chunk.state, "divergences"))
        seen.append(int(host_state.ends.divergences.sum()))
    host_state.take(chunk)
    assert len(set(seen)) > 2
    assert seen == sorted(seen)
    assert host_state.ends.divergences.sum() == whole.records.diverging.sum()
    assert_same(host_state.result, whole, transitions)
    for ours, expected in zip(host_state.ends.adaptation, whole.adaptation):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("order", ["the end first", "the last test twice"])
def test_lanes_about_to_halt_are_not_forgotten(rows: int, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under schedules by which a lane with a full buffer has still to halt when others have the machine left."""

    def late(program: Any, *_: Any) -> Schedule:
        labels = program.graph.labels
        if order == "the end first":
            slots = ["run_chain.endwhile", *(label for label in labels if label != "run_chain.endwhile")]
        else:
            slots = [*labels, "main.resume", "nuts_transition.endwhile"]
        return Schedule([slots], policy="sweep")

    arguments = inputs(4, lanes=16)
    execution = ExecutionSettings(backend="numpy")
    *_, (_, expected) = make_runner(make_program(4), arguments, execution, 8).run(arguments, 4)
    monkeypatch.setattr(virtual_machine, "make_schedule", late)
    *_, (_, result) = make_runner(make_program(rows), arguments, execution, 8).run(arguments, 4)
    assert result is not None
    assert expected is not None
    assert (result.done == 4).all()
    assert_same(result, expected, 4)


def test_lanes_with_full_buffers_do_not_wait_for_the_others() -> None:
    """The machine is left as soon as one lane is full, and all then have room: it needs hardly more sweeps."""
    sweeps = []
    for rows in (CAPACITY, 2):
        made = make(make_program(rows), chunk_lanes=LANES, expert={"shards": 2, "schedule": "sweep"})
        running = made.run(inputs(CAPACITY), CAPACITY)
        list(running)
        (last,) = running.chunks.values()
        sweeps.append(int(last.state["sweeps"]))
    assert sweeps[0] <= sweeps[1] <= 1.15 * sweeps[0]


def test_what_a_run_interrupted_between_full_buffers_leaves(whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slice_for(1e-6, monkeypatch)
    made = make(make_program(4), chunk_lanes=3)
    running = made.run(inputs(CAPACITY), CAPACITY)
    for counts, _ in running:
        if counts.transitions >= 7 * LANES:
            break
    left = running.close()
    assert left is not None
    assert counts.transitions <= left.result.done.sum() <= LANES * CAPACITY
    assert left.result.done.max() > 4, "more than a buffer holds"
    for lane, done in enumerate(left.result.done):
        np.testing.assert_array_equal(left.result.records.position[lane, :done], whole.records.position[lane, :done])


def test_a_second_stretch_starts_from_the_beginning(program: Any, whole: Any) -> None:
    made = make(program)
    list(made.run(inputs(3), 3))
    counts, result = list(made.run(inputs(CAPACITY), CAPACITY))[-1]
    assert result is not None
    assert_same(result, whole)
    assert counts.transitions == LANES * CAPACITY


def test_one_chunk_is_served_by_one_thread(program: Any) -> None:
    made = make_runner(program, inputs(0), ExecutionSettings(backend="numpy"), 8)
    assert made.arrangement == Arrangement(LANES, "drain")
    seen = []
    for _ in made.run(inputs(CAPACITY), CAPACITY):
        seen.append(len(made.workers.started))
    assert set(seen) == {1}


def test_what_an_interrupted_run_leaves(program: Any, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks take turns, so all have come about as far; the threads end; the next run knows nothing of it."""
    slice_for(1e-6, monkeypatch)
    made = make(program)
    running = made.run(inputs(CAPACITY), CAPACITY)
    assert running.close() is None
    for counts, _ in running:
        if counts.transitions >= 3 * LANES:
            break
    left = running.close()
    assert left is not None
    assert not made.workers.started
    assert counts.transitions <= left.result.done.sum() <= LANES * CAPACITY
    assert left.result.done.shape == (LANES,)
    for lane, done in enumerate(left.result.done):
        np.testing.assert_array_equal(left.result.records.position[lane, :done], whole.records.position[lane, :done])
    assert made.run(inputs(CAPACITY), CAPACITY).close() is None


def test_interrupted_before_the_first_slice_ends(program: Any) -> None:
    """A chunk whose turn has not come yet has made no transition, and its buffers are there."""
    made = make(program, chunk_lanes=1, expert={"shards": 1})
    running = made.run(inputs(CAPACITY), CAPACITY)
    next(iter(running))
    left = running.close()
    assert left is not None
    assert left.result.records.position.shape == (LANES, CAPACITY, 2)


def test_it_reports_which_chains_had_their_turn(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One slice of the one thread, and the run is interrupted: only the first chunk has begun."""
    slice_for(1e-6, monkeypatch)
    made = make(program, chunk_lanes=2, expert={"shards": 1})
    as_written = Chunk.slice

    running = made.run(inputs(CAPACITY), CAPACITY)

    def one(self: Chunk, *arguments: Any) -> bool:
        assert running.attempt is not None
        running.attempt.stopping.set()
        return as_written(self, *arguments)

    monkeypatch.setattr(Chunk, "slice", one)
    reports = iter(running)
    while running.attempt is None or not running.attempt.stopping.is_set():  # a report may come before it
        next(reports)
    left = running.close()
    assert left is not None
    np.testing.assert_array_equal(left.begun, [True, True, False, False, False])
    assert (left.result.done[2:] == 0).all()


def test_a_fault_in_a_thread_is_raised_here(program: Any) -> None:
    before = threading.active_count()
    made = make(program, max_stack_depth=2)
    with pytest.raises(StackOverflowError, match=r"holds 2 frames.*larger max_stack_depth, or None"):
        list(made.run(inputs(CAPACITY), CAPACITY))
    assert not made.workers.started
    del made
    gc.collect()
    deadline = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before, "threads go with their runner"


UNDER_WAY = """
from chain_runs import inputs, make_program
from batchnuts.mcmc.execution.chunk_runner import make_runner
from batchnuts.mcmc.settings.run_settings import ExecutionSettings

rows = 10_000
runner = make_runner(make_program(rows), inputs(rows), ExecutionSettings(backend="numpy"), 8)
under_way = iter(runner.run(inputs(rows), rows))
next(under_way)
print("leaving")
"""


def test_a_process_ends_though_a_run_is_under_way() -> None:
    """Hours of transitions are left to make."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", UNDER_WAY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "leaving\n"), done.stderr


def test_stacks_grow_within_a_chunk(program: Any, whole: Any) -> None:
    made = make(program, depth=0)
    _, result = list(made.run(inputs(CAPACITY), CAPACITY))[-1]
    assert result is not None
    assert_same(result, whole)
    assert made.machine.machine.stack_depth > 1


@pytest.mark.parametrize(("backend", "schedule"), [("auto", None), ("tensorflow", "sweep")])
def test_compiled_chunks_on_threads_draw_the_same(
    backend: str, schedule: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under XLA the width of a chunk changes rounding and nothing else; the order of threads does not change a bit, for
    what merges with what depends on the chains alone."""
    if backend == "auto":
        pytest.importorskip("jax")
    settings: dict[str, Any] = {"chains": 14, "warmup": 0, "draws": 8, "step_size": 0.1, "seed": 7, "backend": backend}
    monkeypatch.setattr(chunk_plan, "MIN_ROWS", 3)
    monkeypatch.setattr(chunk_plan, "BUFFER_BYTES", 1)
    runs = []
    for lanes, shards, seconds in ((2, 1, 0.5), (2, 3, 1e-6), (14, 1, 0.5)):
        slice_for(seconds, monkeypatch)
        model = gaussian(3, covariance="ar1", correlation=0.6)  # another each time: nothing is kept of the last one
        runs.append(run_chains(model, *split_settings(settings | {"chunk_lanes": lanes, "expert": {"shards": shards}})))
    one, other, whole = runs
    np.testing.assert_array_equal(other.position, one.position)
    assert (other.useful_gradients, other.utilization) == (one.useful_gradients, one.utilization)
    assert other.arrangement == Arrangement(2, schedule, 7, 3)
    assert whole.arrangement == Arrangement(14, schedule)
    for name in ("n_steps", "tree_depth", "diverging"):
        np.testing.assert_array_equal(one.stats[name], whole.stats[name], err_msg=name)
    np.testing.assert_allclose(one.position, whole.position, rtol=1e-9, atol=1e-9)
    assert one.useful_gradients == whole.useful_gradients == whole.stats["n_steps"].sum()
