"""Calls of batched functions and declared primitives: arguments bound to parameters, functions passed to functions.

apply(square, x)        h is known when the program is read: `apply` is compiled once for each function it is given
                        -->  f._1 = call apply#2 f.x            apply#2(x), whose `h` is the constant `square`
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

from batchnuts.autobatch.errors import CompileError
from batchnuts.autobatch.frontend import expressions, known
from batchnuts.autobatch.frontend.builder import Builder, Callee
from batchnuts.autobatch.frontend.expressions import UNKNOWN
from batchnuts.autobatch.frontend.function_values import hold
from batchnuts.autobatch.frontend.inner_function import InnerFunction
from batchnuts.autobatch.frontend.loop_names import renamed
from batchnuts.autobatch.frontend.translate import assign, atom, compute, pure, purify, require_values
from batchnuts.autobatch.ir.program import COPY, FunctionCallOp, Primitive, PrimOp, WriteRowOp
from batchnuts.autobatch.language import iteration
from batchnuts.autobatch.language.arrays import is_array
from batchnuts.autobatch.language.functions import LaneFunction, PrimitiveFunction, write
from batchnuts.autobatch.parsing import load

_GIVEN = object()
"""A placeholder for an argument that is bound by its position or name alone."""


def call(b: Builder, identifier: str, node: ast.Call) -> None:
    """The rule for calls: what is called says which are ops of their own."""
    out = b.variable(identifier)
    callee = known.static(b, node.func)
    if isinstance(node.func, ast.Lambda) and known.needs_variable(b, node):
        call_lambda(b, identifier, node, node.func)
    elif isinstance(callee, LaneFunction):
        call_batched(b, out, node, callee)
    elif callee is write:
        write_row(b, out, node)
    elif isinstance(callee, PrimitiveFunction):
        declared_primitive(b, out, node, callee)
    else:
        pure(b, identifier, node)


def call_lambda(b: Builder, identifier: str, node: ast.Call, function: ast.Lambda) -> None:
    """A called lambda is its body, with variables for its parameters."""
    tree = ast.copy_location(ast.FunctionDef("lambda", function.args, [], []), node)
    arguments = arguments_of(b, node, known.inner_function(b, tree, function.args))
    assign(b, identifier, renamed(function.body, {p: held_argument(b, p, a) for p, a in arguments.items()}))


def held_argument(b: Builder, parameter: str, argument: ast.expr | str) -> str:
    """A name for an argument of a called lambda."""
    if isinstance(argument, str):
        return argument
    value = known.held_function(b, argument)
    name = b.fresh(parameter)
    b.locals.add(name)
    if value is not UNKNOWN:
        hold(b, name, value, argument)
    else:
        assign(b, name, argument)
    return name


def call_batched(b: Builder, out: str, node: ast.Call, callee: LaneFunction) -> None:
    """out = a call of a batched function."""
    arguments = arguments_of(b, node, callee)
    functions = {p: known.function_given(b, a) for p, a in arguments.items() if isinstance(a, ast.expr)}
    functions |= {p: None for p, a in arguments.items() if known.is_none(b, a)}
    function_arguments = tuple((p, value) for p, value in functions.items() if value is not UNKNOWN)
    for _, value in function_arguments:
        if isinstance(value, InnerFunction) and value.captured:
            read = ", ".join(value.captured)
            form = f"the function {value.__name__!r}, which reads {read} of the lane, as an argument"
            b.refuse(node, form, "give it those values as arguments of their own, or call it here")
    name = b.name_of(Callee(callee, function_arguments), node, b.source)
    passed = [a for p, a in arguments.items() if p not in dict(function_arguments)]
    inputs = [b.variable(a if isinstance(a, str) else atom(b, a)) for a in passed]
    inputs += map(b.variable, captured_by(b, node, callee))
    where = b.source.at(node)
    if name == b.name and out == b.variable("return"):
        # its own result goes through a temporary, so that no frame of `return` beneath the top is ever read
        held = b.variable(b.temporary())
        b.emit(FunctionCallOp((held,), name, tuple(inputs), where))
        b.emit(PrimOp((out,), COPY, (held,), where))
    else:
        b.emit(FunctionCallOp((out,), name, tuple(inputs), where))


def captured_by(b: Builder, node: ast.Call, callee: LaneFunction) -> tuple[str, ...]:
    """The variables of the function around it that a callee reads."""
    if not isinstance(callee, InnerFunction) or not callee.captured:
        return ()
    if callee != b.callee.function and callee.home != b.callee:
        form = f"a call of {callee.__name__!r}, which reads {', '.join(callee.captured)} of the function around it,"
        b.refuse(node, form, "give it those values as arguments")
    return callee.captured


def arguments_of(b: Builder, node: ast.Call, callee: LaneFunction) -> dict[str, ast.expr | str]:
    """Each parameter's argument in their order: an expression, or a variable that holds it. Defaults filled in."""
    signature = callee.signature
    node = unpacked(b, node)
    first = next((i for i, a in enumerate(node.args) if isinstance(a, ast.Starred)), len(node.args))
    named = {k.arg: k.value for k in node.keywords if k.arg is not None}
    if first < len(node.args) or len(named) < len(node.keywords):
        return spread(b, node, callee, node.args[:first], named)
    try:
        arguments = signature.bind(*node.args, **named).arguments
    except TypeError as error:
        raise misfit(b, node, callee, error) from None
    return {p: arguments[p] if p in arguments else default_argument(b, node, callee, p) for p in signature.parameters}


