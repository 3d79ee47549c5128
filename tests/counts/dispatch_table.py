"""Dispatches of the whole corpus by executor, as a markdown table: `python tests/counts/dispatch_table.py`.

A dispatch is one execution of one block on all lanes. The virtual machine counts them in its state (`executions`), the
stackless executor in its `tally`. Blocks are not the same for both: lowering ends a block at every call, while
stackless runs a block with its calls as one. The number of operations that the dispatches made (copies not counted)
can be compared. Counts are of NumPy runs; the other backends make the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":  # as a script: the programs lie beside this folder, the library above
    tests = Path(__file__).parents[1]
    sys.path[:0] = [str(tests), str(tests / "helpers"), str(tests.parent)]

from programs import CASES, Case
from programs.buffers import quicksort
from programs.numerics import quadrature
from programs.randomness import family
from programs.recursion import fibonacci, sums_to, tak
from ways import SCHEDULES

from batchnuts.autobatch import random
from batchnuts.autobatch.backends.registry import get_backend
from batchnuts.autobatch.errors import StackOverflowError
from batchnuts.autobatch.ir.program import COPY, Block, PrimOp, WriteRowOp
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.runtime.virtual_machine import FIRST_STACK_DEPTH

COLUMNS = ("stackless", *SCHEDULES["virtual_machine"])


Counts = Mapping[str, tuple[int, int]]
"""For each block that ran: how often, and on how many active lanes in all."""


@dataclass(frozen=True)
class Dispatches:
    """What a run took: executions of blocks, operations in them, and the lanes these were active on."""

    blocks: int
    operations: int
    active: int
    lanes: int

    @property
    def utilization(self) -> float:
        """The share of computed lanes that were active, over all operations."""
        return self.active / (self.operations * self.lanes)

    def __str__(self) -> str:
        return f"{self.blocks} ({self.operations})"


def summed(blocks: Iterable[Block], counts: Counts, lanes: int) -> Dispatches:
    weights = {
        block.label: sum(
            isinstance(op, WriteRowOp) or (isinstance(op, PrimOp) and op.function is not COPY) for op in block.ops
        )
        for block in blocks
    }
    return Dispatches(
        sum(times for times, _ in counts.values()),
        sum(weights[label] * times for label, (times, _) in counts.items()),
        sum(weights[label] * active for label, (_, active) in counts.items()),
        lanes,
    )


def stackless(function: Any, inputs: tuple[Any, ...]) -> Dispatches:
    tally: dict[str, tuple[int, int]] = {}
    function.run(*inputs, executor="stackless", backend="numpy", tally=tally)
    bound = function._bind(inputs, {})  # with its defaults
    program = function.compiled(bound.types, get_backend("numpy", "eager")).with_calls
    blocks = [block for body in program.all_functions() for block in body.graph.blocks]
    return summed(blocks, tally, bound.lanes)


def virtual_machine(function: Any, inputs: tuple[Any, ...], schedule: str) -> Dispatches:
    bound = function._bind(inputs, {})  # with its defaults
    machine = function.machine(bound.types, bound.lanes, get_backend("numpy", "eager"), schedule, FIRST_STACK_DEPTH)
    while True:
        state = machine.run(bound.leaves)
        try:
            machine.check_faults(state)
        except StackOverflowError:
            machine = machine.with_stack_depth(2 * machine.stack_depth)
            continue
        pairs = zip(state["executions"].tolist(), state["active"].tolist())
        return summed(machine.program.graph.blocks, dict(zip(machine.schedule.order, pairs)), bound.lanes)


def dispatches(function: Any, inputs: tuple[Any, ...], column: str) -> Dispatches:
    """Of one program in the way that the column names: "stackless", or a schedule of the virtual machine."""
    return stackless(function, inputs) if column == "stackless" else virtual_machine(function, inputs, column)


def wide_cases() -> tuple[Case, ...]:
    """Some recursions on a hundred lanes that have little in common."""
    draw, n = np.random.default_rng(0), 100
    starts, ends, tolerances = draw.uniform(-1, 0, n), draw.uniform(0.2, 1, n), 10.0 ** draw.uniform(-4, -2, n)
    triples = draw.integers(3, 8, n), draw.integers(1, 6, n), draw.integers(0, 4, n)
    return (
        Case(fibonacci, (draw.integers(1, 12, n),)),
        Case(quadrature, (starts, ends, tolerances, np.full(n, 8))),
        Case(sums_to, (np.full(n, 7), draw.integers(1, 140, n))),
        Case(tak, triples),
        Case(quicksort, (draw.integers(0, 99, (n, 16)), np.zeros(n, "int64"), np.full(n, 15))),
        Case(family, (random.lane_keys(0, n), np.full(n, 4))),
    )


def markdown(cases: Sequence[Case] = CASES, columns: Sequence[str] = COLUMNS) -> str:
    """The table: blocks, and operations in brackets; the sum in its last row."""
    lines = ["| program | lanes | " + " | ".join(columns) + " |", "|---|--:|" + "--:|" * len(columns)]
    total = {column: Dispatches(0, 0, 0, 0) for column in columns}
    for case in cases:
        counts = {column: dispatches(case.function, case.inputs, column) for column in columns}
        for column, found in counts.items():
            before = total[column]
            total[column] = replace(
                before, blocks=before.blocks + found.blocks, operations=before.operations + found.operations
            )
        lanes = len(flatten(case.inputs)[0][0])
        lines.append(f"| {case.name} | {lanes} | " + " | ".join(str(counts[c]) for c in columns) + " |")
    lines.append("| **all** | | " + " | ".join(f"**{total[c]}**" for c in columns) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(), markdown(wide_cases()), sep="\n\n")
