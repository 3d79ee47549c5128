"""Structures of arrays: tuples, lists, namedtuples, frozen dataclasses and dicts, nested, with arrays as leaves.

    structure ::= leaf | tuple | list | namedtuple | dataclass | dict          (of structures)

A user's variable may hold a structure; the machine stores leaves only. `flatten` and `unflatten` go between the two,
and `leaf_names` gives each leaf the path under which it appears in the IR (`point.q`, `pair.0`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

Structure = TypeVar("Structure")
"""Of arrays: see above."""


@dataclass(frozen=True)
class TreeDef:
    """The shape of a structure without its leaves. A leaf has `kind` None."""

    kind: type | None
    names: tuple[Any, ...] = ()
    """The names of the children; a dict's keys as they are, in order."""
    children: tuple[TreeDef, ...] = ()

    def __str__(self) -> str:
        if self.kind is None:
            return "array"
        bare = self.kind in (tuple, list)
        inner = ", ".join(str(c) if bare else f"{n}={c}" for n, c in zip(self.names, self.children))
        return f"{self.kind.__name__}({inner})"


LEAF = TreeDef(None)


_Parts = Callable[[Any], tuple[tuple[Any, ...], list[Any]]]


@functools.lru_cache(maxsize=256)  # bounded: users' types may be temporary
def _parts_of(kind: type) -> _Parts | None:
    """How values of a type come apart; None for leaves."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda value: (value._fields, list(value))
    if issubclass(kind, (tuple, list)):
        return lambda value: (tuple(map(str, range(len(value)))), list(value))
    if issubclass(kind, dict):
        return lambda value: (tuple(value), list(value.values()))
    if dataclasses.is_dataclass(kind) and not getattr(kind, "__tree_leaf__", False):
        names = tuple(f.name for f in dataclasses.fields(kind))
        return lambda value: (names, [getattr(value, n) for n in names])
    return None


def parts(value: Any) -> tuple[tuple[Any, ...], list[Any]] | None:
    """Names and values of a container's children, or None for a leaf."""
    apart = _parts_of(type(value))  # type: ignore[arg-type]  # mypy: a type as Hashable
    return None if apart is None else apart(value)


def flatten(value: Any) -> tuple[list[Any], TreeDef]:
    """All leaves, depth first in field order, and the structure's shape."""
    structure = parts(value)
    if structure is None:
        return [value], LEAF
    names, children = structure
    flat = [flatten(child) for child in children]
    leaves = [leaf for child_leaves, _ in flat for leaf in child_leaves]
    return leaves, TreeDef(type(value), names, tuple(tree for _, tree in flat))


def _build(tree: TreeDef, leaves: Iterator[Any]) -> Any:
    if tree.kind is None:
        return next(leaves)
    return _container(tree.kind, tree.names, [_build(child, leaves) for child in tree.children])


def _container(kind: type, names: tuple[Any, ...], children: list[Any]) -> Any:
    """A container of that type with these children."""
    if kind in (tuple, list):
        return kind(children)
    if kind is dict:
        return dict(zip(names, children))
    if issubclass(kind, tuple):
        return kind(*children)
    instance = object.__new__(kind)
    fields = dict(zip(names, children))
    _assign(instance, fields)
    if hasattr(instance, "__post_init__"):
        with contextlib.suppress(Exception):  # it may check values, where here are types, or the arrays of all lanes
            instance.__post_init__()  # for attributes that are no fields
        _assign(instance, fields)
    return instance


def _assign(instance: Any, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


def unflatten(tree: TreeDef, leaves: Sequence[Any]) -> Any:
    """The structure of shape `tree` with these leaves; the inverse of `flatten`."""
    return _build(tree, iter(leaves))


def in_any_order(tree: TreeDef) -> TreeDef:
    """The shape with the keys of its dicts sorted, to find out whether two shapes differ in key order alone."""
    children = [in_any_order(child) for child in tree.children]
    if tree.kind is not dict:
        return replace(tree, children=tuple(children))
    pairs = sorted(zip(tree.names, children), key=lambda pair: repr(pair[0]))
    return TreeDef(dict, tuple(name for name, _ in pairs), tuple(child for _, child in pairs))


def hashable(value: Any) -> tuple[tuple[Any, ...], TreeDef]:
    """A structure (of hashable leaves) as something that can be a dictionary's key, lists and dicts included."""
    leaves, tree = flatten(value)
    return tuple(leaves), tree


def map_leaves(function: Callable[..., Any], first: Structure, *rest: Any) -> Structure:
    """`function` of corresponding leaves of equally shaped structures, in that structure."""
    tree = flatten(first)[1] if rest else LEAF
    for other in rest:
        if (its_tree := flatten(other)[1]) != tree:
            raise ValueError(f"structures differ: {tree} and {its_tree}")
    result: Structure = _mapped(function, first, *rest)
    return result


def _mapped(function: Callable[..., Any], first: Any, *rest: Any) -> Any:
    """The same of structures that are equally shaped."""
    structure = parts(first)
    if structure is None:
        return function(first, *rest)
    names, children = structure
    others = [part[1] for part in map(parts, rest) if part is not None]
    return _container(type(first), names, [_mapped(function, *group) for group in zip(children, *others)])


def leaf_names(name: str, tree: TreeDef) -> list[str]:
    """The IR name of each leaf of a variable: `point` of (q, p) gives `point.q`, `point.p`."""
    if tree.kind is None:
        return [name]
    fields = map(_field, tree.names) if tree.kind is dict else tree.names
    return [leaf for field, child in zip(fields, tree.children) for leaf in leaf_names(f"{name}.{field}", child)]


def _field(key: Any) -> str:
    """A dict's key in a path; what is no identifier or index stands in brackets, and has no dot of its own."""
    if type(key) is int or (isinstance(key, str) and key.isidentifier()):
        return str(key)
    return f"[{key!r}]".replace(".", "\\x2e")
