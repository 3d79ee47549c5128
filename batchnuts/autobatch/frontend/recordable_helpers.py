"""Helpers that consist of the language's own functions: what they compute can be recorded.

    def slope(position, frequency):         a plain function, which a batched one calls
        return ops.stack([position[1], -frequency * frequency * position[0]])

A helper is one by its text: straight code, in which every call is of a function of the language, or of another such
helper. It cannot ask what kind of array it has been given, choose by values, catch an error or change anything, so
arrays that have types only lead through it as those of a library do. Operators mean in it what they mean to the arrays
that it gets; where libraries differ, recording ends with NotTyped, and a library computes the helper.
"""

from __future__ import annotations

import ast
from types import CodeType, FunctionType
from typing import Any

from batchnuts.autobatch.errors import BatchnutsError
from batchnuts.autobatch.frontend.expressions import static_value
from batchnuts.autobatch.frontend.helpers import is_users_code
from batchnuts.autobatch.frontend.source import read_function
from batchnuts.autobatch.frontend.speculation import is_ours

_STRAIGHT = (
    *(ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Pass),
    *(ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Starred),
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.keyword),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.expr_context),
)
"""Syntax that neither branches nor repeats nor catches."""


def consists_of_language(function: Any, within: frozenset[CodeType] = frozenset()) -> bool:
    """Whether a function is such a helper. within: those that lead to it."""
    if not isinstance(function, FunctionType) or not is_users_code(function.__code__):
        return False
    if function.__code__ in within:
        return False
    try:
        source = read_function(function)
    except BatchnutsError:  # a lambda, a generator, no text
        return False
    code = function.__code__
    names, within = {*code.co_varnames, *code.co_cellvars}, within | {code}
    for node in (part for statement in source.tree.body for part in ast.walk(statement)):
        if not isinstance(node, _STRAIGHT) or isinstance(node, ast.Not):
            return False
        if isinstance(node, ast.Compare) and len(node.ops) > 1:
            return False
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(node, ast.Call):
            callee = static_value(node.func, names, source.namespace)
            if callee is isinstance or not (is_ours(callee) or consists_of_language(callee, within)):
                return False
    return True
