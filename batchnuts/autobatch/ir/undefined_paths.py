"""A path on which a variable is read before it is assigned, described by the conditions that lead along it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from batchnuts.autobatch.errors import Source
from batchnuts.autobatch.ir.cfg import predecessors, successors
from batchnuts.autobatch.ir.program import (
    Block,
    BranchOp,
    Function,
    Op,
    PrimOp,
    reads,
    writes,
)


def first_reader(function: Function, variable: str) -> tuple[Source | None, str]:
    """The place that reads the variable after the fewest branches on a path that does not assign it, and the path.

    The path is a phrase that begins with "when" and names the conditions which must hold, or "always" for none.
    """
    blocks = {block.label: block for block in function.graph.blocks}
    following = successors(function.graph, through_calls=False)
    came_from: dict[str, str | None] = {function.graph.entry: None}
    todo = [function.graph.entry]
    for label in todo:
        reader = _reading_op(blocks[label], variable)
        if reader is not None:
            return getattr(reader, "source", None), _conditions(function, variable, _path(came_from, label))
        if not _assigns(blocks[label], variable):
            for after in following[label]:
                if after not in came_from:
                    came_from[after] = label
                    todo.append(after)
    return function.source, ""


def _reading_op(block: Block, variable: str) -> Op | None:
    """The op that reads the variable in the block before the block assigns it."""
    for op in block.ops:
        if variable in reads(op):
            return op
        if variable in writes(op):
            return None
    return None


def _assigns(block: Block, variable: str) -> bool:
    return any(variable in writes(op) for op in block.ops)


def _path(came_from: Mapping[str, str | None], label: str) -> list[str]:
    path: list[str] = []
    step: str | None = label
    while step is not None:
        path.append(step)
        step = came_from[step]
    return path[::-1]


def _conditions(function: Function, variable: str, path: list[str]) -> str:
    """The branches of the path that matter: those whose other side can avoid the end of the path."""
    before = predecessors(function.graph, through_calls=False)
    after = successors(function.graph, through_calls=False)
    blocks = {block.label: block for block in function.graph.blocks}
    reader = path[-1]
    ways_around = {
        label for label in blocks if label != reader and (_assigns(blocks[label], variable) or not after[label])
    }
    todo = list(ways_around)
    while todo:
        for label in before[todo.pop()]:
            if label not in ways_around and label != reader:
                ways_around.add(label)
                todo.append(label)
    conditions = []
    for label, target in pairwise(path):
        branch = blocks[label].terminator
        if isinstance(branch, BranchOp):
            holds = target == branch.true_label
            if (branch.false_label if holds else branch.true_label) in ways_around:
                conditions.append(_condition_text(blocks[label], branch, holds))
    return "when " + " and ".join(conditions) if conditions else "always"


def _condition_text(block: Block, branch: BranchOp, holds: bool) -> str:
    line = f"line {branch.source.line}" if branch.source else "an unknown line"
    if block.label.split(".")[1:2] == ["for"]:
        return f"the `for` loop of {line} has {'another iteration' if holds else 'no iteration left'}"
    definitions = [op for op in block.ops if isinstance(op, PrimOp) and branch.cond_var in op.vars_out]
    text = definitions[-1].function.text if definitions else ""
    text = re.sub(r"^bool\((\w+)\)$", r"\1", text)
    readable = text and not re.search(r"\b_\d+\b", text)
    return f"{f'`{text}` ({line})' if readable else f'the condition of {line}'} is {'true' if holds else 'false'}"
