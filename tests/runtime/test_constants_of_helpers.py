"""What helpers read from around them is taken once, at compilation, on every backend; and where that ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchnuts import autobatch

WAYS: dict[str, dict[str, Any]] = {
    "numpy": {"backend": "numpy"},
    "stackless": {"backend": "numpy", "executor": "stackless"},
    "reference": {"executor": "reference"},
    "eager": {"backend": "tensorflow", "mode": "eager"},
    "graph": {"backend": "tensorflow", "mode": "graph"},
}
GLOBAL = np.array([1.0])
NUMBER = 2.0
INDIRECT = [1.0]


def of_globals(x):
    return x + GLOBAL[0] + NUMBER + indirect(x)


def indirect(x):
    return x if x is None else INDIRECT[0]


@dataclass
class Parameters:
    weights: Any
    scale: float


class Model:
    """A method, and a callable object."""

    def __init__(self) -> None:
        self.weights = np.array([1.0])
        self.parts = {"scale": 2.0}

    def density(self, x):
        return x * self.weights[0] + self.parts["scale"]

    def __call__(self, x):
        return self.density(x) + 1.0


def kinds() -> dict[str, tuple[Callable[..., Any], Callable[[], Any]]]:
    """By name, a helper, and what changes what it reads."""
    array, numbers, keyed = np.array([1.0]), [1.0], {"a": np.array([1.0])}
    space, parameters, model = SimpleNamespace(a=1.0, b=[1.0]), Parameters(np.array([1.0]), 2.0), Model()
    fixed = np.array([1.0])

    def of_closure(x):
        inner = lambda y: y + array[0]  # noqa: E731
        return inner(x) + numbers[0] + len(numbers) + keyed["a"][0]

    def of_a_helper(x):
        return of_closure(x) * 2.0

    def of_defaults(x, table=array, *, more=numbers):
        return x + table[0] + more[0]

    def recursive(x, n=3):
        return x + numbers[0] if n == 0 else recursive(x, n - 1)

    def of_objects(x):
        return x + space.a + space.b[0] + parameters.weights[0] * parameters.scale

    def change() -> None:
        array[:], keyed["a"][:], fixed[:], space.a, space.b[0] = 10.0, 10.0, 10.0, 10.0, 10.0
        numbers[0] = 10.0
        numbers.append(5.0)
        parameters.weights[:], parameters.scale = 10.0, 10.0
        model.weights[:], model.parts["scale"] = 10.0, 10.0

    return {
        "closure": (of_closure, change),
        "a helper's helper": (of_a_helper, change),
        "defaults": (of_defaults, change),
        "itself": (recursive, change),
        "objects": (of_objects, change),
        "a method": (model.density, change),
        "a callable object": (model, change),
        "a partial": (functools.partial(lambda k, x: k[0] * x + array[0], fixed), change),
        "a primitive": (autobatch.primitive(of_closure), change),
        "a batched primitive": (autobatch.primitive(of_closure, batched=True), change),
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", kinds())
def test_helpers_see_what_was_there_at_compilation(name: str, way: str) -> None:
    helper, change = kinds()[name]

    @autobatch.batch
    def program(x):
        return helper(x)

    x = np.array([1.0, 2.0])
    first = program.run(x, **WAYS[way])
    np.testing.assert_array_equal(first, [program.function(v) for v in x])
    change()
    np.testing.assert_array_equal(program.run(x, **WAYS[way]), first)
    np.testing.assert_array_equal(program.run(np.array([1.0, 2.0, 1.0]), **WAYS[way])[:2], first)  # traced again
    assert program.function(x[0]) != first[0]  # plain Python reads them now


@pytest.mark.parametrize("way", WAYS)
def test_helpers_see_the_globals_of_compilation(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @autobatch.batch
    def program(x):
        return of_globals(x)

    x = np.array([1.0, 2.0])
    assert program.run(x, **WAYS[way]).tolist() == [5.0, 6.0]
    monkeypatch.setitem(globals(), "NUMBER", 20.0)
    monkeypatch.setitem(globals(), "INDIRECT", [10.0])
    monkeypatch.setitem(globals(), "GLOBAL", np.array([10.0]))
    assert program.run(x, **WAYS[way]).tolist() == [5.0, 6.0]
    assert program.function(x[0]) == 41.0


class Shared:
    factor = 1.0

    def scaled(self, x):
        return x * Shared.factor


def test_where_copies_end() -> None:
    """Classes are left as they are, and state that a helper's own text changes (docs/language_meaning.md)."""
    seen: list[float] = []
    shared = Shared()

    def notes(x):
        seen.append(1.0)
        return x + 1.0

    @autobatch.batch
    def program(x):
        return shared.scaled(notes(x))

    x = np.array([1.0, 2.0])
    assert program.run(x, backend="numpy").tolist() == [2.0, 3.0]
    assert seen
    Shared.factor = 10.0
    try:
        assert program.run(x, backend="numpy").tolist() == [20.0, 30.0]
    finally:
        Shared.factor = 1.0


@pytest.mark.parametrize("way", WAYS)
def test_a_helper_cannot_change_an_array_around_it(way: str) -> None:
    table = np.array([1.0])

    def changes(x):
        table[0] = 5.0
        return x

    @autobatch.batch
    def program(x):
        return changes(x) + table[0]

    with pytest.raises(autobatch.CompileError, match="read-only"):
        program.run(np.array([1.0]), **WAYS[way])
    assert table.tolist() == [1.0]
