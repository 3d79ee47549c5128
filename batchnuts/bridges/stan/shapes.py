"""The shapes of data that a program declares: stanli takes any with as many elements, in their order."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from batchnuts.bridges.stan.mir import Expr, NotRead, SizedType, read_program

ARITHMETIC = {
    "Plus__": operator.add,
    "Minus__": operator.sub,
    "Times__": operator.mul,
    "IntDivide__": operator.floordiv,
}


def wrong_shape(mir: str, data: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first of the data that has another shape than declared, by name, and how in words; None where none has.

    A number and a list of one number mean the same, and so do empty lists. An axis whose size is not known before the
    program runs, and a program in an encoding that is not known here, are not compared.
    """
    try:
        inputs = read_program(mir).inputs
    except NotRead:
        return None
    for name, declared in inputs:
        if declared.leaf not in ("SInt", "SReal", "SVector", "SRowVector", "SMatrix") or name not in data:
            continue
        found, expected = np.shape(data[name]), _shape(declared, data)
        same = len(found) == len(expected) and all(b in (a, None) for a, b in zip(found, expected, strict=True))
        if not same and np.size(data[name]) > 1:
            return name, f"shape {found}; expected {_words(expected)}{_given_by(declared, found, expected)}"
    return None


def _given_by(declared: SizedType, found: tuple[int, ...], expected: tuple[int | None, ...]) -> str:
    """Which of the data say how long the axes are that differ, in words."""
    axes = zip(declared.sizes, found, expected, strict=False)
    names = {size.name: length for size, a, length in axes if size.kind == "Var" and length not in (a, None)}
    return f", as {' and '.join(f'{name} is {length}' for name, length in names.items())}" if names else ""


def lengths_of(mir: str) -> dict[str, str]:
    """By names of data, those of the data that are the lengths of their first axes."""
    try:
        inputs = read_program(mir).inputs
    except NotRead:
        return {}
    first = {name: declared.sizes[0] for name, declared in inputs if declared.sizes}
    return {name: size.name for name, size in first.items() if size.kind == "Var"}


def _shape(declared: SizedType, data: Mapping[str, Any]) -> tuple[int | None, ...]:
    return tuple(_size(each, data) for each in declared.sizes)


def _size(size: Expr, data: Mapping[str, Any]) -> int | None:
    """Of an axis; None where it is more than arithmetic of whole numbers among the data."""
    if size.kind == "LitInt" and isinstance(size.value, int):
        return size.value
    if size.kind == "Var":
        value = data.get(size.name)
        return value if isinstance(value, int) else None
    if size.kind == "FunApp" and size.name in ARITHMETIC and len(size.arguments) == 2:
        first, second = (_size(each, data) for each in size.arguments)
        if first is not None and second is not None and not (size.name == "IntDivide__" and second == 0):
            return int(ARITHMETIC[size.name](first, second))
    return None


def _words(shape: tuple[int | None, ...]) -> str:
    """As a tuple, or `a number`; `?` for what is not known."""
    if not shape:
        return "a number"
    return f"({', '.join('?' if size is None else str(size) for size in shape)}{',' * (len(shape) == 1)})"
