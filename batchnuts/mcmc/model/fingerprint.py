"""What a user's function finds around it, in a short form: so that a change of it is noticed.

Looked at are the function's code, closure, defaults, and the globals that it names; what is found there, arrays by
their bytes; and so on through functions, modules, classes and objects of the user's. What is installed is not looked
into, but for its arrays. Of this package's functions and objects (a bridge's, a packaged model's) what they hold is,
and their code is not: whatever is kept depends on the package's files in any case.

A lasting fingerprint is that of any process with the same code, and stays while functions run: of what these may change
themselves (lists, dicts, objects, names that they assign) it has the type only.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Set
from hashlib import blake2b
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

MOST_OBJECTS = 100_000
"""Looked at in one function; of further ones only which object it is."""

MOST_BYTES = 1 << 28
"""Bytes of arrays that are read whole for one function, half a second's worth; of further arrays some elements are."""

SOME = 1 << 16
"""Elements of such an array."""

_ASSIGNING = ("STORE_GLOBAL", "STORE_ATTR")
"""Instructions that give a name of a module another value, before a function is called or after it."""

Fingerprint: TypeAlias = dict[tuple[str, ...], bytes]
"""Digests by the names that lead to a value: attributes have one each, the entries of a list or dict one together."""

_NUMBERS = (int, float, complex, str, bytes, bool, type(None), np.generic, type(...), range, slice)
_PACKAGE = Path(__file__).resolve().parents[2]
_LIBRARIES = (
    *(f"{Path(sysconfig.get_path(name)).resolve()}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
    *(f"{_PACKAGE / folder}{os.sep}" for folder in ("autobatch", "mcmc")),
)


def fingerprint(*functions: Any, lasting: bool = False) -> Fingerprint:
    """The fingerprint of functions, or of other callable objects; None adds nothing."""
    reader = _Reader(lasting)
    for k, function in enumerate(functions):
        reader.read(function, (str(k),))
    return {key: digest.digest() for key, digest in reader.digests.items()}


class _Reader:
    def __init__(self, lasting: bool) -> None:
        self._lasting = lasting
        self.digests: dict[tuple[str, ...], Any] = {}
        self._seen: dict[int, tuple[str, ...]] = {}
        """The key under which an object was first read, by its id."""
        self._alive: list[Any] = []
        """The objects that were read, kept alive so that their ids stay their own."""
        self._bytes = 0
        self._assigned: dict[int, frozenset[str]] = {}
        """The names that functions of a module's namespace assign, by its id."""

    def _note(self, key: tuple[str, ...], *parts: Any) -> None:
        digest = self.digests.setdefault(key, blake2b(digest_size=16))
        for part in parts:
            digest.update(part if isinstance(part, (bytes, memoryview)) else repr(part).encode())
            digest.update(b";")

    def read(self, value: Any, key: tuple[str, ...]) -> None:
        """Add what the value is to the digest of the key."""
        if isinstance(value, _NUMBERS):
            self._note(key, type(value), value)
            return
        if id(value) in self._seen:
            self._note(key, self._seen[id(value)])
            return
        self._seen[id(value)] = key
        self._alive.append(value)
        if self._lasting and isinstance(value, (list, Mapping, Set)):
            self._note(key, type(value).__qualname__)
        elif len(self._seen) > MOST_OBJECTS:
            self._identity(value, key)
        elif isinstance(value, np.ndarray):
            self._array(value, key)
        elif isinstance(value, FunctionType):
            self._function(value, key)
        elif isinstance(value, MethodType):
            self.read(value.__func__, key)
            self.read(value.__self__, key)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, *sorted(value.keywords.items())):
                self.read(part, key)
        elif isinstance(value, Mapping):
            self._note(key, type(value), len(value))
            for name, entry in list(value.items()):
                self.read(name, key)
                self.read(entry, key)
        elif isinstance(value, (list, tuple)):
            self._note(key, type(value), len(value))
            for entry in list(value):
                self.read(entry, key)
        elif isinstance(value, Set):
            self._note(key, type(value), sorted(map(repr, value)))
        elif isinstance(value, type):
            self._class(value, key)
        elif isinstance(value, ModuleType):
            self._note(key, value.__name__)  # what is used of it is read where a function names it
        else:
            self._object(value, key)

    def _identity(self, value: Any, key: tuple[str, ...]) -> None:
        """Note which object it is, where its content is not read."""
        self._note(key, type(value).__qualname__ if self._lasting else id(value))

    def _array(self, array: np.ndarray, key: tuple[str, ...]) -> None:
        self._note(key, array.dtype.str, array.shape)
        if array.dtype == object:
            for entry in array.flat:
                self.read(entry, key)
            return
        self._bytes += array.nbytes
        if self._bytes > MOST_BYTES:
            array = array.reshape(-1)[:: max(1, array.size // SOME)]
        self._note(key, np.ascontiguousarray(array).tobytes())

    def _function(self, function: FunctionType, key: tuple[str, ...]) -> None:
        if _is_own(function.__module__):
            self._note(key, function.__module__, function.__qualname__)
            self._held(function, key, frozenset())
            return
        users = _is_users(function.__code__.co_filename)
        if self._lasting and not users:  # installed: its version is compared elsewhere
            self._note(key, function.__module__, function.__qualname__)
            return
        self._code(function.__code__, key)
        if not users:
            return
        assigned: frozenset[str] = frozenset()
        if self._lasting:
            assigned = self._assigned_in(function.__globals__) | _assigned(function.__code__)
        self._held(function, key, assigned)
        names = {name for code in _with_inner(function.__code__) for name in code.co_names}
        self._names_in(function.__globals__, names - assigned, key)
        if not self._lasting:
            self._attributes(function, key)
        if (wrapped := getattr(function, "__wrapped__", None)) is not None:
            self.read(wrapped, key)

    def _held(self, function: FunctionType, key: tuple[str, ...], assigned: Set[str]) -> None:
        """What is in a function's closure, but for names that code assigns, and its defaults."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name in assigned:
                continue
            try:
                self.read(cell.cell_contents, (*key, name))
            except ValueError:  # it is not filled yet
                self._note((*key, name), "empty")
        self.read(function.__defaults__, (*key, "defaults"))
        self.read(function.__kwdefaults__, (*key, "defaults"))

    def _assigned_in(self, namespace: Mapping[str, Any]) -> frozenset[str]:
        """Names that functions in a module's namespace assign; none where that does not matter."""
        if not self._lasting:
            return frozenset()
        if id(namespace) not in self._assigned:
            codes = _codes_in(namespace.values(), namespace)
            self._assigned[id(namespace)] = frozenset(name for code in codes for name in _assigned(code))
        return self._assigned[id(namespace)]

    def _names_in(self, namespace: Mapping[str, Any], names: set[str], key: tuple[str, ...]) -> None:
        """Those entries of a namespace that code names, and of modules what it may name of them."""
        for name in sorted(names & namespace.keys()):
            value = namespace[name]
            self.read(value, (*key, name))
            if isinstance(value, ModuleType) and _is_users(getattr(value, "__file__", None)):
                place = ("module", value.__name__)
                for attribute in sorted((names & vars(value).keys()) - self._assigned_in(vars(value))):
                    self.read(vars(value)[attribute], (*place, attribute))

    def _code(self, code: CodeType, key: tuple[str, ...]) -> None:
        for inner in _with_inner(code):
            constants = [
                sorted(map(repr, c)) if isinstance(c, frozenset) else c  # which have an order in each process
                for c in inner.co_consts
                if not isinstance(c, CodeType)
            ]
            self._note(key, inner.co_code, inner.co_names, inner.co_varnames, inner.co_freevars, constants)

    def _class(self, kind: type, key: tuple[str, ...]) -> None:
        self._note(key, kind.__module__, kind.__qualname__)
        if _is_own(kind.__module__) or not _is_of_users(kind):
            return
        for name, value in sorted(vars(kind).items()):
            if isinstance(value, (staticmethod, classmethod)):
                self.read(value.__func__, (*key, name))
            elif isinstance(value, property):
                self.read(value.fget, (*key, name))
            elif isinstance(value, FunctionType) or not (self._lasting or name.startswith("__")):
                self.read(value, (*key, name))
        for base in kind.__bases__:
            self.read(base, key)

    def _object(self, value: Any, key: tuple[str, ...]) -> None:
        """Of the user's, its attributes; of another one, what it is made of, if that is known; else which one it is."""
        self.read(type(value), key)
        if _is_of_users(type(value)) or isinstance(value, SimpleNamespace):
            if not self._lasting or _is_frozen(value):
                self._attributes(value, key)
            return
        inner = next((getattr(value, name) for name in _WRAPPED if hasattr(value, name)), None)
        array = _as_array(value)
        if inner is not None:
            self.read(inner, key)
        elif array is not None:
            self._array(array, key)
        else:
            self._identity(value, key)

    def _attributes(self, value: Any, key: tuple[str, ...]) -> None:
        try:
            own = dict(vars(value))
        except TypeError:
            own = {}
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    own[name] = getattr(value, name)
        for name, entry in sorted(own.items(), key=lambda item: str(item[0])):
            self.read(entry, (*key, str(name)))


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _codes_in(values: Iterable[Any], namespace: Mapping[str, Any]) -> Iterator[CodeType]:
    """Codes of functions, and of methods of classes, that were made in a namespace."""
    for value in list(values):
        function = getattr(value, "__wrapped__", value)
        if isinstance(function, FunctionType) and function.__globals__ is namespace:
            yield function.__code__
        elif isinstance(value, type) and value.__module__ == namespace.get("__name__"):
            yield from _codes_in(vars(value).values(), namespace)


def _assigned(code: CodeType) -> frozenset[str]:
    """Names of other functions, of modules and of objects that code gives values."""
    return frozenset(
        str(step.argval)
        for inner in _with_inner(code)
        for step in dis.get_instructions(inner)
        if step.opname in _ASSIGNING or (step.opname == "STORE_DEREF" and step.argval in inner.co_freevars)
    )


def _is_frozen(value: Any) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def _is_own(module: str | None) -> bool:
    """Whether a module is of this package, and not of its compiler and sampler, which are as libraries are."""
    parts = (module or "").split(".")
    return parts[0] == _PACKAGE.name and parts[1:2] not in (["autobatch"], ["mcmc"])


@functools.lru_cache(1024)
def _is_users(filename: str | None) -> bool:
    return filename is not None and not str(Path(filename).resolve()).startswith(_LIBRARIES)


def _is_of_users(kind: type) -> bool:
    return kind.__module__ == "__main__" or _is_users(getattr(sys.modules.get(kind.__module__), "__file__", None))


_WRAPPED = ("python_function", "__wrapped__")
"""Where a `tf.function`, or what is made by functools, keeps the user's function."""


def _as_array(value: Any) -> np.ndarray | None:
    """The values of a tensor, a variable or a table; None where it has none, as a tensor of a graph."""
    if not hasattr(type(value), "__array__"):
        return None
    try:
        return np.asarray(value)
    except Exception:
        return None
