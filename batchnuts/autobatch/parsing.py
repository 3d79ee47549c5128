"""Python's parser, for one thread at a time, and copies of what it gives."""

from __future__ import annotations

import ast
import threading
from collections.abc import Mapping
from typing import Any, TypeVar, cast

Tree = TypeVar("Tree", bound=ast.AST)

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (ast.Lambda, *COMPREHENSIONS)
"""Expressions that bind names of their own."""

_parsing = threading.RLock()
"""Before CPython 3.11.8 and 3.12.2 a parse that another thread's came between ended with a SystemError (gh-106905)."""


def parse(text: str, mode: str = "exec") -> Any:
    """`ast.parse` of the text."""
    with _parsing:
        return ast.parse(text, mode=mode)


def load(name: str, like: ast.AST) -> ast.expr:
    """The expression that reads a name, at the place of another node."""
    return ast.copy_location(ast.Name(name, ast.Load()), like)


def parameter_names(arguments: ast.arguments) -> list[str]:
    """The parameters of a `def` or lambda, without those for `*` and `**`."""
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def copied(node: Tree, instead: Mapping[int, ast.AST] | None = None) -> Tree:
    """A copy of a syntax tree.

    instead: what the copy has in the place of some nodes, by their `id`. Constants are shared; `copy.deepcopy`, which
    does not know that these are trees, takes ten times as long.
    """
    return cast(Tree, _copied(node, {} if instead is None else instead))


def _copied(part: Any, instead: Mapping[int, ast.AST]) -> Any:
    """A copy of what a field of a node holds."""
    if isinstance(part, list):
        return [_copied(one, instead) for one in part]
    if not isinstance(part, ast.AST):
        return part
    if id(part) in instead:
        return instead[id(part)]
    copy = type(part).__new__(type(part))  # from 3.13 on a call warns of fields that it is not given
    for name, value in vars(part).items():
        setattr(copy, name, _copied(value, instead))
    return copy
