"""Schedules: which block the machine runs next, as data.

A schedule is a sequence of groups of blocks. The machine sweeps: it looks at the blocks one after another and runs
each at which some lane waits, but a group's blocks only while no lane waits in an earlier group. So

    earliest    one group per block, in the program's order: always the earliest block, [R] Algorithm 2
    drain       control blocks; then blocks with a costly primitive; then blocks on no cycle (what runs once, at the
                end): control drains until every live lane waits for the costly primitive
"""

from __future__ import annotations

from dataclasses import dataclass

from batchnuts.autobatch.compiler.cfg import successors
from batchnuts.autobatch.compiler.ir import ControlFlowGraph, PrimOp, Program

POLICIES = ("auto", "earliest", "drain")


@dataclass(frozen=True)
class Schedule:
    """Groups of block labels in order of priority, and the policy that chose them."""

    policy: str
    groups: tuple[tuple[str, ...], ...]

    @property
    def order(self) -> tuple[str, ...]:
        """All labels, group after group."""
        return tuple(label for group in self.groups for label in group)

    @property
    def group_starts(self) -> tuple[int, ...]:
        """For each block in order, the index of its group's first block."""
        starts: list[int] = []
        for group in self.groups:
            starts += [len(starts)] * len(group)
        return tuple(starts)


def make_schedule(program: Program, policy: str = "auto") -> Schedule:
    """The schedule of a lowered program. `auto` is `drain` where a primitive is declared costly, else `earliest`.

    Raises ValueError for an unknown policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"schedule must be one of {', '.join(POLICIES)}; found {policy!r}")
    labels, costly = program.graph.labels, costly_blocks(program)
    if policy == "auto":
        policy = "drain" if costly else "earliest"
    if policy == "earliest":
        return Schedule(policy, tuple((label,) for label in labels))
    cyclic = _on_cycles(program.graph)
    control = tuple(label for label in labels if label in cyclic and label not in costly)
    expensive = tuple(label for label in labels if label in cyclic and label in costly)
    final = tuple(label for label in labels if label not in cyclic)
    return Schedule(policy, tuple(group for group in (control, expensive, final) if group))


def costly_blocks(program: Program) -> tuple[str, ...]:
    """Labels of blocks that run a primitive declared costly."""
    blocks = [b for function in program.all_functions() for b in function.graph.blocks]
    return tuple(b.label for b in blocks if any(isinstance(op, PrimOp) and op.function.costly for op in b.ops))


def _on_cycles(graph: ControlFlowGraph) -> frozenset[str]:
    following = successors(graph)

    def returns_to(label: str) -> bool:
        seen: set[str] = set()
        todo = list(following[label])
        while todo:
            here = todo.pop()
            if here == label:
                return True
            if here not in seen:
                seen.add(here)
                todo.extend(following[here])
        return False

    return frozenset(label for label in graph.labels if returns_to(label))
