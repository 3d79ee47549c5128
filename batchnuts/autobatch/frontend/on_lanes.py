"""An expression rewritten to work on lanes: operators, subscripts and builtins become calls of lane functions.

    n // d + x[i]   -->   add(floor_divide(n, d, checks, 0), item(x, i, checks, 1))

Numbered checks are added where a non-constant operand could have no defined result: the expression then also gives one
boolean for each (see `operators.Checks`), which the frontend asserts.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeGuard

import numpy as np

from batchnuts.autobatch.language import builtins as lane_builtins
from batchnuts.autobatch.language import operators, ops
from batchnuts.autobatch.language.indexing import item, item_of_constants
from batchnuts.autobatch.language.iteration import (
    all_iterated,
    iterated,
    known,
    known_elements,
    known_whole,
    looked_up,
    range_bound,
    with_values,
)
from batchnuts.autobatch.parsing import copied, load

PREFIX = "@"  # not part of any identifier
TRUTH = PREFIX + "truth"
NOT = PREFIX + "not"
CHECKS = PREFIX + "checks"
CONSTANT = PREFIX + "constant "
BOUND = PREFIX + "bound"

_BUILTINS: dict[Any, Any] = {
    builtins.min: lane_builtins.python_min,
    builtins.max: lane_builtins.python_max,
    builtins.abs: lane_builtins.python_abs,
    builtins.round: lane_builtins.python_round,
    builtins.len: lane_builtins.python_len,
    builtins.sum: lane_builtins.python_sum,
    builtins.any: lane_builtins.python_any,
    builtins.all: lane_builtins.python_all,
}
"""Builtins that Python defines on numbers only, and their replacements for arrays of every backend."""

_WHERE_CALLED: dict[Any, Any] = {
    builtins.int: lane_builtins.python_int,
    builtins.float: lane_builtins.python_float,
    builtins.bool: lane_builtins.truth,
    builtins.divmod: operators.divmod_,
    builtins.pow: operators.power,
}
"""Those replaced only where they are called: `dtype=float` stays as it is, and divmod and pow are checked."""

_OF_CLASSES: dict[Any, Any] = {
    builtins.isinstance: lane_builtins.python_isinstance,
    builtins.type: lane_builtins.python_type,
}
"""Those replaced where their first argument is the lane's."""

_ITERATING: dict[Any, int] = {
    **dict.fromkeys((builtins.list, builtins.tuple, builtins.zip, builtins.enumerate, builtins.reversed), 0),
    **dict.fromkeys((builtins.sorted, builtins.iter), 0),
    **dict.fromkeys((builtins.map, builtins.filter), 1),
}
"""Builtins that iterate over their arguments, from the first or second one on."""

_CONDITION = (
    "a condition within a comprehension or lambda",
    "use a `for` loop, or ops.where to choose between two values",
)
_RANGE = ("the end of a range within an expression", "loop with `for i in range(n):` as a statement")
_TEXT = ("what a string or hash is made from", "format the results instead")

_POW = ("an argument of pow with a modulus or a keyword", "write pow(a, b), and `% m` after it")

_NUMBER = ("the argument of this builtin", "use autobatch.ops, or the backend's own function")

_KNOWING: dict[Any, tuple[str, str]] = {
    builtins.range: _RANGE,
    **dict.fromkeys((builtins.str, builtins.repr, builtins.ascii, builtins.format, builtins.hash), _TEXT),
    **dict.fromkeys((builtins.chr, builtins.bin, builtins.hex, builtins.oct), _TEXT),
    builtins.complex: _NUMBER,
}
"""Builtins of numbers that must be known when the expression is compiled: what they are, and what to do instead."""

_KNOWING_ELEMENTS: dict[Any, tuple[str, str]] = {**dict.fromkeys((builtins.set, builtins.frozenset), _TEXT)}
"""Builtins that hash the elements of what they are given."""

_KNOWING_FROM: dict[Any, tuple[int, str, tuple[str, str]]] = {
    ops.take: (1, "known_whole", ("an index of ops.take", "write x[i] instead")),
    np.array_equal: (0, "with_values", ("numpy.array_equal", "write ops.all(x == y)")),
    np.array_equiv: (0, "with_values", ("numpy.array_equiv", "write ops.all(x == y)")),
    np.isscalar: (0, "with_values", ("numpy.isscalar", "write np.ndim(x) == 0")),
}
"""Functions that take no values of the lane from an argument on: its position, the check, and its texts."""

_CHOOSING: dict[Any, Any] = {builtins.filter: lane_builtins.python_filter, builtins.sorted: lane_builtins.python_sorted}
"""Builtins that choose by what they find in their arguments, and what stands for them where these are the lane's."""

