"""What a profile consists of: counts of executions by block, line and stack, run by run, and their sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

K = TypeVar("K")

Line = tuple[str, int]
"""File name and line number."""


@dataclass(frozen=True)
class Count:
    """Executions of something, the lanes for which they were needed, and the lanes that they computed."""

    executions: int = 0
    active: int = 0
    lanes_computed: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.executions + other.executions, self.active + other.active, self.lanes_computed + other.lanes_computed
        )

    @property
    def utilization(self) -> float | None:
        """active / lanes computed; None for what never ran."""
        return self.active / self.lanes_computed if self.lanes_computed else None


@dataclass(frozen=True)
class BlockProfile:
    """One block of the program that ran."""

    label: str
    kind: str
    """The first that applies: it runs a primitive that is "costly"; it is "gated"; how it ends, by a "call", a "return"
    or a "branch"; "plain"."""
    lines: tuple[Line, ...]
    """Source lines that have an operation in the block."""
    costly: tuple[str, ...]
    """The costly primitives it runs, once for each call."""
    count: Count


@dataclass(frozen=True)
class StackProfile:
    """One stack of the virtual machine, over all lanes."""

    variable: str
    pushes: int
    pops: int
    peak: int
    """The most frames that a lane had beneath the top."""


@dataclass(frozen=True)
class Timeline:
    """Dispatches in order; dispatch number i*stride ran block `blocks[i]` (an index) on `active[i]` lanes."""

    blocks: np.ndarray
    active: np.ndarray
    stride: int


@dataclass(frozen=True)
class RunProfile:
    """One run of one function."""

    function: str
    executor: str
    backend: str
    mode: str
    schedule: str | None
    """The virtual machine's policy."""
    lanes: int
    sweeps: int | None
    stack_depth: int | None
    """Frames the virtual machine's stacks could hold."""
    restarts: int
    """How often stacks were too small and the run began again; only the last attempt is counted."""
    call_depth: int
    """How deep calls were nested on the lane where they were deepest."""
    compile_seconds: float
    """From the call until the first block ran."""
    run_seconds: float
    blocks: tuple[BlockProfile, ...]
    stacks: tuple[StackProfile, ...]
    timeline: Timeline

    @property
    def total(self) -> Count:
        """All blocks together; its executions are the dispatches."""
        return sum((block.count for block in self.blocks), Count())


@dataclass
class Runs:
    """The runs that were profiled, one by one in `runs` and summed by the methods."""

    runs: list[RunProfile] = field(default_factory=list)

    @property
    def total(self) -> Count:
        """All blocks of all runs."""
        return sum((run.total for run in self.runs), Count())

    def lines(self) -> dict[Line, Count]:
        """By source line. A line whose code is spread over several blocks counts the executions of each."""
        return _summed((line, block.count) for run in self.runs for block in run.blocks for line in block.lines)

    def blocks(self) -> dict[tuple[str, str, str], Count]:
        """By function, executor and block label."""
        return _summed(
            ((run.function, run.executor, block.label), block.count) for run in self.runs for block in run.blocks
        )

    def costly(self) -> dict[str, Count]:
        """By costly primitive: its evaluations, and the lanes for which they were needed."""
        return _summed((name, block.count) for run in self.runs for block in run.blocks for name in block.costly)

    def stacks(self) -> dict[tuple[str, str], StackProfile]:
        """By function and variable, pushes and pops summed, and the highest of the peaks."""
        result: dict[tuple[str, str], StackProfile] = {}
        for run in self.runs:
            for stack in run.stacks:
                sofar = result.get((run.function, stack.variable), StackProfile(stack.variable, 0, 0, 0))
                result[run.function, stack.variable] = StackProfile(
                    stack.variable, sofar.pushes + stack.pushes, sofar.pops + stack.pops, max(sofar.peak, stack.peak)
                )
        return result


def _summed(counts: Iterable[tuple[K, Count]]) -> dict[K, Count]:
    result: dict[K, Count] = {}
    for key, count in counts:
        result[key] = result.get(key, Count()) + count
    return result
