"""Python's builtins on one lane's values: replacements for `min`, `int`, `len` and others."""

from __future__ import annotations

import builtins
import functools
import numbers
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from batchnuts.autobatch.language import operators, ops
from batchnuts.autobatch.language.arrays import (
    common_dtype,
    convert,
    dtype_of,
    is_array,
    library_of,
    require_scalar,
    static_shape,
)
from batchnuts.autobatch.language.iteration import known

_Function = Callable[..., Any]


def truth(x: Any) -> Any:
    """Whether the scalar `x` is true as Python's `if` has it: a bool as it is, a number as `x != 0` (NaN is true).

    Returns a Python bool for what is no array, else a bool scalar. ValueError names the shape of what is no scalar.
    """
    if not is_array(x):
        return bool(x)
    require_scalar(x, "a condition")
    return ops.nonzero(x)


def _elements(name: str, values: Any) -> list[Any]:
    """The elements of a vector or of any iterable."""
    if not is_array(values):
        return list(values)
    shape = static_shape(values)
    if shape is None or len(shape) != 1 or shape[0] is None:
        raise ValueError(f"{name}() of one array takes a vector of known length, not shape {shape}")
    return [values[index] for index in range(shape[0])]


def _extreme(
    builtin: _Function, comes_before: Callable[[Any, Any], Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    name = builtin.__name__
    candidates = _elements(name, arguments[0]) if len(arguments) == 1 else list(arguments)
    if not builtins.any(is_array(candidate) for candidate in candidates):
        return builtin(candidates, **options) if len(arguments) == 1 else builtin(*candidates, **options)
    if options.get("key") is not None:
        raise TypeError(f"{name}() of arrays takes no key; compute the keys and select with ops.where")
    for candidate in candidates:
        require_scalar(candidate, f"{name}()")
    # Python keeps the first candidate unless a later one compares before it; this also settles what NaN does.
    dtype, library = common_dtype(candidates), library_of(*candidates)
    best, *others = [convert(candidate, dtype, library) for candidate in candidates]
    for candidate in others:
        best = ops.where(comes_before(candidate, best), candidate, best)
    return best[()] if isinstance(best, np.ndarray) else best


def python_min(*values: Any, **options: Any) -> Any:
    """`min` of scalars, or of one sequence (a vector counts as one), in their common dtype."""
    return _extreme(builtins.min, operators.less, values, options)


def python_max(*values: Any, **options: Any) -> Any:
    """`max` of scalars, or of one sequence (a vector counts as one), in their common dtype."""
    return _extreme(builtins.max, operators.greater, values, options)


def python_sum(values: Iterable[Any], start: Any = 0) -> Any:
    """`sum` of a vector or of any iterable, left to right, with the promotion of `+`."""
    return functools.reduce(operators.add, _elements("sum", values), start)


def python_any(values: Iterable[Any]) -> Any:
    """`any` of scalars, without short circuit where one is an array."""
    elements = [truth(value) for value in _elements("any", values)]
    return functools.reduce(ops.logical_or, elements, False)


def python_all(values: Iterable[Any]) -> Any:
    """`all` of scalars, without short circuit where one is an array."""
    elements = [truth(value) for value in _elements("all", values)]
    return functools.reduce(ops.logical_and, elements, True)


def python_filter(function: _Function | None, values: Iterable[Any]) -> Iterator[Any]:
    """`filter` by conditions that are known when it runs. Raises TypeError for a value of the lane."""
    advice = "use a `for` loop, or ops.where to choose between two values"
    return builtins.filter(
        lambda v: known(v if function is None else function(v), "the condition of filter()", advice), values
    )


def python_sorted(values: Iterable[Any], *, key: _Function | None = None, reverse: bool = False) -> list[Any]:
    """`sorted` by what is known when it runs. Raises TypeError for values of the lane."""
    advice = "swap elements in a loop, as `x[i], x[j] = x[j], x[i]`, or use the sort of one backend"
    place = key or (lambda value: value)
    return builtins.sorted(
        values, key=lambda v: known(place(v), "the key that sorted() compares", advice), reverse=reverse
    )


def python_abs(x: Any) -> Any:
    """`abs`, of arrays elementwise."""
    return ops.abs(x) if is_array(x) else builtins.abs(x)


def _integer_of(x: Any) -> str:
    """The dtype of a Python integer made of `x`: int64 does not hold every uint64."""
    return "uint64" if is_array(x) and dtype_of(x) == "uint64" else "int64"


def python_round(x: Any, ndigits: int | None = None) -> Any:
    """`round`, halves to even: without `ndigits` an int64 (or uint64), with it (a Python integer) the dtype of `x`.

    Decimal places are found as NumPy does it, by scaling, and may differ from Python's in the last place.
    """
    if not is_array(x):
        return builtins.round(
            x, known(ndigits, "the number of digits of round()", "scale the number and use ops.round")
        )
    require_scalar(x, "round()")
    known(ndigits, "the number of digits of round()", "scale the number and use ops.round")
    if ndigits is None:
        return ops.cast(ops.round(x), _integer_of(x))
    dtype, scale = dtype_of(x), ops.full_like(x, 10 ** builtins.abs(ndigits))
    if ndigits >= 0:
        if dtype.kind in "biu":
            return x
        return operators.static_divide(ops.round(operators.multiply(x, scale)), scale)
    return ops.cast(operators.multiply(ops.round(operators.static_divide(x, scale)), scale), dtype)


def python_len(x: Any) -> int:
    """`len`: of an array its first extent, an int. TypeError for a scalar, ValueError where it is unknown."""
    if not is_array(x):
        return len(x)
    shape = static_shape(x)
    if shape == ():
        raise TypeError("len() of a scalar")
    if shape is None or shape[0] is None:
        raise ValueError(f"len() of an array whose first extent is unknown: shape {shape}")
    return shape[0]


def _converted(builtin: _Function, x: Any, dtype: str) -> Any:
    if not is_array(x):
        return builtin(x)
    require_scalar(x, f"{builtin.__name__}()")
    return ops.cast(x, dtype)


def python_int(x: Any) -> Any:
    """`int` of a scalar: an int64, the fraction dropped; `ops.cast` says what NaN gives. A uint64 stays one."""
    return _converted(int, x, _integer_of(x))


def python_float(x: Any) -> Any:
    """`float` of a scalar: a float64."""
    return _converted(float, x, "float64")


_OF_NUMBERS = (bool, int, float, complex, numbers.Number, np.generic, np.ndarray)


def python_isinstance(value: Any, classes: Any) -> bool:
    """`isinstance`, of structures and other objects. ValueError for a value of the lane and a class of numbers or
    arrays: whether it is one depends on the backend.
    """
    if is_array(value) and builtins.any(map(_is_of_arrays, _each(classes))):
        raise ValueError(f"the class of a value of the lane depends on the backend. {_ITS_DTYPE}")
    return isinstance(value, classes)


def _is_of_arrays(kind: type) -> bool:
    of_library = kind.__module__.partition(".")[0] in ("jax", "jaxlib", "tensorflow")
    return of_library or issubclass(kind, _OF_NUMBERS)


def _each(classes: Any) -> Iterator[type]:
    """The classes of tuples and unions."""
    if isinstance(classes, tuple | types.UnionType):
        for part in classes if isinstance(classes, tuple) else classes.__args__:
            yield from _each(part)
    else:
        yield classes


def python_type(*arguments: Any) -> Any:
    """`type`. ValueError for a value of the lane, whose class depends on the backend."""
    if len(arguments) == 1 and is_array(arguments[0]):
        raise ValueError(f"the class of a value of the lane depends on the backend. {_ITS_DTYPE}")
    return type(*arguments)


_ITS_DTYPE = "Ask for its dtype, which is known when the program is compiled: `x.dtype == np.float64`"
