"""Structures in and out: no lanes, one value for all lanes, dtypes and order kept, nothing shared, wrong arguments."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from programs import recursion

from batchnuts.autobatch import LaneInputError, batch, write
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.runtime import reference, stackless, virtual_machine

TENSORFLOW = [{"backend": "tensorflow", "mode": mode} for mode in ("eager", "graph", "xla")]
WAYS = {
    "unbatched": {"executor": "unbatched"},
    "reference": {"executor": "reference"},
    "numpy": {"backend": "numpy"},
    "numpy-masking": {"backend": "numpy", "style": "masking"},
    "numpy-stackless": {"executor": "stackless", "backend": "numpy"},
    **{options["mode"]: options for options in TENSORFLOW},
    **{f"{options['mode']}-stackless": {"executor": "stackless", **options} for options in TENSORFLOW},
    "eager-gather": {**TENSORFLOW[0], "style": "gather"},
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


class Point(NamedTuple):
    q: Any
    p: Any


@dataclass(frozen=True)
class Result:
    count: Any
    points: Any
    flag: Any


@batch
def walk(point, n, scale):
    """Integers, booleans, floats of two widths and vectors, in every kind of structure."""
    total = n * 0
    while n > 0:
        point = Point(point.q * 0.5, point.p + point.q[0])
        total += n
        n -= 1
    if total > 3:
        point = recurse(point, total)
    return Result(total, [point, (point.p, {"q": point.q, "scaled": scale * 2})], total > 2)


@batch
def recurse(point, n):
    if n <= 0:
        return point
    return recurse(Point(point.p * point.q, point.p), n - 3)


def lanes(count: int) -> tuple[Any, ...]:
    q = np.linspace(0.0, 1.0, 3 * count, dtype="float32").reshape(count, 3)
    return Point(q, np.ones(count, "float32")), np.arange(count, dtype="int32") % 4, np.full(count, 7, "uint8")


@every_way
def test_structure_dtype_and_order_are_kept(way: dict[str, str]) -> None:
    expected = walk.run(*lanes(5), executor="unbatched")
    found = walk.run(*lanes(5), **way)
    assert isinstance(found, Result)
    assert isinstance(found.points, list)
    assert isinstance(found.points[0], Point)
    assert list(found.points[1][1]) == ["q", "scaled"]
    assert flatten(found)[1] == flatten(expected)[1]
    names = [leaf.dtype.name for leaf in flatten(found)[0]]
    assert names == ["int32", *["float32"] * 4, "uint8", "bool"]
    for a, b in zip(flatten(found)[0], flatten(expected)[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@every_way
def test_no_lanes_give_empty_results_of_the_right_types(way: dict[str, str]) -> None:
    found = walk.run(*lanes(0), **way)
    some = walk.run(*lanes(2), executor="reference")
    assert flatten(found)[1] == flatten(some)[1]
    for a, b in zip(flatten(found)[0], flatten(some)[0], strict=True):
        assert a.shape == (0, *b.shape[1:])
        assert a.dtype == b.dtype


def test_no_lanes_with_one_value_for_all() -> None:
    found = walk.run(Point(np.zeros((1, 3)), np.zeros(0)), 3, np.zeros((1,)), backend="numpy")
    assert found.points[0].q.shape == (0, 3)


@pytest.mark.parametrize(("backend", "mode"), [("numpy", "eager"), *((t["backend"], t["mode"]) for t in TENSORFLOW)])
def test_executors_take_no_lanes_themselves(backend: str, mode: str) -> None:
    target = get_backend(backend, mode)
    compiled = walk.compiled(walk.lane_types(lanes(2)), target)
    leaves = flatten(lanes(0))[0]
    for results in (
        virtual_machine.execute(compiled.lowered, target, *leaves),
        stackless.execute(compiled.with_calls, target, None, *leaves),
        reference.execute(compiled.with_calls, *leaves),
    ):
        assert [(r.shape, r.dtype) for r in results] == [
            ((0, *t.shape), t.dtype) for t in flatten(compiled.result_type)[0]
        ]


@every_way
def test_one_lane_serves_all(way: dict[str, str]) -> None:
    (q, _), n, scale = lanes(5)
    whole = walk.run(Point(np.repeat(q[1:2], 5, axis=0), np.ones(5, "float32")), n, scale, **way)
    found = walk.run(Point(q[1:2], np.ones(1, "float32")), n, scale[:1], **way)
    for a, b in zip(flatten(found)[0], flatten(whole)[0], strict=True):
        np.testing.assert_array_equal(a, b)


@every_way
def test_numbers_serve_all_lanes_and_stay_weak(way: dict[str, str]) -> None:
    found = walk.run(Point(lanes(3)[0].q, 1.5), 2, 3, **way)
    assert [leaf.dtype.name for leaf in flatten(found)[0]] == ["int64", *["float32"] * 4, "int64", "bool"]
    assert found.points[0].q.shape == (3, 3)
    np.testing.assert_array_equal(found.count, [3, 3, 3])
    np.testing.assert_array_equal(found.points[1][1]["scaled"], [6, 6, 6])


@every_way
def test_no_parameters_is_one_lane(way: dict[str, str]) -> None:
    @batch
    def constant():
        return 3, True

    three, true = constant.run(**way)
    np.testing.assert_array_equal(three, [3])
    np.testing.assert_array_equal(true, [True])


@batch
def passes_on(x, buffer, n):
    """Results that are the arguments, and one array twice."""
    while n > 0:
        buffer = write(buffer, 0, 5.0)
        n -= 1
    return x, x, buffer, np.zeros(2)


@every_way
def test_nothing_is_shared(way: dict[str, str]) -> None:
    """A run changes no argument; a changed result changes no other result, no argument and no later run."""
    x, buffer, n = np.array([[1.0, 2.0], [3.0, 4.0]]), np.zeros((2, 2)), np.array([0, 1])
    given = [array.copy() for array in (x, buffer, n)]
    first = passes_on.run(x, buffer, n, **way)
    kept = [array.copy() for array in first]
    np.testing.assert_array_equal(first[2], [[0, 0], [5, 0]])
    first[0][:] = first[2][:] = first[3][:] = -1.0
    np.testing.assert_array_equal(first[1], kept[1])
    for array, before in zip((x, buffer, n), given, strict=True):
        np.testing.assert_array_equal(array, before)
    for array, before in zip(passes_on.run(x, buffer, n, **way), kept, strict=True):
        np.testing.assert_array_equal(array, before)


def test_other_byte_orders_and_layouts_are_numbers_too() -> None:
    x = np.array([[1, 2], [3, 4], [5, 6]], ">i4")
    for options in ({"backend": "numpy"}, TENSORFLOW[0]):
        found = passes_on.run(x[::-1, ::-1], np.zeros((3, 2)), 0, **options)[0]
        np.testing.assert_array_equal(found, x[::-1, ::-1])
        assert found.dtype == "int32"


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (None, "argument 'n' holds None, expected numbers or booleans. Give a number"),
        ("many", "argument 'n' holds <U4, expected numbers"),
        (np.array(["a", "b"]), "argument 'n' holds <U1, expected numbers"),
        (np.array([1, None]), "argument 'n' holds object, expected numbers"),
        (object(), "argument 'n' holds object, expected numbers or booleans. Give arrays, in tuples"),
        (np.array(["2020-01-01"] * 2, "datetime64[D]"), r"argument 'n' holds datetime64\[D\], expected numbers"),
        (np.array(3), r"argument 'n' has an array without a lane axis; give shape \[lanes, ...\]"),
        (np.int64(3), "argument 'n' has an array without a lane axis"),
        (np.array([1, 2, 3]), "different numbers of lanes: 2 in 'x' and 3 in 'n'"),
        (np.zeros(0), "different numbers of lanes: 2 in 'x' and 0 in 'n'"),
        ([1, 2], "argument 'n' is a list of numbers, which is a structure of 2 numbers here, not 2 lanes"),
        ([[1, 2], [3]], "argument 'n' is a list of numbers, which is a structure of 3 numbers here, not 2 lanes"),
        (2**70, "argument 'n' is 1180591620717411303424, which an int64 cannot hold"),
    ],
)
def test_a_wrong_argument_is_named(n: Any, message: str) -> None:
    for way in WAYS.values():
        with pytest.raises(LaneInputError, match=message):
            passes_on.run(np.zeros((2, 2)), np.zeros((2, 2)), n, **way)


@pytest.mark.skipif(np.dtype("longdouble").itemsize == 8, reason="this platform's long double is a float64")
def test_a_dtype_that_only_numpy_has_is_refused() -> None:
    with pytest.raises(LaneInputError, match="argument 'x' holds float128; give a dtype of 64 bits at most"):
        passes_on.run(np.zeros((2, 2), "longdouble"), np.zeros((2, 2)), 1, backend="numpy")


def test_short_floats_are_refused_with_what_to_write() -> None:
    dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(LaneInputError, match=r"'x' holds bfloat16, expected .* Give x.astype\('float32'\)"):
        passes_on.run(np.zeros((2, 2), dtypes.bfloat16), np.zeros((2, 2)), 1, backend="numpy")


def test_wrong_counts_of_arguments_are_reported_as_in_python() -> None:
    x = np.zeros((2, 2))
    with pytest.raises(LaneInputError, match="passes_on: missing a required argument: 'n'"):
        passes_on.run(x, x, backend="numpy")
    with pytest.raises(LaneInputError, match="passes_on: too many positional arguments"):
        passes_on.run(x, x, 1, 2, backend="numpy")


def test_a_batched_function_is_pickled_and_shown_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(recursion.fibonacci)) is recursion.fibonacci
    assert copy.deepcopy([recursion.fibonacci]) == [recursion.fibonacci]
    assert re.fullmatch(r"<batched function fibonacci, .*recursion\.py:\d+>", repr(recursion.fibonacci))
    other = batch(recursion.fibonacci.python_function)
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(other)
