"""A machine driven step by step from outside: begun, left, looked at, changed, gone on with, and counted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from batchnuts.autobatch import LaneAssertionError, StackOverflowError, batch, get_backend, primitive, write
from batchnuts.autobatch.machine import CostlyRuns, LaneProgram, Machine, ResumableMachine, Tally, use_own_threads


class Sums(NamedTuple):
    total: Any
    rows: Any


@primitive(costly=True)
def square(x: Any) -> Any:
    return x * x


EMPTY = np.zeros((6, 2))


@batch
def squares(x: Any, n: Any) -> Sums:
    """The sum of n squares, x's and those of its successors; each is written to a row."""
    total, rows, i = x - x, EMPTY, 0
    while i < n:
        squared = square(x + i)
        rows, total = write(rows, i, squared), total + squared
        i += 1
    return Sums(total, rows)


ARGUMENTS = (np.array([[1.0, 2.0], [0.0, 5.0], [3.0, 3.0]]), np.array([2, 6, 0]))


def make(backend: str = "numpy", mode: str = "eager", lanes: int = 3, depth: int = 4) -> ResumableMachine:
    return LaneProgram(squares, ARGUMENTS, backend, mode).machine(lanes, depth, ends_early=True)


def sums(machine: Machine, state: Any) -> Sums:
    return Sums(*machine.results(state))


def finished(machine: Machine, state: Any) -> Any:
    while machine.count_live(state):
        state = machine.advance(state, 3)
        machine.check_faults(state)
    return state


@pytest.mark.parametrize(("backend", "mode"), [("numpy", "eager"), ("tensorflow", "xla")])
def test_a_run_in_pieces_gives_what_a_call_gives(backend: str, mode: str) -> None:
    program = LaneProgram(squares, ARGUMENTS, backend, mode)
    machine = program.machine(3, 4, ends_early=True)
    begun = machine.start(ARGUMENTS)
    machine.trace(begun)
    state = finished(machine, begun)
    assert machine.count_live(begun) == 3, "what was given stays as it was"
    assert machine.counts(begun).sweeps == 0 < machine.counts(state).sweeps
    found, expected = program.result(machine, state), squares.run(*ARGUMENTS, backend="numpy")
    assert isinstance(found, Sums)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other)
    assert machine.counts(state).costly.useful == 8
    assert machine.counts(state).costly.executed % machine.lanes == 0


def test_variables_are_read_and_set_by_their_names() -> None:
    machine = make()
    state = machine.start(ARGUMENTS)
    assert machine.read(state, "squares.n").tolist() == [2, 6, 0]
    state = finished(machine, machine.write(state, {"squares.n": np.array([1, 1, 1])}))
    assert sums(machine, state).total.tolist() == [[1.0, 4.0], [0.0, 25.0], [9.0, 9.0]]
    with pytest.raises(KeyError, match="nothing"):
        machine.write(state, {"squares.nothing": np.zeros(3)})


def test_lanes_restart_and_move() -> None:
    machine = make()
    state = machine.start(ARGUMENTS)
    while machine.count_live(state) == 3:
        state = machine.advance(state, 1)
    halted = np.flatnonzero(~machine.live(state))
    assert halted.tolist() == [2]
    others = (np.full((3, 2), 2.0), np.array([1, 1, 1]))
    again = finished(machine, machine.restart(state, halted, others))
    assert sums(machine, again).total.tolist() == [[5.0, 13.0], [55.0, 355.0], [4.0, 4.0]]
    other = machine.start(others)
    moved = finished(machine, machine.move(state, halted, other, np.array([0])))
    assert sums(machine, moved).total.tolist() == sums(machine, again).total.tolist()


def test_what_a_program_says_of_one_lane() -> None:
    program = LaneProgram(squares, ARGUMENTS, "tensorflow", "xla")
    assert program.costly_work == 2, "elements"
    assert LaneProgram(squares, ARGUMENTS, "numpy", "eager").costly_work == 0


def test_what_stackless_counts() -> None:
    tally: Tally = {}
    squares.run(*ARGUMENTS, backend="numpy", executor="stackless", tally=tally)
    program = LaneProgram(squares, ARGUMENTS, "numpy", "eager")
    assert program.costly_runs(tally, 3) == CostlyRuns(useful=8, executed=6 * 3)


def test_faults_are_raised_where_they_are_asked_for() -> None:
    @batch
    def deep(n: Any) -> Any:
        assert n < 100
        return 0 if n == 0 else 1 - deep(n - 1)

    def run(depth: int, n: int) -> Any:
        arguments = (np.array([n]),)
        machine = LaneProgram(deep, arguments, "numpy", "eager").machine(1, 2).with_stack_depth(depth)
        assert machine.stack_depth == depth
        return machine.results(finished(machine, machine.start(arguments)))[0].tolist()

    assert run(8, 5) == [1]
    with pytest.raises(StackOverflowError):
        run(2, 5)
    with pytest.raises(LaneAssertionError):
        run(2, 100)


def test_only_a_compiler_has_a_text() -> None:
    machine = squares.machine(squares.lane_types(ARGUMENTS), 3, get_backend("numpy", "eager"), "auto", 4)
    with pytest.raises(ValueError, match="'numpy' runs in mode 'eager'"):
        machine.compiled_text(machine.start(ARGUMENTS))


def test_a_backend_that_computes_in_the_calling_thread_has_no_threads_to_divide() -> None:
    assert not use_own_threads(2, "numpy")
    with pytest.raises(
        ValueError,
        match=r"one of auto, native, .*jax, tensorflow, numpy, reference, or a Backend object; found 'foo'",
    ):
        use_own_threads(2, "foo")
    with pytest.raises(ValueError, match="shards must be an integer of at least 1, or None; found 0"):
        use_own_threads(0, "jax")
