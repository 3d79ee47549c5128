"""Functions that give another value each time: `np.random.normal`, `time.time`. A traced program calls them once.

    def noisy(x):                       helper of a batched function, or of a helper of it, or of a primitive
        return x + np.random.normal()   found here, by the names that its code reads

What code reads is followed by name, through modules, attributes of objects, closures, defaults and imports within a
function. What is only known when the code runs, and the code of libraries, is not.
"""

from __future__ import annotations

import datetime
import dis
import functools
import importlib
import inspect
import linecache
import os
import random
import secrets
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import Source
from batchnuts.autobatch.frontend.helpers import codes_of, is_plain_object, is_users_class, is_users_code
from batchnuts.autobatch.language.functions import LaneFunction, PrimitiveFunction

_UNKNOWN = object()
_PACKAGE = str(Path(__file__).parents[2])
_OURS = __name__.partition(".")[0]

_GENERATORS = (np.random.RandomState, np.random.Generator, np.random.BitGenerator, random.Random)
_SEEDED = (np.random.default_rng, np.random.RandomState, np.random.SeedSequence, random.Random)
"""What makes generators: the same each time if it is given a seed."""

_NOT_OF_CLOCK = {"sleep", "mktime", "strptime", "tzset", "get_clock_info"}
"""Functions of `time` that do not say what time it is."""

_ENTROPY = (os.urandom, uuid.uuid1, uuid.uuid4, random.SystemRandom)
_NOW = {"now", "utcnow", "today"}

_IMPORTABLE = {"datetime", "numpy", "os", "random", "secrets", "time", "uuid"}


@dataclass(frozen=True)
class Hidden:
    """What code reads that gives another value each time."""

    text: str
    """As the code has it: `np.random.normal`."""
    random: bool
    """Whether it is a random number, and not a time."""
    within: str = ""
    """The name of the function whose code reads it; empty for the batched function itself."""
    source: Source | None = None


def hidden_state(value: Any) -> bool | None:
    """Whether a value is, or gives when it is called, random numbers without a key (True) or times (False)."""
    if isinstance(value, _GENERATORS) or any(value is source for source in _ENTROPY):
        return True
    owner = getattr(value, "__self__", None) if callable(value) else None
    if isinstance(owner, _GENERATORS):
        return True
    if isinstance(value, types.FunctionType):
        return True if value.__module__ == secrets.__name__ else None
    if isinstance(value, types.BuiltinFunctionType):
        of_clock = value.__module__ == time.__name__ and value.__name__ not in _NOT_OF_CLOCK
        of_date = isinstance(owner, type) and issubclass(owner, datetime.date) and value.__name__ in _NOW
        return False if of_clock or of_date else None
    return None


def is_ours(filename: str) -> bool:
    """Whether a file is one of this package, in which no mistake of a user's is."""
    return filename.startswith(_PACKAGE)


def takes_seed(value: Any) -> bool:
    """Whether calling a value gives a generator, and another one each time unless it is given a seed."""
    return any(value is maker for maker in _SEEDED)


def needs_values(value: Any) -> bool | None:
    """Whether a value is a function of NumPy that says False of all arrays without values: it hides their error."""
    return False if value is np.array_equal or value is np.array_equiv else None


class StateFinder:
    """Looks through the code that a value leads to; each function once.

    kind_of: what to look for. It gives None of what is not found, and else what `Hidden.random` is to be.
    """

    def __init__(self, kind_of: Callable[[Any], bool | None] = hidden_state) -> None:
        self._kind_of = kind_of
        self._seen: dict[tuple[int, ...], Any] = {}
        """By ids, what was looked at, so that it keeps them."""

    def find(self, value: Any, text: str) -> Hidden | None:
        """The first thing that gives another value each time; `text` is what the value is called where it is read."""
        kind = self._kind_of(value)
        if kind is not None:
            return Hidden(text, kind)
        return next(self._in(value), None)

    def _is_new(self, *values: Any) -> bool:
        key = tuple(map(id, values))
        return self._seen.setdefault(key, values) is values

    def _in(self, value: Any) -> Iterator[Hidden]:
        """What a value leads to."""
        if isinstance(value, LaneFunction) or not self._is_new(value):
            return
        if isinstance(value, PrimitiveFunction):
            yield from self._in(value.function)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value, {})
            yield from self._in(getattr(value, "__wrapped__", None))
        elif isinstance(value, types.MethodType):
            yield from self._method(value.__func__, value.__self__)
        elif type(value) is functools.partial:
            yield from self._partial(value)
        elif isinstance(value, type):
            for name in ("__new__", "__init__", "__post_init__"):
                yield from self._in(vars(value).get(name)) if is_users_class(value) else ()
        elif type(value) in (tuple, list, dict):
            for part in value.values() if type(value) is dict else value:
                yield from self._in(part) if callable(part) else ()
        elif is_plain_object(value):
            yield from self._method(getattr(type(value), "__call__", None), value)  # noqa: B004
        elif callable(value):
            for name in ("__wrapped__", "python_function", "pyfunc"):
                yield from self._in(_attribute_of_instance(value, name))

    def _method(self, function: Any, owner: Any) -> Iterator[Hidden]:
        function = inspect.unwrap(function) if isinstance(function, types.FunctionType) else function
        if isinstance(function, types.FunctionType) and self._is_new(function, owner):
            yield from self._function(function, dict.fromkeys(function.__code__.co_varnames[:1], owner))

    def _partial(self, value: functools.partial[Any]) -> Iterator[Hidden]:
        for part in (*value.args, *value.keywords.values()):
            if (kind := self._kind_of(part)) is not None:
                yield Hidden(f"partial({getattr(value.func, '__name__', 'function')}, ...)", kind)
            yield from self._in(part) if callable(part) else ()
        yield from self._in(value.func)

    def _function(self, function: types.FunctionType, bound: Mapping[str, Any]) -> Iterator[Hidden]:
        code, names = function.__code__, function.__globals__
        if not is_users_code(code):
            if not is_ours(code.co_filename):
                return
            names = {}  # ours, around functions of the user's, which closures and objects hold
        parameters = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        known = dict(zip(parameters[len(parameters) - len(defaults) :], defaults))
        known |= {**(function.__kwdefaults__ or {}), **bound}
        around = {name: _contents(cell) for name, cell in zip(code.co_freevars, function.__closure__ or ())}
        for inner in codes_of(code):
            for value, text, place, unseeded in _reads(inner, names, {**around, **known}):
                kind = True if unseeded and self._kind_of is hidden_state else self._kind_of(value)
                if kind is not None:
                    yield Hidden(text, kind, function.__name__, _source_of(inner, place))
                yield from self._in(value)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNKNOWN


