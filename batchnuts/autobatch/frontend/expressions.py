"""The syntax of pure expressions: which names they read, and the Python function that computes them.

The function is compiled from the user's own syntax tree with its line numbers, so a traceback out of it points at
the user's file.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import CompileError, Source
from batchnuts.autobatch.frontend.helpers import ConstantCopier, is_helper
from batchnuts.autobatch.frontend.in_place import ROW, WRITE
from batchnuts.autobatch.frontend.on_lanes import (
    BOUND,
    CHECKS,
    CONSTANT,
    PREFIX,
    TRUTH,
    Check,
    on_lanes,
    with_lane_functions,
)
from batchnuts.autobatch.language import operators, ops
from batchnuts.autobatch.language.arrays import is_array, is_python_scalar, static_shape
from batchnuts.autobatch.language.builtins import python_len, python_max
from batchnuts.autobatch.language.functions import write
from batchnuts.autobatch.language.indexing import row
from batchnuts.autobatch.language.iteration import elements, length
from batchnuts.autobatch.parsing import COMPREHENSIONS, SCOPES, copied, load, parameter_names, parse

UNKNOWN = object()
"""The value of what is not known at compile time."""

_LAST = PREFIX + "last"
_NEXT = PREFIX + "next"
ELEMENTS = PREFIX + "elements"
LENGTH = PREFIX + "length"
"""The names of `iteration.elements` and `iteration.length` in expressions."""

_COPIER = PREFIX + "copier"

_WRITTEN = {TRUTH: "bool", BOUND: "int"}
"""Our functions that the text of an expression shows by another name."""

_OF_NUMBERS = {"abs", "min", "max", "sum", "round", "pow", "int"}


def namespace_of(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The namespace in which a function's expressions are evaluated."""
    ours = {_LAST: last, _NEXT: next_of_range, ROW: row, WRITE: write, ELEMENTS: elements, LENGTH: length}
    return with_lane_functions(namespace) | ours


def assigned_names(function: ast.FunctionDef | ast.For) -> set[str]:
    """Names that the statements of a function's or loop's body assign (not those of nested scopes)."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef) and node is not function:
            names.add(node.name)
            return
        if isinstance(node, (*SCOPES, ast.ClassDef)):
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        for child in ast.iter_child_nodes(node):
            visit(child)

    for statement in function.body:
        visit(statement)
    return names


def free_loads(node: ast.AST, bound: frozenset[str] = frozenset()) -> Iterator[ast.Name]:
    """Names read in `node` that no scope inside it binds."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and node.id not in bound:
            yield node
        return
    if isinstance(node, ast.Lambda):
        arguments = node.args
        names = parameter_names(arguments) + [a.arg for a in (arguments.vararg, arguments.kwarg) if a]
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d)):
            yield from free_loads(default, bound)
        yield from free_loads(node.body, bound | set(names))
        return
    if isinstance(node, COMPREHENSIONS):
        for generator in node.generators:
            yield from free_loads(generator.iter, bound)
            bound |= {n.id for n in ast.walk(generator.target) if isinstance(n, ast.Name)}
            for condition in generator.ifs:
                yield from free_loads(condition, bound)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for part in parts:
            yield from free_loads(part, bound)
        return
    for child in ast.iter_child_nodes(node):
        yield from free_loads(child, bound)


def free_names(function: ast.FunctionDef) -> Iterator[str]:
    """Names that a function reads, itself or in functions inside it, and does not bind."""
    own = {*parameter_names(function.args), *assigned_names(function)}
    for statement in function.body:
        yield from (name for name in _free_of(statement) if name not in own)


def _free_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        yield from free_names(node)
    elif isinstance(node, ast.expr):
        yield from (load.id for load in free_loads(node))
    else:
        for child in ast.iter_child_nodes(node):
            yield from _free_of(child)


def names_read(node: ast.AST, local_names: set[str]) -> tuple[str, ...]:
    """The local variables an expression reads, in order of appearance, each once."""
    return tuple(dict.fromkeys(name.id for name in free_loads(node) if name.id in local_names))


def unknown_names(node: ast.AST, local_names: set[str], namespace: Mapping[str, Any]) -> Iterator[ast.Name]:
    """Names that are neither local nor defined around the function."""
    return (name for name in free_loads(node) if name.id not in local_names and name.id not in namespace)