_LOOKING_UP = ("index", "count", "get")
"""Methods of Python's containers that compare or hash."""

_CHECKED_BUILTINS = {builtins.divmod: "integer division by zero", builtins.pow: "an integer to a negative power"}

_PLAIN: dict[type[ast.AST], Any] = {
    ast.Add: operators.add,
    ast.Sub: operators.subtract,
    ast.Mult: operators.multiply,
    ast.MatMult: operators.matmul,
    ast.BitAnd: operators.bitwise_and,
    ast.BitOr: operators.bitwise_or,
    ast.BitXor: operators.bitwise_xor,
    ast.USub: operators.negative,
    ast.UAdd: operators.positive,
    ast.Invert: operators.invert,
    ast.Eq: operators.equal,
    ast.NotEq: operators.not_equal,
    ast.Lt: operators.less,
    ast.LtE: operators.less_equal,
    ast.Gt: operators.greater,
    ast.GtE: operators.greater_equal,
    ast.In: operators.contains,
    ast.NotIn: operators.not_contains,
    ast.Is: operators.identical,
    ast.IsNot: operators.not_identical,
}

_CHECKED: dict[type[ast.AST], tuple[Any, str]] = {
    ast.FloorDiv: (operators.floor_divide, "integer division by zero"),
    ast.Mod: (operators.remainder, "integer division by zero"),
    ast.Pow: (operators.power, "an integer to a negative power"),
    ast.LShift: (operators.left_shift, "a negative shift"),
    ast.RShift: (operators.right_shift, "a negative shift"),
}
"""Operators that are undefined for some second operands, and the message for these."""

_FUNCTIONS: dict[str, Any] = {
    **{PREFIX + operator.__name__: function for operator, function in _PLAIN.items()},
    **{PREFIX + operator.__name__: function for operator, (function, _) in _CHECKED.items()},
    **{PREFIX + builtin.__name__: function for builtin, function in (_WHERE_CALLED | _OF_CLASSES).items()},
    PREFIX + "Div": operators.divide,
    PREFIX + "StaticDiv": operators.static_divide,
    **{PREFIX + builtin.__name__: function for builtin, function in _CHOOSING.items()},
    PREFIX + "item": item,
    PREFIX + "item_of_constants": item_of_constants,
    PREFIX + "slice": slice,
    PREFIX + "iterated": iterated,
    PREFIX + "all_iterated": all_iterated,
    PREFIX + "known": known,
    PREFIX + "known_elements": known_elements,
    PREFIX + "known_whole": known_whole,
    PREFIX + "with_values": with_values,
    PREFIX + "looked_up": looked_up,
    BOUND: range_bound,
    TRUTH: lane_builtins.truth,
    NOT: lambda value: ops.logical_not(lane_builtins.truth(value)),
}


