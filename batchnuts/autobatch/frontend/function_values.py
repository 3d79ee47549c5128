"""Functions as values: names that stand for functions, lambdas and `def` inside.

h = square              `h` is no variable of the program: it stands for `square` up to the end of its block
h = lambda k: k + n     a call h(2) is the expression 2 + n, with the value that `n` has there
def h(k): ...           a function of its own, which gets what it reads of the variables around it
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from typing_extensions import override

from batchnuts.autobatch.errors import CompileError
from batchnuts.autobatch.frontend import expressions, walrus
from batchnuts.autobatch.frontend.calls import CallBuilder, has_functions, is_function
from batchnuts.autobatch.frontend.expressions import UNKNOWN
from batchnuts.autobatch.frontend.inner_function import InnerFunction
from batchnuts.autobatch.frontend.loop_names import renamed
from batchnuts.autobatch.frontend.source import FunctionSource
from batchnuts.autobatch.language.functions import LaneFunction, PrimitiveFunction, write
from batchnuts.autobatch.parsing import copied

MOST_NESTED = 32
"""The maximum number of lambdas expanded within each other."""

COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)


class FunctionValueBuilder(CallBuilder):
    """The functions that are values within one function."""

    visible: dict[str, tuple[Any, int]]
    """Names that stand for functions (or syntax of lambdas), and in how many loops they were bound."""
    unsettled: set[str]
    """Names that stood for a function in a block that has ended."""
    copies: tuple[Any, ...]
    loops: list[Any]
    numbers: dict[str, int]
    """Variables that are assigned once, a number known by now."""
    expanding: int = 0

    # ---- names ------------------------------------------------------------------------------------------------------

    @override
    def static(self, node: ast.AST) -> Any:
        """What an expression denotes; a choice known at compile time denotes what it chooses."""
        if isinstance(node, ast.Name) and node.id in self.unsettled:
            form = f"{node.id!r}, which stands for a function within a block before this line only,"
            self.refuse(node, form, "choose the function before the `if` or loop, or call it in each branch")
        if isinstance(node, ast.IfExp) and self.is_static(node.test):
            return self.static(node.body if self.evaluate(node.test) else node.orelse)
        return super().static(node)

    def hold(self, name: str, value: Any, node: ast.AST) -> None:
        """From here to the end of the block, `name` stands for a function."""
        if name in self.visible:
            held, depth = self.visible[name]
            if held is not value and len(self.loops) > depth:
                form = f"{name!r}, which stands for another function in the next iteration,"
                self.refuse(node, form, "use a name of its own in the loop")
        self.visible[name] = value, len(self.loops)
        self.unsettled.discard(name)
        self.locals.discard(name)
        if not isinstance(value, ast.Lambda):
            self.namespace[name] = value

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Statements that not every lane runs: what they bind to functions is forgotten after them."""
        before = dict(self.visible)
        yield
        for name in [n for n, held in self.visible.items() if before.get(n) != held]:
            del self.visible[name]
            self.namespace.pop(name, None)
            self.unsettled.add(name)
            self.locals.add(name)

    def held_function(self, node: ast.expr) -> Any:
        """The function, or the lambda's syntax, that an assigned value is; else `expressions.UNKNOWN`."""
        if isinstance(node, ast.Name) and isinstance(self.visible.get(node.id, (None,))[0], ast.Lambda):
            return self.visible[node.id][0]
        if isinstance(node, ast.Lambda):
            if not all(self.is_static(d) for d in (*node.args.defaults, *filter(None, node.args.kw_defaults))):
                self.refuse(node, "a lambda whose defaults are values of the lane", "read them in its body")
            return node
        value = self.static(node)
        if isinstance(node, ast.Call) and self.static(node.func) is functools.partial:
            if not self.is_static(node):
                form = f"`{ast.unparse(node)}`, which holds values of the lane,"
                self.refuse(node, form, "write a lambda: h = lambda y: f(x, y)")
            value = self.evaluate(node)
        if is_function(value):
            return value
        if isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.ListComp)) and self.is_static(node):
            with_lambda = isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Lambda)
            if with_lambda or any(self.holds_functions(part) for part in ast.iter_child_nodes(node)):
                value = self.evaluate(node)
        return value if has_functions(value) else UNKNOWN

    def holds_functions(self, node: ast.AST) -> bool:
        """Whether an expression is a function, or a structure with functions in it, known when the program is read."""
        return isinstance(node, ast.expr) and self.held_function(node) is not UNKNOWN

    def hidden(self, value: Any) -> ast.expr:
        """An expression that denotes a constant."""
        if type(value) in (int, float, bool):
            return ast.Constant(value)
        name = self.fresh("constant")
        self.namespace[name] = value
        return ast.Name(name, ast.Load())

    def functions_named(self, node: ast.expr) -> ast.expr:
        """The expression with names in place of `(h := f)`, where every lane comes to it, for a function `f`."""
        if not walrus.has_walrus(node):
            return node
        replaced: dict[int, ast.AST] = {}

        def visit(part: ast.AST) -> None:
            choosing = isinstance(part, (ast.IfExp, ast.BoolOp)) or expressions.must_stop_early(part)
            if choosing or isinstance(part, (ast.Lambda, *COMPREHENSIONS)):
                return
            for child in ast.iter_child_nodes(part):
                visit(child)
            if isinstance(part, ast.NamedExpr) and (function := self.held_function(part.value)) is not UNKNOWN:
                if part.target.id in self.visible and self.visible[part.target.id][0] is not function:
                    form = f"`{ast.unparse(part)}`, where the name stands for another function,"
                    self.refuse(part, form, "assign in a statement of its own")
                self.hold(part.target.id, function, part)
                replaced[id(part)] = ast.copy_location(ast.Name(part.target.id, ast.Load()), part)

        visit(node)
        return with_nodes(node, replaced) if replaced else node

    # ---- functions inside -------------------------------------------------------------------------------------------

    def define(self, node: ast.FunctionDef) -> None:
        """Define a function inside this one."""
        for decorator in node.decorator_list:
            function = self.static(decorator)
            if (getattr(function, "__module__", ""), getattr(function, "__name__", "")) != (_BATCH, "batch"):
                self.refuse(decorator, "a decorator within a batched function", "define the function outside")
        self.hold(node.name, self.inner_function(node, node.args), node)

    @override
    def lambda_as_function(self, node: ast.Lambda) -> InnerFunction:
        body = ast.copy_location(ast.Return(node.body), node.body)
        tree = ast.FunctionDef("lambda_", node.args, [body], [])
        return self.inner_function(ast.copy_location(tree, node), node.args)

    def inner_function(self, tree: ast.FunctionDef, arguments: ast.arguments) -> InnerFunction:
        """The value of a `def` or lambda inside this function."""
        kinds = inspect.Parameter
        parameters = []
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
        for i, (argument, default) in enumerate(zip(positional, defaults)):
            kind = kinds.POSITIONAL_ONLY if i < len(arguments.posonlyargs) else kinds.POSITIONAL_OR_KEYWORD
            parameters.append(kinds(argument.arg, kind, default=self.default_of(default)))
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults):
            parameters.append(kinds(argument.arg, kinds.KEYWORD_ONLY, default=self.default_of(default)))
        if arguments.vararg or arguments.kwarg:
            self.refuse(tree, "*args and **kwargs", "name each parameter")

        def settle() -> tuple[FunctionSource, tuple[str, ...]]:
            return replace(self.source, tree=tree, namespace=self.meaning_around()), self.reads_around(tree)

        identity = (self.callee, tree.name, tree.lineno, tree.col_offset, self.copies)
        return InnerFunction(tree.name, inspect.Signature(parameters), settle, identity)

    def default_of(self, node: ast.expr | None) -> Any:
        """A parameter's default."""
        if node is None:
            return inspect.Parameter.empty
        if not self.is_static(node):
            self.refuse(node, "a default that is a value of the lane", "pass it with each call")
        return self.evaluate(node)

    def reads_around(self, tree: ast.FunctionDef) -> tuple[str, ...]:
        """The variables of this function that one inside it reads."""
        return tuple(dict.fromkeys(name for name in expressions.free_names(tree) if name in self.locals))

    def meaning_around(self) -> dict[str, Any]:
        """The meanings of names that are no variables here: those around the function, and those of functions."""
        meanings = {name: value for name, value in self.around.items() if name not in self.locals}
        for name, (held, _) in self.visible.items():
            meanings[name] = self.lambda_as_function(held) if isinstance(held, ast.Lambda) else held
        return meanings

    # ---- expressions ------------------------------------------------------------------------------------------------

    @override
    def in_order(self, node: ast.expr) -> ast.expr:
        """The expression in order, with lambdas in place of their names."""
        return super().in_order(self.with_lambdas(node))

    def with_lambdas(self, node: ast.expr) -> ast.expr:
        """The expression with the lambdas that its names stand for."""
        named = {name: held for name, (held, _) in self.visible.items() if isinstance(held, ast.Lambda)}
        places = [load for load in expressions.free_loads(node) if load.id in named] if named else []
        if not places:
            return node
        hidden = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        hidden |= {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        for place in places:
            shadowed = hidden.intersection(load.id for load in expressions.free_loads(named[place.id]))
            if shadowed:
                form = f"the lambda {place.id!r}, which reads {shadowed.pop()!r}, where that name means something else,"
                self.refuse(place, form, "use another name in the lambda or comprehension here")
        self.expanding += 1
        if self.expanding > MOST_NESTED:
            self.refuse(places[0], f"a lambda that calls itself, {places[0].id!r},", "write it with `def`")
        expanded = with_nodes(node, {id(place): copied(named[place.id]) for place in places})
        expanded = self.with_lambdas(expanded)
        self.expanding -= 1
        return expanded

    def plain_calls(self, node: ast.expr) -> ast.expr:
        """The expression in simpler calls.

        `f(1, x)` for a call of partial(f, 1) of a batched `f`; `[f(x) for x in v]` for map(f, v); for `TABLE[i]` of a
        number `i` that is known, the function.
        """
        inner = [part for part in ast.walk(node) if isinstance(part, (ast.Lambda, *COMPREHENSIONS))]
        bound = {n.id for part in inner for n in ast.walk(part) if isinstance(n, ast.Name) and _binds(n)}
        bound |= {a.arg for part in inner for a in ast.walk(part) if isinstance(a, ast.arg)}
        replaced: dict[int, ast.AST] = {}
        for call in ast.walk(node):
            if isinstance(call, ast.Subscript) and self.is_choice(call) and not bound & set(self.names_read(call)):
                replaced[id(call)] = expressions.located(self.hidden(self.chosen(call)), call)
                return self.plain_calls(with_nodes(node, replaced))
            if not isinstance(call, ast.Call) or bound & {n.id for n in ast.walk(call.func) if isinstance(n, ast.Name)}:
                continue
            function = self.static(call.func)
            if type(function) is functools.partial and isinstance(function.func, (LaneFunction, PrimitiveFunction)):
                overridden = {k.arg for k in call.keywords}
                keywords = [ast.keyword(k, self.hidden(v)) for k, v in function.keywords.items() if k not in overridden]
                arguments = [*map(self.hidden, function.args), *call.args]
                replacement: ast.expr = ast.Call(self.hidden(function.func), arguments, [*keywords, *call.keywords])
            elif function is map and self.maps_function(call):
                names = [self.fresh("element", i + 1) for i in range(len(call.args) - 1)]
                loads, stores = ([ast.Name(n, kind()) for n in names] for kind in (ast.Load, ast.Store))
                over = call.args[1] if len(names) == 1 else ast.Call(self.hidden(zip), call.args[1:], [])
                target = stores[0] if len(names) == 1 else ast.Tuple(list(stores), ast.Store())
                each = ast.Call(call.args[0], list(loads), [])
                replacement = ast.ListComp(each, [ast.comprehension(target, over, [], 0)])
            else:
                continue
            replaced[id(call)] = expressions.located(replacement, call)
            return self.plain_calls(with_nodes(node, replaced))
        return node

    def maps_function(self, call: ast.Call) -> bool:
        """Whether a call of `map` names what it calls."""
        return len(call.args) > 1 and _is_plain(call) and not isinstance(call.args[0], ast.Lambda)

    def is_choice(self, node: ast.Subscript) -> bool:
        """Whether a subscript takes a function out of a constant by an index that reads variables."""
        return bool(self.names_read(node.slice)) and has_functions(self.table(node.value))

    def table(self, node: ast.expr) -> Any:
        """The value of the expression before an index, if it is a constant, written there or elsewhere."""
        value = self.static(node)
        written = value is UNKNOWN and isinstance(node, (ast.Tuple, ast.List, ast.Dict))
        return self.held_function(node) if written else value

    def chosen(self, node: ast.Subscript) -> Any:
        """The function that is taken, by the number of a round of a loop that is written out."""
        index = node.slice
        if isinstance(index, ast.Name) and index.id in self.numbers:
            try:
                return self.table(node.value)[self.numbers[index.id]]
            except LookupError as error:
                raise CompileError(f"`{ast.unparse(node)}`: {error}.", self.source.at(node)) from None
        form = f"`{expressions.text_of(node)}`, a function chosen by a value of the lane,"
        self.refuse(node, form, "write `if` and `else` with a call in each, or loop over the functions themselves")

    @override
    def needs_variable(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Lambda) and _is_plain(node):
            arguments = [*node.args, *(k.value for k in node.keywords)]
            return self.needs_flow(node.func.body) or any(self.function_given(a) is not UNKNOWN for a in arguments)
        return super().needs_variable(node)

    @override
    def assign(self, identifier: str, node: ast.expr) -> None:
        """Assign an expression; a called lambda is its body, with variables for its parameters."""
        node = self.in_order(node)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Lambda) and self.needs_variable(node)):
            super().assign(identifier, node)
            return
        function = self.inner_function(
            ast.copy_location(ast.FunctionDef("lambda", node.func.args, [], []), node), node.func.args
        )
        bound = {p: self.held_argument(p, a) for p, a in self.bound(node, function).items()}
        body = renamed(node.func.body, bound)
        self.assign(identifier, body)

    def needs_flow(self, body: ast.expr) -> bool:
        """Whether the body of a called lambda branches or calls batched functions, which no expression can do."""
        branches = (ast.IfExp, ast.BoolOp)
        parts = list(ast.walk(body))
        return any(isinstance(p, branches) or expressions.must_stop_early(p) for p in parts) or self.calls_batched(body)

    def held_argument(self, parameter: str, argument: ast.expr | str) -> str:
        """A name for an argument of a called lambda."""
        if isinstance(argument, str):
            return argument
        value = self.held_function(argument)
        name = self.fresh(parameter)
        self.locals.add(name)
        if value is not UNKNOWN:
            self.hold(name, value, argument)
        else:
            self.assign(name, argument)
        return name

    def calls_batched(self, node: ast.AST) -> bool:
        """Whether something in an expression has to be called by the program itself."""
        for part in ast.walk(node):
            callee = self.static(part.func) if isinstance(part, ast.Call) else None
            over_lanes = isinstance(callee, PrimitiveFunction) and callee.batched
            if isinstance(callee, LaneFunction) or over_lanes or callee is write:
                return True
        return False


_BATCH = "batchnuts.autobatch.api"


def _binds(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _is_plain(node: ast.Call) -> bool:
    return not any(isinstance(a, ast.Starred) for a in node.args) and all(k.arg for k in node.keywords)


def with_nodes(node: ast.expr, nodes: Mapping[int, ast.AST]) -> ast.expr:
    """A copy in which some nodes, by their `id`, are replaced."""
    return copied(node, nodes)