def static_value(node: ast.AST, local_names: set[str], namespace: Mapping[str, Any]) -> Any:
    """The object that a name, or attributes and constant indices of one, denote outside the locals, else UNKNOWN."""
    if isinstance(node, ast.Name):
        return UNKNOWN if node.id in local_names else namespace.get(node.id, UNKNOWN)
    if isinstance(node, ast.Attribute):
        value = static_value(node.value, local_names, namespace)
        return UNKNOWN if value is UNKNOWN else getattr(value, node.attr, UNKNOWN)
    if isinstance(node, ast.Subscript):
        table = static_value(node.value, local_names, namespace)
        index = node.slice
        key: Any = static_value(index, local_names, namespace)
        if isinstance(index, ast.Constant) or is_literal_integer(index):
            key = ast.literal_eval(index)
        if isinstance(table, (dict, list, tuple)) and key is not UNKNOWN:
            with contextlib.suppress(LookupError, TypeError):  # evaluated later, which says what is wrong
                return table[key]
    return UNKNOWN


def text_of(node: ast.expr) -> str:
    """The expression as the user wrote it, on one line."""
    written = copied(node)
    for part in ast.walk(written):
        if isinstance(part, ast.Name):
            part.id = _WRITTEN.get(part.id, part.id.removeprefix(CONSTANT).removeprefix(PREFIX))
    return " ".join(ast.unparse(written).split())


def as_written(node: ast.expr, held: Mapping[str, ast.expr]) -> str:
    """The expression in the user's words: without our own calls, and with the parts that variables of ours hold."""

    class Written(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.AST:
            return self.visit(copied(held[name.id])) if name.id in held else name

        def visit_Call(self, call: ast.Call) -> ast.AST:
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name == ROW:
                return ast.Subscript(self.visit(call.args[0]), self.visit(call.args[1]), ast.Load())
            return self.visit(call.args[0]) if name in _WRITTEN else self.generic_visit(call)

    return text_of(Written().visit(copied(node)))


def located(node: ast.expr, like: ast.AST) -> ast.expr:
    """The node, with all nodes in it that have no position, at the place of `like`."""
    ast.copy_location(node, like)
    return ast.fix_missing_locations(node)


def formula(text: str, like: ast.AST, **parts: Any) -> ast.expr:
    """An expression from its text; `parts` stand for names in it (syntax trees, or the names of other variables)."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            part = parts[node.id]
            return ast.Name(part, ast.Load()) if isinstance(part, str) else copied(part)

    return located(Fill().visit(parse(text, "eval").body), like)


def is_literal_integer(node: ast.AST | None) -> bool:
    """True for `3` and `-3`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) is int


def as_bound(node: ast.expr) -> ast.expr:
    """The bound of a range, made Python's integer."""
    return node if is_literal_integer(node) else located(ast.Call(ast.Name(BOUND, ast.Load()), [node], []), node)


def is_bound(node: ast.expr) -> bool:
    """Whether the expression is what `as_bound` made."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == BOUND


def next_of_range(counter: Any, stop: Any, step: Any) -> Any:
    """counter + step, or `stop` where that would leave the dtype and wrap around to the front."""
    after = operators.add(counter, step)
    if is_python_scalar(after):
        return after
    on = operators.greater(after, counter)
    goes_on = ops.logical_or(
        ops.logical_and(operators.greater(step, 0), on),
        ops.logical_and(operators.less(step, 0), operators.less(after, counter)),
    )
    return ops.where(goes_on, after, operators.add(operators.subtract(after, after), stop))


def range_next(counter: str, stop: str, step: ast.expr, like: ast.AST) -> ast.expr:
    """The counter of a range after a round. A step of 1 from before the end reaches the end at most: nothing wraps."""
    if is_literal_integer(step) and abs(ast.literal_eval(step)) == 1:
        return formula("counter + step", like, counter=counter, step=step)
    names = [ast.Name(counter, ast.Load()), ast.Name(stop, ast.Load()), step]
    return located(ast.Call(ast.Name(_NEXT, ast.Load()), [copied(name) for name in names], []), like)


def range_bounds(call: ast.Call) -> tuple[ast.expr, ast.expr, ast.expr]:
    """Start, stop and step of a range(...) with one to three arguments."""
    zero, one = located(ast.Constant(0), call), located(ast.Constant(1), call)
    match call.args:
        case [stop]:
            return zero, stop, one
        case [start, stop]:
            return start, stop, one
        case [start, stop, step]:
            return start, stop, step
    raise ValueError("range takes one to three arguments")


def last(stop: Any, start: int) -> Any:
    """The last number of range(start, stop), or start - 1 of an empty one."""
    return operators.subtract(python_max(stop, start), 1)


def counted_down(call: ast.Call) -> ast.Call:
    """reversed(call), of a range(...) with one or two arguments whose start is a literal, as a range(...)."""
    start, stop, _ = range_bounds(call)
    first = formula(f"last(stop, {ast.unparse(start)})", call, last=_LAST, stop=as_bound(stop))
    before = located(ast.Constant(ast.literal_eval(start) - 1), call)
    down = located(ast.UnaryOp(ast.USub(), ast.Constant(1)), call)
    result = located(ast.Call(call.func, [first, before, down], []), call)
    assert isinstance(result, ast.Call)
    return result


def range_test(counter: str, stop: str, step: ast.expr, like: ast.AST) -> ast.expr:
    """Whether a range's counter is still before its end, for a step of either sign."""
    if is_literal_integer(step):
        text = "counter > stop" if isinstance(step, ast.UnaryOp) else "counter < stop"
        return formula(text, like, counter=counter, stop=stop)
    text = "((step > zero) & (counter < stop)) | ((step < zero) & (counter > stop))"
    return formula(text, like, counter=counter, stop=stop, step=step, zero=ast.Constant(0))


