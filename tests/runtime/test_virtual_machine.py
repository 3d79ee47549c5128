"""Stacks that overflow, writes outside a buffer, values of inactive lanes, and a machine stopped and resumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import fibonacci, is_even, recursion_in_loop
from ways import rotating

from batchnuts.autobatch import BatchnutsError, StackOverflowError, TypeConflictError, batch, ops, write
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.backends.tensorflow.backend import FEW
from batchnuts.autobatch.runtime import machine as runtime_machine
from batchnuts.autobatch.runtime.virtual_machine import FIRST_STACK_DEPTH, VirtualMachine

MODES = [("numpy", "eager"), ("tensorflow", "eager"), ("tensorflow", "graph"), ("tensorflow", "xla")]
WAYS = [
    *({"executor": "virtual_machine", "backend": backend, "mode": mode} for backend, mode in MODES),
    {"executor": "stackless", "backend": "numpy"},
    {"executor": "stackless", "backend": "tensorflow", "mode": "eager"},
    {"executor": "stackless", "backend": "tensorflow", "mode": "xla"},
    {"executor": "reference"},
]

BY_NAME = {"-".join(way.values()): way for way in WAYS}


def slow_if_graph(mode: str) -> Any:
    """In a graph the same loop runs as under XLA."""
    return pytest.mark.slow if mode == "graph" else ()


every_mode = pytest.mark.parametrize(
    ("backend", "mode"), [pytest.param(*pair, marks=slow_if_graph(pair[1])) for pair in MODES]
)
every_way = pytest.mark.parametrize(
    "way", [pytest.param(way, id=name, marks=slow_if_graph(way.get("mode", ""))) for name, way in BY_NAME.items()]
)


# ---- overflow -------------------------------------------------------------------------------------------------------


@every_mode
def test_an_overflow_names_function_variable_lane_and_limit(backend: str, mode: str) -> None:
    with pytest.raises(StackOverflowError) as caught:
        fibonacci.run(np.array([3, 7, 4, 5]), backend=backend, mode=mode, schedule="earliest", max_stack_depth=4)
    message = str(caught.value)
    assert "recursion.py:" in message.split("\n")[0]
    assert "left = fibonacci(n - 2)\n" in message or "right = fibonacci(n - 1)\n" in message
    assert "\nlane 1 recursed too deep in 'fibonacci': " in message
    assert "the stack of variable 'n' holds 4 frames" in message or "return addresses holds 4 frames" in message
    assert "(1 of 4 lanes in all)" in message or "(2 of 4 lanes in all)" in message
    assert "Give a larger max_stack_depth, or None to let the stack grow." in message


@pytest.mark.parametrize("backend", ["numpy", "tensorflow"])
def test_stackless_overflow_names_function_lane_and_limit(backend: str) -> None:
    with pytest.raises(StackOverflowError, match="lane 1 recursed too deep in 'fibonacci': calls may nest 4 deep"):
        fibonacci.run(np.array([3, 7, 4, 5]), executor="stackless", backend=backend, max_stack_depth=4)


def deepest(n: int) -> int:
    """The smallest max_stack_depth with which fibonacci(n) runs."""
    for depth in range(1, 20):
        try:
            fibonacci.run(np.array([n]), backend="numpy", max_stack_depth=depth)
        except StackOverflowError:
            continue
        return depth
    raise AssertionError


@pytest.mark.parametrize(("backend", "mode"), [MODES[0], pytest.param(*MODES[-1], marks=pytest.mark.slow)])
def test_the_limit_is_exact(backend: str, mode: str) -> None:
    """One level of fibonacci more needs one frame more, where arrays are small and where XLA compiles."""
    assert deepest(5) == deepest(4) + 1 == deepest(3) + 2
    enough = deepest(5)
    found = fibonacci.run(np.array([5, 0]), backend=backend, mode=mode, max_stack_depth=enough)
    np.testing.assert_array_equal(found, [8, 1])
    with pytest.raises(StackOverflowError):
        fibonacci.run(np.array([5, 0]), backend=backend, mode=mode, max_stack_depth=enough - 1)


@every_mode
def test_without_a_limit_the_stack_grows(backend: str, mode: str) -> None:
    n = np.array([3, FIRST_STACK_DEPTH + 4, 0])
    np.testing.assert_array_equal(is_even.run(n, backend=backend, mode=mode), [False, True, True])


def test_growing_starts_over_from_the_inputs() -> None:
    """Deeper than two doublings, with other lanes long done."""

    @batch
    def triangle(n):
        if n == 0:
            return 0
        return n + triangle(n - 1)

    n = np.array([1, 5 * FIRST_STACK_DEPTH, 2])
    np.testing.assert_array_equal(triangle.run(n, backend="numpy"), n * (n + 1) // 2)
    np.testing.assert_array_equal(triangle.run(n[:1], backend="numpy"), [1])


def test_an_endless_recursion_ends_in_an_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    @batch
    def endless(n):
        if n < 0:
            return 0
        return endless(n + 1) + 1

    monkeypatch.setattr(runtime_machine, "LARGEST_STACK_DEPTH", 64)
    with pytest.raises(StackOverflowError, match=r"lane 0 recursed too deep in 'endless': .* holds 64 frames"):
        endless.run(np.array([0, -1]), backend="numpy")


# ---- writes ----------------------------------------------------------------------------------------------------------


@batch
def write_at(buffer, index):
    kept = buffer
    kept = write(kept, index, 1.0)  # the write
    return kept


@pytest.mark.parametrize(("outside", "way"), rotating({str(row): row for row in (3, -1, 1000)}, BY_NAME))
def test_a_write_outside_its_buffer_names_lane_and_line(outside: int, way: dict[str, str]) -> None:
    with pytest.raises(BatchnutsError) as caught:
        write_at.run(np.zeros((4, 3)), np.array([0, 2, outside, 1]), **way)
    message = str(caught.value)
    assert "lane 2: wrote outside of " in message
    assert "kept = write(kept, index, 1.0)  # the write" in message
    assert "test_virtual_machine.py:" in message


@every_way
def test_writes_at_the_edges_are_inside(way: dict[str, str]) -> None:
    expected = np.zeros((2, 3))
    expected[0, 0] = expected[1, 2] = 1.0
    np.testing.assert_array_equal(write_at.run(np.zeros((2, 3)), np.array([0, 2]), **way), expected)


def test_plain_python_refuses_the_write_too() -> None:
    with pytest.raises(ValueError, match="write: index 3 is outside the buffer's 3 rows"):
        write_at.run(np.zeros((1, 3)), np.array([3]), executor="unbatched")
    for index in ((0, 1), 0.5):
        with pytest.raises(TypeConflictError, match=r"must be an integer scalar, found .*write x\[i, j\] = value"):
            write(np.zeros((3, 3)), index, 1.0)


@batch
def writes_while_others_wait(n):
    buffer = np.zeros(2)
    i = 0
    while i < n:
        i += 1
        if i < 3:
            buffer = write(buffer, i - 1, float(i))
    return buffer, i


@every_way
def test_a_waiting_lanes_index_is_not_a_fault(way: dict[str, str]) -> None:
    """Lanes that do not write hold indices outside the buffer."""
    buffer, i = writes_while_others_wait.run(np.array([1, 9, 2]), **way)
    np.testing.assert_array_equal(buffer, [[1.0, 0.0], [1.0, 2.0], [1.0, 2.0]])
    np.testing.assert_array_equal(i, [1, 9, 2])


# ---- what inactive lanes have --------------------------------------------------------------------------------------


@batch
def fragile(x, n):
    total = 0.0
    while n > 0:
        if x > 0.0:
            total = total + ops.log(x) / x
        quotient = 12 // n
        n -= 1
        total = total + float(quotient)
    return total


@every_way
def test_values_of_waiting_lanes_reach_no_result(way: dict[str, str]) -> None:
    """A finished lane would divide by zero, a lane past its branch would take log(0)."""
    x, n = np.array([0.0, 2.0, np.inf, 1.0]), np.array([1, 4, 0, 0])
    found = fragile.run(x, n, **way)
    log = np.log(2.0) / 2.0
    np.testing.assert_allclose(found, [12.0, 4 * log + 3 + 4 + 6 + 12, 0.0, 0.0], rtol=1e-14)


# ---- stopping and going on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["earliest", "drain"])
@every_mode
def test_a_run_in_pieces_is_the_run(backend: str, mode: str, schedule: str) -> None:
    target = get_backend(backend, mode)
    n = np.array([4, 2, 5])
    machine = recursion_in_loop.machine((as_type("int64"),), len(n), target, schedule, 8)
    whole = machine.run((n,))
    state = machine.start((n,))
    pieces = 0
    while not machine.is_finished(state):
        state = machine.advance(state, 5)
        pieces += 1
    assert pieces > 3
    assert state.keys() == whole.keys()
    for name in whole:
        np.testing.assert_array_equal(target.to_numpy(state[name]), target.to_numpy(whole[name]), err_msg=name)
    np.testing.assert_array_equal(
        target.to_numpy(machine.results(state)[0]), recursion_in_loop.run(n, executor="unbatched")
    )


@every_mode
def test_the_state_given_in_stays_valid(backend: str, mode: str) -> None:
    """Stacks may be changed in place, but never those of a state that the caller holds."""
    target = get_backend(backend, mode)
    machine = recursion_in_loop.machine((as_type("int64"),), 3, target, "earliest", 8)
    state = machine.advance(machine.start((np.array([4, 2, 5]),)), 7)
    kept = {name: np.array(target.to_numpy(array)) for name, array in state.items()}
    once, again = machine.advance(state, 30), machine.advance(state, 30)
    assert any((target.to_numpy(once[name]) != kept[name]).any() for name in kept if name.startswith("frames:"))
    for name in state:
        np.testing.assert_array_equal(target.to_numpy(state[name]), kept[name], err_msg=name)
        np.testing.assert_array_equal(target.to_numpy(once[name]), target.to_numpy(again[name]), err_msg=name)


@every_mode
def test_a_machine_is_left_when_few_lanes_are_left(backend: str, mode: str) -> None:
    target = get_backend(backend, mode)
    machine = recursion_in_loop.machine((as_type("int64"),), 4, target, "earliest", 8)
    start = machine.start((np.array([1, 6, 2, 5]),))
    for leave_at in (3, 2, 1, 0):
        state = machine.advance(start, 10**6, leave_at)
        assert machine.count_live(state) <= leave_at
        assert machine.count_live(machine.advance(start, int(state["sweeps"]) - 1, leave_at)) > leave_at
        assert int(machine.advance(state, 10, leave_at)["sweeps"]) == int(state["sweeps"])
    assert machine.live(machine.advance(start, 10**6, 1)).tolist() == [False, True, False, False]


@every_mode
def test_lanes_go_on_in_another_state(backend: str, mode: str) -> None:
    """With their frames, wherever they are; lanes that stay are left alone."""
    target = get_backend(backend, mode)
    machine = recursion_in_loop.machine((as_type("int64"),), 4, target, "earliest", 8)

    def started(*n: int) -> Any:
        return machine.advance(machine.start((np.array(n),)), 10**6, 2)

    one, other = started(6, 1, 5, 1), started(1, 1, 4, 7)
    assert machine.live(one).tolist() == [True, False, True, False]
    assert machine.live(other).tolist() == [False, False, True, True]
    moved = machine.move(one, np.array([1, 3]), other, np.array([3, 2]))
    for name in ("sweeps", "executions", "active"):
        np.testing.assert_array_equal(target.to_numpy(moved[name]), target.to_numpy(one[name]))
    expected = recursion_in_loop.run(np.array([6, 7, 5, 4]), executor="unbatched")
    np.testing.assert_array_equal(target.to_numpy(machine.results(machine.advance(moved, 10**6))[0]), expected)
    rest = machine.advance(one, 10**6), machine.advance(other, 10**6)
    np.testing.assert_array_equal(target.to_numpy(machine.results(rest[0])[0])[[0, 2]], expected[[0, 2]])
    np.testing.assert_array_equal(target.to_numpy(machine.results(rest[1])[0])[[3, 2]], expected[[1, 3]])


def test_a_finished_machine_stays_as_it_is() -> None:
    machine = fibonacci.machine((as_type("int64"),), 2, get_backend("numpy", ""), "earliest", 8)
    state = machine.run((np.array([3, 4]),))
    again = machine.advance(state, 10)
    for name in state:
        np.testing.assert_array_equal(again[name], state[name])


def test_a_recursion_that_never_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_machine, "LARGEST_STACK_DEPTH", 64)

    @batch
    def upwards(n):
        if n == 0:
            return 0
        m = upwards(n + 1)
        return m + n

    with pytest.raises(StackOverflowError, match=r"holds 64 frames.*max_stack_depth=128; it may also be infinite"):
        upwards.run(np.array([0, 1]), backend="numpy")


def test_a_deep_recursion_is_not_called_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known is the limit. Stacks reach it in a few steps; where an input gives the depth, it is not a limit."""
    monkeypatch.setattr(runtime_machine, "LARGEST_STACK_DEPTH", 64)
    depths = []
    make_machine = VirtualMachine.__init__

    def noted(self: VirtualMachine, *args: Any, **kwargs: Any) -> None:
        make_machine(self, *args, **kwargs)
        depths.append(self.stack_depth)

    monkeypatch.setattr(VirtualMachine, "__init__", noted)

    @batch
    def steps(n, limit):
        if n >= limit:
            return 0
        return steps(n + 1, limit) + 1

    message = r"lane 1 recursed too deep.* holds 64 frames.* give a larger number, such as max_stack_depth=128"
    with pytest.raises(StackOverflowError, match=message):
        steps.run(np.zeros(2, "int64"), np.array([3, 100]), backend="numpy")
    assert depths == [16, 64]
    found = steps.run(np.zeros(2, "int64"), np.array([3, 100]), backend="numpy", max_stack_depth=101)
    np.testing.assert_array_equal(found, [3, 100])

    @batch
    def down(n):
        return 0 if n <= 0 else down(n - 1) + 1

    depths.clear()
    np.testing.assert_array_equal(down.run(np.array([3, 100]), backend="numpy"), [3, 100])
    assert depths == [128], "the input gives the depth"


# ---- the arrays that a state begins with ----------------------------------------------------------------------------


@every_mode
@pytest.mark.parametrize("shape", [(), (3,), (4, FEW)], ids=["a scalar", "few", "many"])
@pytest.mark.parametrize(("value", "dtype"), [(7, "int32"), (0.5, "float32"), (True, "bool"), (3, "uint32")])
def test_arrays_of_one_value(backend: str, mode: str, shape: tuple[int, ...], value: Any, dtype: str) -> None:
    """However many elements there are, and within a compiled function too."""
    target = get_backend(backend, mode)
    for made in (target.full(shape, value, dtype), target.compile(lambda: target.full(shape, value, dtype))()):
        found = np.asarray(target.to_numpy(made))
        assert (found.shape, found.dtype.name) == (shape, dtype)
        assert (found == value).all()
