"""Python constructs outside the language, and the messages about them."""

from __future__ import annotations

import ast

REWRITES: dict[type[ast.AST], str] = {
    ast.Try: "test for the condition before the operation that would raise",
    ast.With: "do the set-up outside the batched function",
    ast.Global: "pass the value in and return it",
    ast.Nonlocal: "pass the value in and return it",
    ast.Delete: "let the variable go out of use",
    ast.Import: "import at the top of the module",
    ast.ImportFrom: "import at the top of the module",
    ast.ClassDef: "define the class outside the batched function",
    ast.Raise: "assert what must hold, or return a flag that the caller tests",
    ast.Match: "use if/elif/else",
    ast.Yield: "write each value into a buffer with autobatch.write",
    ast.YieldFrom: "write each value into a buffer with autobatch.write",
    ast.Await: "batched functions are synchronous",
    ast.AsyncFunctionDef: "use a plain def",
    ast.AsyncFor: "use `for ... in range(...)`",
    ast.AsyncWith: "do the set-up outside the batched function",
}
"""The rewrites of unsupported constructs; each completes the sentence `Instead, ...`."""

_OF_LISTS = ("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort")
_OF_DICTS = ("popitem", "setdefault", "update")


def instead_of_unused(value: ast.expr) -> str:
    """The rewrite of an expression whose value is not used; it completes the sentence `Instead, ...`."""
    match value:
        case ast.Call(func=ast.Name(id="print")):
            return "leave it out; f.run(..., executor='unbatched') runs the function as plain Python, with its prints"
        case ast.Call(func=ast.Attribute(attr=method)) if method in _OF_LISTS:
            return "write each value into an array of fixed length, with autobatch.write"
        case ast.Call(func=ast.Attribute(attr=method)) if method in _OF_DICTS:
            return "make a new dict of the same keys, as in d = {**d, 'a': value}"
        case ast.Call():
            return "assign what it returns, as in x = f(x), since a call changes no variable; or leave it out"
    return "drop or assign it"


KEYWORDS: dict[type[ast.AST], str] = {
    ast.AsyncFunctionDef: "async def",
    ast.ClassDef: "class",
    ast.Delete: "del",
    ast.ImportFrom: "import",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
}
"""Statements whose name in Python's syntax tree differs from the keyword."""
