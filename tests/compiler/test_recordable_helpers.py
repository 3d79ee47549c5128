"""Plain functions that consist of the language's: which these are, and that they are computed as a library does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from array_libraries import needs_jax

from batchnuts.autobatch import batch, ops, random
from batchnuts.autobatch.frontend.recordable_helpers import consists_of_language
from batchnuts.autobatch.ir.program import COPY, PrimOp

SCALE = np.array([2.0, 0.5, -1.0])


class Pair(NamedTuple):
    first: Any
    second: Any


def scaled(x: Any) -> Any:
    """A constant of the module's."""
    return SCALE * x


def in_steps(x: Any, *rest: Any, power: float = 2.0) -> Any:
    y, *others = scaled(x), ops.sum(x), 1
    y = ops.exp(-y) / (1.0 + others[0] ** power)
    z: Any = y[..., 0:2]
    return ops.concatenate([z, x[-1:]])


def of_structures(pair: Pair) -> Pair:
    return Pair(pair.second, ops.where(pair.first > 0.0, pair.first, scaled(pair.second)))


def drawn(key: Any) -> Any:
    return random.normal(key, (3,), "float64")


def made_inside(factor: float) -> Callable[[Any], Any]:
    def times(x: Any) -> Any:
        return factor * scaled(x)

    return times


RECORDABLE = [scaled, in_steps, of_structures, drawn, made_inside(3.0)]


def branches(x: Any) -> Any:
    if x[0] > 0:
        return x
    return -x


def chooses(x: Any) -> Any:
    return x if x[0] > 0 else -x


def negates(x: Any) -> Any:
    return 1.0 * (not x[0])


def chains(x: Any) -> Any:
    return 0 < x[0] < 1


def catches(x: Any) -> Any:
    try:
        return np.sin(x)
    except TypeError:
        return x


def asks(x: Any) -> Any:
    return ops.sin(x) * isinstance(x, np.ndarray)


def calls_numpy(x: Any) -> Any:
    return np.sin(x)


def calls_a_method(x: Any) -> Any:
    return x.sum()


def calls_what_it_is_given(x: Any, function: Any = ops.sin) -> Any:
    return function(x)


def changes_an_array(x: Any) -> Any:
    y = 1.0 * x
    y[0] = 0.0
    return y


def repeats(x: Any) -> Any:
    for _ in range(3):
        x = x * x
    return x


def imports(x: Any) -> Any:
    import math

    return math.pi * x


def calls_itself(x: Any) -> Any:
    return calls_the_other(x)


def calls_the_other(x: Any) -> Any:
    return calls_itself(x)


def calls_one_that_does_not(x: Any) -> Any:
    return scaled(calls_numpy(x))


def yields(x: Any) -> Iterator[Any]:
    yield x


@functools.wraps(scaled)
def wrapped(x: Any) -> Any:
    return scaled(x)


NOT_RECORDABLE = [
    *(branches, chooses, negates, chains, catches, asks, calls_numpy, calls_a_method, calls_what_it_is_given),
    *(changes_an_array, repeats, imports, calls_itself, calls_one_that_does_not, yields, wrapped),
    *(lambda x: x, functools.partial(scaled), ops.sin, np.sin, len, 3.0),
]


@pytest.mark.parametrize("helper", RECORDABLE, ids=lambda helper: helper.__name__)
def test_straight_code_of_the_language_is_recordable(helper: Any) -> None:
    assert consists_of_language(helper)


@pytest.mark.parametrize("helper", NOT_RECORDABLE, ids=lambda helper: getattr(helper, "__name__", "other"))
def test_other_code_is_not(helper: Any) -> None:
    assert not consists_of_language(helper)


@batch
def of_all(x, y, key):
    pair = of_structures(Pair(x, y))
    k = 0
    while k < 3:
        x = in_steps(x) + made(x)
        k += 1
    return x, pair, drawn(key)


made = made_inside(0.25)
X = np.array([[0.1, 0.2, 0.3], [-1.0, 2.0, 0.5]])
Y = np.array([[1.0, -2.0, 3.0], [0.0, 0.0, 1.0]])
KEYS = np.arange(4, dtype="uint32").reshape(2, 2)

BACKENDS = ["native", "numpy", pytest.param("jax", marks=needs_jax), "tensorflow"]


def functions_of(function: Any, *types: str) -> list[Any]:
    """The primitives of a program that an engine for machine code is given, but copies."""
    program = function.lowered(*types, backend="native")
    return [
        op.function
        for each in program.all_functions()
        for block in each.graph.blocks
        for op in block.ops
        if isinstance(op, PrimOp) and op.function is not COPY
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_they_compute_what_plain_python_does(backend: str) -> None:
    x, pair, noise = of_all.run(X, Y, KEYS, backend=backend)
    for lane in range(2):
        expected, expected_pair, expected_noise = of_all.function(X[lane], Y[lane], KEYS[lane])
        np.testing.assert_allclose(np.asarray(x)[lane], expected, rtol=1e-12)
        np.testing.assert_allclose(np.asarray(pair.first)[lane], expected_pair.first, rtol=1e-12)
        np.testing.assert_allclose(np.asarray(pair.second)[lane], expected_pair.second, rtol=1e-12)
        np.testing.assert_allclose(np.asarray(noise)[lane], expected_noise, rtol=1e-12)


def test_they_are_data_and_so_machine_code() -> None:
    """No lane waits for an array library."""
    assert all(f.body is not None for f in functions_of(of_all, "float64[3]", "float64[3]", "uint32[2]"))


def element(x: Any, i: Any) -> Any:
    return x[i]


def mixed(n: Any, x: Any) -> Any:
    return n * x


@batch
def takes(x, i):
    return element(x, i)


@batch
def mixes(n, x):
    return mixed(n, x)


@batch
def takes_the_first(x, i):
    return element(x, 0) + i


def test_what_libraries_decide_stays_theirs() -> None:
    """Elements at computed places, which nothing has checked to be inside, and dtypes that each joins by its rules."""
    assert None in [f.body for f in functions_of(takes, "float64[3]", "int64")]
    assert None in [f.body for f in functions_of(mixes, "int32", "float32[3]")]
    assert None not in [f.body for f in functions_of(takes_the_first, "float64[3]", "int64")]
