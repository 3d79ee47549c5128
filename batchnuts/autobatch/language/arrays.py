"""Which library a value belongs to, its dtype and shape, and the promotion of dtypes.

The one place that distinguishes NumPy from TensorFlow. TensorFlow is not imported before a tensor is seen.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any
"""A NumPy array or scalar, a TensorFlow tensor or variable, or a Python scalar."""


def is_tensor(value: Any) -> bool:
    """Whether the value is a TensorFlow tensor or variable."""
    return _is_tensorflow(type(value))  # type: ignore[arg-type]  # mypy: a type as Hashable


@functools.lru_cache(maxsize=256)  # bounded: users' types may be temporary
def _is_tensorflow(kind: type) -> bool:
    return builtins.any(base.__module__.partition(".")[0] == "tensorflow" for base in kind.__mro__)


def uses_tensorflow(*arguments: Any) -> bool:
    """Whether any argument, or any leaf of a tuple or list among them, is a TensorFlow tensor or variable."""
    return builtins.any(uses_tensorflow(*x) if isinstance(x, (tuple, list)) else is_tensor(x) for x in arguments)


def is_array(x: Any) -> bool:
    """Whether the value is an array of either library (NumPy's scalars count), not a Python scalar."""
    return isinstance(x, (np.ndarray, np.generic)) or is_tensor(x)


def is_python_scalar(*values: Any) -> bool:
    """Whether each is a Python bool, int or float (NumPy's float64 inherits from float and does not count)."""
    return builtins.all(isinstance(value, (bool, int, float)) and not isinstance(value, np.generic) for value in values)


def tensorflow() -> Any:
    """The library; to be called only with a tensor, when it is already loaded."""
    import tensorflow as tf

    return tf


def dtype_of(value: Any) -> Any:
    """The NumPy dtype of an array of either library, or the one that NumPy gives to another value, such as a list."""
    if is_tensor(value):
        return np.dtype(value.dtype.as_numpy_dtype)
    if uses_tensorflow(value):
        return np.result_type(*map(dtype_of, value))
    return np.asarray(value).dtype


def dtype_named(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype of a name, a NumPy dtype or type, or a TensorFlow dtype."""
    named: np.dtype[Any] = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    return named


def static_shape(x: Any) -> tuple[int | None, ...] | None:
    """The static shape; None if TensorFlow does not know the rank."""
    if is_tensor(x):
        return None if x.shape.rank is None else tuple(x.shape)
    if uses_tensorflow(x):
        first = static_shape(x[0])
        return None if first is None else (len(x), *first)
    return tuple(np.shape(x))


def common_dtype(values: Sequence[Any], real: bool = False) -> Any:
    """The dtype in which values meet by NumPy 2's promotion; with `real`, float64 in place of integers and bools."""
    dtype = np.result_type(*[value if is_python_scalar(value) else dtype_of(value) for value in values])
    return np.dtype(np.float64) if real and dtype.kind in "biu" else dtype


def require_fits(number: Any, dtype: Any) -> None:
    """Raise OverflowError for a Python number that the dtype does not hold: NumPy's rule, for floats too.

    Of floats this is a finite number that would become infinite; rounding is not an error.
    """
    dtype = np.dtype(dtype)
    if dtype.kind in "iu" and isinstance(number, int):
        limits = np.iinfo(dtype)
        if not limits.min <= number <= limits.max:
            raise OverflowError(f"the integer {number} does not fit {dtype}, which holds {limits.min} to {limits.max}")
    elif dtype.kind == "f" and isinstance(number, (int, float)) and not isinstance(number, bool):
        try:
            finite = math.isfinite(number)
            with np.errstate(all="ignore"):
                fits = not finite or bool(np.isfinite(dtype.type(number)))
        except OverflowError:
            fits = False
        if not fits:
            kind = "integer" if isinstance(number, int) else "float"
            raise OverflowError(f"the {kind} {number} does not fit {dtype}, which holds up to {np.finfo(dtype).max}")


def convert(value: Any, dtype: Any, tensors: bool) -> Any:
    """`value`, a list of arrays and numbers too, as an array of `dtype`.

    A Python number that does not fit raises OverflowError on both backends.
    """
    if is_python_scalar(value):
        require_fits(value, dtype)
    if not tensors:
        return np.asarray(value, dtype=dtype)
    tf = tensorflow()
    if not uses_tensorflow(value):
        return tf.cast(np.asarray(value, dtype=dtype), dtype)
    if isinstance(value, (list, tuple)):
        return tf.stack([convert(part, dtype, True) for part in value])
    return tf.cast(tf.convert_to_tensor(value), dtype)


def require_scalar(x: Any, use: str) -> None:
    """Raise ValueError, naming `use`, for what is no scalar."""
    shape = static_shape(x)
    if shape:
        raise ValueError(f"{use} takes a scalar, not shape {shape}; reduce it (any, all, sum, min, max) or index it")
