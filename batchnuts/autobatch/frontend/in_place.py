"""`x[i] = v` as `x = write(x, i, v)`, and `x += v` as `x = x + v`: assignment makes a new value.

    x[i, j] += v        -->      _1 = x[i]
                                 _1 = write(_1, row(_1, j), _1[j] + v)
                                 x = write(x, row(x, i), _1)

The frontend reads these statements in place of the user's, and so does plain Python (`autobatch.plain_python`): NumPy
would change the array itself, under all its names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import NoReturn

from batchnuts.autobatch.frontend.walrus import has_walrus
from batchnuts.autobatch.parsing import copied, load

WRITE = "@write"
ROW = "@row"
"""The names by which the statements call `functions.write` and `indexing.row`; not valid identifiers for a user."""

Refuse = Callable[[ast.AST, str, str], NoReturn]
"""Called with the node, the construct that cannot be batched, and the rewrite."""


class Rewriter:
    """Rewrites statements on elements as statements on plain names.

    fresh: gives a name that is not used yet. is_local: whether the function itself assigns a name.
    """

    def __init__(self, fresh: Callable[[], str], is_local: Callable[[str], bool], refuse: Refuse) -> None:
        self.fresh = fresh
        self.is_local = is_local
        self.refuse = refuse

    def simpler(self, statement: ast.stmt) -> list[ast.stmt] | None:
        """The replacement of an assignment to elements, or to a name in place; None for every other statement."""
        statements: list[ast.stmt] = []
        match statement:
            case ast.Assign(targets=targets, value=value) if any(map(_has_element, targets)):
                held = self.held(value, statements, any(map(has_walrus, targets)) or len(targets) > 1)
                for target in targets:
                    self.assign(target, held, statements)
            case ast.AnnAssign(target=ast.Subscript() as target, value=ast.expr() as value):
                self.assign(target, self.held(value, statements, has_walrus(target)), statements)
            case ast.AugAssign(target=ast.Subscript() as target, op=op, value=value):
                self.element(target, statements, op=op, value=value)
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                statements.append(_assign(name, ast.BinOp(load(name, target), op, value), statement))
            case _:
                return None
        return statements

    def held(self, value: ast.expr, statements: list[ast.stmt], always: bool) -> ast.expr:
        """The value, in a variable unless it is as simple as one."""
        if isinstance(value, ast.Constant) or (isinstance(value, ast.Name) and not always):
            return value
        name = self.fresh()
        statements.append(_assign(name, value, value))
        return load(name, value)

    def assign(self, target: ast.expr, value: ast.expr, statements: list[ast.stmt]) -> None:
        """target = value, of a value that is held."""
        if isinstance(target, ast.Subscript):
            self.element(target, statements, value=value)
        elif isinstance(target, (ast.Tuple, ast.List)) and _has_element(target):
            names = [self.fresh() for _ in target.elts]
            for element in target.elts:
                if isinstance(element, ast.Starred):
                    self.refuse(element, f"assignment to `{ast.unparse(element)}`", "assign to plain names")
            parts = [ast.copy_location(ast.Name(n, ast.Store()), e) for n, e in zip(names, target.elts)]
            pattern = ast.copy_location(ast.Tuple(list(parts), ast.Store()), target)
            statements.append(ast.copy_location(ast.Assign([pattern], value), target))
            for name, element in zip(names, target.elts):
                self.assign(element, load(name, element), statements)
        else:
            statements.append(ast.copy_location(ast.Assign([target], value), target))

    def element(
        self, target: ast.Subscript, statements: list[ast.stmt], *, value: ast.expr, op: ast.operator | None = None
    ) -> None:
        """target = value, or target op= value."""
        base, indices = self.indices(target)
        base_name = base.id
        indices = [self.held(index, statements, has_walrus(target) or has_walrus(value)) for index in indices]
        rows = [base_name]
        for index in indices[:-1]:
            name = self.fresh()
            statements.append(_assign(name, _item(rows[-1], index, target), target))
            rows.append(name)
        if op is not None:
            value = ast.copy_location(ast.BinOp(_item(rows[-1], indices[-1], target), op, value), target)
        for name, index in zip(reversed(rows), reversed(indices)):
            row = _call(ROW, target, load(name, target), index)
            statements.append(_assign(name, _call(WRITE, target, load(name, target), row, value), target))
            value = load(name, target)

    def indices(self, target: ast.Subscript) -> tuple[ast.Name, list[ast.expr]]:
        """The variable whose element is assigned, and the indices, outermost first."""
        indices: list[ast.expr] = []
        node: ast.expr = target
        while isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            indices = [*parts, *indices]
            node = node.value
        for part in indices:
            if isinstance(part, (ast.Slice, ast.Starred)) or (
                isinstance(part, ast.Constant) and type(part.value) is not int
            ):
                form = f"assignment to `{ast.unparse(target)}`, whose index is not an integer,"
                if isinstance(part, ast.Constant) and isinstance(node, ast.Name):
                    entry = f"{{**{node.id}, {part.value!r}: value}}"
                    self.refuse(target, form, f"make a new dict of the same keys: {node.id} = {entry}")
                self.refuse(target, form, "assign one element at a time, or use ops.where or ops.concatenate")
        if isinstance(node, ast.Attribute):
            form = f"assignment to `{ast.unparse(target)}`, an element of a field,"
            self.refuse(target, form, f"write x = x._replace({node.attr}=autobatch.write(x.{node.attr}, index, value))")
        if not isinstance(node, ast.Name):
            self.refuse(target, f"assignment to `{ast.unparse(target)}`", "give the array a name first")
        if not self.is_local(node.id):
            form = f"assignment to an element of {node.id!r}, which is not a variable of the function,"
            note = "an array; what lanes compute cannot be kept in a dict, or outside of the function"
            self.refuse(target, form, f"copy it into one first: x = {node.id} ({note})")
        return node, indices


def _has_element(target: ast.expr) -> bool:
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    return isinstance(target, ast.Subscript) or any(map(_has_element, parts))


def _assign(name: str, value: ast.expr, like: ast.AST) -> ast.stmt:
    target = ast.copy_location(ast.Name(name, ast.Store()), like)
    assignment = ast.copy_location(ast.Assign([target], ast.copy_location(value, like)), like)
    return ast.fix_missing_locations(assignment)


def _item(name: str, index: ast.expr, like: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Subscript(load(name, like), copied(index), ast.Load()), like)


def _call(name: str, like: ast.AST, *arguments: ast.expr) -> ast.expr:
    call = ast.Call(load(name, like), [copied(a) for a in arguments], [])
    return ast.copy_location(call, like)
