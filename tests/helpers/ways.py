"""The ways to run a program: every executor with every backend, mode, schedule and style that it has.

`WAYS` is the full matrix, made from `MODES` and the schedules that the compiler knows. `test_executors` checks that the
table leaves out no executor, backend or schedule of the library, so what is added there is added to all tests here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from programs import CASES, COVERING

from batchnuts.autobatch.backends.backend import STYLES as STYLE_NAMES
from batchnuts.autobatch.backends.registry import BACKENDS
from batchnuts.autobatch.run_options import EXECUTORS
from batchnuts.autobatch.scheduling.policies import POLICIES

ORACLE = "unbatched"
"""The executor that the others are compared with: plain Python, lane by lane."""

MODES: dict[str, dict[str, tuple[str, ...]]] = {
    "virtual_machine": {"numpy": ("eager",), "tensorflow": ("eager", "graph", "xla"), "jax": ("eager", "xla")},
    "stackless": {"numpy": ("eager",), "tensorflow": ("eager", "graph", "xla"), "jax": ("eager", "xla")},
    "reference": {"numpy": ("eager",)},
}
"""executor -> backend -> modes."""

SCHEDULES: dict[str, tuple[str, ...]] = {"virtual_machine": tuple(policy for policy in POLICIES if policy != "auto")}
"""executor -> schedules, of which `auto` picks one; other executors have an order of their own."""

STYLES: dict[tuple[str, str], tuple[str, ...]] = {("numpy", "eager"): STYLE_NAMES, ("tensorflow", "eager"): STYLE_NAMES}
"""(backend, mode) -> styles of primitive execution, where there is a choice."""


@dataclass(frozen=True)
class Way:
    """One way to run: the options of `BatchedFunction.run`."""

    executor: str
    backend: str
    mode: str
    schedule: str | None = None
    style: str | None = None

    @property
    def options(self) -> dict[str, str]:
        named = {"executor": self.executor, "backend": self.backend, "mode": self.mode}
        return named | {k: v for k, v in (("schedule", self.schedule), ("style", self.style)) if v is not None}

    @property
    def exact(self) -> bool:
        """Whether floats agree bit for bit with plain Python: NumPy runs the very same operations."""
        return self.backend == "numpy"

    @property
    def compiles(self) -> bool:
        """Whether each program costs a second or more before it runs."""
        return self.mode != "eager"

    def __str__(self) -> str:
        parts = (self.executor, self.backend, self.mode if self.backend != "numpy" else None, self.schedule, self.style)
        return "-".join(part for part in parts if part is not None)


def _all_ways() -> tuple[Way, ...]:
    return tuple(
        Way(executor, backend, mode, schedule, style)
        for executor, backends in MODES.items()
        for backend, modes in backends.items()
        for mode in modes
        for schedule in SCHEDULES.get(executor, (None,))
        for style in (STYLES.get((backend, mode), (None,)) if executor != "reference" else (None,))
    )


WAYS = _all_ways()
NATIVE = Way("virtual_machine", "native", "xla")
"""Machine code; it has no schedules, and its floats are NumPy's but for elementary functions and the order of sums."""
ON_NUMPY = tuple(way for way in WAYS if way.backend == "numpy")
ON_TENSORFLOW = tuple(way for way in WAYS if way.backend == "tensorflow")
ON_JAX = tuple(way for way in WAYS if way.backend == "jax")


def left_out() -> set[str]:
    """Executors, backends and schedules of the library that no way uses."""
    used = {ORACLE, "auto", *(part for way in WAYS for part in (way.executor, way.backend, way.schedule) if part)}
    return {*EXECUTORS, *BACKENDS, *POLICIES} - used


def rotating(rows: Mapping[str, Any], columns: Mapping[str, Any], always: int = 1) -> Sequence[Any]:
    """Parameters (row, column) for every pair. By default a row meets the first `always` columns and one of the others,
    which take turns; the rest of the pairs are slow, as are those of slow_tests.txt."""
    others = len(columns) - always
    params = []
    for i, (row, a) in enumerate(rows.items()):
        for j, (column, b) in enumerate(columns.items()):
            by_default = j < always or j - always == i % others
            params.append(pytest.param(a, b, id=f"{row}-{column}", marks=() if by_default else pytest.mark.slow))
    return params


def one_in(count: int, values: Iterable[Any]) -> Sequence[Any]:
    """Parameters of which one in `count` runs by default, the others are slow: where many run the same code."""
    return [pytest.param(value, marks=pytest.mark.slow if i % count else ()) for i, value in enumerate(values)]


def covering_rotating(columns: Mapping[str, Any]) -> Sequence[Any]:
    """The same for (case, column): the covering programs meet one column each by default."""
    names = {case.name for case in COVERING}
    covering = rotating({case.name: case for case in COVERING}, columns, always=0)
    return [
        *covering,
        *(
            pytest.param(case, b, id=f"{case.name}-{column}", marks=pytest.mark.slow)
            for case in CASES
            if case.name not in names
            for column, b in columns.items()
        ),
    ]
