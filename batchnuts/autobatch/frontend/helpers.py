"""Helpers with what they read from around them as it is now: constants are taken once, at compilation.

    SCALE = np.array([2.0])
    def helper(x):                  a copy of `helper`, in whose globals SCALE is a copy that nobody can change
        return x * SCALE[0]

A helper is a plain Python function of the user's, a method, a callable object, or a `functools.partial` of these.
Arrays, numbers, lists, dicts, sets and plain objects that it reads from its globals, closure and defaults are copied,
and so are the helpers among them. What is left as it is: functions and objects of libraries, modules, classes, methods
that a method calls, and the lists, dicts and objects that the helper's own text changes: they are its state.
"""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import sysconfig
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from batchnuts.autobatch.language.functions import LaneFunction, PrimitiveFunction
from batchnuts.autobatch.parsing import parse

_FOLDERS = (
    *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[2]),
)
_CHANGING_METHODS = frozenset(("append", "extend", "insert", "pop", "popitem", "clear", "remove", "update"))
_CHANGING_METHODS |= {"setdefault", "add", "discard", "sort", "reverse", "appendleft", "fill"}
_CHANGING_OPS = ("STORE_SUBSCR", "STORE_SLICE", "STORE_ATTR", "DELETE_SUBSCR", "DELETE_ATTR")


def is_helper(value: Any) -> bool:
    """Whether a value is a function of the user's that is called as one operation."""
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return (isinstance(value, types.FunctionType) and is_users_code(value.__code__)) or _is_users_method(value)
    if type(value) is functools.partial:
        return True
    return callable(value) and is_plain_object(value)


def _is_users_method(value: Any) -> bool:
    function = getattr(value, "__func__", None)
    return isinstance(function, types.FunctionType) and is_users_code(function.__code__)


def is_users_code(code: types.CodeType) -> bool:
    """Whether code is of no library: not Python's, not installed, not of this package."""
    return is_users_file(code.co_filename)


def is_users_file(filename: str) -> bool:
    """Whether a file is of no library."""
    return not filename.startswith(("<frozen", *_FOLDERS))


def is_users_class(kind: type) -> bool:
    """Whether a class is of no library."""
    functions = [part for part in vars(kind).values() if isinstance(part, types.FunctionType)]
    return kind.__module__ == "__main__" or any(is_users_code(part.__code__) for part in functions)


def is_plain_object(value: Any) -> bool:
    """Whether an object is nothing but its attributes: of a class of the user's that inherits from no library's."""
    if isinstance(value, (type, LaneFunction, PrimitiveFunction)) or not hasattr(value, "__dict__"):
        return False
    if type(value) is types.SimpleNamespace:
        return True
    bases = [kind for kind in type(value).__mro__ if kind is not object]
    custom = {"__copy__", "__deepcopy__", "__getattr__", "__getattribute__", "__setattr__", "__del__", "__slots__"}
    return all(is_users_class(kind) for kind in bases) and not any(custom & vars(kind).keys() for kind in bases)


