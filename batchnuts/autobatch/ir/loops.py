"""Loops of a control-flow graph: its strongly connected components."""

from __future__ import annotations

from batchnuts.autobatch.ir.cfg import successors
from batchnuts.autobatch.ir.program import ControlFlowGraph

Edges = dict[str, tuple[str, ...]]
"""For each label, where control may go next."""


def components(labels: tuple[str, ...], following: Edges) -> list[tuple[str, ...]]:
    """Strongly connected components of the graph on `labels`, sources first; labels keep their order within one."""
    inside = frozenset(labels)
    reachable = {label: reached(label, following, inside) for label in labels}
    result: dict[str, tuple[str, ...]] = {}
    for label in labels:
        if not any(label in part for part in result.values()):
            result[label] = tuple(x for x in labels if x == label or (x in reachable[label] and label in reachable[x]))
    # a component that reaches another reaches everything that the other does, and the other itself
    return sorted(result.values(), key=lambda part: -len(reachable[part[0]] | {part[0]}))


def is_loop(component: tuple[str, ...], following: Edges) -> bool:
    """Whether control can come back to a block of the component."""
    return len(component) > 1 or component[0] in following[component[0]]


def reached(label: str, following: Edges, inside: frozenset[str]) -> frozenset[str]:
    """The labels of `inside` that lie after a label on some path of one or more edges within `inside`."""
    seen: set[str] = set()
    todo = [label]
    while todo:
        new = [target for target in following[todo.pop()] if target in inside and target not in seen]
        seen.update(new)
        todo += new
    return frozenset(seen)


def on_cycles(graph: ControlFlowGraph) -> frozenset[str]:
    """The blocks that a lane may come back to, through calls too."""
    following = successors(graph)
    return frozenset(
        label for part in components(graph.labels, following) if is_loop(part, following) for label in part
    )
