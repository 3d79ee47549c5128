"""Iteration on one lane's values: arrays by their first axis, and structures of known length.

Iteration `k` of a loop takes `element(sequence, k)`. Elements of equal type are indexed by their number, so one body
serves all; `NotAlike` is raised for others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from batchnuts.autobatch.language import operators, ops
from batchnuts.autobatch.language.arrays import (
    convert,
    dtype_of,
    is_array,
    is_python_scalar,
    require_scalar,
    static_shape,
    tensor_library_of,
)
from batchnuts.autobatch.language.pytree import flatten, map_leaves

_MOST = 1_000_000
"""Elements that are taken from an iterator."""


class NotAlike(Exception):
    """The elements of a structure have different types, or there are none: they cannot be indexed by a number."""


def as_sequence(x: Any) -> Any:
    """What a loop over `x` runs over: arrays, tuples, lists and ranges as they are, other iterables as tuples.

    Raises TypeError for objects that are not iterable, and for those that give strings: a dict, a string.
    """
    if isinstance(x, (dict, str, bytes)):
        kind = type(x).__name__
        more = " loop over its values(), or over a constant tuple of its keys" if kind == "dict" else ""
        raise TypeError(f"the elements of a {kind} are strings, which variables cannot hold;{more or ' use numbers'}")
    if isinstance(x, (tuple, list, range)):
        return x
    if is_array(x):
        if not static_shape(x):
            raise TypeError("one number has no elements; to count up to it, loop over range(n)")
        return x
    if not isinstance(x, Iterable):
        raise TypeError(f"a loop cannot run over {type(x).__name__}; it runs over arrays, tuples, lists and range(...)")
    elements = tuple(itertools.islice(x, _MOST + 1))
    if len(elements) > _MOST:
        raise TypeError(f"the loop runs over an endless iterable, or one of more than {_MOST} elements")
    return elements


def elements(x: Any) -> tuple[Any, ...]:
    """The elements of an array (by its first axis) or structure, as a tuple."""
    x = as_sequence(x)
    return tuple(_row(x, k) for k in range(length(x))) if is_array(x) else tuple(x)


def iterated(x: Any) -> Any:
    """What Python's own iteration takes: an array as the tuple of its elements, anything else as it is."""
    return elements(x) if is_array(x) else x


def known(x: Any, subject: str, advice: str) -> Any:
    """`x` itself, a number that must be known when compiling. Raises TypeError for an array: each lane has its own."""
    if is_array(x):
        raise TypeError(f"{subject} must be known when the expression is compiled, not a value of the lane; {advice}")
    return x


def known_whole(x: Any, subject: str, advice: str) -> Any:
    """`x` itself, with everything that it holds. Raises TypeError as `known`."""
    for leaf in flatten(x)[0]:
        known(leaf, subject, advice)
    return x


def with_values(x: Any, function: str, advice: str) -> Any:
    """`x` itself, for a function of NumPy that gives a wrong answer, and no error, of arrays without values."""
    if tensor_library_of(*flatten(x)[0]) is not None:
        raise TypeError(f"{function} cannot take a value of the lane on this backend; {advice}")
    return x


def all_iterated(values: Any) -> tuple[Any, ...]:
    """Each of several things to iterate over, as `iterated` has it."""
    return tuple(map(iterated, elements(values)))


def known_elements(x: Any, subject: str, advice: str) -> Any:
    """`x` itself, or its elements, which Python must have at hand. Raises TypeError as `known`."""
    return tuple(known(element, subject, advice) for element in ((x,) if is_array(x) else x))


def looked_up(container: Any, x: Any) -> Any:
    """`x` itself, which a method of a Python container compares with its elements or hashes: no value of the lane."""
    if isinstance(container, (tuple, list, dict, range)):
        advice = "compare with each element, or index an array"
        return known_whole(x, f"a value looked up in a {type(container).__name__}", advice)
    return x


def range_bound(x: Any, checks: operators.Checks | None = None, check: int = 0) -> Any:
    """An integer as Python's own, computed in int64: arrays are cast, and what int64 cannot hold is noted or raises.

    Raises TypeError for floats, ValueError for what is no scalar.
    """
    if dtype_of(x).kind not in "biu":
        raise TypeError(f"range() takes integers, not {dtype_of(x)}: write int(...) to drop the fraction")
    if not is_array(x):
        return x
    require_scalar(x, "a range's bound")
    if dtype_of(x) == "uint64":
        fits = operators.less_equal(x, 2**63 - 1)
        if checks is not None:
            checks.note(check, fits)
        elif not fits:
            raise OverflowError(f"a range's bound is {x}; int64 holds {2**63 - 1} at most")
    return ops.cast(x, "int64")


def length(x: Any) -> int:
    """How many elements `x` has: the extent of an array's first axis. Raises TypeError as `as_sequence`."""
    x = as_sequence(x)
    if not is_array(x):
        return len(x)
    shape = static_shape(x)
    if shape is None or shape[0] is None:
        raise TypeError("a loop needs an array whose first axis has a length known at compile time")
    return shape[0]


def element(x: Any, k: Any) -> Any:
    """The element `k` of an array or structure: a Python number, or an integer scalar of the lane in [0, length).

    Raises NotAlike where an integer of the lane has to choose between values of different types.
    """
    x = as_sequence(x)
    if is_array(x):
        return _row(x, k)
    if isinstance(x, range):
        return operators.add(x.start, operators.multiply(k, x.step))
    if len({_type(part) for part in x}) != 1:
        raise NotAlike
    if not is_array(k):
        return x[min(max(k, 0), len(x) - 1)]
    return map_leaves(lambda *leaves: _row(ops.stack(leaves), k), *x)


def _type(value: Any) -> Any:
    leaves, tree = flatten(value)
    return tree, *(type(x) if is_python_scalar(x) else (dtype_of(x).name, static_shape(x)) for x in leaves)


def _row(x: Any, k: Any) -> Any:
    shape = static_shape(x)
    assert shape is not None
    if shape[0] == 0:  # without elements: the variable of a loop that makes no iteration still has a type
        return np.zeros([extent or 0 for extent in shape[1:]], dtype_of(x))[()]
    if not is_array(k) and shape[0] is not None:
        k = min(max(k, 0), shape[0] - 1)
    library = tensor_library_of(x, k)
    return x[k] if library is None else library.gather(convert(x, dtype_of(x), library), k, 0)
