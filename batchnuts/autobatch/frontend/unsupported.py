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

KEYWORDS: dict[type[ast.AST], str] = {
    ast.AsyncFunctionDef: "async def",
    ast.ClassDef: "class",
    ast.Delete: "del",
    ast.ImportFrom: "import",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
}
"""Statements whose name in Python's syntax tree differs from the keyword."""