def _attribute_of_instance(value: Any, name: str) -> Any:
    """An attribute that an object itself has; libraries make some up."""
    try:
        return vars(value).get(name)
    except TypeError:
        return getattr(type(value), "__dict__", {}).get(name) and getattr(value, name, None)


def _attribute(value: Any, name: str) -> Any:
    """value.name, without running code of the user's; _UNKNOWN where that is not known."""
    if isinstance(value, types.ModuleType):
        return vars(value).get(name, sys.modules.get(f"{value.__name__}.{name}", _UNKNOWN))
    if isinstance(value, (type, *_GENERATORS)):
        return getattr(value, name, _UNKNOWN)
    if is_plain_object(value) or type(value).__module__.startswith(f"{_OURS}."):
        if name in getattr(value, "__dict__", {}):
            return vars(value)[name]
        found = getattr(type(value), name, _UNKNOWN)
        return types.MethodType(found, value) if isinstance(found, types.FunctionType) else _UNKNOWN
    return _UNKNOWN


_LOADS_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_LOADS_OF_LOCALS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("PUSH_NULL", "PRECALL", "NOP", "CACHE", "SWAP", "POP_TOP")


def _reads(
    code: types.CodeType, around: Mapping[str, Any], known: dict[str, Any]
) -> Iterator[tuple[Any, str, dis.Instruction, bool]]:
    """What a code object reads by name: value, text, place, and whether it is called for a generator without a seed.

    known: values of parameters and of variables of the functions around it; those of imports are added.
    """
    builtins = around.get("__builtins__", {})
    builtins = builtins if isinstance(builtins, dict) else vars(builtins)
    value, text, place = _UNKNOWN, "", None
    imported = module = constant = _UNKNOWN
    for op in dis.get_instructions(code):
        name = op.argval[-1] if isinstance(op.argval, tuple) and op.opname.startswith("LOAD_FAST") else op.argval
        if op.opname in _ATTRIBUTES:
            value, text, place = _attribute(value, name), f"{text}.{name}", op
        if op.opname in (*_ATTRIBUTES, *_BETWEEN):
            continue
        if value is not _UNKNOWN and place is not None:
            unseeded = op.opname == "CALL" and op.arg == 0 and takes_seed(value)
            yield value, text, place, unseeded
        value, text, place = _UNKNOWN, "", None
        if op.opname in _LOADS_OF_GLOBALS:
            value, text, place = around.get(name, builtins.get(name, _UNKNOWN)), name, op
        elif op.opname in _LOADS_OF_LOCALS or op.opname.startswith("LOAD_FAST_"):
            value, text, place = known.get(name, _UNKNOWN), name, op
        elif op.opname == "LOAD_CONST":
            constant = op.argval
        elif op.opname == "IMPORT_NAME":
            imported = module = _imported(name, constant)
        elif op.opname == "IMPORT_FROM":
            imported = _attribute(module, name)
        elif op.opname in ("STORE_FAST", "STORE_DEREF"):
            known[name], imported = imported, _UNKNOWN


def _imported(name: str, parts: Any) -> Any:
    """The module that an import within a function gives, if it is there already or costs nothing."""
    top = name.partition(".")[0]
    if top in _IMPORTABLE:
        importlib.import_module(name)
    return sys.modules.get(name if parts else top, _UNKNOWN)


def _source_of(code: types.CodeType, op: dis.Instruction) -> Source | None:
    """The place of an instruction in the user's file."""
    place = op.positions
    if place is None or place.lineno is None:
        return None
    line = linecache.getline(code.co_filename, place.lineno).rstrip("\n")
    before = line.encode()[: place.col_offset or 0].decode(errors="ignore")
    return Source(code.co_filename, place.lineno, len(before), line)
