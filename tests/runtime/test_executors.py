"""Every program of the corpus on every executor, backend, mode and schedule, against plain Python lane by lane.

Integers, booleans, structures and dtypes agree exactly. Floats agree exactly on NumPy, which runs the very same
operations, and to RTOL on TensorFlow, whose elementary functions and fusions round differently.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import CASES, Case, costly_one_lane, costly_step, declared_primitives, fibonacci, row_sums

from batchnuts.autobatch.compiler.tree import flatten, map_leaves

RTOL = {"float32": 2e-6, "float64": 1e-13}

NUMPY = {"executor": "virtual_machine", "backend": "numpy", "schedule": "earliest"}
WAYS = {
    "numpy": NUMPY,
    "numpy-drain": {**NUMPY, "schedule": "drain"},
    "numpy-masking": {**NUMPY, "style": "masking"},
    "numpy-stackless": {"executor": "stackless", "backend": "numpy"},
    "numpy-stackless-masking": {"executor": "stackless", "backend": "numpy", "style": "masking"},
    "reference": {"executor": "reference"},
    "eager": {"backend": "tensorflow", "mode": "eager", "schedule": "earliest"},
    "graph-drain": {"backend": "tensorflow", "mode": "graph", "schedule": "drain"},
    "xla": {"backend": "tensorflow", "mode": "xla", "schedule": "earliest"},
    "xla-drain": {"backend": "tensorflow", "mode": "xla", "schedule": "drain"},
    "eager-stackless": {"executor": "stackless", "backend": "tensorflow", "mode": "eager"},
}
ON_HOST = tuple(way for way in WAYS if way.startswith(("numpy", "reference")))

every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
every_way = pytest.mark.parametrize("way", WAYS)


def lanes_of(inputs: tuple[Any, ...], lanes: Any) -> tuple[Any, ...]:
    return tuple(map_leaves(lambda leaf: leaf[lanes], value) for value in inputs)


def lane_count(case: Case) -> int:
    return len(flatten(case.inputs)[0][0])


def assert_same(found: Any, expected: Any, case: Case, *, exact: bool) -> None:
    found_leaves, found_tree = flatten(found)
    expected_leaves, expected_tree = flatten(expected)
    assert found_tree == expected_tree
    dtypes = case.dtypes or tuple(leaf.dtype.name for leaf in expected_leaves)
    assert tuple(leaf.dtype.name for leaf in found_leaves) == dtypes
    for a, b, dtype in zip(found_leaves, expected_leaves, dtypes, strict=True):
        assert a.shape == b.shape
        if exact or dtype not in RTOL:
            np.testing.assert_array_equal(a, b.astype(dtype))
        else:
            np.testing.assert_allclose(a, b, rtol=RTOL[dtype], atol=RTOL[dtype])


@every_way
@every_case
def test_agrees_with_plain_python(case: Case, way: str) -> None:
    expected = case.function.run(*case.inputs, executor="unbatched")
    found = case.function.run(*case.inputs, **WAYS[way])
    assert_same(found, expected, case, exact=way in ON_HOST)

    # the same machine again: permuted lanes give permuted results, bit for bit
    order = np.roll(np.arange(lane_count(case)), 1)[::-1]
    permuted = case.function.run(*lanes_of(case.inputs, order), **WAYS[way])
    for a, b in zip(flatten(permuted)[0], flatten(found)[0], strict=True):
        np.testing.assert_array_equal(a, b[order])


@pytest.mark.parametrize("way", ON_HOST)
@every_case
def test_a_lane_alone_is_the_lane_in_the_batch(case: Case, way: str) -> None:
    together = flatten(case.function.run(*case.inputs, **WAYS[way]))[0]
    for lane in range(lane_count(case)):
        alone = case.function.run(*lanes_of(case.inputs, slice(lane, lane + 1)), **WAYS[way])
        for a, b in zip(flatten(alone)[0], together, strict=True):
            np.testing.assert_array_equal(a[0], b[lane])


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ON_HOST])
def test_a_lane_alone_is_the_lane_in_the_batch_on_tensorflow(way: str) -> None:
    case = next(case for case in CASES if case.function is declared_primitives)
    together = flatten(case.function.run(*case.inputs, **WAYS[way]))[0]
    alone = case.function.run(*lanes_of(case.inputs, slice(1, 2)), **WAYS[way])
    for a, b in zip(flatten(alone)[0], together, strict=True):
        np.testing.assert_allclose(a[0], b[1], rtol=RTOL["float64"])


def test_the_default_is_the_virtual_machine_under_xla() -> None:
    np.testing.assert_array_equal(fibonacci(np.array([3, 7, 4, 5])), [3, 21, 5, 8])


@every_way
def test_one_number_serves_all_lanes(way: str) -> None:
    """A Python number stands on every lane and takes the dtype it meets, as it does in plain Python."""
    from programs import with_defaults

    x = np.array([1.0, 2.0], "float32")
    found = with_defaults.run(x, 3, **WAYS[way])
    assert found.dtype == "float32"
    np.testing.assert_array_equal(found, with_defaults.run(x, 3, executor="unbatched"))


def test_declared_primitives_are_plain_functions_outside_programs() -> None:
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(row_sums(x), (x * x).sum(axis=1))
    np.testing.assert_array_equal(costly_step(x, np.ones(2))[1], x.sum(axis=1))
    np.testing.assert_allclose(costly_one_lane(x), np.tanh(x))


def test_the_plain_function_takes_one_lane() -> None:
    assert fibonacci.function(7) == 21
