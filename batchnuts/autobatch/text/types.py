"""Types from their text: `float32[3]`, `Point(q: float64[2], p: float64[2])`, `tuple(int64[], bool[])`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from batchnuts.autobatch.ir.program import TensorType
from batchnuts.autobatch.language.pytree import TreeDef, flatten, parts, unflatten
from batchnuts.autobatch.text.tokens import Line


class NamedStructure(tuple[Any, ...]):
    """Stands for a structure whose class is not known: a namedtuple that is equal to any structure that reads alike."""

    _fields: tuple[str, ...] = ()

    def __new__(cls, *values: Any) -> NamedStructure:
        """From one value per field."""
        return super().__new__(cls, values)

    def __eq__(self, other: object) -> bool:
        theirs = parts(other)
        return theirs is not None and type(other).__name__ == type(self).__name__ and theirs == (self._fields, [*self])

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


class Structures:
    """The classes that structures in a text may have, by name and fields."""

    def __init__(self, trees: Iterable[TreeDef] = (), namespace: Mapping[str, Any] | None = None) -> None:
        self._classes: dict[tuple[str, tuple[str, ...]], dict[type, None]] = {}
        self._namespace = namespace or {}
        todo = list(trees)
        while todo:
            tree = todo.pop()
            if tree.kind is not None:
                self._classes.setdefault((tree.kind.__name__, tree.names), {})[tree.kind] = None
                todo += tree.children

    def find(self, name: str, fields: tuple[str, ...], line: Line, column: int) -> type:
        """The class of that name and fields; a NamedStructure where none is known. Fails where several are."""
        classes = list(self._classes.get((name, fields), ()))
        if len(classes) > 1:
            line.fail(column, f"found {name!r}, which names {len(classes)} classes of the program given as `like`")
        if classes:
            return classes[0]
        candidate = self._namespace.get(name)
        if isinstance(candidate, type) and _fields(candidate) == fields:
            return candidate
        kind = type(name, (NamedStructure,), {"_fields": fields})
        self._classes[name, fields] = {kind: None}
        return kind


def _fields(kind: type) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(kind):
        return tuple(f.name for f in dataclasses.fields(kind))
    return getattr(kind, "_fields", None)


def parse_type(text: str, namespace: Mapping[str, Any] | None = None) -> Any:
    """A TensorType or a structure of them from its text; `float32` is `float32[]`.

    namespace: where the classes of structures are found by name.
    Raises ProgramTextError (a ValueError).
    """
    line = Line(text, 0)
    type_ = read_type(line, Structures(namespace=namespace))
    line.end("the end of the type")
    return type_


def read_type(line: Line, structures: Structures) -> Any:
    """Take a type from a line."""
    token = line.peek()
    name = line.name("a type")
    if not line.next_is("("):
        return _tensor_type(name, token.column, line)
    line.expect("(")
    names: list[Any] = []
    children = []
    positional = name in ("tuple", "list") and not line.next_is(":", ahead=1)
    while not line.next_is(")"):
        if positional:
            names.append(str(len(names)))
        else:
            field = line.peek()
            text = line.name("the name of a field")
            names.append(int(text) if field.kind == "name" and text.isdecimal() else text)
            line.expect(":")
        children.append(read_type(line, structures))
        if not line.next_is(")") and not line.accept(","):
            line.unexpected("',' or ')'")
    line.expect(")")
    if positional:
        return list(children) if name == "list" else tuple(children)
    if name == "dict":
        return dict(zip(names, children))
    kind = structures.find(name, tuple(names), line, token.column)
    flat = [flatten(child) for child in children]
    tree = TreeDef(kind, tuple(names), tuple(tree for _, tree in flat))
    return unflatten(tree, [leaf for leaves, _ in flat for leaf in leaves])


def _tensor_type(name: str, column: int, line: Line) -> TensorType:
    weak = line.accept("*")
    shape = []
    if line.accept("["):
        while not line.next_is("]"):
            token = line.peek()
            extent = line.name("a whole number")
            if not extent.isdecimal():
                line.fail(token.column, f"found {token}, expected a whole number: every array has a static shape")
            shape.append(int(extent))
            if not line.next_is("]") and not line.accept(","):
                line.unexpected("',' or ']'")
        line.expect("]")
    return TensorType(_dtype(name, column, line), tuple(shape), weak)


def _dtype(name: str, column: int, line: Line) -> str:
    if name == "bfloat16":  # NumPy knows it only where another library has registered it
        return name
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "biufc":
        line.fail(column, f"found {name!r}, expected a dtype such as int64, float32 or bool, or a structure of types")
    return dtype.name
