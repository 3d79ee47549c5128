"""What is known about an expression when the program is read: nothing here emits an op.

    (f if FAST else g)(x)        `static`: the object that an expression denotes, here what FAST chooses
    SIZES[1] + 2                 `is_static`, `evaluate`: it reads no variable of a lane, and its value
    x + f(x)                     `needs_variable`: f(x) is a call of the program, which no expression can make
    [f(k) for k in SIZES]        `comprehensions_with_calls`: it has to be written out
    h = lambda k: k + x          `held_function`, `function_given`: a value that is a function

These ask each other, so they are in one file: a choice is known if its test is static, static is what needs no
variable, a called lambda needs one if it is given a function.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from batchnuts.autobatch.errors import CompileError, UndefinedVariableError, UnsupportedSyntaxError
from batchnuts.autobatch.frontend import expressions, walrus
from batchnuts.autobatch.frontend.builder import Builder
from batchnuts.autobatch.frontend.expressions import UNKNOWN
from batchnuts.autobatch.frontend.helpers import is_helper
from batchnuts.autobatch.frontend.hidden_state import Hidden, StateFinder, is_ours, needs_values, takes_seed
from batchnuts.autobatch.frontend.inner_function import InnerFunction
from batchnuts.autobatch.frontend.source import FunctionSource
from batchnuts.autobatch.language.arrays import is_array
from batchnuts.autobatch.language.functions import LaneFunction, PrimitiveFunction, sync, write
from batchnuts.autobatch.language.operators import Checks
from batchnuts.autobatch.language.pytree import flatten
from batchnuts.autobatch.parsing import COMPREHENSIONS

DISPLAYS = (ast.Tuple, ast.List)


def static(b: Builder, node: ast.AST) -> Any:
    """The object that an expression denotes at compile time (a choice: what it chooses), or UNKNOWN."""
    if isinstance(node, ast.Name) and node.id in b.unsettled:
        form = f"{node.id!r}, which stands for a function only within an earlier block,"
        b.refuse(node, form, "choose the function before the `if` or loop, or call it in each branch")
    if isinstance(node, ast.IfExp) and is_static(b, node.test):
        return static(b, node.body if evaluate(b, node.test) else node.orelse)
    return expressions.static_value(node, b.locals, b.namespace)


def callee_of(b: Builder, node: ast.AST) -> Any:
    """What a call calls, where that is known; None for everything that is no call."""
    return static(b, node.func) if isinstance(node, ast.Call) else None


def is_static(b: Builder, node: ast.expr) -> bool:
    """Whether an expression can be evaluated at compile time: it reads no variable and calls nothing batched."""
    parts = (part for part in ast.walk(node) if isinstance(part, ast.expr))
    return not b.names_read(node) and not any(needs_variable(b, part) for part in parts)


def evaluate(b: Builder, node: ast.expr) -> Any:
    """The value of an expression that `is_static`."""
    refuse_unknown_names(b, node)
    refuse_hidden_state(b, node)
    compiled = expressions.compile_expression(node, (), b.namespace, b.source.filename)
    try:
        return compiled.function(Checks())
    except Exception as error:
        raise CompileError(
            f"`{expressions.text_of(node)}` failed when the compiler evaluated it: {type(error).__name__}: {error}",
            b.source.at(node),
        ) from error


def refuse_unknown_names(b: Builder, node: ast.expr) -> None:
    """Raise for a name that is neither a variable nor defined around the function."""
    for name in expressions.unknown_names(node, b.locals, b.namespace):
        text = f"name {name.id!r} is not defined: neither assigned in {b.name!r} nor found in its module."
        if name.id in b.source.unset:
            text = (
                f"name {name.id!r} has no value yet: the enclosing function assigns it later. Assign it before this "
                "function is first run."
            )
        raise UndefinedVariableError(text, b.source.at(name))


# ---- what expressions cannot compute ---------------------------------------------------------------------------------


def needs_variable(b: Builder, node: ast.expr) -> bool:
    """Whether an expression must be taken out of the one around it."""
    if isinstance(node, ast.NamedExpr):
        return True
    if is_choice(node):
        return bool(b.names_read(node)) or walrus.has_walrus(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Lambda) and is_plain(node):
        arguments = [*node.args, *(k.value for k in node.keywords)]
        return needs_flow(b, node.func.body) or any(is_function_given(b, a) for a in arguments)
    callee = callee_of(b, node)
    return callee is write or callee is sync or isinstance(callee, (LaneFunction, PrimitiveFunction))


def needs_flow(b: Builder, body: ast.expr) -> bool:
    """Whether the body of a called lambda branches or calls batched functions, which no expression can do."""
    branches = any(is_choice(part) for part in ast.walk(body))
    return branches or calls_batched(b, body) or any(True for _ in comprehensions_with_calls(b, body))


def calls_batched(b: Builder, node: ast.AST) -> bool:
    """Whether something in an expression has to be called by the program itself."""
    return any(is_called_by_program(callee_of(b, part)) for part in ast.walk(node))


def is_called_by_program(callee: Any) -> bool:
    """Whether a call of the object is an op of its own, and no part of a pure expression."""
    over_lanes = isinstance(callee, PrimitiveFunction) and callee.batched
    return isinstance(callee, LaneFunction) or over_lanes or callee is write


def comprehensions_with_calls(b: Builder, node: ast.AST) -> Iterator[Any]:
    """The outermost comprehensions that call batched functions and that every lane evaluates: they are written out."""
    choosing = isinstance(node, (ast.IfExp, ast.BoolOp, ast.Compare)) and needs_variable(b, node)
    if choosing or isinstance(node, ast.Lambda):
        return
    if isinstance(node, COMPREHENSIONS):
        if has_calls(b, node):
            yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from comprehensions_with_calls(b, child)


def has_calls(b: Builder, node: Any) -> bool:
    """Whether a comprehension calls batched functions, or its variables may stand for some."""
    with b.hiding(node):
        inside = [part for part in ast.walk(node) if isinstance(part, ast.comprehension)]
        over = [constants_of(b, generator.iter) for generator in inside]
        if calls_batched(b, node) or any(map(_has_batched, over)):
            return True
        names = [n for c in ast.walk(node) if isinstance(c, ast.Call) for n in ast.walk(c.func)]
        return any(isinstance(name, ast.Name) and _has_batched([static(b, name)]) for name in names)


def constants_of(b: Builder, node: ast.expr) -> list[Any]:
    """The constants that an iterable is made of; iterators are left alone, since they can be read only once."""
    if isinstance(node, ast.Call) and static(b, node.func) in (enumerate, zip, reversed):
        return [value for argument in node.args for value in constants_of(b, argument)]
    if isinstance(node, DISPLAYS):
        return [value for element in node.elts for value in constants_of(b, element)]
    if next(expressions.unknown_names(node, b.locals, b.namespace), None) or not is_static(b, node):
        return []
    value = evaluate(b, node)
    return [] if isinstance(value, Iterator) else [value]


# ---- functions as values ---------------------------------------------------------------------------------------------


def function_given(b: Builder, node: ast.expr) -> Any:
    """The function that an argument is, known when the program is read, or `UNKNOWN`."""
    value = static(b, node)
    if isinstance(node, ast.Lambda):
        value = lambda_as_function(b, node)
    elif isinstance(node, ast.Tuple) and any(is_function_given(b, e) for e in node.elts) and is_static(b, node):
        value = evaluate(b, node)
    return value if is_function(value) or _is_table(value) else UNKNOWN


def is_function_given(b: Builder, node: ast.expr) -> bool:
    """Whether an argument is a function."""
    return function_given(b, node) is not UNKNOWN


def is_none(b: Builder, node: ast.expr | str) -> bool:
    """Whether an argument, or the default of one that is left out, is None: known when the program is read."""
    is_constant = isinstance(node, ast.Constant) and node.value is None
    return is_constant or (isinstance(node, ast.Name) and static(b, node) is None)


def held_function(b: Builder, node: ast.expr) -> Any:
    """The function, or the lambda's syntax, that an assigned value is; else `UNKNOWN`."""
    if isinstance(node, ast.Name) and isinstance(b.visible.get(node.id, (None,))[0], ast.Lambda):
        return b.visible[node.id][0]
    if isinstance(node, ast.Lambda):
        if not all(is_static(b, d) for d in (*node.args.defaults, *filter(None, node.args.kw_defaults))):
            b.refuse(node, "a lambda whose defaults are values of the lane", "read them in its body")
        return node
    value = static(b, node)
    if isinstance(node, ast.Call) and static(b, node.func) is functools.partial:
        if not is_static(b, node):
            form = f"`{ast.unparse(node)}`, which holds values of the lane,"
            b.refuse(node, form, "write a lambda: h = lambda y: f(x, y)")
        value = evaluate(b, node)
    if is_function(value):
        return value
    if isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.ListComp)) and is_static(b, node):
        with_lambda = isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Lambda)
        if with_lambda or any(holds_functions(b, part) for part in ast.iter_child_nodes(node)):
            value = evaluate(b, node)
    return value if has_functions(value) else UNKNOWN


