"""Targets of assignments: names, tuples of targets, elements of arrays."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

from batchnuts.autobatch.frontend import expressions
from batchnuts.autobatch.frontend.function_values import FunctionValueBuilder


class TargetBuilder(FunctionValueBuilder):
    """Assignments of one function."""

    def refuse_target(self, target: ast.expr) -> NoReturn:
        """Raise for what cannot be assigned to."""
        match target:
            case ast.Attribute():
                self.refuse(target, "assignment to a field", "x = x._replace(field=value) or dataclasses.replace")
            case _:
                self.refuse(target, f"assignment to `{ast.unparse(target)}`", "assign to plain names")

    def outputs(self, target: ast.expr) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
        """The variables of a target of plain names, and the function that takes a value apart into theirs."""
        if isinstance(target, ast.Name):
            return (self.variable(target.id),), lambda value: (value,)
        if not isinstance(target, (ast.Tuple, ast.List)):
            self.refuse_target(target)
        pattern = expressions.Pattern.of(target, self.refuse_target)
        # of a name that is there twice the last one counts
        last = {name: i for i, name in enumerate(pattern.names)}
        names = [n if last[n] == i else self.temporary() for i, n in enumerate(pattern.names)]
        return tuple(map(self.variable, names)), partial(pattern.take_apart, source=self.source.at(target))

    def parts_with_functions(self, target: ast.Tuple | ast.List, value: ast.expr) -> list[ast.expr] | None:
        """The parts of a tuple, as many as there are targets, where some are functions; None for everything else."""
        if isinstance(value, (ast.Tuple, ast.List)):
            parts = value.elts
        elif isinstance(held := self.static(value), (tuple, list)):
            parts = [expressions.located(self.hidden(part), value) for part in held]
        else:
            return None
        fits = len(parts) == len(target.elts) and not any(isinstance(p, ast.Starred) for p in (*parts, *target.elts))
        return parts if fits and any(map(self.holds_functions, parts)) else None

    def pairs(self, target: ast.Tuple | ast.List, parts: list[ast.expr]) -> Iterator[tuple[ast.expr, ast.expr]]:
        """The targets of a tuple and those of tuples in it, and their values."""
        for element, part in zip(target.elts, parts):
            nested = isinstance(element, (ast.Tuple, ast.List))
            inner = self.parts_with_functions(element, part) if nested else None  # type: ignore[arg-type]
            if inner is None:
                yield element, part
            else:
                yield from self.pairs(element, inner)  # type: ignore[arg-type]

    def assign_parts(self, pairs: list[tuple[ast.expr, ast.expr]]) -> None:
        """Assign to targets after all of their values are evaluated."""
        held = [(t, v) if self.holds_functions(v) else (t, self.evaluated(v)) for t, v in pairs]
        functions = [self.held_function(v) if isinstance(t, ast.Name) else expressions.UNKNOWN for t, v in held]
        for (target, value), function in zip(held, functions):
            if isinstance(target, ast.Name) and function is not expressions.UNKNOWN:
                self.hold(target.id, function, target)
            else:
                self.assign_target(target, value)

    def evaluated(self, value: ast.expr) -> ast.expr:
        """A variable with the value."""
        name = self.temporary()
        self.assign(name, value)
        return ast.copy_location(ast.Name(name, ast.Load()), value)

    def assign_target(self, target: ast.expr, value: ast.expr) -> None:
        """target = value."""
        match target:
            case ast.Name(id=identifier):
                function = self.held_function(value)
                if function is not expressions.UNKNOWN:
                    self.hold(identifier, function, target)
                    return
                if identifier in self.visible:
                    form = f"{identifier!r}, which stands for a function, as a variable"
                    self.refuse(target, form, "use another name")
                self.assign(identifier, value)
                self.unsettled.discard(identifier)
            case ast.Tuple() | ast.List() if (parts := self.parts_with_functions(target, value)) is not None:
                self.assign_parts(list(self.pairs(target, parts)))
            case ast.Tuple() | ast.List():
                pure = self.purify(value)
                outs, take_apart = self.outputs(target)
                self.compute(outs, pure, take_apart, self.source.at(target))
            case _:
                self.refuse_target(target)
