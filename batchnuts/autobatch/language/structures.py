"""Comparisons of tuples, lists, dicts and dataclasses that hold values of the lane, by comparisons of their elements.

Python's own compare elements by truth, one after the other, which values of the lane do not have while a program is
compiled. Here all are compared, and what decides is found as a value of the lane, too. An element is not equal to
itself for being one object: NaN equals nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from batchnuts.autobatch.language import ops
from batchnuts.autobatch.language.arrays import is_array, require_scalar, static_shape
from batchnuts.autobatch.language.pytree import flatten

_Binary = Callable[[Any, Any], Any]

_OF_SEQUENCES: tuple[Any, ...] = (tuple.__eq__, list.__eq__)
_OF_DICTS: Any = dict.__eq__
"""The `__eq__` of Python's containers, which classes of the user may replace."""


def has_arrays(value: Any) -> bool:
    """Whether a value of the lane is among the leaves of a structure."""
    return any(map(is_array, flatten(value)[0]))


def structures_compared(python: _Binary, x: Any, y: Any, on_lanes: Mapping[_Binary, _Binary]) -> Any:
    """`python(x, y)`, a comparison of structures: a bool, or a boolean scalar of the lane.

    on_lanes: for Python's operators but `ne`, those that compare elements. ValueError for elements that are arrays.
    """
    equal = on_lanes[operator.eq]
    if python is operator.eq:
        return _equal(x, y, equal)
    if python is operator.ne:
        return ops.logical_not(_equal(x, y, equal))
    rule: Any = type(x).__lt__
    if rule is not type(y).__lt__ or rule not in (tuple.__lt__, list.__lt__):
        return python(x, y)  # Python's TypeError, or the operator of a user's class
    result: Any = python(len(x), len(y))
    for a, b in reversed(list(zip(x, y))):  # the first two that differ decide
        alike = same(a, b, equal)
        result = result if alike is True else ops.where(alike, result, on_lanes[python](a, b))
    return result


def same(x: Any, y: Any, equal: _Binary) -> Any:
    """Whether two elements of structures are equal, one truth. ValueError for arrays, which have several."""
    for left, right in ((x, y), (y, x)):
        if isinstance(left, (tuple, list)) and is_array(right) and static_shape(right) == ():
            return False  # a number and a tuple, which beside an array could stand for one
    result = equal(x, y)
    if is_array(result):
        require_scalar(result, "comparing elements of tuples, lists and dicts")
    return result


def _equal(x: Any, y: Any, equal: _Binary) -> Any:
    rule: Any = type(x).__eq__
    if rule is not type(y).__eq__:
        return x == y
    if rule in _OF_SEQUENCES:
        alike, pairs = len(x) == len(y), zip(x, y)
    elif rule is _OF_DICTS:
        alike, pairs = x.keys() == y.keys(), zip(x.values(), map(y.get, x))
    elif type(x) is type(y) and _is_of_dataclass(rule):
        alike, pairs = True, zip(*[[getattr(v, f.name) for f in dataclasses.fields(x) if f.compare] for v in (x, y)])
    else:
        return x == y
    return functools.reduce(ops.logical_and, [same(a, b, equal) for a, b in pairs], True) if alike else False


def _is_of_dataclass(rule: Any) -> bool:
    """Whether an `__eq__` is the one that `dataclass` writes, which stands in no file."""
    return isinstance(rule, FunctionType) and rule.__code__.co_filename == "<string>"
