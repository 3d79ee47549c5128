"""Targets of assignments: names, tuples of targets, elements of arrays."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from typing import NoReturn

from batchnuts.autobatch.frontend import expressions, known
from batchnuts.autobatch.frontend.builder import Builder
from batchnuts.autobatch.frontend.expressions import UNKNOWN
from batchnuts.autobatch.frontend.function_values import hold
from batchnuts.autobatch.frontend.translate import Finish, alone, assign, compute, purify
from batchnuts.autobatch.language.builtins import python_len
from batchnuts.autobatch.parsing import load


def refuse_target(b: Builder, target: ast.expr) -> NoReturn:
    """Raise for what cannot be assigned to."""
    match target:
        case ast.Attribute():
            b.refuse(target, "assignment to a field", "x = x._replace(field=value) or dataclasses.replace")
        case _:
            b.refuse(target, f"assignment to `{ast.unparse(target)}`", "assign to plain names")


def outputs(b: Builder, target: ast.expr) -> tuple[tuple[str, ...], Finish]:
    """The variables of a target of plain names, and the function that takes a value apart into theirs."""
    if isinstance(target, ast.Name):
        return (b.variable(target.id),), alone
    if not isinstance(target, (ast.Tuple, ast.List)):
        refuse_target(b, target)
    pattern = expressions.Pattern.of(target, partial(refuse_target, b))
    # of a name that is there twice the last one counts
    last = {name: i for i, name in enumerate(pattern.names)}
    names = [n if last[n] == i else b.temporary() for i, n in enumerate(pattern.names)]
    return tuple(map(b.variable, names)), partial(pattern.take_apart, source=b.source.at(target))


def parts_with_functions(b: Builder, target: ast.Tuple | ast.List, value: ast.expr) -> list[ast.expr] | None:
    """The parts of a tuple, as many as there are targets, where some are functions; None for everything else."""
    if isinstance(value, (ast.Tuple, ast.List)):
        parts = value.elts
    elif isinstance(held := known.static(b, value), (tuple, list)):
        parts = [expressions.located(b.constant(part), value) for part in held]
    else:
        return None
    fits = len(parts) == len(target.elts) and not any(isinstance(p, ast.Starred) for p in (*parts, *target.elts))
    return parts if fits and any(known.holds_functions(b, part) for part in parts) else None


def targets_and_values(
    b: Builder, target: ast.Tuple | ast.List, parts: list[ast.expr]
) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of a tuple and those of tuples in it, and their values."""
    for element, part in zip(target.elts, parts):
        if isinstance(element, (ast.Tuple, ast.List)) and (inner := parts_with_functions(b, element, part)) is not None:
            yield from targets_and_values(b, element, inner)
        else:
            yield element, part


def assign_parts(b: Builder, pairs: list[tuple[ast.expr, ast.expr]]) -> None:
    """Assign to targets after all of their values are evaluated."""
    held = [(t, v) if known.holds_functions(b, v) else (t, evaluated(b, v)) for t, v in pairs]
    functions = [known.held_function(b, v) if isinstance(t, ast.Name) else UNKNOWN for t, v in held]
    for (target, value), function in zip(held, functions):
        if isinstance(target, ast.Name) and function is not UNKNOWN:
            hold(b, target.id, function, target)
        else:
            assign_target(b, target, value)


def evaluated(b: Builder, value: ast.expr) -> ast.expr:
    """A variable with the value."""
    name = b.temporary()
    assign(b, name, value)
    return load(name, value)


def assign_target(b: Builder, target: ast.expr, value: ast.expr) -> None:
    """target = value."""
    match target:
        case ast.Name(id=identifier):
            assign_name(b, target, value)
            if known.is_static(b, value) and is_assigned_once(b, identifier):
                remember_number(b, identifier, value)
        case ast.Tuple() | ast.List() if (parts := parts_with_functions(b, target, value)) is not None:
            assign_parts(b, list(targets_and_values(b, target, parts)))
        case ast.Tuple() | ast.List():
            pure = purify(b, value)
            outs, take_apart = outputs(b, target)
            compute(b, outs, pure, b.source.at(target), take_apart)
        case _:
            refuse_target(b, target)


def assign_name(b: Builder, target: ast.Name, value: ast.expr) -> None:
    """target = value, of which a function is no value of the program: from here on, the name stands for it."""
    function = known.held_function(b, value)
    if function is not UNKNOWN:
        hold(b, target.id, function, target)
        return
    if target.id in b.visible:
        form = f"{target.id!r}, which stands for a function, as a variable"
        b.refuse(target, form, "use another name")
    assign(b, target.id, value)
    b.unsettled.discard(target.id)


def remember_number(b: Builder, identifier: str, value: ast.expr) -> None:
    """Note the number that a variable is, if it is one."""
    calls = [part for part in ast.walk(value) if isinstance(part, ast.Call)]
    if all(known.static(b, call.func) is python_len for call in calls):  # other calls are not made twice
        number = known.evaluate(b, value)
        if type(number) is int:
            b.numbers[identifier] = number


def is_assigned_once(b: Builder, name: str) -> bool:
    """Whether a variable is no parameter and is assigned in one place only."""
    stores = [
        part
        for statement in b.statements()
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and part.id == name and not isinstance(part.ctx, ast.Load)
    ]
    return name not in b.parameters and len(stores) == 1