def unpacked(b: Builder, node: ast.Call) -> ast.Call:
    """The call with what `*t` and `**d` hold in their places, where they hold functions."""
    args: list[ast.expr] = []
    for argument in node.args:
        star = argument.value if isinstance(argument, ast.Starred) else None
        held = None if star is None else known.static(b, star)
        if isinstance(star, (ast.Tuple, ast.List)) and any(known.is_function_given(b, part) for part in star.elts):
            args += star.elts
        elif isinstance(held, (tuple, list)) and known.has_functions(held):
            args += [expressions.located(b.constant(part), argument) for part in held]
        else:
            args.append(argument)
    keywords: list[ast.keyword] = []
    for keyword in node.keywords:
        pairs = keyword.value if keyword.arg is None else None
        held = None if pairs is None else known.static(b, pairs)
        if isinstance(held, dict) and known.has_functions(held) and all(isinstance(key, str) for key in held):
            entries = {key: expressions.located(b.constant(part), keyword.value) for key, part in held.items()}
        elif isinstance(pairs, ast.Dict) and any(known.is_function_given(b, part) for part in pairs.values):
            texts = [key.value if isinstance(key, ast.Constant) else None for key in pairs.keys]
            entries = {text: value for text, value in zip(texts, pairs.values) if isinstance(text, str)}
            entries = entries if len(entries) == len(texts) else {}
        else:
            entries = {}
        fits = bool(entries) and not entries.keys() & {k.arg for k in (*node.keywords, *keywords)}
        keywords += [ast.keyword(name, value) for name, value in entries.items()] if fits else [keyword]
    return ast.copy_location(ast.Call(node.func, args, keywords), node)


def default_argument(b: Builder, node: ast.Call, callee: LaneFunction, parameter: str) -> ast.expr:
    """An expression that denotes a parameter's default."""
    key = callee, parameter
    if key not in b.defaults:
        b.defaults[key] = b.fresh(f"__default_{callee.__name__}_{parameter}")  # type: ignore[attr-defined]
        b.namespace[b.defaults[key]] = callee.signature.parameters[parameter].default
    return load(b.defaults[key], node)


def misfit(b: Builder, node: ast.Call, callee: LaneFunction, error: TypeError) -> CompileError:
    """The error for arguments that do not fit the parameters."""
    name = getattr(callee, "__name__", "function")
    text = f"the call of {name!r} does not fit its parameters {callee.signature}: {error}."
    return CompileError(text, b.source.at(node))


