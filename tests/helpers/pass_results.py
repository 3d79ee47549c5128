"""A function's program after each pass, what is in it, and that it gives what plain Python does."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchnuts.autobatch import Program, PushOp, VariableAllocation
from batchnuts.autobatch.api import as_type
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.pipeline import compile_function

WAYS = [
    {"backend": "numpy", "schedule": "earliest"},
    {"backend": "numpy", "schedule": "drain"},
    {"backend": "numpy", "executor": "stackless"},
]


def passes(function: Any, *types: Any, backend: str = "tensorflow") -> dict[str, Program]:
    found: dict[str, Program] = {}
    compile_function(function, tuple(map(as_type, types)), get_backend(backend, "eager"), found.__setitem__)
    return found


def ops_of(program: Program, *kinds: type) -> list[Any]:
    bodies = [program.graph, *(f.graph for f in program.functions)]
    return [op for graph in bodies for b in graph.blocks for op in (*b.ops, b.terminator) if isinstance(op, kinds)]


def pushed(program: Program) -> list[str]:
    return sorted(op.var for op in ops_of(program, PushOp))


def full(program: Program) -> set[str]:
    return {v for v, a in program.var_alloc.items() if a is VariableAllocation.FULL}


def assert_same(function: Any, *lanes: Any) -> None:
    expected = function.run(*lanes, executor="unbatched")
    for way in WAYS:
        np.testing.assert_array_equal(function.run(*lanes, **way), expected)
