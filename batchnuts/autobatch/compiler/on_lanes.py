"""An expression's syntax made to work on lanes: operators, subscripts and builtins become calls of lane functions.

    n // d + x[i]   -->   add(floor_divide(n, d, checks, 0), item(x, i, checks, 1))

Numbered checks go where an operand that is no constant could have no result: the expression's value then comes with one
boolean for each (see `lane_operators.Checks`), which the frontend asserts.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchnuts.autobatch import lane_builtins, lane_operators, ops
from batchnuts.autobatch.lane_indexing import item

PREFIX = "@"  # no identifier of a user can hold it
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
"""Builtins that Python defines on numbers only, and what stands for them on arrays of every backend."""

_WHERE_CALLED: dict[Any, Any] = {
    builtins.int: lane_builtins.python_int,
    builtins.float: lane_builtins.python_float,
    builtins.bool: lane_builtins.truth,
    builtins.divmod: lane_operators.divmod_,
    builtins.pow: lane_operators.power,
}
"""Those replaced only where they are called: `dtype=float` stays as it is, and divmod and pow are checked."""

_CHECKED_BUILTINS = {builtins.divmod: "integer division by zero", builtins.pow: "an integer to a negative power"}

_PLAIN: dict[type[ast.AST], Any] = {
    ast.Add: lane_operators.add,
    ast.Sub: lane_operators.subtract,
    ast.Mult: lane_operators.multiply,
    ast.MatMult: lane_operators.matmul,
    ast.BitAnd: lane_operators.bitwise_and,
    ast.BitOr: lane_operators.bitwise_or,
    ast.BitXor: lane_operators.bitwise_xor,
    ast.USub: lane_operators.negative,
    ast.UAdd: lane_operators.positive,
    ast.Invert: lane_operators.invert,
    ast.Eq: lane_operators.equal,
    ast.NotEq: lane_operators.not_equal,
    ast.Lt: lane_operators.less,
    ast.LtE: lane_operators.less_equal,
    ast.Gt: lane_operators.greater,
    ast.GtE: lane_operators.greater_equal,
    ast.In: lane_operators.contains,
    ast.NotIn: lane_operators.not_contains,
}

_CHECKED: dict[type[ast.AST], tuple[Any, str]] = {
    ast.FloorDiv: (lane_operators.floor_divide, "integer division by zero"),
    ast.Mod: (lane_operators.remainder, "integer division by zero"),
    ast.Pow: (lane_operators.power, "an integer to a negative power"),
    ast.LShift: (lane_operators.left_shift, "a negative shift"),
    ast.RShift: (lane_operators.right_shift, "a negative shift"),
}
"""Operators that not every second operand goes with, and what a message says of such a one."""

_FUNCTIONS: dict[str, Any] = {
    **{PREFIX + operator.__name__: function for operator, function in _PLAIN.items()},
    **{PREFIX + operator.__name__: function for operator, (function, _) in _CHECKED.items()},
    **{PREFIX + builtin.__name__: function for builtin, function in _WHERE_CALLED.items()},
    PREFIX + "Div": lane_operators.divide,
    PREFIX + "StaticDiv": lane_operators.static_divide,
    PREFIX + "item": item,
    PREFIX + "slice": slice,
    BOUND: lane_builtins.range_bound,
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
    """A check of an expression: the part of it that is checked, and what is wrong where it does not hold."""

    node: ast.expr
    message: str


class _OnLanes(ast.NodeTransformer):
    def __init__(self, names: frozenset[str], namespace: Mapping[str, Any]) -> None:
        self.names = names
        self.namespace = namespace
        self.checks: dict[str, tuple[int, Check]] = {}

    def varies(self, node: ast.AST) -> bool:
        """Whether an operand depends on a variable, of the lane or of a comprehension."""
        return any(isinstance(part, ast.Name) and part.id in self.names for part in ast.walk(node))

    def call(self, function: str, node: ast.expr, *arguments: ast.expr) -> ast.expr:
        made = ast.Call(ast.Name(PREFIX + function, ast.Load()), list(arguments), [])
        return ast.fix_missing_locations(ast.copy_location(made, node))

    def check(self, node: ast.expr, problem: str) -> list[ast.expr]:
        """The arguments that tell a lane function which check it makes; equal parts share one."""
        text = ast.unparse(node).replace(CONSTANT, "")
        number, _ = self.checks.setdefault(text, (len(self.checks), Check(node, f"{problem} in `{text}`")))
        return [ast.Name(CHECKS, ast.Load()), ast.Constant(number)]

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        name, right = type(node.op).__name__, node.right
        extra: list[ast.expr] = []
        if type(node.op) in _CHECKED and self.varies(right):
            extra = self.check(copy.deepcopy(node), _CHECKED[type(node.op)][1])
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
        """`a < b < c` as `(a < b) & (b < c)`: what must not be evaluated too early was taken out before."""
        self.generic_visit(node)
        if not all(type(op) in _PLAIN for op in node.ops):
            return node
        sides = [node.left, *node.comparators]
        links = [
            self.call(type(op).__name__, node, copy.deepcopy(left), copy.deepcopy(right))
            for left, op, right in zip(sides, node.ops, sides[1:])
        ]
        result = links[0]
        for link in links[1:]:
            result = self.call("BitAnd", node, result, link)
        return result

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if not self.varies(node.slice):
            self.generic_visit(node)
            return node
        extra = self.check(copy.deepcopy(node), "an index out of range")
        self.generic_visit(node)
        return self.call("item", node, node.value, _index(node.slice), *extra)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        called = node.func
        if isinstance(called, ast.Name) and called.id == BOUND and self.varies(node):
            extra = self.check(copy.deepcopy(node.args[0]), "the bound of a range beyond int64")
            self.generic_visit(node)
            node.args += [ast.fix_missing_locations(ast.copy_location(e, node)) for e in extra]
            return node
        builtin: Any = None
        if isinstance(called, ast.Name) and called.id not in self.names:
            value = self.namespace.get(called.id)
            builtin = value if isinstance(value, type) or callable(value) else None
        try:
            replaced = builtin in _WHERE_CALLED
        except TypeError:
            replaced = False
        if not replaced:
            self.generic_visit(node)
            return node
        plain = len(node.args) == 2 and not node.keywords
        extra = []
        if builtin in _CHECKED_BUILTINS:
            if not plain:  # pow(a, b, modulus): of Python's own numbers only
                self.generic_visit(node)
                return node
            extra = self.check(copy.deepcopy(node), _CHECKED_BUILTINS[builtin]) if self.varies(node.args[1]) else []
        self.generic_visit(node)
        node.func = ast.copy_location(ast.Name(PREFIX + builtin.__name__, ast.Load()), node)
        node.args += [ast.fix_missing_locations(ast.copy_location(e, node)) for e in extra]
        return node


def _index(node: ast.expr) -> ast.expr:
    """A subscript's index as an expression of its own: `1:2` is `slice(1, 2, None)`."""
    if isinstance(node, ast.Tuple):
        return ast.copy_location(ast.Tuple([_index(part) for part in node.elts], ast.Load()), node)
    if not isinstance(node, ast.Slice):
        return node
    none = ast.Constant(None)
    bounds = [part or none for part in (node.lower, node.upper, node.step)]
    made = ast.Call(ast.Name(PREFIX + "slice", ast.Load()), bounds, [])
    return ast.fix_missing_locations(ast.copy_location(made, node))


def on_lanes(
    node: ast.expr, names: tuple[str, ...], namespace: Mapping[str, Any]
) -> tuple[ast.expr, tuple[Check, ...]]:
    """A copy of the expression on lanes, and its checks in the order of their numbers.

    names: the variables it reads; those that its own comprehensions and lambdas bind vary as well.
    """
    node = copy.deepcopy(node)
    bound = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    bound |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    transformer = _OnLanes(frozenset({*names, *bound}), namespace)
    changed: ast.expr = transformer.visit(node)
    return changed, tuple(check for _, check in transformer.checks.values())
