"""Functions that give another value each time: `np.random.normal`, `time.time`. A traced program calls them once.

    def noisy(x):                       helper of a batched function, or of a helper of it, or of a primitive
        return x + np.random.normal()   found here, by the names that its code reads

What code reads is followed by name, through modules, attributes of objects, closures, defaults and imports within a
function. Of an object whose name stands alone (in a table, as an argument, made by a call), operators are followed,
and each attribute whose name code reads of a value that is not known here. The code of libraries, and names that are
made when it runs (`getattr`), are not.
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
from batchnuts.autobatch.frontend.helpers import codes_of, is_users_code, is_users_file
from batchnuts.autobatch.language.functions import LaneFunction, PrimitiveFunction

_UNKNOWN = object()
_PACKAGE = str(Path(__file__).parents[2])
_OURS = __name__.partition(".")[0]

_GENERATORS = (np.random.RandomState, np.random.Generator, np.random.BitGenerator, random.Random)
_SEEDED = (np.random.default_rng, np.random.RandomState, np.random.SeedSequence, random.Random)
"""Functions that make generators: the same one each time if given a seed."""

_NOT_OF_CLOCK = {"sleep", "mktime", "strptime", "tzset", "get_clock_info"}
"""Functions of `time` that do not say what time it is."""

_ENTROPY = (os.urandom, uuid.uuid1, uuid.uuid4, random.SystemRandom)
_NOW = {"now", "utcnow", "today"}

_MAKING = {"__new__", "__init__", "__post_init__", "__init_subclass__"}
"""Methods that run when a class is called."""
_FOR_PEOPLE = {"__repr__", "__str__", "__format__", "__reduce__", "__del__"}
"""Methods that no arithmetic calls."""

_FIELD = type(inspect.Attribute.kind)
"""The class of the fields of namedtuples, of which `Attribute` is one."""
_GENERATED = "<string>"
"""The file name of code that dataclasses and namedtuples generate: then the class's module counts."""
_NUMBERS_AND_TEXTS = (int, float, complex, bool, str, bytes, type(None))
_CONTAINERS = (tuple, list, dict, set, frozenset)

_IMPORTABLE = {"datetime", "numpy", "os", "random", "secrets", "time", "uuid"}