_LEAVES: tuple[type[ast.AST], ...] = (ast.Name, ast.Constant, ast.Attribute, ast.expr_context)
_HARMLESS: tuple[type[ast.AST], ...] = (*_LEAVES, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.Add, ast.Sub, ast.Mult)


def must_stop_early(node: ast.AST) -> bool:
    """Whether a chained comparison has a side after its first link whose evaluation may cost or fail."""
    later = node.comparators[1:] if isinstance(node, ast.Compare) else []
    return not all(isinstance(part, _HARMLESS) for side in later for part in ast.walk(side))


def truth_of(node: ast.expr) -> ast.expr:
    """The expression as a condition: comparisons as they are, everything else through Python's truth rule."""
    if isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        return node
    return located(ast.Call(ast.Name(TRUTH, ast.Load()), [node], []), node)


def is_part(node: ast.AST) -> bool:
    """Whether a part of an expression computes what a variable can hold, so that it can be taken out."""
    numbers = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OF_NUMBERS
    return numbers or isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Subscript))


def operands_read(part: ast.AST, local_names: set[str]) -> set[str]:
    """The local variables that a part computes with: of x[i] the index's, else all but those in an index."""
    if isinstance(part, ast.Subscript):
        return set(names_read(part.slice, local_names))
    indices = [inner.slice for inner in outside_scopes(part) if isinstance(inner, ast.Subscript)]
    hidden = {id(name) for index in indices for name in ast.walk(index)}
    return {n.id for n in ast.walk(part) if isinstance(n, ast.Name) and n.id in local_names and id(n) not in hidden}


def outside_scopes(node: ast.AST) -> Iterator[ast.AST]:
    """The node and its descendants, except those inside lambdas and comprehensions."""
    yield node
    for inner in ast.iter_child_nodes(node) if not isinstance(node, SCOPES) else ():
        yield from outside_scopes(inner)


def purify(
    node: ast.expr,
    take_out: Callable[[ast.expr], ast.expr | None],
    in_nested_scope: Callable[[ast.expr], None],
) -> ast.expr:
    """A copy in which `take_out` has replaced some nodes.

    Lambdas and comprehensions are kept whole: `in_nested_scope` is shown the expressions inside them.
    """

    class Purify(ast.NodeTransformer):
        def visit(self, inner: ast.AST) -> ast.AST:
            if not isinstance(inner, ast.expr):
                return self.generic_visit(inner)
            replacement = take_out(inner)
            if replacement is not None:
                return replacement
            if isinstance(inner, SCOPES):
                for part in ast.walk(inner):
                    if isinstance(part, ast.expr):
                        in_nested_scope(part)
                return inner
            return self.generic_visit(inner)

    pure: ast.expr = Purify().visit(copied(node))  # type: ignore[assignment]
    return pure


