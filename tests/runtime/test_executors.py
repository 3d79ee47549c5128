"""The corpus on every executor, backend, mode, schedule and style, against plain Python lane by lane.

Integers, booleans, structures and dtypes agree exactly. Floats agree exactly on NumPy, which runs the very same
operations, and to RTOL on TensorFlow and JAX, whose elementary functions and fusions round differently.

The default suite runs every program once: on NumPy, by all executors and in three of the eleven ways, which take turns.
Some covering programs it runs in one way of TensorFlow or JAX that does not compile, and under XLA, in turn too.
Slow tests run every program once on each backend, with executors, modes, schedules and styles in turn; the rest of the
matrix is marked `release`. In both, lanes are permuted, and one runs alone, in a part of the ways.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from programs import (
    BY_NAME,
    CASES,
    COVERING,
    Case,
    costly_one_lane,
    costly_step,
    declared_primitives,
    fibonacci,
    row_sums,
    with_defaults,
)
from ways import ON_JAX, ON_NUMPY, ON_TENSORFLOW, ORACLE, WAYS, Way, left_out

from batchnuts.autobatch.backends.registry import BACKENDS, get_backend
from batchnuts.autobatch.ir.program import PrimOp
from batchnuts.autobatch.language.pytree import flatten, map_leaves

RTOL = {"float32": 2e-6, "float64": 1e-13}

XLA = tuple(way for way in (*ON_TENSORFLOW, *ON_JAX) if way.mode == "xla")
EAGER = tuple(way for way in (*ON_TENSORFLOW, *ON_JAX) if not way.compiles)

each_program = pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
each_backend = pytest.mark.parametrize("backend", BACKENDS)

Selection = list[tuple[Case, Way]]


def ways_in_turn(number: int) -> list[Way]:
    """On NumPy for the program of this number: one way of each executor, the virtual machine's first."""
    machines = [way for way in ON_NUMPY if way.executor == "virtual_machine"]
    others = [way for way in ON_NUMPY if way.executor == "stackless"]
    (reference,) = (way for way in ON_NUMPY if way.executor == "reference")
    return [machines[number % len(machines)], others[number % len(others)], reference]


ON_NUMPY_IN_TURN: Selection = [(case, way) for i, case in enumerate(CASES) for way in ways_in_turn(i)]
EAGER_IN_TURN: Selection = [(case, EAGER[i % len(EAGER)]) for i, case in enumerate(COVERING)]
XLA_IN_TURN: Selection = [(case, XLA[i % len(XLA)]) for i, case in enumerate(COVERING)]


def each(selection: Selection) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("case", "way"), selection, ids=[f"{case.name}-{way}" for case, way in selection])


def lanes_of(inputs: tuple[Any, ...], lanes: Any) -> tuple[Any, ...]:
    return tuple(map_leaves(lambda leaf: leaf[lanes], value) for value in inputs)


def lane_count(case: Case) -> int:
    return len(flatten(case.inputs)[0][0])


@functools.cache
def by_plain_python(name: str) -> Any:
    case = BY_NAME[name]
    return case.function.run(*case.inputs, executor=ORACLE)


def assert_same(found: Any, case: Case, way: Way) -> None:
    found_leaves, found_tree = flatten(found)
    expected_leaves, expected_tree = flatten(by_plain_python(case.name))
    assert found_tree == expected_tree
    dtypes = case.dtypes or tuple(leaf.dtype.name for leaf in expected_leaves)
    assert tuple(leaf.dtype.name for leaf in found_leaves) == dtypes
    for a, b, dtype in zip(found_leaves, expected_leaves, dtypes, strict=True):
        assert a.shape == b.shape
        if way.exact or dtype not in RTOL:
            np.testing.assert_array_equal(a, b.astype(dtype))
        else:
            rtol = case.rtol or RTOL[dtype]
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def run(case: Case, way: Way, inputs: tuple[Any, ...] | None = None) -> Any:
    return case.function.run(*(case.inputs if inputs is None else inputs), **way.options)


def check(case: Case, way: Way) -> None:
    found = run(case, way)
    assert_same(found, case, way)
    check_permuted(found, case, way)


def check_permuted(found: Any, case: Case, way: Way) -> None:
    """The same machine again: permuted lanes give permuted results, bit for bit."""
    order = np.roll(np.arange(lane_count(case)), 1)[::-1]
    permuted = run(case, way, lanes_of(case.inputs, order))
    for a, b in zip(flatten(permuted)[0], flatten(found)[0], strict=True):
        np.testing.assert_array_equal(a, b[order])


def check_alone(together: Any, case: Case, way: Way, lane: int) -> None:
    """A lane alone is the lane in the batch: exactly where floats are, else to rounding."""
    alone = run(case, way, lanes_of(case.inputs, slice(lane, lane + 1)))
    for a, b in zip(flatten(alone)[0], flatten(together)[0], strict=True):
        if way.exact or a.dtype.name not in RTOL:
            np.testing.assert_array_equal(a[0], b[lane])
        else:
            rtol = case.rtol or RTOL[a.dtype.name]
            np.testing.assert_allclose(a[0], b[lane], rtol=rtol, atol=rtol)


@each_program
def test_agrees_with_plain_python(number: int) -> None:
    """One program on NumPy, in several ways; each of its lanes alone as in the batch, on the virtual machine."""
    case, ways = CASES[number], ways_in_turn(number)
    for way in ways:
        check(case, way)
    together = run(case, ways[0])
    for lane in range(lane_count(case)):
        check_alone(together, case, ways[0], lane)


