"""The loops that apply the rules (see `builder.py`), and how a pure expression becomes one PrimOp.

        x = f(n - 1) + n // d                    f._2 = {n - 1} f.n
                                                 f._1 = call f f._2
                                          -->    f.x, f._check1 = {_1 + n // d} f._1, f.n, f.d
                                                 assert f._check1

All expressions are pure, so this order is as good as Python's. Parts that need control flow become temporaries first.
Parts without a defined result for some operands (an integer divided by zero) give a check, which is asserted right
after the op.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import Source, UnsupportedSyntaxError
from batchnuts.autobatch.frontend import expressions, known, speculation
from batchnuts.autobatch.frontend.builder import Builder
from batchnuts.autobatch.frontend.function_values import functions_named
from batchnuts.autobatch.frontend.hidden_state import Hidden
from batchnuts.autobatch.frontend.recordable_helpers import consists_of_language
from batchnuts.autobatch.frontend.unsupported import KEYWORDS, REWRITES
from batchnuts.autobatch.ir.program import AssertOp, Primitive, PrimOp
from batchnuts.autobatch.language.arrays import tensor_library_of
from batchnuts.autobatch.language.functions import LaneFunction, in_one_lane_code, sync
from batchnuts.autobatch.language.operators import Checks
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.parsing import load

Finish = Callable[[Any], tuple[Any, ...]]
"""Maps an expression's value to the values of the variables that it is assigned to."""


def translate(b: Builder, statements: Sequence[ast.stmt]) -> None:
    """Write statements, each by the rule for its class; some stand for simpler ones, which are written instead."""
    for statement in statements:
        node = with_functions_named(b, statement)
        simpler = b.in_place.simpler(node)
        if simpler is None:
            b.rules.statements.get(type(node), refuse_statement)(b, node)
        else:
            translate(b, simpler)


def assign(b: Builder, identifier: str, node: ast.expr) -> None:
    """identifier = node, by the rule for its class; an expression without a rule is pure."""
    node = simplified(b, node)
    b.rules.expressions.get(type(node), pure)(b, identifier, node)


def simplified(b: Builder, node: ast.expr) -> ast.expr:
    """The expression after all rewrites; applied to what it gives, they change nothing."""
    for rewrite in b.rules.rewrites:
        node = rewrite(b, node)
    return node


def refuse_statement(b: Builder, node: ast.stmt) -> None:
    """The rule for statements that the language does not have."""
    keyword = KEYWORDS.get(type(node), type(node).__name__.lower())
    b.refuse(
        node,
        f"{'an' if keyword[0] in 'aeiou' else 'a'} `{keyword}` statement",
        REWRITES.get(type(node), "rewrite it with if and while"),
    )


def with_functions_named(b: Builder, node: ast.stmt) -> ast.stmt:
    """The statement with names in place of `(h := f)` for functions, wherever it gives a value to something."""
    if isinstance(node, (ast.Return, ast.Assign, ast.AugAssign)) and node.value is not None:
        named = functions_named(b, node.value)
        if named is not node.value:
            node = copy.copy(node)
            node.value = named
    return node


# ---- pure expressions -----------------------------------------------------------------------------------------------


def pure(b: Builder, identifier: str, node: ast.expr) -> None:
    """The rule for expressions that are one op, once their parts that are none are taken out."""
    where = b.source.at(node)
    compute(b, (b.variable(identifier),), _with_parts_taken_out(b, node), where)


def alone(value: Any) -> tuple[Any, ...]:
    """A value as what is assigned to one variable."""
    return (value,)


def compute(b: Builder, outs: tuple[str, ...], node: ast.expr, where: Source, finish: Finish = alone) -> None:
    """outs = finish(the value of a pure expression), followed by the checks that the expression asks for."""
    names = b.names_read(node)
    known.refuse_unknown_names(b, node)
    known.refuse_hidden_state(b, node)
    read = expressions.constants_read(node, b.locals, b.namespace)
    needing = next(filter(None, (known.needing_values(b, value) for _, value in read)), None)
    compiled = expressions.compile_expression(node, names, b.namespace, b.source.filename)
    evaluate, count = compiled.function, len(compiled.checks)

    def call(*values: Any) -> tuple[Any, ...]:
        if needing is not None:
            require_values(needing, values)
        checks = Checks(values)
        token = in_one_lane_code.set(True)
        try:
            with np.errstate(all="ignore"):
                return (*finish(evaluate(*values, checks)), *checks.results(count))
        finally:
            in_one_lane_code.reset(token)

    def static(part: ast.AST) -> Any:
        return known.static(b, part)

    function = Primitive(
        expressions.text_of(node),
        call,
        weak=expressions.is_bound(node),
        parts=() if is_apart(b, where) else operands_of_parts(b, node),
        speculable=not count and speculation.is_speculable(node, static),
        offset=speculation.offset_of(node) if len(names) == 1 else None,
        rearranges=speculation.rearranges(node, static),
        of_language=(of_language := speculation.is_of_language(node, static)),
        by_helpers=not of_language and speculation.is_of_language(node, static, consists_of_language),
        written=expressions.as_written(node, b.held),
    )
    held = tuple(b.variable(b.check()) for _ in range(count))
    inputs = tuple(map(b.variable, names))
    b.emit(PrimOp((*outs, *held), function, inputs, where))
    for variable, check in zip(held, compiled.checks):
        b.emit(AssertOp(variable, check.message, b.source.at(check.node)))


