"""Targets of assignments: names, tuples of targets, elements of arrays."""

from __future__ import annotations

import ast
from collections.abc import Callable
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
        kept = [n if last[n] == i else self.temporary() for i, n in enumerate(pattern.names)]
        return tuple(map(self.variable, kept)), pattern.take_apart

    def assign_target(self, target: ast.expr, value: ast.expr) -> None:
        """target = value."""
        match target:
            case ast.Name(id=identifier):
                function = self.held_function(value)
                if function is not expressions.UNKNOWN:
                    self.hold(identifier, function, target)
                    return
                if identifier in self.visible:
                    what = f"{identifier!r}, which stands for a function, as a variable"
                    self.refuse(target, what, "use another name")
                self.assign(identifier, value)
                self.unsettled.discard(identifier)
            case ast.Tuple() | ast.List():
                pure = self.purify(value)
                outs, take_apart = self.outputs(target)
                self.compute(outs, pure, take_apart, self.source.at(target))
            case _:
                self.refuse_target(target)
