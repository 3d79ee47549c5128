"""What is made once: programs for types, machines for lane counts, compiled code for shapes."""

from __future__ import annotations

import gc
import logging
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from batchnuts.autobatch import LaneAssertionError, api, batch
from batchnuts.autobatch.api import KEPT_MACHINES, as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.language import arrays
from batchnuts.autobatch.lru_cache import LruCache
from batchnuts.autobatch.runtime.virtual_machine import FIRST_STACK_DEPTH, VirtualMachine

ints = np.array([3, 7, 4, 5])


@pytest.fixture
def triangle() -> Any:
    @batch
    def triangle(n):
        if n <= 0:
            return n
        return n + triangle(n - 1)

    return triangle


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many programs were compiled and machines were made since the test began."""
    counts = {"programs": 0, "machines": 0}
    compile_function, make_machine = api.compile_function, VirtualMachine.__init__

    def counted_compile(*args: Any, **kwargs: Any) -> Any:
        counts["programs"] += 1
        return compile_function(*args, **kwargs)

    def counted_init(*args: Any, **kwargs: Any) -> None:
        counts["machines"] += 1
        make_machine(*args, **kwargs)

    monkeypatch.setattr(api, "compile_function", counted_compile)
    monkeypatch.setattr(VirtualMachine, "__init__", counted_init)
    return counts


def test_a_second_run_makes_nothing(triangle: Any, made: dict[str, int]) -> None:
    for n in (ints, ints[::-1], ints + 1):
        np.testing.assert_array_equal(triangle.run(n, backend="numpy"), n * (n + 1) // 2)
    assert made == {"programs": 1, "machines": 1}
    triangle.run(ints, backend="numpy", mode="graph")  # NumPy has one mode
    triangle.run(ints, backend="numpy", style="gather")  # what auto is
    triangle.run(ints, backend="numpy", executor="stackless")
    triangle.run(ints, executor="reference")
    triangle.run(ints, executor="unbatched")
    assert made == {"programs": 1, "machines": 1}


def test_what_makes_another_program_or_machine(triangle: Any, made: dict[str, int]) -> None:
    triangle.run(ints, backend="numpy")
    steps = [
        ({"n": ints[:2]}, {"programs": 1, "machines": 2}),  # another number of lanes: a machine
        ({"n": ints, "schedule": "drain"}, {"programs": 1, "machines": 3}),  # another schedule: a machine
        ({"n": ints, "max_stack_depth": 9}, {"programs": 1, "machines": 4}),  # another depth: a machine
        ({"n": ints.astype("int32")}, {"programs": 2, "machines": 5}),  # another type: a program
        ({"n": 3}, {"programs": 3, "machines": 6}),  # a Python number is weak: a program
        ({"n": ints, "style": "masking"}, {"programs": 4, "machines": 7}),  # another backend object
    ]
    for options, expected in steps:
        for _ in range(2):
            triangle.run(options["n"], backend="numpy", **{k: v for k, v in options.items() if k != "n"})
            assert made == expected


def test_a_machine_that_grew_is_kept(made: dict[str, int]) -> None:
    @batch
    def collatz(n):
        """How deep it recurses cannot be computed from n beforehand."""
        if n == 1:
            return 0
        return 1 + collatz(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert FIRST_STACK_DEPTH == 16
    np.testing.assert_array_equal(collatz.run(np.array([1, 27]), backend="numpy"), [0, 111])
    assert made["machines"] == 3  # 16, 64, 256 frames
    collatz.run(np.array([27, 2]), backend="numpy")
    collatz.run(np.array([1, 2]), backend="numpy")
    assert made == {"programs": 1, "machines": 3}


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_a_new_batch_of_the_same_shape_is_not_traced_again(triangle: Any, mode: str) -> None:
    for n in (ints, ints + 1, ints[::-1], ints * 0):
        np.testing.assert_array_equal(triangle.run(n, backend="tensorflow", mode=mode), n * (n + 1) // 2)
    (machine,) = triangle._machines.values()
    assert machine._advance.traces == 1
    state = machine.start((ints,))
    for sweeps in (1, 2, 1000):
        state = machine.advance(state, sweeps)
    assert machine.is_finished(state)
    assert machine._advance.traces == 1


def test_a_primitive_is_traced_no_more_on_a_second_run() -> None:
    """From the user's side: the Python body of a helper does not run again."""
    calls: list[Any] = []

    def helper(x):
        calls.append(x)
        return x + 1

    @batch
    def program(x, n):
        while n > 0:
            x = helper(x)
            n -= 1
        return x

    for options in ({"mode": "xla"}, {"mode": "eager"}, {"mode": "xla", "executor": "stackless"}):
        program.run(np.zeros(4), ints, **options)
        before = len(calls)
        np.testing.assert_array_equal(program.run(np.ones(4), ints[::-1], **options), 1.0 + ints[::-1])
        assert len(calls) == before > 0


def test_a_backend_is_one_object() -> None:
    assert get_backend("numpy", "xla") is get_backend("numpy", "eager", "auto")
    assert get_backend("tensorflow", "xla") is get_backend("tensorflow", "xla", "masking")


def test_machine_gives_a_new_one_each_time(triangle: Any, made: dict[str, int]) -> None:
    """`machine` is for who drives it by hand; only `run` keeps machines."""
    for _ in range(2):
        triangle.machine((as_type("int64"),), 4, get_backend("numpy", ""), "auto", 8)
    assert made == {"programs": 1, "machines": 2}