@dataclass(frozen=True)
class Hidden:
    """Something that code reads and that gives another value each time."""

    text: str
    """The name as the code has it: `np.random.normal`."""
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

    kind_of: for a value, what `Hidden.random` is to be, or None for a value that is not looked for.
    """

    def __init__(self, kind_of: Callable[[Any], bool | None] = hidden_state) -> None:
        self._kind_of = kind_of
        self._seen: dict[tuple[int, ...], Any] = {}
        """By ids: values that were visited, kept alive so that the ids stay theirs."""
        self._objects: list[Any] = []
        """Objects, classes and modules whose names stand alone."""
        self._attributes: dict[str, Callable[[bool], Hidden]] = {}
        """By name, attributes that code reads of values that are not known."""

    def find(self, value: Any, text: str) -> Hidden | None:
        """The first thing that gives another value each time; `text` is what the value is called where it is read."""
        kind = self._kind_of(value)
        if kind is not None:
            return Hidden(text, kind)
        return next(self._in(value), None) or next(self._of_names(), None)

    def _of_names(self) -> Iterator[Hidden]:
        """Hidden state in attributes of objects that stand alone; these may name more of both."""
        tried = 0
        while tried < len(self._objects) * len(self._attributes):
            tried = len(self._objects) * len(self._attributes)
            for value in tuple(self._objects):
                for name in self._attributes.keys() & _names_of(value):
                    attribute = _attribute(value, name)
                    if (kind := self._kind_of(attribute)) is not None:
                        yield self._attributes[name](kind)
                    yield from self._in(attribute)

    def _is_new(self, *values: Any) -> bool:
        key = tuple(map(id, values))
        return self._seen.setdefault(key, values) is values

    def _in(self, value: Any) -> Iterator[Hidden]:
        """Hidden state that a value leads to."""
        if isinstance(value, LaneFunction) or not self._is_new(value):
            return
        kind: Any = type(value)
        if isinstance(value, PrimitiveFunction):
            yield from self._in(value.function)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value, {})
            yield from self._in(getattr(value, "__wrapped__", None))
        elif isinstance(value, types.MethodType):
            yield from self._method(value.__func__, value.__self__)
        elif type(value) is functools.partial:
            yield from self._partial(value)
        elif isinstance(value, (property, functools.cached_property)):
            yield from self._in(_of_property(value))
        elif isinstance(value, types.ModuleType):
            self._objects.append(value)
        elif isinstance(value, type):
            yield from self._object(value, value) if _is_of_user(value) else ()
        elif isinstance(value, _CONTAINERS):
            for part in value.values() if isinstance(value, dict) else value:
                yield from self._in(part) if type(part) not in _NUMBERS_AND_TEXTS else ()
            yield from self._object(value, kind) if kind not in _CONTAINERS else ()
        elif _is_of_user(kind):
            yield from self._object(value, kind)
        elif callable(value):
            for name in ("__wrapped__", "python_function", "pyfunc"):
                yield from self._in(_attribute_of_instance(value, name))

    def _object(self, value: Any, kind: type) -> Iterator[Hidden]:
        """Hidden state in the methods of an object or class that operators call, and in attributes read by name."""
        self._objects.append(value)
        for base in filter(_is_of_user, kind.__mro__):
            for name, function in vars(base).items():
                is_operator = name.startswith("__") and name.endswith("__")
                if is_operator and name not in _FOR_PEOPLE and (value is kind or name not in _MAKING):
                    yield from self._method(function, value)

    def _method(self, function: Any, owner: Any) -> Iterator[Hidden]:
        function = inspect.unwrap(function) if isinstance(function, types.FunctionType) else function
        if not isinstance(function, types.FunctionType) or not self._is_new(function, owner):
            return
        names = function.__code__.co_names
        yield from self._function(function, dict.fromkeys(function.__code__.co_varnames[:1], owner))
        for base in (owner if isinstance(owner, type) else type(owner)).__mro__ if "super" in names else ():
            for name in names:
                attribute = vars(base).get(name)
                yield from self._method(getattr(attribute, "__func__", attribute), owner)

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
        bindings = dict(zip(parameters[len(parameters) - len(defaults) :], defaults))
        bindings |= {**(function.__kwdefaults__ or {}), **bound}
        around = {name: _contents(cell) for name, cell in zip(code.co_freevars, function.__closure__ or ())}
        for inner in codes_of(code):
            for value, text, place, unseeded in _reads(inner, names, {**around, **bindings}):
                if value is _UNKNOWN:
                    self._attributes.setdefault(
                        text.rpartition(".")[2], _place(text.lstrip("."), function, inner, place)
                    )
                    continue
                kind = True if unseeded and self._kind_of is hidden_state else self._kind_of(value)
                if kind is not None:
                    yield Hidden(text, kind, function.__name__, _source_of(inner, place))
                yield from self._in(value)


def depends_on_arguments_alone(function: Any) -> bool:
    """Whether no code that a function leads to is known to give another value each time, or to ask for values in a way
    that hides that there are none. Of others one call does not say what the next one gives."""
    return all(StateFinder(kind_of).find(function, "it") is None for kind_of in (hidden_state, needs_values))


def _place(text: str, function: Any, code: types.CodeType, op: dis.Instruction) -> Callable[[bool], Hidden]:
    return lambda kind: Hidden(text, kind, function.__name__, _source_of(code, op))


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
    kind: Any = type(value)
    of_ours = kind.__module__.startswith(f"{_OURS}.")
    if value is _UNKNOWN or not (_is_of_user(kind) or isinstance(value, tuple) or of_ours):
        return _UNKNOWN
    attribute = inspect.getattr_static(value, name, _UNKNOWN)
    if isinstance(attribute, (types.MemberDescriptorType, _FIELD)):
        return getattr(value, name, _UNKNOWN)
    if isinstance(attribute, (staticmethod, classmethod)):
        return attribute.__func__
    attribute = _of_property(attribute)
    return types.MethodType(attribute, value) if isinstance(attribute, types.FunctionType) else attribute


def _of_property(value: Any) -> Any:
    """The function of a property; any other value as it is."""
    if isinstance(value, property):
        return value.fget
    return value.func if isinstance(value, functools.cached_property) else value


@functools.lru_cache(maxsize=512)
def _is_of_user(kind: Any) -> bool:
    """Whether objects of a class may have code of the user's, also by a property or inherited."""
    if kind is types.SimpleNamespace or kind.__module__ == "__main__":
        return True
    parts = (part for base in kind.__mro__ for part in vars(base).values())
    functions = (getattr(_of_property(part), "__func__", _of_property(part)) for part in parts)
    files = (part.__code__.co_filename for part in functions if isinstance(part, types.FunctionType))
    made_for = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return any(is_users_file(made_for if file == _GENERATED else file) for file in files)


