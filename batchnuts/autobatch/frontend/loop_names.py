"""Which names of a loop belong to one round of it: where its body is written out, each copy may have its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from batchnuts.autobatch.frontend.expressions import free_loads
from batchnuts.autobatch.parsing import copied


def own_names(loop: ast.For, function: list[ast.stmt]) -> set[str]:
    """Names that carry nothing from one round to the next or after the loop; `function` has the loop, or a copy."""
    targets = set(_stored(loop.target))
    assigned = targets.union(*map(_stored, loop.body))
    outside = {name for statement in function for name in _read_outside(statement, loop)}
    return assigned - set(_carried(loop.body, targets)) - outside


def renamed(node: Any, names: dict[str, str]) -> Any:
    """A copy of a syntax tree with names replaced."""

    class Rename(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.Name:
            return ast.copy_location(ast.Name(names.get(name.id, name.id), name.ctx), name)

        def visit_arg(self, argument: ast.arg) -> ast.arg:
            argument.arg = names.get(argument.arg, argument.arg)
            return argument

    return Rename().visit(copied(node))


def _read_outside(part: ast.AST, loop: ast.For) -> Iterator[str]:
    """Names that are read outside the loop's body, where other loops have not bound them."""
    if isinstance(part, ast.expr):  # not the names that comprehensions and lambdas bind
        yield from (load.id for load in free_loads(part))
        return
    if not isinstance(part, ast.For):
        yield from _read_by(part)
        for child in ast.iter_child_nodes(part):
            yield from _read_outside(child, loop)
        return
    for header_part in (part.iter, part.target, *part.orelse):
        yield from _read_outside(header_part, loop)
    if not any(_same(inner, loop) for inner in ast.walk(part)):
        yield from _carried(part.body, set(_stored(part.target)))
    elif not _same(part, loop):
        bound = set(_stored(part.target))
        yield from (name for s in part.body for name in _read_outside(s, loop) if name not in bound)


def _same(part: ast.AST, loop: ast.For) -> bool:
    """Whether a node is the loop, or a copy of it."""
    return isinstance(part, ast.For) and (part.lineno, part.col_offset) == (loop.lineno, loop.col_offset)


def _stored(node: ast.AST) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _read_by(node: ast.AST) -> Iterator[str]:
    """The names that a statement reads which it assigns."""
    if isinstance(node, ast.AugAssign):
        yield from _stored(node.target)


def _carried(statements: list[ast.stmt], bound: set[str]) -> Iterator[str]:
    """Names that statements may read before they are bound: by an assignment beside them, or by a loop around them."""
    bound = set(bound)

    def visit(part: ast.AST) -> Iterator[str]:
        if isinstance(part, ast.For):
            for header_part in (part.iter, part.target):
                yield from visit(header_part)
            yield from _carried(part.body, bound.union(_stored(part.target)))
            yield from _carried(part.orelse, bound)
            return
        if isinstance(part, ast.expr):
            yield from (load.id for load in free_loads(part) if load.id not in bound)
            return
        yield from (name for name in _read_by(part) if name not in bound)
        for _, field in ast.iter_fields(part):
            if isinstance(field, list) and field and isinstance(field[0], ast.stmt):
                yield from _carried(field, bound)
            else:
                for child in field if isinstance(field, list) else [field]:
                    if isinstance(child, ast.AST):
                        yield from visit(child)

    for statement in statements:
        yield from visit(statement)
        if isinstance(statement, ast.Assign):
            bound |= {name for target in statement.targets for name in _stored(target)}
