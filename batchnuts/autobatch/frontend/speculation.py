"""Properties of an expression that passes use: whether it may run on lanes that do not need it, what it inverts.

These are facts about one pure expression over local variables, found in its syntax; nothing is evaluated.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from batchnuts.autobatch.language import builtins as lane_builtins
from batchnuts.autobatch.language import ops
from batchnuts.autobatch.parsing import SCOPES

_PARTS = (
    ast.Name,
    ast.Constant,
    ast.expr_context,
    ast.Attribute,
    ast.Compare,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.Eq,
    ast.NotEq,
    ast.BinOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.BitAnd,
    ast.BitOr,
    ast.BitXor,
    ast.UnaryOp,
    ast.USub,
    ast.UAdd,
    ast.Invert,
    ast.Not,
    ast.Call,
)
"""Syntax whose evaluation is cheap and cannot fail on any value of the right type."""

_DIVISIONS = (ast.FloorDiv, ast.Mod)
"""Operators that cannot fail for a divisor that is a literal other than zero."""

_FUNCTIONS = (
    builtins.abs,
    builtins.bool,
    lane_builtins.python_abs,
    lane_builtins.python_max,
    lane_builtins.python_min,
    lane_builtins.truth,
    ops.abs,
    ops.isfinite,
    ops.isnan,
    ops.logical_and,
    ops.logical_not,
    ops.logical_or,
    ops.maximum,
    ops.minimum,
    ops.sign,
    ops.square,
    ops.where,
)
"""Functions whose evaluation is cheap and cannot fail either."""


def is_speculable(node: ast.expr, static: Callable[[ast.AST], Any]) -> bool:
    """Whether a block may evaluate the expression on lanes that would have branched around it.

    static: the object that a name or attribute chain denotes at compile time, as `expressions.static_value`.
    """
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, _DIVISIONS):
            if not (isinstance(part.right, ast.Constant) and part.right.value):
                return False
        elif not isinstance(part, (*_PARTS, *_DIVISIONS)):
            return False
        if isinstance(part, ast.Call) and (part.keywords or not any(static(part.func) is f for f in _FUNCTIONS)):
            return False
    return True


def is_of_language(
    node: ast.expr, static: Callable[[ast.AST], Any], also: Callable[[Any], bool] = lambda function: False
) -> bool:
    """Whether the functions that an expression calls are all the language's own, or others of this package, or make
    structures, or are some `also`: none of them asks what kind of array it has been given."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            replaces = isinstance(part.func, ast.Attribute) and part.func.attr == "_replace"
            if not replaces and not is_ours(called := static(part.func)) and not also(called):
                return False
    return True


def is_ours(function: Any) -> bool:
    """Whether a function is of this package, one of Python's that the language has, or makes structures."""
    if isinstance(function, type):
        return function in _BUILTINS or function.__bases__ == (tuple,) or _only_has_fields(function)  # a NamedTuple
    if function in _BUILTINS:
        return True
    return isinstance(function, (FunctionType, MethodType)) and (function.__module__ or "").startswith("batchnuts.")


def _only_has_fields(function: type) -> bool:
    """Whether it is a dataclass whose making runs no code of its author's."""
    init = getattr(vars(function).get("__init__"), "__code__", None)
    if not dataclasses.is_dataclass(function) or init is None or init.co_filename != "<string>":
        return False  # one that dataclasses have not made
    factories = any(field.default_factory is not dataclasses.MISSING for field in dataclasses.fields(function))
    return not factories and not hasattr(function, "__post_init__")


_BUILTINS = (isinstance, bool, int, float, complex, abs, len, max, min, range, tuple, list, dict, zip, enumerate)

_CHOOSING = (*SCOPES, ast.IfExp, ast.BoolOp)
"""Syntax that may choose between values by values."""


def rearranges(node: ast.expr, static: Callable[[ast.AST], Any]) -> bool:
    """Whether the expression's own syntax says which of its inputs come out unchanged, whatever their values.

    It may build, take apart and replace structures, and compute; a function that it calls could choose by values.
    """
    for part in ast.walk(node):
        if isinstance(part, _CHOOSING):
            return False
        if isinstance(part, ast.Call) and not _only_rearranges(part.func, static(part.func)):
            return False
    return True


def _only_rearranges(written: ast.expr, function: Any) -> bool:
    if isinstance(written, ast.Attribute) and written.attr == "_replace":
        return True
    if isinstance(function, type):
        return hasattr(function, "_fields") or dataclasses.is_dataclass(function)
    return function is dataclasses.replace or getattr(function, "__module__", None) == ops.__name__


def offset_of(node: ast.expr) -> int | None:
    """c if the expression is `x + c` or `x - c` of a plain name and an integer literal (c negative then), else None."""
    match node:
        case ast.BinOp(ast.Name(), ast.Add() | ast.Sub() as sign, ast.Constant(int(amount))) if type(amount) is int:
            return amount if isinstance(sign, ast.Add) else -amount
        case ast.BinOp(ast.Constant(int(amount)), ast.Add(), ast.Name()) if type(amount) is int:
            return amount
    return None
