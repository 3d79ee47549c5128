"""`:=` within expressions: which reads of a variable come before it gets its new value.

    f(y, (y := n))        y is saved first:        _1 = y
                                                   y = n
                                                   f(_1, y)

An expression is evaluated from left to right, but the builder reads variables as late as it can.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from batchnuts.autobatch.parsing import SCOPES, copied, load


@dataclass(frozen=True)
class _Event:
    """A variable is read or assigned, in the order of evaluation."""

    name: str
    binds: bool
    regions: tuple[tuple[int, int], ...]
    """The operands of `and`, `or` and `if`-`else` that it is in: each is done before the next begins."""
    node: ast.Name | ast.NamedExpr


def has_walrus(node: ast.AST) -> bool:
    """Whether there is an assignment in the expression."""
    return any(isinstance(part, ast.NamedExpr) for part in ast.walk(node))


def hidden_walrus(node: ast.AST) -> ast.NamedExpr | None:
    """An assignment within a lambda or comprehension, if there is one."""
    scopes = (part for part in ast.walk(node) if isinstance(part, SCOPES))
    return next((p for scope in scopes for p in ast.walk(scope) if isinstance(p, ast.NamedExpr)), None)


def assigned_twice(node: ast.expr) -> ast.NamedExpr | None:
    """An assignment to a variable whose value from an assignment before it, in the same expression, is still needed."""
    events = list(_events(node, ()))
    for i, bind in enumerate(events):
        if not isinstance(bind.node, ast.NamedExpr) or not bind.binds:
            continue
        before = [event for event in events[:i] if event.name == bind.name]
        for j, read in enumerate(before):
            done = not set(read.regions) <= set(bind.regions)
            if not read.binds and not done and any(event.binds for event in before[:j]):
                return bind.node
    return None


def reads_before(node: ast.expr) -> dict[int, str]:
    """The reads of variables that the expression assigns later: the variable's name, by the `id` of its node."""
    reads: dict[int, str] = {}
    bound: set[str] = set()
    later = {event.name for event in _events(node, ()) if event.binds}
    for event in _events(node, ()):
        if event.binds:
            bound.add(event.name)
        elif event.name in later - bound:
            reads[id(event.node)] = event.name
    return reads


def with_names(node: ast.expr, saved: dict[int, str]) -> ast.expr:
    """A copy of the expression that reads other variables at those nodes."""
    memo = {id(part): load(saved[id(part)], part) for part in ast.walk(node) if id(part) in saved}
    return copied(node, memo)


def _events(node: ast.AST, regions: tuple[tuple[int, int], ...]) -> Iterator[_Event]:
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            yield _Event(name, False, regions, node)
        case ast.NamedExpr(target=ast.Name(id=name), value=value):
            yield from _events(value, regions)
            yield _Event(name, True, regions, node)
            yield _Event(name, False, regions, node)  # its value is used, where the expression stands
        case ast.BoolOp(values=operands):
            for i, operand in enumerate(operands):
                yield from _events(operand, (*regions, (id(node), i)))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            for i, operand in enumerate((test, body, orelse)):
                yield from _events(operand, (*regions, (id(node), i)))
        case ast.Dict(keys=keys, values=values):
            for pair in zip(keys, values):
                for part in pair:
                    if part is not None:
                        yield from _events(part, regions)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _events(child, regions)