def spread(
    b: Builder, node: ast.Call, callee: LaneFunction, leading: list[ast.expr], named: dict[str, ast.expr]
) -> dict[str, ast.expr | str]:
    """Arguments after `*t` or within `**d`: how many there are is known when `t` and `d` have types."""
    parameters = callee.signature.parameters
    try:
        direct: dict[str, ast.expr | str] = dict(callee.signature.bind_partial(*leading, **named).arguments)
    except TypeError as error:
        raise misfit(b, node, callee, error) from None
    empty = inspect.Parameter.empty
    functions = {
        p for p, v in parameters.items() if p not in direct and v.default is not empty and known.is_function(v.default)
    }
    open_parameters = [p for p in parameters if p not in direct and p not in functions]
    star = [_star(a) for a in node.args[len(leading) :]]
    pairs = [k.value for k in node.keywords if k.arg is None]
    parts = ast.Tuple([ast.Tuple(star, ast.Load()), ast.Tuple(pairs, ast.Load())], ast.Load())
    values_given = purify(b, expressions.located(parts if pairs else ast.Tuple(star, ast.Load()), node))

    def bind(value: Any) -> tuple[Any, ...]:
        values, dicts = value if pairs else (value, ())
        more: dict[str, Any] = {}
        for mapping in dicts:
            if not isinstance(mapping, dict):
                text = f"** takes a dict with the parameters' names, not {type(mapping).__name__}."
                raise CompileError(text, b.source.at(node))
            more |= mapping
        try:
            bound = callee.signature.bind(*[_GIVEN] * len(leading), *values, **{**dict.fromkeys(named, _GIVEN), **more})
            if len(more) < sum(map(len, dicts)) or more.keys() & named.keys():
                raise TypeError("multiple values for one parameter")
            if functions & bound.arguments.keys():
                raise TypeError("pass a function by its name, not by * or **")
        except TypeError as error:
            raise misfit(b, node, callee, error) from None
        bound.apply_defaults()
        return tuple(bound.arguments[p] for p in open_parameters)

    held = [b.temporary() for _ in open_parameters]
    compute(b, tuple(map(b.variable, held)), values_given, b.source.at(node), bind)
    arguments: dict[str, ast.expr | str] = {**direct, **dict(zip(open_parameters, held))}
    return {p: arguments[p] if p in arguments else default_argument(b, node, callee, p) for p in parameters}


def _star(node: ast.expr) -> ast.expr:
    """An argument, of which `*t` is taken apart on every backend."""
    if not isinstance(node, ast.Starred):
        return node
    return ast.Starred(ast.Call(ast.Name(expressions.ELEMENTS, ast.Load()), [node.value], []), ast.Load())


def declared_primitive(b: Builder, out: str, node: ast.Call, callee: PrimitiveFunction) -> None:
    """out = a call of a function declared with `primitive`."""
    if node.keywords:
        b.refuse(node, "keyword arguments of a declared primitive", "pass them by position")
    starred = [isinstance(a, ast.Starred) for a in node.args]
    nodes = [a.value if isinstance(a, ast.Starred) else a for a in node.args]
    inputs = tuple(b.variable(atom(b, a)) for a in nodes)
    name = getattr(callee, "__name__", "primitive")
    hidden = b.state_finder.find(callee, name)
    if hidden is not None:
        known.refuse_hidden(b, node, hidden)
    needing = known.needing_values(b, callee)
    settled = expressions.copier_of(b.namespace).helper(callee.function)

    def call(*args: Any) -> tuple[Any, ...]:
        if needing is not None:
            require_values(needing, args)
        values: list[Any] = []
        for value, star in zip(args, starred):
            if star and callee.batched and is_array(value):
                raise TypeError(f"*x of an array as arguments of {name!r}, which takes all lanes: index it")
            values += iteration.elements(value) if star else [value]
        return (settled(*values, *callee.shared_values()),)

    function = Primitive(name, call, callee.batched, callee.costly, shared=callee.shared, record=callee.record)
    b.emit(PrimOp((out,), function, inputs, b.source.at(node)))


def write_row(b: Builder, out: str, node: ast.Call) -> None:
    """out = write(buffer, index, value)."""
    if node.keywords or len(node.args) != 3:
        b.refuse(node, "`write` with other than three positional arguments", "write(buffer, index, value)")
    if expressions.is_literal_integer(node.args[1]) and ast.literal_eval(node.args[1]) < 0:
        text = [ast.unparse(part) for part in node.args]
        form = f"`{expressions.text_of(node)}`, whose index is counted from the front,"
        b.refuse(node, form, f"write x = {text[0]}; x[{text[1]}] = {text[2]}")
    buffer, index, value = (b.variable(atom(b, a)) for a in node.args)
    b.emit(WriteRowOp(out, buffer, index, value, b.source.at(node)))
