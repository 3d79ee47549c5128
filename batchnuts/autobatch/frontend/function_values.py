"""Functions as values: names that stand for functions, lambdas and `def` inside.

h = square              `h` is no variable of the program: it stands for `square` up to the end of its block
h = lambda k: k + n     a call h(2) is the expression 2 + n, with the value that `n` has there
def h(k): ...           a function of its own, which gets what it reads of the variables around it

`with_lambdas` and `plain_calls` are rewrites of expressions.
"""

from __future__ import annotations

import ast
import functools
from typing import Any

from batchnuts.autobatch.errors import CompileError
from batchnuts.autobatch.frontend import expressions, known, walrus
from batchnuts.autobatch.frontend.builder import Builder
from batchnuts.autobatch.frontend.expressions import UNKNOWN
from batchnuts.autobatch.language.functions import LaneFunction, PrimitiveFunction
from batchnuts.autobatch.parsing import SCOPES, copied, load

MOST_NESTED = 32
"""The maximum number of lambdas expanded within each other."""


def hold(b: Builder, name: str, value: Any, node: ast.AST) -> None:
    """From here to the end of the block, `name` stands for a function."""
    if name in b.visible:
        held, depth = b.visible[name]
        if held is not value and len(b.loops) > depth:
            form = f"{name!r}, which stands for another function in the next iteration,"
            b.refuse(node, form, "use a name of its own in the loop")
    b.visible[name] = value, len(b.loops)
    b.unsettled.discard(name)
    b.locals.discard(name)
    if not isinstance(value, ast.Lambda):
        b.namespace[name] = value


def functions_named(b: Builder, node: ast.expr) -> ast.expr:
    """The expression with names in place of `(h := f)`, where every lane comes to it, for a function `f`."""
    if not walrus.has_walrus(node):
        return node
    replaced: dict[int, ast.AST] = {}

    def visit(part: ast.AST) -> None:
        if known.is_choice(part) or isinstance(part, SCOPES):
            return
        for child in ast.iter_child_nodes(part):
            visit(child)
        if isinstance(part, ast.NamedExpr) and (function := known.held_function(b, part.value)) is not UNKNOWN:
            if part.target.id in b.visible and b.visible[part.target.id][0] is not function:
                form = f"`{ast.unparse(part)}`, where the name stands for another function,"
                b.refuse(part, form, "assign in a statement of its own")
            hold(b, part.target.id, function, part)
            replaced[id(part)] = load(part.target.id, part)

    visit(node)
    return copied(node, replaced) if replaced else node


def with_lambdas(b: Builder, node: ast.expr) -> ast.expr:
    """The expression with the lambdas that its names stand for."""
    named = {name: held for name, (held, _) in b.visible.items() if isinstance(held, ast.Lambda)}
    places = [load for load in expressions.free_loads(node) if load.id in named] if named else []
    if not places:
        return node
    hidden = expressions.bound_in(node)
    for place in places:
        shadowed = hidden.intersection(load.id for load in expressions.free_loads(named[place.id]))
        if shadowed:
            form = f"the lambda {place.id!r}, which reads {shadowed.pop()!r}, where that name means something else,"
            b.refuse(place, form, "use another name in the lambda or comprehension here")
    b.expanding += 1
    if b.expanding > MOST_NESTED:
        b.refuse(places[0], f"a lambda that calls itself, {places[0].id!r},", "write it with `def`")
    expanded = copied(node, {id(place): copied(named[place.id]) for place in places})
    expanded = with_lambdas(b, expanded)
    b.expanding -= 1
    return expanded


def plain_calls(b: Builder, node: ast.expr) -> ast.expr:
    """The expression in simpler calls.

    `f(1, x)` for a call of partial(f, 1) of a batched `f`; `[f(x) for x in v]` for map(f, v); for `TABLE[i]` of a
    number `i` that is known, the function.
    """
    scopes = [part for part in ast.walk(node) if isinstance(part, SCOPES)]
    bound = {name for scope in scopes for name in expressions.bound_in(scope)}
    for part in ast.walk(node):
        simpler: ast.expr | None = None
        if isinstance(part, ast.Subscript):
            if takes_function(b, part) and not bound & set(b.names_read(part)):
                simpler = b.constant(chosen(b, part))
        elif isinstance(part, ast.Call) and not bound & {n.id for n in ast.walk(part.func) if isinstance(n, ast.Name)}:
            simpler = _plain_call(b, part, known.static(b, part.func))
        if simpler is not None:
            return plain_calls(b, copied(node, {id(part): expressions.located(simpler, part)}))
    return node


def _plain_call(b: Builder, call: ast.Call, function: Any) -> ast.expr | None:
    """A call of a partial function as one of the function, `map` of a named one as a comprehension; else None."""
    if type(function) is functools.partial and isinstance(function.func, (LaneFunction, PrimitiveFunction)):
        overridden = {k.arg for k in call.keywords}
        keywords = [ast.keyword(k, b.constant(v)) for k, v in function.keywords.items() if k not in overridden]
        arguments = [*map(b.constant, function.args), *call.args]
        return ast.Call(b.constant(function.func), arguments, [*keywords, *call.keywords])
    if function is map and len(call.args) > 1 and known.is_plain(call) and not isinstance(call.args[0], ast.Lambda):
        names = [b.fresh("element", i + 1) for i in range(len(call.args) - 1)]
        loads, stores = ([ast.Name(n, kind()) for n in names] for kind in (ast.Load, ast.Store))
        over = call.args[1] if len(names) == 1 else ast.Call(b.constant(zip), call.args[1:], [])
        target = stores[0] if len(names) == 1 else ast.Tuple(list(stores), ast.Store())
        each = ast.Call(call.args[0], list(loads), [])
        return ast.ListComp(each, [ast.comprehension(target, over, [], 0)])
    return None


def takes_function(b: Builder, node: ast.Subscript) -> bool:
    """Whether a subscript takes a function out of a constant by an index that reads variables."""
    return bool(b.names_read(node.slice)) and known.has_functions(table(b, node.value))


def table(b: Builder, node: ast.expr) -> Any:
    """The value of the expression before an index, if it is a constant, written there or elsewhere."""
    value = known.static(b, node)
    written = value is UNKNOWN and isinstance(node, (ast.Tuple, ast.List, ast.Dict))
    return known.held_function(b, node) if written else value


def chosen(b: Builder, node: ast.Subscript) -> Any:
    """The function that is taken, by the number of a round of a loop that is written out."""
    index = node.slice
    if isinstance(index, ast.Name) and index.id in b.numbers:
        try:
            return table(b, node.value)[b.numbers[index.id]]
        except LookupError as error:
            raise CompileError(f"`{ast.unparse(node)}`: {error}.", b.source.at(node)) from None
    form = f"`{expressions.text_of(node)}`, a function chosen by a value of the lane,"
    b.refuse(node, form, "write `if` and `else` with a call in each, or loop over the functions themselves")