def holds_functions(b: Builder, node: ast.AST) -> bool:
    """Whether an expression is a function, or a structure with functions in it, known when the program is read."""
    return isinstance(node, ast.expr) and held_function(b, node) is not UNKNOWN


def lambda_as_function(b: Builder, node: ast.Lambda) -> InnerFunction:
    """A lambda as a function with a `return`."""
    body = ast.copy_location(ast.Return(node.body), node.body)
    tree = ast.FunctionDef("lambda_", node.args, [body], [])
    return inner_function(b, ast.copy_location(tree, node), node.args)


def inner_function(b: Builder, tree: ast.FunctionDef, arguments: ast.arguments) -> InnerFunction:
    """The value of a `def` or lambda inside this function."""
    kinds = inspect.Parameter
    parameters = []
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    for i, (argument, default) in enumerate(zip(positional, defaults)):
        kind = kinds.POSITIONAL_ONLY if i < len(arguments.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD
        parameters.append(kinds(argument.arg, kind, default=default_of(b, default)))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
        parameters.append(kinds(argument.arg, kinds.KEYWORD_ONLY, default=default_of(b, default)))
    if arguments.vararg or arguments.kwarg:
        b.refuse(tree, "*args and **kwargs", "name each parameter")

    def settle() -> tuple[FunctionSource, tuple[str, ...]]:
        return replace(b.source, tree=tree, namespace=meaning_around(b)), reads_around(b, tree)

    identity = (b.callee, tree.name, tree.lineno, tree.col_offset, b.copies)
    return InnerFunction(tree.name, inspect.Signature(parameters), settle, identity)


def default_of(b: Builder, node: ast.expr | None) -> Any:
    """A parameter's default."""
    if node is None:
        return inspect.Parameter.empty
    if not is_static(b, node):
        b.refuse(node, "a default that is a value of the lane", "pass it with each call")
    return evaluate(b, node)


def reads_around(b: Builder, tree: ast.FunctionDef) -> tuple[str, ...]:
    """The variables of this function that one inside it reads."""
    return tuple(dict.fromkeys(name for name in expressions.free_names(tree) if name in b.locals))


def meaning_around(b: Builder) -> dict[str, Any]:
    """The meanings of names that are no variables here: those around the function, and those of functions."""
    meanings = {name: value for name, value in b.around.items() if name not in b.locals}
    for name, (held, _) in b.visible.items():
        meanings[name] = lambda_as_function(b, held) if isinstance(held, ast.Lambda) else held
    return meanings


# ---- hidden state ----------------------------------------------------------------------------------------------------


def refuse_hidden_state(b: Builder, node: ast.expr) -> None:
    """Raise for hidden state (see StateFinder): what gives another value each time, as random numbers do."""
    for part, value in expressions.constants_read(node, b.locals, b.namespace):
        hidden = b.state_finder.find(value, expressions.text_of(part))
        if hidden is not None:
            refuse_hidden(b, part, hidden)
    for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
        if not call.args and not call.keywords and takes_seed(static(b, call.func)):
            refuse_hidden(b, call, Hidden(expressions.text_of(call), random=True))


def refuse_hidden(b: Builder, node: ast.AST, hidden: Hidden) -> NoReturn:
    """Raise for hidden state that a name leads to, at the code that reads it."""
    within = f" in {hidden.within!r}" if hidden.within else ""
    form = f"`{hidden.text}`{within}, whose random numbers do not belong to a lane,"
    rewrite = "draw with autobatch.random from a key that the lane has"
    if not hidden.random:
        form = f"`{hidden.text}`{within}, which is called once, when the program is compiled, not by each lane,"
        rewrite = "pass its result as an argument"
    if hidden.source is None:
        b.refuse(node, form, rewrite)
    reader = b.source.at(node)
    place = f" in function {b.name!r}, which reaches it from {reader.filename}:{reader.line}"
    text = f"{form} cannot be batched{'' if is_ours(reader.filename) else place}. Instead, {rewrite}."
    raise UnsupportedSyntaxError(text, hidden.source)


def needing_values(b: Builder, value: Any) -> Hidden | None:
    """A function that a helper or primitive calls and that gives wrong results for arrays without values."""
    if not (is_helper(value) or isinstance(value, PrimitiveFunction)):
        return None
    if id(value) not in b.needing_values:
        b.needing_values[id(value)] = StateFinder(needs_values).find(value, "")
    return b.needing_values[id(value)]


# ---- of values and syntax alone --------------------------------------------------------------------------------------


def is_function(value: Any) -> bool:
    """Whether a value known at compile time can be called."""
    return isinstance(value, LaneFunction) or (callable(value) and not is_array(value))


def has_functions(value: Any) -> bool:
    """Whether a constant is a tuple, list or dict with functions in it."""
    parts = list(value.values()) if type(value) is dict else value if type(value) in (tuple, list) else ()
    return any(is_function(part) or has_functions(part) for part in parts)


def is_choice(node: ast.AST) -> bool:
    """Whether lanes evaluate only some parts of the expression."""
    return isinstance(node, (ast.IfExp, ast.BoolOp)) or expressions.must_stop_early(node)


def is_plain(node: ast.Call) -> bool:
    """Whether a call has no `*` or `**`."""
    return not any(isinstance(a, ast.Starred) for a in node.args) and all(k.arg for k in node.keywords)


def _is_table(value: Any) -> bool:
    """Whether a constant is a tuple of functions."""
    return type(value) is tuple and bool(value) and all(is_function(part) or _is_table(part) for part in value)


def _has_batched(value: Any) -> bool:
    """Whether a constant holds functions that the program itself calls; arrays and ranges are not searched."""
    containers: tuple[Any, ...] = (tuple, list, set, frozenset, type({}.items()), type({}.values()))
    parts = [*value.values()] if isinstance(value, dict) else [*value] if isinstance(value, containers) else []
    leaves = [leaf for part in parts for leaf in flatten(part)[0]]
    return any(isinstance(leaf, (LaneFunction, PrimitiveFunction)) or _has_batched(leaf) for leaf in leaves)
