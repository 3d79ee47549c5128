"""Lines of code that a user writes for a model: of a function and what it calls in its file, without comments."""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from batchnuts.mcmc.model.model import Model


def lines_of_model(model: Model) -> int:
    """Lines of one of our models: the density, what reports further parameters, and one for each variable declared."""
    functions: dict[Any, FunctionType] = {}
    for function in (model.log_density, model.generated):
        for called in written_together(function):
            functions.setdefault(called.__code__, called)
    return sum(map(lines_of_function, functions.values())) + len(model.variables)


def written_together(function: Any) -> Iterator[FunctionType]:
    """A function, and those of the same file that it calls, or that these call."""
    waiting, seen = [function], set()
    while waiting:
        candidate = waiting.pop()
        if not isinstance(candidate, FunctionType) or candidate.__code__ in seen:
            continue
        seen.add(candidate.__code__)
        yield candidate
        closure = {**inspect.getclosurevars(candidate).nonlocals, **inspect.getclosurevars(candidate).globals}
        waiting += [value for value in closure.values() if getattr(value, "__module__", None) == candidate.__module__]


def lines_of_function(function: Callable[..., Any]) -> int:
    """Lines of its source, without its docstring, comments and empty lines."""
    source = textwrap.dedent(inspect.getsource(function))
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE and token.string.strip()
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - _docstring(source))


_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def _docstring(source: str) -> set[int]:
    """The lines of a function's docstring."""
    try:
        node = ast.parse(source).body[0]
    except SyntaxError:  # a lambda within a call: it has none
        return set()
    if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is None:
        return set()
    first = node.body[0]
    return set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
