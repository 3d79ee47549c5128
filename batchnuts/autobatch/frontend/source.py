"""From a Python function to its syntax tree, with every node at its line and column in the user's file."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import os
import time
import tokenize
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType
from typing import Any

from batchnuts.autobatch.errors import CompileError, Source, UnsupportedSyntaxError, start_of
from batchnuts.autobatch.parsing import parse


@dataclass(frozen=True)
class FunctionSource:
    """A function's syntax tree, the file it stands in, and the values its free names have."""

    tree: ast.FunctionDef
    filename: str
    namespace: Mapping[str, Any]
    """Globals and closure variables at compile time, builtins included."""
    unset: frozenset[str] = frozenset()
    """Closure variables that the enclosing function has not assigned yet."""

    def at(self, node: ast.AST) -> Source:
        """The place of a node."""
        return source_at(self.filename, node)


def source_at(filename: str, node: ast.AST) -> Source:
    """The place of a node of that file's tree; nodes without a position give line 0."""
    line = getattr(node, "lineno", 0)
    text = linecache.getline(filename, line).rstrip("\n")
    before = text.encode()[: getattr(node, "col_offset", 0)]  # which `ast` counts in bytes of UTF-8
    return Source(filename, line, len(before.decode(errors="replace")), text)


def read_function(function: Callable[..., Any]) -> FunctionSource:
    """Parse the source of `function`.

    Raises CompileError when Python cannot show the source, UnsupportedSyntaxError for what is not a plain `def`.
    """
    name = getattr(function, "__name__", repr(function))
    if hasattr(function, "__wrapped__"):
        raise CompileError(
            f"{name!r} is wrapped by another decorator, whose code would be left out. Put @batch below that "
            "decorator, or call what it adds inside the function.",
            start_of(inspect.unwrap(function)),
        )
    try:
        filename = inspect.getsourcefile(function) or function.__code__.co_filename
        lines, first = inspect.getsourcelines(function)
        node = _parsed("".join(lines), first)
    except (OSError, TypeError) as error:
        raise CompileError(_no_source(name, error)) from None
    except (SyntaxError, tokenize.TokenError):
        raise CompileError(_changed(name, filename)) from None
    if not _defines(node, function.__code__.co_name) or (
        _is_newer(filename) and not _is_made_of(filename, function.__code__)
    ):
        raise CompileError(_changed(name, filename))
    if not isinstance(node, ast.FunctionDef):
        inside = [part for part in ast.walk(node) if isinstance(part, ast.Lambda)]
        kind, place = ("a lambda", inside[0]) if inside else ("`async def`", node)
        raise UnsupportedSyntaxError(
            f"{name!r} is not a plain function: found {kind}, expected `def`. Write it with `def`.",
            source_at(filename, place),
        )
    closure, unset = _closure(function)
    return FunctionSource(node, filename, {**vars(builtins), **function.__globals__, **closure}, unset)


def _closure(function: Callable[..., Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """The closure variables that have a value by now, and the names of those that have none."""
    values: dict[str, Any] = {}
    unset = set()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            values[name] = cell.cell_contents
        except ValueError:
            unset.add(name)
    return values, frozenset(unset)


def _defines(node: ast.stmt, name: str) -> bool:
    """Whether the statement can be the one that Python made the function of that name from."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name == name
    return name == "<lambda>"


_STARTED = time.time()


def _is_newer(filename: str) -> bool:
    """Whether the file was written after this module was imported, so that Python may have read another text of it."""
    with suppress(OSError):
        return os.stat(filename).st_mtime > _STARTED
    return False


def _is_made_of(filename: str, code: CodeType) -> bool:
    """Whether Python makes that code of what the file holds now."""
    try:
        waiting = [compile("".join(linecache.getlines(filename)), filename, "exec", dont_inherit=True)]
    except SyntaxError:
        return False
    while waiting:
        inside = [c for c in waiting.pop().co_consts if isinstance(c, CodeType)]
        if any(
            (c.co_name, c.co_firstlineno) == (code.co_name, code.co_firstlineno) and _text_of(c) == _text_of(code)
            for c in inside
        ):
            return True
        waiting += inside
    return False


def _text_of(code: CodeType) -> tuple[Any, ...]:
    """What code does, without line numbers."""
    constants = [_text_of(c) if isinstance(c, CodeType) else (type(c), repr(c)) for c in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


def _no_source(name: str, why: object) -> str:
    return (
        f"cannot find the source of {name!r} ({why}). The compiler reads the function's text: define it in a file, in "
        "a notebook cell, or at the prompt of IPython or of Python 3.13; exec, standard input and older prompts keep "
        "no text."
    )


def _changed(name: str, filename: str) -> str:
    if filename == "<string>":  # of exec, and of `python -c`, whose text Python keeps from 3.13 on
        return _no_source(name, "another source has the same file name, <string>")
    return (
        f"the source found for {name!r} in {filename} is not this function: the file has changed since Python read it. "
        "Import it again, or restart."
    )


def _parsed(text: str, first: int) -> ast.stmt:
    """The statement that begins at line `first` of its file."""
    if text[0] in " \t":  # an indented body of something, so that columns and multi-line strings stay as they are
        block = parse("if True:\n" + text).body[0]
        assert isinstance(block, ast.If)
        ast.increment_lineno(block, first - 2)
        return block.body[0]
    node: ast.stmt = parse(text).body[0]
    ast.increment_lineno(node, first - 1)
    return node