def frozen(value: Any) -> Any:
    """A private copy of numbers and arrays, in containers too; any other object as it is."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = value.copy()
        value.flags.writeable = False
        return value
    if isinstance(value, tuple):
        parts = [frozen(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if type(value) is list:
        return [frozen(part) for part in value]
    if type(value) is dict:
        return {key: frozen(part) for key, part in value.items()}
    return value


_DATA = (bool, int, float, complex, np.generic, np.ndarray, list, tuple, dict)


def copier_of(namespace: dict[str, Any]) -> ConstantCopier:
    """What copies the helpers of a namespace, and keeps its copies there."""
    copier: ConstantCopier = namespace.setdefault(_COPIER, ConstantCopier())
    return copier


def bound_in(node: ast.AST) -> set[str]:
    """The names that an expression binds itself, in lambdas and comprehensions."""
    bound = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return bound | {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}


def constants_read(
    node: ast.expr, local_names: set[str], namespace: Mapping[str, Any]
) -> Iterator[tuple[ast.expr, Any]]:
    """The parts of an expression that denote an object of enclosing scopes, the largest first, and the objects."""
    local_names = local_names | bound_in(node)
    for part in ast.walk(node):
        if isinstance(part, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(part.ctx, ast.Load):
            value = static_value(part, local_names, namespace)
            if value is not UNKNOWN:
                yield part, value


def with_constants(node: ast.expr, names: tuple[str, ...], namespace: dict[str, Any]) -> ast.expr:
    """A copy of the expression in which data and helpers of enclosing scopes have their present values.

    A backend that traces reads them once, and one that does not must not see later changes either. Such a value is
    named by a name, attributes and constant indices; copies go into the namespace, one for each text.
    """
    local_names = bound_in(node) | set(names)

    class Constants(ast.NodeTransformer):
        def visit(self, inner: ast.AST) -> ast.AST:
            if not isinstance(inner, (ast.Name, ast.Attribute, ast.Subscript)) or not isinstance(inner.ctx, ast.Load):
                return self.generic_visit(inner)
            value = static_value(inner, local_names, namespace)
            helper = is_helper(value)
            if not helper and not isinstance(value, _DATA):
                return self.generic_visit(inner)
            name = CONSTANT + ast.unparse(inner)
            if name not in namespace:
                namespace[name] = copier_of(namespace).helper(value) if helper else frozen(value)
            return load(name, inner)

    constant: ast.expr = Constants().visit(copied(node))  # type: ignore[assignment]
    return constant


@dataclass(frozen=True)
class CompiledExpression:
    """An expression as a function of its variables' values and, last, of the `Checks` it notes into."""

    function: Callable[..., Any]
    checks: tuple[Check, ...]


def compile_expression(
    node: ast.expr, names: tuple[str, ...], namespace: dict[str, Any], filename: str
) -> CompiledExpression:
    """The function of the values of `names` that evaluates the expression on lanes; constants are those of now."""
    node = with_constants(node, names, namespace)
    parameters = [ast.arg(name) for name in (*names, CHECKS)]
    body, checks = on_lanes(node, names, namespace)
    arguments = ast.arguments([], parameters, None, [], [], None, [])
    tree = ast.Expression(located(ast.Lambda(arguments, body), node))
    return CompiledExpression(eval(compile(tree, filename, "eval"), namespace), checks)


@dataclass(frozen=True)
class Pattern:
    """A tuple of assignment targets, nested; names are in order of appearance."""

    names: tuple[str, ...]
    children: tuple[str | Pattern, ...]
    star: int | None = None
    """The index of the child that takes the values that the others leave, as a list."""

    @staticmethod
    def of(target: ast.expr, refuse: Callable[[ast.expr], Any]) -> Pattern:
        """From the syntax of `a, (b, c)`; `refuse` is called for targets that are no plain names."""
        children: list[str | Pattern] = []
        names: list[str] = []
        star: int | None = None
        for i, element in enumerate(target.elts):  # type: ignore[attr-defined]
            match element:
                case ast.Starred(value=ast.Name(id=name)):
                    star = i
                    children.append(name)
                    names.append(name)
                case ast.Name(id=name):
                    children.append(name)
                    names.append(name)
                case ast.Tuple() | ast.List():
                    child = Pattern.of(element, refuse)
                    children.append(child)
                    names.extend(child.names)
                case _:
                    refuse(element)
        return Pattern(tuple(names), tuple(children), star)

    def take_apart(self, value: Any, source: Source) -> tuple[Any, ...]:
        """The values of the names. Raises CompileError, with the targets' place, for another number of values."""
        if isinstance(value, Iterator):
            value = tuple(value)
        if is_array(value) and static_shape(value) == ():
            raise CompileError(f"cannot unpack one number into {len(self.children)} names.", source)
        length = len(value) if isinstance(value, (tuple, list)) else python_len(value)
        more = length - len(self.children) + 1
        if more != 1 if self.star is None else more < 0:
            least = "" if self.star is None else " and a starred one"
            names = len(self.children) - bool(least)
            raise CompileError(f"cannot unpack {length} values into {names} names{least}.", source)
        values = [value[k] for k in range(length)]
        if self.star is not None:
            values[self.star : self.star + more] = [values[self.star : self.star + more]]
        result: list[Any] = []
        for part, child in zip(values, self.children):
            result.extend((part,) if isinstance(child, str) else child.take_apart(part, source))
        return tuple(result)
