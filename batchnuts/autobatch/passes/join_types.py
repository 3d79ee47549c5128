"""The type of a variable that is assigned values of several types; the message where there is none.

int64* with float32[]  ->  float32[]      a Python number takes the dtype of arrays of its own or a wider kind
float64* with int64[]  ->  Conflict       nothing loses its fraction
int64[] with int64[3]  ->  Conflict       and nothing changes its shape
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from batchnuts.autobatch.ir.program import TensorType
from batchnuts.autobatch.language.pytree import flatten, in_any_order

_WEAK_ORDER = ["int64", "float64", "complex128"]
_KINDS = "?buifc"
"""From narrow to wide, as in NumPy."""


class Conflict(Exception):
    """Two leaf types that do not join."""


class NoArrayError(TypeError):
    """A value that no variable can hold. Its text says which, and what to write instead."""


def join_leaves(old: TensorType, new: TensorType) -> TensorType:
    """The type of a variable that holds both. Raises Conflict where there is none."""
    if old == new:
        return old
    if old.shape != new.shape:
        raise Conflict
    if old.dtype == new.dtype:
        return replace(old, weak=old.weak and new.weak)
    if old.weak and new.weak and "bool" not in (old.dtype, new.dtype):
        return max(old, new, key=lambda t: _WEAK_ORDER.index(t.dtype))
    for weak, strong in ((old, new), (new, old)):
        if weak.weak and not strong.weak and weak_fits(weak, strong):
            return strong
    raise Conflict


def weak_fits(weak: TensorType, strong: TensorType) -> bool:
    """A literal may become any dtype of its own kind or a wider kind: int to int or float, float to float."""
    kinds = {"int64": "iufc", "float64": "fc", "complex128": "c", "bool": "b"}[weak.dtype]
    return weak.shape == strong.shape and kind(strong.dtype) in kinds


def kind(dtype: str) -> str:
    """One of b, u, i, f, c as in NumPy; ? for others."""
    for prefix, letter in (("int", "i"), ("uint", "u"), ("float", "f"), ("bfloat", "f"), ("complex", "c")):
        if dtype.startswith(prefix):
            return letter
    return "b" if dtype == "bool" else "?"


def rule_broken(new: Any, old: Any) -> str:
    """Why two structured types that do not join cannot be those of one variable, and what to do."""
    (new_leaves, new_tree), (old_leaves, old_tree) = flatten(new), flatten(old)
    if new_tree != old_tree:
        if in_any_order(new_tree) == in_any_order(old_tree):
            return (
                "A dict keeps its keys in insertion order, as in Python, and a variable has one order on all paths. "
                "Write the keys in the same order."
            )
        return (
            "A variable has one structure on all paths; a tuple or list has one length. Use another variable, or write "
            "elements into an array of fixed length (autobatch.write)."
        )
    a, b = next((a, b) for a, b in zip(new_leaves, old_leaves) if not _join(a, b))
    if a.shape != b.shape:
        rule = "A variable has one shape on all paths."
        if a.shape and b.shape:
            return f"{rule} Use another variable, or an array that is large enough for both."
        array = a if a.shape else b
        return (
            f"{rule} Use another variable, or let it be an array of shape {array.shape} from the start, such as "
            f"numpy.zeros({array.shape}, {array.dtype!r})."
        )
    narrow, wide = sorted((a.dtype, b.dtype), key=_width)
    star = " The * marks a Python number: an integer fits float arrays, a float does not fit integer arrays."
    return (
        f"A variable has one dtype on all paths. Make it {wide} everywhere, with autobatch.ops.cast(value, {wide!r}) "
        f"where it is {narrow}, or use another variable.{star if (a.weak or b.weak) and narrow != 'bool' else ''}"
    )


def _join(a: TensorType, b: TensorType) -> bool:
    try:
        join_leaves(a, b)
    except Conflict:
        return False
    return True


def _width(dtype: str) -> tuple[int, int]:
    bits = re.search(r"\d+$", dtype)
    return _KINDS.index(kind(dtype)), int(bits[0]) if bits else 0
