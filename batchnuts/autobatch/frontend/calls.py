"""Calls of batched functions and declared primitives: arguments bound to parameters, functions passed to functions.

apply(square, x)        h is known when the program is read: `apply` is compiled once for each function it is given
                        -->  f._1 = call apply#2 f.x            apply#2(x), whose `h` is the constant `square`
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from batchnuts.autobatch.errors import CompileError
from batchnuts.autobatch.frontend import expressions
from batchnuts.autobatch.frontend.expression_builder import ExpressionBuilder, require_values
from batchnuts.autobatch.frontend.inner_function import InnerFunction
from batchnuts.autobatch.ir.program import COPY, FunctionCallOp, Primitive, PrimOp
from batchnuts.autobatch.language import iteration
from batchnuts.autobatch.language.arrays import is_array
from batchnuts.autobatch.language.functions import LaneFunction, PrimitiveFunction

_GIVEN = object()
"""A placeholder for an argument that is bound by its position or name alone."""


def is_function(value: Any) -> bool:
    """Whether a value known at compile time can be called."""
    return isinstance(value, LaneFunction) or (callable(value) and not is_array(value))


def has_functions(value: Any) -> bool:
    """Whether a constant is a tuple, list or dict with functions in it."""
    parts = list(value.values()) if type(value) is dict else value if type(value) in (tuple, list) else ()
    return any(is_function(part) or has_functions(part) for part in parts)


def _is_table(value: Any) -> bool:
    """Whether a constant is a tuple of functions."""
    return type(value) is tuple and bool(value) and all(is_function(part) or _is_table(part) for part in value)


@dataclass(frozen=True)
class Callee:
    """A batched function, specialized to the functions that are passed to it as arguments."""

    function: LaneFunction
    function_arguments: tuple[tuple[str, Any], ...] = ()
    """Parameters and the functions, or None, that they stand for."""


class CallBuilder(ExpressionBuilder):
    """The calls of one function."""

    callee: Callee
    """The function whose body is built."""
    defaults: dict[Any, str]
    """Names of constants: the defaults of parameters of functions."""
    name_of: Callable[[Callee, ast.AST, Any], str]
    """Gives a callee its name in the program; called with the place of the call and its source."""

    def call(self, out: str, node: ast.Call, callee: LaneFunction) -> None:
        """out = a call of a batched function."""
        arguments = self.bound(node, callee)
        functions = {p: self.function_given(a) for p, a in arguments.items() if isinstance(a, ast.expr)}
        functions |= {p: None for p, a in arguments.items() if self.is_none(a)}
        function_arguments = tuple((p, value) for p, value in functions.items() if value is not expressions.UNKNOWN)
        for _, value in function_arguments:
            if isinstance(value, InnerFunction) and value.captured:
                read = ", ".join(value.captured)
                form = f"the function {value.__name__!r}, which reads {read} of the lane, as an argument"
                self.refuse(node, form, "give it those values as arguments of their own, or call it here")
        name = self.name_of(Callee(callee, function_arguments), node, self.source)
        passed = [a for p, a in arguments.items() if p not in dict(function_arguments)]
        inputs = [self.variable(a if isinstance(a, str) else self.atom(a)) for a in passed]
        inputs += [self.variable(captured) for captured in self.captured(node, callee)]
        where = self.source.at(node)
        if name == self.name and out == self.variable("return"):
            # its own result goes through a temporary, so that no frame of `return` beneath the top is ever read
            held = self.variable(self.temporary())
            self.emit(FunctionCallOp((held,), name, tuple(inputs), where))
            self.emit(PrimOp((out,), COPY, (held,), where))
        else:
            self.emit(FunctionCallOp((out,), name, tuple(inputs), where))

    def captured(self, node: ast.Call, callee: LaneFunction) -> tuple[str, ...]:
        """The variables of the function around it that a callee reads."""
        if not isinstance(callee, InnerFunction) or not callee.captured:
            return ()
        if callee != self.callee.function and callee.home != self.callee:
            form = f"a call of {callee.__name__!r}, which reads {', '.join(callee.captured)} of the function around it,"
            self.refuse(node, form, "give it those values as arguments")
        return callee.captured

    def function_given(self, node: ast.expr) -> Any:
        """The function that an argument is, known when the program is read, or `expressions.UNKNOWN`."""
        value = self.static(node)
        if isinstance(node, ast.Lambda):
            value = self.lambda_as_function(node)
        elif isinstance(node, ast.Tuple) and any(map(self.is_function_given, node.elts)) and self.is_static(node):
            value = self.evaluate(node)
        return value if is_function(value) or _is_table(value) else expressions.UNKNOWN

    def lambda_as_function(self, node: ast.Lambda) -> InnerFunction:
        """A lambda as a function with a `return`."""
        raise NotImplementedError

    def bound(self, node: ast.Call, callee: LaneFunction) -> dict[str, ast.expr | str]:
        """Each parameter's argument in their order: an expression, or a variable that holds it. Defaults filled in."""
        signature = callee.signature
        node = self.unpacked(node)
        first = next((i for i, a in enumerate(node.args) if isinstance(a, ast.Starred)), len(node.args))
        named = {k.arg: k.value for k in node.keywords if k.arg is not None}
        if first < len(node.args) or len(named) < len(node.keywords):
            return self.spread(node, callee, node.args[:first], named)
        try:
            arguments = signature.bind(*node.args, **named).arguments
        except TypeError as error:
            raise self.misfit(node, callee, error) from None
        return {p: arguments[p] if p in arguments else self.default(node, callee, p) for p in signature.parameters}

    def unpacked(self, node: ast.Call) -> ast.Call:
        """The call with what `*t` and `**d` hold in their places, where they hold functions."""
        args: list[ast.expr] = []
        for argument in node.args:
            star = argument.value if isinstance(argument, ast.Starred) else None
            held = None if star is None else self.static(star)
            if isinstance(star, (ast.Tuple, ast.List)) and any(map(self.is_function_given, star.elts)):
                args += star.elts
            elif isinstance(held, (tuple, list)) and has_functions(held):
                args += [expressions.located(self.hidden(part), argument) for part in held]
            else:
                args.append(argument)
        keywords: list[ast.keyword] = []
        for keyword in node.keywords:
            pairs = keyword.value if keyword.arg is None else None
            held = None if pairs is None else self.static(pairs)
            if isinstance(held, dict) and has_functions(held) and all(isinstance(key, str) for key in held):
                entries = {key: expressions.located(self.hidden(part), keyword.value) for key, part in held.items()}
            elif isinstance(pairs, ast.Dict) and any(map(self.is_function_given, pairs.values)):
                texts = [key.value if isinstance(key, ast.Constant) else None for key in pairs.keys]
                entries = {text: value for text, value in zip(texts, pairs.values) if isinstance(text, str)}
                entries = entries if len(entries) == len(texts) else {}
            else:
                entries = {}
            fits = bool(entries) and not entries.keys() & {k.arg for k in (*node.keywords, *keywords)}
            keywords += [ast.keyword(name, value) for name, value in entries.items()] if fits else [keyword]
        return ast.copy_location(ast.Call(node.func, args, keywords), node)

    def is_none(self, node: ast.expr | str) -> bool:
        """Whether an argument, or the default of one that is left out, is None: known when the program is read."""
        is_constant = isinstance(node, ast.Constant) and node.value is None
        return is_constant or (isinstance(node, ast.Name) and self.static(node) is None)

    def is_function_given(self, node: ast.expr) -> bool:
        """Whether an argument is a function."""
        return self.function_given(node) is not expressions.UNKNOWN

    def hidden(self, value: Any) -> ast.expr:
        """An expression that denotes a constant."""
        raise NotImplementedError

    def default(self, node: ast.Call, callee: LaneFunction, parameter: str) -> ast.expr:
        """An expression that denotes a parameter's default."""
        key = callee, parameter
        if key not in self.defaults:
            self.defaults[key] = self.fresh(f"__default_{callee.__name__}_{parameter}")  # type: ignore[attr-defined]
            self.namespace[self.defaults[key]] = callee.signature.parameters[parameter].default
        hidden = self.defaults[key]
        return ast.copy_location(ast.Name(hidden, ast.Load()), node)

    def misfit(self, node: ast.Call, callee: LaneFunction, error: TypeError) -> CompileError:
        """The error for arguments that do not fit the parameters."""
        name = getattr(callee, "__name__", "function")
        text = f"the call of {name!r} does not fit its parameters {callee.signature}: {error}."
        return CompileError(text, self.source.at(node))

    def spread(
        self, node: ast.Call, callee: LaneFunction, leading: list[ast.expr], named: dict[str, ast.expr]
    ) -> dict[str, ast.expr | str]:
        """Arguments after `*t` or within `**d`: how many there are is known when `t` and `d` have types."""
        parameters = callee.signature.parameters
        try:
            direct: dict[str, ast.expr | str] = dict(callee.signature.bind_partial(*leading, **named).arguments)
        except TypeError as error:
            raise self.misfit(node, callee, error) from None
        empty = inspect.Parameter.empty
        functions = {
            p for p, v in parameters.items() if p not in direct and v.default is not empty and is_function(v.default)
        }
        open_parameters = [p for p in parameters if p not in direct and p not in functions]
        star = [self.star(a) for a in node.args[len(leading) :]]
        pairs = [k.value for k in node.keywords if k.arg is None]
        parts = ast.Tuple([ast.Tuple(star, ast.Load()), ast.Tuple(pairs, ast.Load())], ast.Load())
        pure = self.purify(expressions.located(parts if pairs else ast.Tuple(star, ast.Load()), node))

        def bind(value: Any) -> tuple[Any, ...]:
            values, dicts = value if pairs else (value, ())
            more: dict[str, Any] = {}
            for mapping in dicts:
                if not isinstance(mapping, dict):
                    text = f"after ** stands a dict with the parameters' names, not {type(mapping).__name__}."
                    raise CompileError(text, self.source.at(node))
                more |= mapping
            try:
                bound = callee.signature.bind(
                    *[_GIVEN] * len(leading), *values, **{**dict.fromkeys(named, _GIVEN), **more}
                )
                if len(more) < sum(map(len, dicts)) or more.keys() & named.keys():
                    raise TypeError("multiple values for one parameter")
                if functions & bound.arguments.keys():
                    raise TypeError("a function is passed by its name, not by * or **")
            except TypeError as error:
                raise self.misfit(node, callee, error) from None
            bound.apply_defaults()
            return tuple(bound.arguments[p] for p in open_parameters)

        held = [self.temporary() for _ in open_parameters]
        self.compute(tuple(map(self.variable, held)), pure, bind, self.source.at(node))
        arguments: dict[str, ast.expr | str] = {**direct, **dict(zip(open_parameters, held))}
        return {p: arguments[p] if p in arguments else self.default(node, callee, p) for p in parameters}

    def star(self, node: ast.expr) -> ast.expr:
        """An argument, of which `*t` is taken apart on every backend."""
        if not isinstance(node, ast.Starred):
            return node
        return ast.Starred(ast.Call(ast.Name(expressions.ELEMENTS, ast.Load()), [node.value], []), ast.Load())

    def declared_primitive(self, out: str, node: ast.Call, callee: PrimitiveFunction) -> None:
        """out = a call of a function declared with `primitive`."""
        if node.keywords:
            self.refuse(node, "keyword arguments of a declared primitive", "pass them by position")
        starred = [isinstance(a, ast.Starred) for a in node.args]
        nodes = [a.value if isinstance(a, ast.Starred) else a for a in node.args]
        inputs = tuple(self.variable(self.atom(a)) for a in nodes)
        name = getattr(callee, "__name__", "primitive")
        hidden = self.state_finder.find(callee, name)
        if hidden is not None:
            self.refuse_hidden(node, hidden)
        needing = self.needs_values(callee)
        settled = expressions.copier_of(self.namespace).helper(callee.function)

        def call(*args: Any) -> tuple[Any, ...]:
            if needing is not None:
                require_values(needing, args)
            values: list[Any] = []
            for value, star in zip(args, starred):
                if star and callee.batched and is_array(value):
                    raise TypeError(f"*x of an array as arguments of {name!r}, which takes all lanes: index it")
                values += iteration.elements(value) if star else [value]
            return (settled(*values, *callee.shared_values()),)

        function = Primitive(name, call, callee.batched, callee.costly, shared=callee.shared)
        self.emit(PrimOp((out,), function, inputs, self.source.at(node)))
