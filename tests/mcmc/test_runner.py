"""How a chain program is driven: slices, stretches, stacks that grow, and counters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from chain_runs import CAPACITY, LANES, assert_same, drive, inputs, make_program, slice_for

from batchnuts.autobatch import StackOverflowError
from batchnuts.mcmc.execution import call_runner
from batchnuts.mcmc.execution.chunk_runner import ChunkRunner, make_runner
from batchnuts.mcmc.execution.runner import Counts
from batchnuts.mcmc.kernel.chain_program import ChainResult
from batchnuts.mcmc.settings.run_settings import ExecutionSettings


@pytest.fixture(scope="module")
def program() -> Any:
    return make_program()


@pytest.fixture(scope="module")
def driven(program: Any) -> Callable[..., Any]:
    """driven(**execution): the last counts and the result, of a run that is made once."""

    @functools.cache
    def last(**execution: Any) -> Any:
        return drive(program, **execution)[1][-1]

    return last


@pytest.fixture(scope="module")
def whole(driven: Callable[..., Any]) -> ChainResult:
    return driven()[1]


def test_the_result_is_the_last_record(whole: ChainResult) -> None:
    np.testing.assert_array_equal(whole.done, np.full(LANES, CAPACITY))
    np.testing.assert_array_equal(whole.position, whole.records.position[:, -1])
    np.testing.assert_array_equal(whole.log_density, whole.records.lp[:, -1])


def test_both_runners_give_the_same(driven: Callable[..., Any], whole: ChainResult) -> None:
    assert_same(driven(executor="stackless")[1], whole)


def test_the_length_of_a_stretch_does_not_matter(
    program: Any, whole: ChainResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_runner, "TRANSITIONS_PER_CALL", 7)
    _, seen = drive(program, executor="stackless")
    assert [counts.transitions for counts, _ in seen] == [7 * LANES, CAPACITY * LANES]
    assert_same(seen[-1][1], whole)


def test_a_run_cut_in_two_gives_the_same(program: Any, whole: ChainResult) -> None:
    """The second half goes on from the first's state, with the number of its first transition."""
    made, seen = drive(program, 5)
    half = seen[-1][1]
    rest = inputs(CAPACITY - 5, first=5)._replace(
        position=half.position, log_density=half.log_density, gradient=half.gradient
    )
    second = list(made.run(rest, CAPACITY - 5))[-1][1]
    np.testing.assert_array_equal(second.position, whole.position)
    np.testing.assert_array_equal(second.records.position[:, : CAPACITY - 5], whole.records.position[:, 5:])


def test_stacks_grow_until_they_suffice(program: Any, driven: Callable[..., Any], whole: ChainResult) -> None:
    """Starting with room for one frame; what the shallow attempts did is not counted twice."""
    made, seen = drive(program, depth=1)
    assert isinstance(made, ChunkRunner)
    assert made.machine.machine.stack_depth >= whole.records.tree_depth.max()
    counts, result = seen[-1]
    assert_same(result, whole)
    assert counts == driven()[0]


def test_stacks_of_a_given_depth_do_not_grow(program: Any) -> None:
    with pytest.raises(StackOverflowError, match=r"holds 2 frames.*larger max_stack_depth, or None"):
        drive(program, max_stack_depth=2)


@pytest.mark.parametrize("execution", [{}, {"schedule": "earliest"}, {"executor": "stackless"}], ids=str)
def test_gradients_are_counted(driven: Callable[..., Any], whole: ChainResult, execution: dict[str, Any]) -> None:
    counts = driven(**execution)[0]
    assert counts.transitions == LANES * CAPACITY
    assert counts.useful_gradients == whole.records.n_steps.sum()
    assert counts.executed_gradients >= counts.useful_gradients
    assert counts.executed_gradients % LANES == 0
    assert counts.divergences == whole.records.diverging.sum()


def test_draining_uses_gradients_better_than_recursion_on_the_host(driven: Callable[..., Any]) -> None:
    """What program-counter autobatching is for: lanes share gradients across depths and transitions."""
    machine, host = (driven(**how)[0].utilization for how in ({}, {"executor": "stackless"}))
    assert 1 >= machine > host > 0.2


