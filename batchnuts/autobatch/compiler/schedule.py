"""Schedules: which block the machine runs next, as data.

The machine always runs the first block, in the schedule's order, at which some lane waits. `earliest` takes the
program's own order ([R] Algorithm 2). `drain` moves blocks with a costly primitive behind all others, so that control
drains until every live lane waits at one of them, and blocks that lie on no cycle (what runs once, at the end)
behind those.
"""

from __future__ import annotations

from dataclasses import dataclass

from batchnuts.autobatch.compiler.cfg import successors
from batchnuts.autobatch.compiler.ir import ControlFlowGraph, PrimOp, Program

POLICIES = ("auto", "earliest", "drain")


@dataclass(frozen=True)
class Schedule:
    """Block labels in order of priority, and the policy that chose it."""

    policy: str
    order: tuple[str, ...]


def make_schedule(program: Program, policy: str = "auto") -> Schedule:
    """The schedule of a lowered program. `auto` is `drain` where a primitive is declared costly, else `earliest`.

    Raises ValueError for an unknown policy.
    """
    if policy not in POLICIES:
        raise ValueError(f"schedule must be one of {', '.join(POLICIES)}; found {policy!r}")
    costly = costly_blocks(program)
    if policy == "auto":
        policy = "drain" if costly else "earliest"
    if policy == "earliest":
        return Schedule(policy, program.graph.labels)
    cyclic = _on_cycles(program.graph)

    def rank(label: str) -> int:
        return 2 if label not in cyclic else int(label in costly)

    return Schedule(policy, tuple(sorted(program.graph.labels, key=rank)))


def costly_blocks(program: Program) -> tuple[str, ...]:
    """Labels of blocks that run a primitive declared costly."""
    return tuple(
        b.label for b in program.graph.blocks if any(isinstance(op, PrimOp) and op.function.costly for op in b.ops)
    )


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