def with_lane_functions(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The namespace in which a function's expressions are evaluated."""

    def replaced(value: Any) -> Any:
        try:
            return _BUILTINS.get(value, value)
        except TypeError:  # unhashable values are no builtins
            return value

    return {name: replaced(value) for name, value in namespace.items()} | _FUNCTIONS


@dataclass(frozen=True)
class Check:
    """A check of an expression: the part that is checked, and the message if it does not hold."""

    node: ast.expr
    message: str


class _OnLanes(ast.NodeTransformer):
    def __init__(self, names: frozenset[str], lane_names: Iterable[str], namespace: Mapping[str, Any]) -> None:
        self.names = names
        self.lane_names = set(lane_names)
        self.namespace = namespace
        self.checks: dict[str, tuple[int, Check]] = {}

    def varies(self, node: ast.AST) -> bool:
        """Whether an operand depends on a variable, of the lane or of a comprehension."""
        return any(isinstance(part, ast.Name) and part.id in self.names for part in ast.walk(node))

    def of_the_lane(self, node: ast.AST) -> bool:
        """Whether an operand depends on a variable of the lane."""
        return any(isinstance(part, ast.Name) and part.id in self.lane_names for part in ast.walk(node))

    def require_known(self, node: ast.expr, reason: tuple[str, str], check: str = "known") -> ast.expr:
        """The visited node; if it depends on the lane, with the check that its value does not."""
        texts = [ast.Constant(text) for text in reason]
        of_the_lane = self.of_the_lane(node)
        visited: ast.expr = self.visit(node)
        return self.call(check, node, visited, *texts) if of_the_lane else visited

    def iterated(self, node: ast.expr) -> ast.expr:
        """The visited node, as something to iterate over."""
        of_the_lane = self.of_the_lane(node)
        if isinstance(node, ast.Starred):
            starred: ast.expr = self.visit(node.value)
            return ast.copy_location(ast.Starred(self.call("all_iterated", node, starred), ast.Load()), node)
        visited: ast.expr = self.visit(node)
        return self.call("iterated", node, visited) if of_the_lane else visited

    def call(self, function: str, node: ast.expr, *arguments: ast.expr) -> ast.expr:
        call = ast.Call(ast.Name(PREFIX + function, ast.Load()), list(arguments), [])
        return ast.fix_missing_locations(ast.copy_location(call, node))

    def check(self, node: ast.expr, problem: str) -> list[ast.expr]:
        """The arguments that give a lane function the number of its check; equal parts share one."""
        text = ast.unparse(node).replace(CONSTANT, "")
        number, _ = self.checks.setdefault(text, (len(self.checks), Check(node, f"{problem} in `{text}`")))
        return [ast.Name(CHECKS, ast.Load()), ast.Constant(number)]

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
            node.right = self.require_known(node.right, _TEXT)
            return node
        name, right = type(node.op).__name__, node.right
        extra: list[ast.expr] = []
        if type(node.op) in _CHECKED and self.varies(right):
            extra = self.check(copied(node), _CHECKED[type(node.op)][1])
        elif isinstance(node.op, ast.Div) and not self.varies(right):
            name = "StaticDiv"
        self.generic_visit(node)
        return self.call(name, node, node.left, node.right, *extra)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return self.call("not", node, node.operand)
        return node if isinstance(node.operand, ast.Constant) else self.call(type(node.op).__name__, node, node.operand)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """`a < b < c` as `(a < b) & (b < c)`: operands that must not be evaluated early were moved out before."""
        self.generic_visit(node)
        of_objects = any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops) and not self.of_the_lane(node)
        if of_objects or not all(type(op) in _PLAIN for op in node.ops):
            return node
        sides = [node.left, *node.comparators]
        links = [
            self.call(type(op).__name__, node, copied(left), copied(right))
            for left, op, right in zip(sides, node.ops, sides[1:])
        ]
        result = links[0]
        for link in links[1:]:
            result = self.call("BitAnd", node, result, link)
        return result

    def comprehension(self, node: Any) -> Any:
        """A comprehension, whose iterables may be arrays and whose conditions do not depend on the lane."""
        outside = set(self.lane_names)
        for generator in node.generators:
            of_the_lane = self.of_the_lane(generator.iter)
            generator.iter = self.iterated(generator.iter)
            targets = {part.id for part in ast.walk(generator.target) if isinstance(part, ast.Name)}
            self.lane_names = self.lane_names | targets if of_the_lane else self.lane_names - targets
            generator.ifs = [self.require_known(test, _CONDITION) for test in generator.ifs]
        if isinstance(node, ast.DictComp):
            node.key, node.value = self.require_known(node.key, _TEXT), self.visit(node.value)
        elif isinstance(node, ast.SetComp):
            node.elt = self.require_known(node.elt, _TEXT)
        else:
            node.elt = self.visit(node.elt)
        self.lane_names = outside
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = comprehension

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        node.test = self.require_known(node.test, _CONDITION)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        node.values = [*(self.require_known(v, _CONDITION) for v in node.values[:-1]), self.visit(node.values[-1])]
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        node.value = self.require_known(node.value, _TEXT)
        return node

    def visit_Set(self, node: ast.Set) -> ast.expr:
        node.elts = [self.require_known(e, _TEXT) for e in node.elts]
        return node

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        node.keys = [key and self.require_known(key, _TEXT) for key in node.keys]
        node.values = [self.visit(value) for value in node.values]
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.expr:
        node.value = self.iterated(node.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if not self.varies(node.slice):
            plain = all(isinstance(part, _PLAIN_INDEX) for part in ast.walk(node.slice))
            self.generic_visit(node)
            if plain or not isinstance(node.ctx, ast.Load):
                return node
            return self.call("item_of_constants", node, node.value, _index(node.slice))
        extra = self.check(copied(node), "an index out of range")
        self.generic_visit(node)
        return self.call("item", node, node.value, _index(node.slice), *extra)

    def builtin(self, called: ast.expr) -> Any:
        """The function or class that is called by a name from around the function, or of a module, if it is known."""
        holder = called.value if isinstance(called, ast.Attribute) else called
        if not isinstance(holder, ast.Name) or holder.id in self.names:
            return None
        value = self.namespace.get(holder.id)
        if isinstance(called, ast.Attribute):
            value = getattr(value, called.attr, None) if isinstance(value, ModuleType) else None
        try:
            hash(value)
        except TypeError:
            return None
        return value if callable(value) else None

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """A call; the parameters of a lambda beside values of the lane are values of the lane."""
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        lambdas = [argument for argument in arguments if isinstance(argument, ast.Lambda)]
        outside = set(self.lane_names)
        if any(self.of_the_lane(argument) for argument in arguments if argument not in lambdas):
            self.lane_names |= {part.arg for lambda_ in lambdas for part in ast.walk(lambda_.args) if _is_arg(part)}
        visited = self.called(node)
        self.lane_names = outside
        return visited

    def known_from(self, node: ast.Call, first: int, check: str, texts: tuple[str, str]) -> ast.Call:
        """The visited call, with a check of its arguments from that position on, and of those by name but `x`."""
        node.args = [
            self.require_known(a, texts, check) if i >= first else self.visit(a) for i, a in enumerate(node.args)
        ]
        for keyword in node.keywords:
            value = keyword.value
            keyword.value = self.visit(value) if keyword.arg == "x" else self.require_known(value, texts, check)
        return node

    def called(self, node: ast.Call) -> ast.expr:
        called = node.func
        if isinstance(called, ast.Name) and called.id == BOUND and self.varies(node):
            extra = self.check(copied(node.args[0]), "the bound of a range beyond int64")
            self.generic_visit(node)
            node.args += [ast.fix_missing_locations(ast.copy_location(e, node)) for e in extra]
            return node
        builtin = self.builtin(called)
        if builtin in _KNOWING:
            node.args = [self.require_known(a, _KNOWING[builtin]) for a in node.args]
            return node
        if builtin in _KNOWING_ELEMENTS:
            node.args = [self.require_known(a, _KNOWING_ELEMENTS[builtin], "known_elements") for a in node.args]
            return node
        if builtin in _KNOWING_FROM:
            return self.known_from(node, *_KNOWING_FROM[builtin])
        if builtin in _ITERATING:
            first = _ITERATING[builtin]
            if builtin in _CHOOSING and self.of_the_lane(node):
                node.func = load(PREFIX + builtin.__name__, node)
            node.args = [self.visit(a) if i < first else self.iterated(a) for i, a in enumerate(node.args)]
            node.keywords = [self.visit(keyword) for keyword in node.keywords]
            return node
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Constant) and called.attr == "format":
            node.args = [self.require_known(a, _TEXT) for a in node.args]
        elif isinstance(called, ast.Attribute) and called.attr in _LOOKING_UP and any(map(self.of_the_lane, node.args)):
            holder = copied(called.value)
            node.args = [self.call("looked_up", a, copied(holder), a) for a in node.args[:1]] + node.args[1:]
        if builtin in _OF_CLASSES and node.args and self.of_the_lane(node.args[0]):
            self.generic_visit(node)
            node.func = load(PREFIX + builtin.__name__, node)
            return node
        if builtin not in _WHERE_CALLED:
            self.generic_visit(node)
            return node
        extra = []
        if node.keywords or len(node.args) != (2 if builtin in _CHECKED_BUILTINS else 1):
            if builtin is pow and len(node.args) + len(node.keywords) > 1:
                return self.known_from(node, 0, "known", _POW)
            self.generic_visit(node)  # Python's own, which takes these or says what it takes
            return node
        if builtin in _CHECKED_BUILTINS:
            extra = self.check(copied(node), _CHECKED_BUILTINS[builtin]) if self.varies(node.args[1]) else []
        self.generic_visit(node)
        node.func = load(PREFIX + builtin.__name__, node)
        node.args += [ast.fix_missing_locations(ast.copy_location(e, node)) for e in extra]
        return node


