"""Trees of plain data and arrays, as JSON and arrays by number: a format from which no code is executed.

    tree  ::= null | bool | int | float | str | array | [tree, ...] | (tree, ...) | {str: tree, ...}
            | T(field=tree, ...)
    JSON  ::= the first five as they are | {"array": number} | [JSON, ...] | {"tuple": [JSON, ...]}
            | {"dict": {str: JSON, ...}} | {"type": name of T, "fields": {str: JSON, ...}}

T is a dataclass or NamedTuple of a list that the reader has: nothing else is ever made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
"""Arrays by their number, as text."""

PLAIN = (type(None), bool, int, float, str)


def pack(tree: Any, arrays: Arrays) -> Any:
    """The JSON of a tree; its arrays are added to `arrays`. Raises TypeError for what is no tree."""
    if isinstance(tree, PLAIN):
        return tree
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, np.ndarray):
        number = str(len(arrays))
        arrays[number] = tree
        return {"array": number}
    if isinstance(tree, Mapping):
        return {"dict": {str(name): pack(value, arrays) for name, value in tree.items()}}
    if (fields := fields_of(tree)) is not None:
        return {"type": type(tree).__name__, "fields": {name: pack(value, arrays) for name, value in fields.items()}}
    if isinstance(tree, tuple):
        return {"tuple": [pack(value, arrays) for value in tree]}
    if isinstance(tree, list):
        return [pack(value, arrays) for value in tree]
    raise TypeError(f"{type(tree).__name__} is neither plain data nor an array")


def fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass or NamedTuple by name; None for anything else."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    return None


def unpack(packed: Any, arrays: Mapping[str, NDArray[Any]], types: Sequence[type]) -> Any:
    """The tree. Raises ValueError for what `pack` does not write, and for types that are not among `types`."""
    by_name = {kind.__name__: kind for kind in types}

    def build(part: Any) -> Any:
        if isinstance(part, PLAIN):
            return part
        if isinstance(part, list):
            return [build(value) for value in part]
        match part:
            case {"array": str(number), **rest} if not rest:
                return arrays[number]
            case {"tuple": list(values), **rest} if not rest:
                return tuple(build(value) for value in values)
            case {"dict": dict(values), **rest} if not rest:
                return {name: build(value) for name, value in values.items()}
            case {"type": str(name), "fields": dict(values), **rest} if not rest and name in by_name:
                return by_name[name](**{field: build(value) for field, value in values.items()})
        raise ValueError(f"found {str(part)[:60]!r}, which is not a part of a tree")

    try:
        return build(packed)
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is not a tree of these types ({error})") from error