@each(EAGER_IN_TURN + XLA_IN_TURN)
def test_agrees_with_plain_python_on_tensors(case: Case, way: Way) -> None:
    check(case, way)


def in_turn(number: int, backend: str) -> list[Way]:
    """What slow tests run of this backend for the program of this number: one way."""
    ways = [way for way in WAYS if way.backend == backend]
    return [ways[number % len(ways)]]


def in_all_other_ways(number: int, backend: str) -> list[Way]:
    """What is left of the matrix."""
    return [way for way in WAYS if way.backend == backend and way not in in_turn(number, backend)]


def alone_too(number: int, ways: list[Way]) -> list[Way]:
    """Every fourth of them, which take turns in other steps than schedules do."""
    return [way for i, way in enumerate(ways) if (i + number // 8) % 4 == 0]


def check_everything(number: int, ways: list[Way]) -> None:
    """Permuted where that is cheap, and the last lane alone in some ways."""
    case = CASES[number]
    for way in ways:
        print(way)
        found = run(case, way)
        assert_same(found, case, way)
        if way not in EAGER:  # each run is as expensive as the first
            check_permuted(found, case, way)
        if way in alone_too(number, ways):
            check_alone(found, case, way, lane_count(case) - 1)


@pytest.mark.slow
@each_backend
@each_program
def test_agrees_with_plain_python_on_each_backend(number: int, backend: str) -> None:
    check_everything(number, in_turn(number, backend))


@pytest.mark.release
@each_backend
@each_program
def test_agrees_with_plain_python_in_all_other_ways(number: int, backend: str) -> None:
    check_everything(number, in_all_other_ways(number, backend))


@each([(BY_NAME["declared_primitives"], way) for way in EAGER])
def test_a_lane_alone_is_the_lane_in_the_batch_on_tensors(case: Case, way: Way) -> None:
    check_alone(run(case, way), case, way, 1)


def test_the_table_of_ways_leaves_nothing_out() -> None:
    assert left_out() == set()


def test_slow_tests_and_the_rest_are_the_matrix() -> None:
    """Each program in each way once; and each way is met by slow tests, and with a lane alone, of some program."""
    met: set[Way] = set()
    alone: set[Way] = set()
    for number in range(len(CASES)):
        slow = [in_turn(number, backend) for backend in BACKENDS]
        rest = [in_all_other_ways(number, backend) for backend in BACKENDS]
        assert Counter(way for ways in slow + rest for way in ways) == Counter(WAYS)
        met.update(way for ways in slow for way in ways)
        alone.update(way for ways in slow for way in alone_too(number, ways))
    assert met == alone == set(WAYS)


def test_the_selections_are_what_they_say() -> None:
    assert len({case.function for case in CASES}) >= 90
    assert len(BY_NAME) == len(CASES)
    assert {case.name for case, _ in ON_NUMPY_IN_TURN} == set(BY_NAME)
    assert {way for _, way in ON_NUMPY_IN_TURN} == set(ON_NUMPY)
    assert {way for _, way in EAGER_IN_TURN} == set(EAGER)
    assert {way for _, way in XLA_IN_TURN} == set(XLA)
    for case in CASES:
        assert lane_count(case) > 1


def features(case: Case) -> set[str]:
    """What the machine meets in a program: kinds of op, of terminator, of variable, of primitive, dtypes, ranks."""
    types = case.function.lane_types(case.inputs)
    program = case.function.compiled(types, get_backend("numpy", "eager")).lowered
    found = {f"stored as {kind.name}" for kind in program.var_alloc.values()}
    for block in program.graph.blocks:
        found |= {type(op).__name__ for op in block.ops} | {type(block.terminator).__name__}
        found |= {"gate"} if block.gate else set()
        for op in block.ops:
            if isinstance(op, PrimOp):
                flags = ("batched", "costly", "speculable", "weak")
                found |= {flag for flag in flags if getattr(op.function, flag)}
    arrays = (*program.var_defs.values(), *flatten(types)[0])
    return found | {name for array in arrays for name in (array.dtype, f"rank {len(array.shape)}")}


def test_the_covering_programs_have_every_feature_of_the_corpus() -> None:
    covered = set().union(*map(features, COVERING))
    missing = {case.name: features(case) - covered for case in CASES}
    assert {name: new for name, new in missing.items() if new} == {}


def test_the_default_is_the_virtual_machine_under_xla() -> None:
    np.testing.assert_array_equal(fibonacci(np.array([3, 7, 4, 5])), [3, 21, 5, 8])


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_one_number_serves_all_lanes(way: Way) -> None:
    """A Python number stands on every lane and takes the dtype it meets, as it does in plain Python."""
    x = np.array([1.0, 2.0], "float32")
    found = with_defaults.run(x, 3, **way.options)
    assert found.dtype == "float32"
    np.testing.assert_array_equal(found, with_defaults.run(x, 3, executor=ORACLE))


def test_declared_primitives_are_plain_functions_outside_programs() -> None:
    assert declared_primitives.function(np.array([1.0, 2.0]), 0)[1] == 0.0
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(row_sums(x), (x * x).sum(axis=1))
    np.testing.assert_array_equal(costly_step(x, np.ones(2))[1], x.sum(axis=1))
    np.testing.assert_allclose(costly_one_lane(x), np.tanh(x))


def test_the_plain_function_takes_one_lane() -> None:
    assert fibonacci.function(7) == 21
