"""What each pass removes from NUTS and from a program of its shape: `python tests/counts/allocation_table.py`.

The table stands in docs/passes.md; `test_allocation` checks that it is what this prints.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a script: helpers lie beside this folder, the library above
    tests = Path(__file__).parents[1]
    sys.path[:0] = [str(tests), str(tests / "helpers"), str(tests.parent)]

from nuts_shaped import NUTS_SHAPED_TYPES, nuts_shaped

from batchnuts.autobatch import Program, PushOp, TensorType, VariableAllocation, ops, primitive, summarize
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts

LOWERED = (
    "lower",
    "eliminate_lowered",
    "allocate",
    "invert",
    "coalesce",
    "tail_calls",
)
"""The passes from lowering on, in order."""


def nuts_passes() -> dict[str, Program]:
    """NUTS in ten dimensions after every pass."""

    @primitive(costly=True)
    def value_and_gradient(x: Any, data: Any = ()) -> Any:
        return -0.5 * ops.sum(x * x), -x

    scalar, vector = TensorType("float32"), TensorType("float32", (10,))
    nuts = make_nuts(value_and_gradient, NutsOptions())
    return nuts.passes(TensorType("uint32", (2,)), vector, scalar, vector, scalar, vector, TensorType("int64"))


def shaped_passes() -> dict[str, Program]:
    """The program of the shape of NUTS after every pass."""
    return nuts_shaped.passes(*NUTS_SHAPED_TYPES)


def stacked(program: Program) -> int:
    """Variables with a stack; before allocation, those that are pushed."""
    if program.var_alloc:
        return sum(a is VariableAllocation.FULL for a in program.var_alloc.values())
    return len({op.var for b in program.graph.blocks for op in b.ops if isinstance(op, PushOp)})


def rows(passes: dict[str, Program]) -> list[list[str]]:
    """For each pass from lowering on: its name, blocks, FULL, REGISTER and TEMPORARY variables, pushes, copies."""
    result = []
    for name in LOWERED:
        s = summarize(passes[name])
        counts = (s.blocks, stacked(passes[name]), s.register, s.temporary, s.pushes, s.return_addresses, s.copies)
        result.append([name, *("" if count is None else str(count) for count in counts)])
    return result


def table(passes: dict[str, Program]) -> str:
    """The rows in markdown."""
    head = ["after", "blocks", "FULL", "REGISTER", "TEMPORARY", "pushes", "return addresses", "copied variables"]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows(passes)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(f"NUTS\n\n{table(nuts_passes())}\n\nA program of its shape\n\n{table(shaped_passes())}")