def _names_of(value: Any) -> set[str]:
    """Attributes that an object, class or module has itself, or by its class."""
    kinds = (value if isinstance(value, type) else type(value)).__mro__
    return {*getattr(value, "__dict__", ()), *(name for kind in kinds for name in vars(kind))}


_LOADS_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_LOADS_OF_LOCALS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("PUSH_NULL", "PRECALL", "NOP", "CACHE", "SWAP", "POP_TOP")


def _reads(
    code: types.CodeType, around: Mapping[str, Any], local_values: dict[str, Any]
) -> Iterator[tuple[Any, str, dis.Instruction, bool]]:
    """What a code object reads by name: value, text, place, and whether it is called for a generator without a seed.

    An attribute of a value that is not known has the value _UNKNOWN.
    local_values: values of parameters and of variables of the functions around it; those of imports are added.
    """
    builtins = around.get("__builtins__", {})
    builtins = builtins if isinstance(builtins, dict) else vars(builtins)
    value, text, place = _UNKNOWN, "", None
    imported = module = constant = _UNKNOWN
    for op in dis.get_instructions(code):
        name = op.argval[-1] if isinstance(op.argval, tuple) and op.opname.startswith("LOAD_FAST") else op.argval
        if op.opname in _ATTRIBUTES:
            if isinstance(value, types.MethodType) and place is not None:
                yield value, text, place, False  # a property's
            value, text, place = _attribute(value, name), f"{text}.{name}", op
            if value is _UNKNOWN:
                yield value, text, op, False
        if op.opname in (*_ATTRIBUTES, *_BETWEEN):
            continue
        if value is not _UNKNOWN and place is not None:
            unseeded = op.opname == "CALL" and op.arg == 0 and takes_seed(value)
            yield value, text, place, unseeded
        value, text, place = _UNKNOWN, "", None
        if op.opname in _LOADS_OF_GLOBALS:
            value, text, place = around.get(name, builtins.get(name, _UNKNOWN)), name, op
        elif op.opname in _LOADS_OF_LOCALS or op.opname.startswith("LOAD_FAST_"):
            value, text, place = local_values.get(name, _UNKNOWN), name, op
        elif op.opname == "LOAD_CONST":
            constant = op.argval
        elif op.opname == "IMPORT_NAME":
            imported = module = _imported(name, constant)
        elif op.opname == "IMPORT_FROM":
            imported = _attribute(module, name)
        elif op.opname in ("STORE_FAST", "STORE_DEREF"):
            local_values[name], imported = imported, _UNKNOWN


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