def test_a_stretch_that_ends_early_does_not_lengthen_the_slices_of_the_next(program: Any) -> None:
    """Its last slice makes fewer sweeps than it may; Ctrl-C and progress would wait for the next one for minutes."""
    made = make_runner(program, inputs(0), ExecutionSettings(backend="numpy"), 8)
    assert isinstance(made, ChunkRunner)
    made.machine.sweeps_per_second = 5000.0
    list(made.run(inputs(1), 1))
    assert made.machine.sweeps_per_second == 5000.0


def test_counts_add_up() -> None:
    total = Counts(1, 2, 4, 0, 1) + Counts(10, 20, 40, 3, 5)
    assert total == Counts(11, 22, 44, 3, 6)
    assert total.utilization == 0.5
    assert Counts().utilization == 0


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
def test_what_an_interrupted_stretch_leaves(
    program: Any, whole: ChainResult, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slice_for(1e-6, monkeypatch)
    monkeypatch.setattr(call_runner, "TRANSITIONS_PER_CALL", 2)
    made = make_runner(program, inputs(0), ExecutionSettings(backend="numpy", expert={"executor": executor}), 8)
    running = made.run(inputs(CAPACITY), CAPACITY)
    assert running.close() is None
    for counts, _ in running:
        if counts.transitions >= 3 * LANES:
            break
    left = running.close()
    assert left is not None
    assert counts.transitions <= left.result.done.sum() < LANES * CAPACITY
    for lane, done in enumerate(left.result.done):
        np.testing.assert_array_equal(left.result.records.position[lane, :done], whole.records.position[lane, :done])
    assert made.run(inputs(CAPACITY), CAPACITY).close() is None, "an earlier stretch is no part of the next"


@pytest.mark.parametrize("executor", ["virtual_machine", "stackless"])
def test_records_are_there_as_soon_as_all_chains_have_made_them(
    program: Any, whole: ChainResult, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are asked for, one number after another, while chains run on; the rest of the run is as it was."""
    slice_for(1e-6, monkeypatch)
    monkeypatch.setattr(call_runner, "TRANSITIONS_PER_CALL", 2)
    execution = ExecutionSettings(backend="numpy", expert={"executor": executor, "shards": 2}, chunk_lanes=2)
    made = make_runner(program, inputs(0), execution, 8)
    points = [1, 2, 5, CAPACITY]
    running = made.run(inputs(CAPACITY), CAPACITY, wanted=points[0])
    seen, left = [], points.copy()
    for counts, so_far in running:
        result = so_far
        assert counts.complete <= counts.transitions / LANES
        while left and (records := running.records(left[0])) is not None:
            seen.append(left.pop(0))
            for name, array in records._asdict().items():
                np.testing.assert_array_equal(array, getattr(whole.records, name)[:, : seen[-1]], err_msg=name)
    assert seen == points
    assert counts.complete == CAPACITY
    assert_same(result, whole)


def test_what_is_watched_is_brought_while_the_chunk_waits_for_its_turn(
    program: Any, whole: ChainResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that is ahead of the others is not served; its records are fetched all the same."""
    slice_for(1e-6, monkeypatch)
    made = make_runner(program, inputs(0), ExecutionSettings(backend="numpy", chunk_lanes=3, expert={"shards": 1}), 8)
    running = made.run(inputs(CAPACITY), CAPACITY, wanted=1)
    for counts, _ in running:
        transitions = counts.transitions
        if running.records(1) is not None:
            break
    assert transitions < LANES * CAPACITY
    assert running.attempt.host_state.recorded.min() >= 1
    left = running.close()
    for lane, done in enumerate(left.result.done):
        np.testing.assert_array_equal(left.result.records.position[lane, :done], whole.records.position[lane, :done])


def test_a_chunk_with_few_chains_does_not_wait_while_records_are_watched(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chain of four lanes would wait for its partner at once, and all interim analyses for it."""
    slice_for(1e-6, monkeypatch)
    made = make_runner(program, inputs(0), ExecutionSettings(backend="numpy", chunk_lanes=4, expert={"shards": 1}), 8)
    running = made.run(inputs(CAPACITY), CAPACITY, wanted=2)
    for counts, _ in running:
        transitions = counts.transitions
        if running.records(2) is not None:
            break
    running.close()
    assert transitions < 40, "the other four chains would have made 12 each"