_PLAIN_INDEX = (ast.Constant, ast.Slice, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.expr_context)


def _is_arg(node: ast.AST) -> TypeGuard[ast.arg]:
    return isinstance(node, ast.arg)


def _index(node: ast.expr) -> ast.expr:
    """A subscript's index as an expression of its own: `1:2` is `slice(1, 2, None)`."""
    if isinstance(node, ast.Tuple):
        return ast.copy_location(ast.Tuple([_index(part) for part in node.elts], ast.Load()), node)
    if not isinstance(node, ast.Slice):
        return node
    none = ast.Constant(None)
    bounds = [part or none for part in (node.lower, node.upper, node.step)]
    call = ast.Call(ast.Name(PREFIX + "slice", ast.Load()), bounds, [])
    return ast.fix_missing_locations(ast.copy_location(call, node))


def on_lanes(
    node: ast.expr, names: tuple[str, ...], namespace: Mapping[str, Any]
) -> tuple[ast.expr, tuple[Check, ...]]:
    """A copy of the expression on lanes, and its checks in the order of their numbers.

    names: the variables it reads; those that its own comprehensions and lambdas bind vary as well.
    """
    node = copied(node)
    bound = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    bound |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    transformer = _OnLanes(frozenset({*names, *bound}), names, namespace)
    changed: ast.expr = transformer.visit(node)
    return changed, tuple(check for _, check in transformer.checks.values())