class ConstantCopier:
    """Copies of helpers and data, one of each object."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any]] = {}
        """By the original's id: the original, so that it keeps its id, and the copy."""

    def settled(self, value: Any) -> Any:
        """The value as it is now."""
        if id(value) in self._copies:
            return self._copies[id(value)][1]
        if isinstance(value, np.ndarray) and value.dtype != object:
            copied = value.copy()
            copied.flags.writeable = False
            return self._keep(value, copied)
        if type(value) is list:
            items = self._keep(value, [])
            items.extend(map(self.settled, value))
            return items
        if type(value) is dict:
            entries = self._keep(value, {})
            entries.update((key, self.settled(part)) for key, part in value.items())
            return entries
        if type(value) in (set, frozenset):
            return self._keep(value, type(value)(value))
        if isinstance(value, tuple) and (type(value) is tuple or hasattr(value, "_fields")):
            parts = [self.settled(part) for part in value]
            return self._keep(value, tuple(parts) if type(value) is tuple else type(value)(*parts))
        if isinstance(value, types.FunctionType):
            return self._function(value) if is_users_code(value.__code__) else value
        if isinstance(value, types.MethodType):
            return self._method(value.__func__, value.__self__, value)
        if type(value) is functools.partial:
            keywords = {name: self.settled(part) for name, part in value.keywords.items()}
            return self._keep(
                value, functools.partial(self.settled(value.func), *map(self.settled, value.args), **keywords)
            )
        if is_plain_object(value):
            return self._object(value)
        return value

    def helper(self, value: Any) -> Any:
        """The function to call in place of a helper."""
        call = getattr(type(value), "__call__", None)  # noqa: B004
        if is_plain_object(value) and isinstance(call, types.FunctionType):
            return self._method(call, value, value)
        return self.settled(value)

    def _keep(self, original: Any, copy: Any) -> Any:
        self._copies[id(original)] = original, copy
        return copy

    def _object(self, value: Any) -> Any:
        copy = self._keep(
            value, types.SimpleNamespace() if type(value) is types.SimpleNamespace else object.__new__(type(value))
        )
        vars(copy).update((name, self.settled(part)) for name, part in vars(value).items())
        return copy

    def _method(self, function: Any, owner: Any, value: Any) -> Any:
        if not isinstance(function, types.FunctionType) or not is_users_code(function.__code__):
            return value
        names = function.__code__.co_varnames[:1]
        changes = bool(names) and names[0] in _changed_names(function)
        return types.MethodType(self.settled(function), owner if changes else self.settled(owner))

    def _read(self, name: str, value: Any, changed: set[str]) -> Any:
        """The value of a name in a helper's copy: itself if the helper changes it and it is no array, else a copy."""
        return value if name in changed and not isinstance(value, np.ndarray) else self.settled(value)

    def _function(self, function: types.FunctionType) -> Any:
        codes = list(codes_of(function.__code__))
        operations = [op for code in codes for op in dis.get_instructions(code)]
        if any(op.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for op in operations):
            return function
        changed = _changed_names(function)
        rebound = {op.argval for op in operations if op.opname in ("STORE_DEREF", "DELETE_DEREF")}
        around: dict[str, Any] = {}
        cells = tuple(
            cell if name in rebound or _is_empty(cell) else types.CellType()
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ())
        )
        copy = types.FunctionType(function.__code__, around, function.__name__, None, cells or None)
        self._keep(function, copy)
        names = {name for code in codes for name in code.co_names}
        for name, value in function.__globals__.items():
            around[name] = self._read(name, value, changed) if name in names else value
        for name, cell, old in zip(function.__code__.co_freevars, cells, function.__closure__ or ()):
            if cell is not old:
                cell.cell_contents = self._read(name, old.cell_contents, changed)
        copy.__defaults__ = self.settled(function.__defaults__) if function.__defaults__ else None
        copy.__kwdefaults__ = self.settled(function.__kwdefaults__) if function.__kwdefaults__ else None
        copy.__dict__.update(function.__dict__)
        copy.__module__ = function.__module__
        return copy


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_of(constant)


@functools.lru_cache(maxsize=1024)
def _changed_in(code: types.CodeType) -> frozenset[str]:
    codes = list(codes_of(code))
    by_op = any(op.opname in _CHANGING_OPS for c in codes for op in dis.get_instructions(c))
    if not by_op and not any(_CHANGING_METHODS & set(c.co_names) for c in codes):
        return frozenset()
    try:
        tree = parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):  # a lambda within a line, or no source: all may be changed
        return frozenset(name for c in codes for name in (*c.co_names, *c.co_freevars, *c.co_varnames))
    return frozenset(root for node in ast.walk(tree) if (root := _root_of_change(node)) is not None)


def _changed_names(function: types.FunctionType) -> set[str]:
    """The names whose values the text of a function changes: `x[i] = v`, `x.a = v`, `x.append(v)`."""
    return set(_changed_in(function.__code__))


def _root_of_change(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING_METHODS:
        node = node.func.value
    elif not (isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load)):
        return None
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