@pytest.mark.parametrize("options", [{"mode": "eager"}, {"mode": "graph", "executor": "stackless"}], ids=str)
def test_many_blocks_do_not_look_like_one_function_traced_too_often(options: Any) -> None:
    """TensorFlow counts traces by source line, and all blocks' functions come from one; its warning would mislead."""

    @batch
    def program(n):
        a = n + 1
        while a < 3:
            a += 1
        while a < 9:
            a += 2
        while a < 20:
            a += 3
        if a == 20:
            a = a * 2
        elif a == 21:
            a = a + 5
        while a < 40:
            a += 4
        return a

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tensorflow").addHandler(handler)
    try:
        found = program.run(ints, **options)
    finally:
        logging.getLogger("tensorflow").removeHandler(handler)
    np.testing.assert_array_equal(found, program.run(ints, executor="unbatched"))
    assert [message for message in said if "retracing" in message] == []


# ---- how much is kept ------------------------------------------------------------------------------------------------


def test_the_least_recently_used_goes_first() -> None:
    recent = LruCache[str](2)
    recent.put("a", "A")
    recent.put("b", "B")
    assert recent.get("a") == "A"
    recent.put("c", "C")
    assert (list(recent), recent.values(), len(recent)) == (["a", "c"], ["A", "C"], 2)
    assert recent.get("b") is None
    assert recent.put("a", "A2") == "A2"
    assert (list(recent), recent.get("a")) == (["c", "a"], "A2")


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "numpy"},
        {"mode": "graph"},
        pytest.param({"mode": "eager"}, marks=pytest.mark.slow),
        {"mode": "graph", "executor": "stackless"},
    ],
    ids=str,
)
def test_many_lane_counts_keep_a_few_machines(options: Any) -> None:
    """What goes does go: machine, blocks, and the functions that TensorFlow has of them."""

    @batch(machines=2)
    def triangle(n):
        if n <= 0:
            return n
        return n + triangle(n - 1)  # noqa: F821

    seen: list[weakref.ref[Any]] = []
    alive = []
    for lanes in range(1, 5):
        n = np.arange(1, lanes + 1)
        np.testing.assert_array_equal(triangle.run(n, **options), n * (n + 1) // 2)
        if options.get("executor") == "stackless":
            seen += [weakref.ref(block) for block in triangle._block_code.values()[-1].values()]
        else:
            seen.append(weakref.ref(triangle._machines.values()[-1]))
        gc.collect()
        alive.append(sum(one() is not None for one in seen))
    assert alive[1:] == [alive[1]] * 3, alive
    del triangle
    gc.collect()
    assert [one() for one in seen] == [None] * len(seen)


def test_what_xla_compiled_goes_with_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's eager runtime would keep it: so it has none of it, and the sessions that have it end."""
    import tensorflow as tf

    sessions: list[weakref.ref[Any]] = []
    make_session = tf.compat.v1.Session.__init__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        sessions.append(weakref.ref(self))
        make_session(self, *args, **kwargs)

    monkeypatch.setattr(tf.compat.v1.Session, "__init__", noted)

    @batch(machines=1)
    def cubes(n):
        return n * n * n

    for lanes in (1, 2, 3):
        for n in (np.arange(lanes), np.ones(lanes, "int64")):
            np.testing.assert_array_equal(cubes.run(n, backend="tensorflow"), n**3)
        gc.collect()
        assert len(sessions) == lanes
        assert sum(session() is not None for session in sessions) == 1


def test_many_types_keep_a_few_programs(made: dict[str, int]) -> None:
    @batch(machines=2)
    def doubled(x):
        return x + x

    for size in (1, 2, 3, 2, 3, 1):
        np.testing.assert_array_equal(doubled.run(np.ones((2, size)), backend="numpy"), np.full((2, size), 2.0))
    assert made == {"programs": 4, "machines": 4}
    assert (len(doubled._compiled), len(doubled._machines)) == (2, 2)


@pytest.mark.parametrize("machines", [0, -3, True, 1.5, "8"])
def test_how_many_machines_is_a_number(machines: Any) -> None:
    with pytest.raises(ValueError, match="machines must be an integer of at least 1; found"):
        batch(machines=machines)(lambda x: x)


def test_as_many_machines_as_documented(triangle: Any) -> None:
    for lanes in range(1, KEPT_MACHINES + 4):
        triangle.run(np.arange(lanes), backend="numpy")
    assert len(triangle._machines) == KEPT_MACHINES


def test_errors_and_threads_leave_what_is_kept_in_order() -> None:
    @batch(machines=2)
    def checked(n):
        assert n < 50
        while n % 7 != 0:
            n += 1
        return n

    def one(lanes: int) -> None:
        n = np.arange(lanes)
        for _ in range(3):
            np.testing.assert_array_equal(checked.run(n, backend="numpy"), -(-n // 7) * 7)
            with pytest.raises(LaneAssertionError):
                checked.run(n + 50, backend="numpy")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, [1, 2, 3, 4, 1, 2, 3, 4]))
    assert len(checked._machines) == 2


def test_types_of_values_that_are_gone_are_not_all_kept() -> None:
    """A class that a function makes is another one at every call."""
    kinds = [type("Made", (), {}) for _ in range(1000)]
    assert not any(arrays.is_array(kind()) for kind in kinds)
    made = [weakref.ref(kind) for kind in kinds]
    del kinds
    gc.collect()
    assert sum(kind() is not None for kind in made) <= 256