def operands_of_parts(b: Builder, node: ast.expr) -> tuple[frozenset[str], ...]:
    """For each part of a pure expression that could be an op, the variables that it computes with.

    For x[i] these are the index's; those of an index within the part do not count.
    """
    inner = [part for part in expressions.outside_scopes(node) if part is not node and expressions.is_part(part)]
    operands = [expressions.operands_read(part, b.locals) for part in inner]
    return tuple(frozenset(map(b.variable, names)) for names in operands if names)


def is_apart(b: Builder, where: Source) -> bool:
    """Whether types say that the parts of the expression at that place become ops of their own."""
    return where in b.reading.learned


def require_values(hidden: Hidden, values: tuple[Any, ...]) -> None:
    """Raise for a helper that is given arrays without values, and asks NumPy whether they are equal."""
    if tensor_library_of(*flatten(values)[0]) is not None:
        raise UnsupportedSyntaxError(
            f"`{hidden.text}` in {hidden.within!r} cannot take a value of the lane on this backend: arrays have no "
            "values while a program is traced, and NumPy then says False. Write ops.all(x == y).",
            hidden.source,
        )


# ---- parts that are no pure expressions -----------------------------------------------------------------------------


def atom(b: Builder, node: ast.expr) -> str:
    """The identifier of a local holding the expression's value."""
    if isinstance(node, ast.Name) and node.id in b.locals:
        return node.id
    if isinstance(node, ast.NamedExpr):
        assign(b, node.target.id, node.value)
        return node.target.id
    identifier = b.temporary()
    b.held[identifier] = node
    assign(b, identifier, node)
    return identifier


def atom_name(b: Builder, node: ast.expr) -> ast.expr:
    """A local holding the expression's value, as an expression."""
    return load(atom(b, node), node)


def purify(b: Builder, node: ast.expr) -> ast.expr:
    """The expression with everything that is not a pure array expression replaced by temporaries."""
    return _with_parts_taken_out(b, simplified(b, node))


def _with_parts_taken_out(b: Builder, node: ast.expr) -> ast.expr:
    apart, within = is_apart(b, b.source.at(node)), False

    def is_apart_within(inner: ast.expr) -> bool:
        nonlocal within
        result = within and apart and expressions.is_part(inner) and bool(b.names_read(inner))
        within = True
        return result

    def take_out(inner: ast.expr) -> ast.expr | None:
        if type(inner) in REWRITES:
            b.refuse(inner, f"`{ast.unparse(inner)}`", REWRITES[type(inner)])
        refuse_decorated(b, inner)
        if known.callee_of(b, inner) is sync:
            b.refuse(inner, "`sync` within an expression", "write it as a statement of its own")
        return atom_name(b, inner) if is_apart_within(inner) or known.needs_variable(b, inner) else None

    def in_nested_scope(inner: ast.expr) -> None:
        if known.is_called_by_program(known.callee_of(b, inner)):
            called = ast.unparse(inner).split("(")[0]
            b.refuse(inner, f"a call of `{called}` inside a lambda or comprehension", "use a for loop")

    return expressions.purify(node, take_out, in_nested_scope)


def refuse_decorated(b: Builder, node: ast.expr) -> None:
    """Raise for a call of a decorated batched function: the decorator would call it as plain Python does."""
    callee = known.callee_of(b, node)
    if not isinstance(callee, LaneFunction) and isinstance(getattr(callee, "__wrapped__", None), LaneFunction):
        called = expressions.text_of(node.func) if isinstance(node, ast.Call) else ""
        form = f"a call of `{called}`, which a decorator above @batch has wrapped,"
        b.refuse(node, form, f"decorate under another name: decorated = decorator({called}), without the `@`")
