"""The corpus: single-lane programs that every executor must run alike, with inputs for a few lanes.

`CASES` lists them. Each program is chosen for one feature of the language or one shape of control flow; inputs are
chosen so that lanes take different paths and integer operations that a lane must not reach would raise there (division
by zero).
"""

import pytest

from programs import (
    assignment,
    buffers,
    closures,
    control_flow,
    dtypes,
    functions,
    integers,
    numerics,
    randomness,
    recursion,
    sequences,
    structures,
    walrus,
)
from programs.assignment import with_defaults
from programs.case import Case, floats, ints
from programs.closures import costly_one_lane, costly_step, declared_primitives, row_sums
from programs.control_flow import early_return
from programs.dtypes import pass_through
from programs.integers import collatz, gcd
from programs.recursion import ackermann, fibonacci, is_even, is_odd, recursion_in_loop, same_argument
from programs.structures import unpacks_results

__all__ = [
    "BY_NAME",
    "CASES",
    "COVERING",
    "Case",
    "ackermann",
    "collatz",
    "costly_one_lane",
    "costly_step",
    "covering_by_default",
    "declared_primitives",
    "early_return",
    "fibonacci",
    "floats",
    "gcd",
    "ints",
    "is_even",
    "is_odd",
    "pass_through",
    "recursion_in_loop",
    "row_sums",
    "same_argument",
    "unpacks_results",
    "with_defaults",
]

CASES: tuple[Case, ...] = (
    *recursion.CASES,
    *control_flow.CASES,
    *assignment.CASES,
    *integers.CASES,
    *numerics.CASES,
    *structures.CASES,
    *closures.CASES,
    *dtypes.CASES,
    *buffers.CASES,
    *sequences.CASES,
    *walrus.CASES,
    *functions.CASES,
    *randomness.CASES,
)

BY_NAME = {case.name: case for case in CASES}

COVERING: tuple[Case, ...] = tuple(
    BY_NAME[name]
    for name in (
        "fibonacci",
        "female",
        "loop_recursion_loop",
        "calls_in_conditions",
        "guarded_division",
        "loop_else",
        "quadrature",
        "oscillator",
        "summarize",
        "declared_primitives",
        "mixed_lanes",
        "quicksort",
        "family",
        "ackermann-int32",
        "weak_argument",
        "squares",
        "leapfrog",
    )
)
"""Programs that between them use every op of the machine and every kind of lane: what takes long runs these alone."""


def covering_by_default(cases: tuple[Case, ...] = CASES) -> pytest.MarkDecorator:
    """Parametrize by `case`: the covering programs in the default suite, the others where slow tests are asked for."""
    slow = pytest.mark.slow
    covering = {case.name for case in COVERING}
    params = [pytest.param(case, id=case.name, marks=() if case.name in covering else slow) for case in cases]
    return pytest.mark.parametrize("case", params)
