"""Which library a value belongs to, its dtype and shape, and the promotion of dtypes.

The one place that distinguishes the libraries; `libraries/` has what they do. None but NumPy is imported before a value
of it is seen. A *tensor* is an array of TensorFlow or JAX: Python may not know its values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from batchnuts.autobatch.language.libraries.library import Library, TensorLibrary
from batchnuts.autobatch.language.libraries.numpy import NUMPY
from batchnuts.autobatch.language.libraries.recording import LIBRARY as RECORDER
from batchnuts.autobatch.language.libraries.recording import Recorded
from batchnuts.autobatch.language.libraries.type_rules import LIBRARY as TYPES
from batchnuts.autobatch.language.libraries.type_rules import Typed

Array = Any
"""A NumPy array or scalar, a TensorFlow tensor or variable, a JAX array or tracer, or a Python scalar."""


_JAX_ARRAYS = ("ArrayImpl", "Tracer")
"""The classes of JAX whose values are arrays; compiled functions, say, are none."""


@functools.lru_cache(maxsize=256)  # bounded: users' types may be temporary
def _tensor_library_of_type(kind: type) -> TensorLibrary | None:
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package == "tensorflow":
            from batchnuts.autobatch.language.libraries import tensorflow

            return tensorflow.LIBRARY
        if package in ("jax", "jaxlib") and base.__name__ in _JAX_ARRAYS:
            from batchnuts.autobatch.language.libraries import jax

            return jax.LIBRARY
    if issubclass(kind, Recorded):
        return RECORDER  # type: ignore[return-value]  # what has no rule raises NotTyped
    return TYPES if issubclass(kind, Typed) else None  # type: ignore[return-value]


_PLAIN = frozenset({np.ndarray, bool, int, float, complex, *np.sctypeDict.values()})
"""Types of NumPy and Python: nearly all values, and no tensors."""


def tensor_library_of(*values: Any) -> TensorLibrary | None:
    """The library of the tensors among the values and the leaves of tuples and lists; None if there are none.

    TypeError where tensors of two libraries meet.
    """
    common: TensorLibrary | None = None
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        if issubclass(kind, (tuple, list)):
            library = tensor_library_of(*value)
        else:
            library = _tensor_library_of_type(kind)  # type: ignore[arg-type]  # mypy: a type as Hashable
        if library is None or library is common:
            continue
        if common is not None:
            raise TypeError(
                f"arrays of {common.name} and {library.name} are mixed in one operation. Convert one of them with "
                "numpy.asarray, or write the whole program with one library"
            )
        common = library
    return common


def tensor_library(name: str) -> TensorLibrary:
    """The library of a backend's name, "tensorflow" or "jax"; it is imported now."""
    if name == "jax":
        from batchnuts.autobatch.language.libraries import jax

        return jax.LIBRARY
    if name != "tensorflow":
        raise ValueError(f"no log-density is written in {name!r}; expected jax or tensorflow")
    from batchnuts.autobatch.language.libraries import tensorflow

    return tensorflow.LIBRARY


def library_of(*values: Any) -> Library:
    """The library to compute with: that of the tensors among the values, else NumPy. TypeError as above."""
    return tensor_library_of(*values) or NUMPY


def is_array(x: Any) -> bool:
    """Whether the value is an array of any library (NumPy's scalars count), not a Python scalar."""
    return isinstance(x, (np.ndarray, np.generic)) or _tensor_library_of_type(type(x)) is not None  # type: ignore[arg-type]


_SCALARS = frozenset({bool, int, float})


def is_python_scalar(*values: Any) -> bool:
    """Whether each is a Python bool, int or float (NumPy's float64 inherits from float and does not count)."""
    for value in values:
        if type(value) not in _SCALARS and (isinstance(value, np.generic) or not isinstance(value, (bool, int, float))):
            return False
    return True


def read_only(value: Any) -> Any:
    """A NumPy array as a view that cannot be written; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def dtype_of(value: Any) -> Any:
    """The NumPy dtype of an array of any library, or the one that NumPy gives to another value, such as a list."""
    library = library_of(value)
    if library is not NUMPY and isinstance(value, (tuple, list)):
        return np.result_type(*map(dtype_of, value))
    return library.dtype_of(value)


def dtype_named(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype of a name, a NumPy dtype or type, or a TensorFlow dtype."""
    named: np.dtype[Any] = np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    return named


def static_shape(x: Any) -> tuple[int | None, ...] | None:
    """The static shape; None if TensorFlow does not know the rank."""
    library = library_of(x)
    if library is not NUMPY and isinstance(x, (tuple, list)):
        first = static_shape(x[0])
        return None if first is None else (len(x), *first)
    return library.static_shape(x)


def common_dtype(values: Sequence[Any], real: bool = False) -> Any:
    """The dtype in which values meet by NumPy 2's promotion; with `real`, float64 in place of integers and bools."""
    dtype = np.result_type(*[value if is_python_scalar(value) else dtype_of(value) for value in values])
    return np.dtype(np.float64) if real and dtype.kind in "biu" else dtype


_EVERY_FLOAT_HOLDS = float(np.finfo(np.float16).max)


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
        if -_EVERY_FLOAT_HOLDS <= number <= _EVERY_FLOAT_HOLDS:  # nearly all are, and the rest takes long
            return
        try:
            finite = math.isfinite(number)
            with np.errstate(all="ignore"):
                fits = not finite or bool(np.isfinite(dtype.type(number)))
        except OverflowError:
            fits = False
        if not fits:
            kind = "integer" if isinstance(number, int) else "float"
            raise OverflowError(f"the {kind} {number} does not fit {dtype}, which holds up to {np.finfo(dtype).max}")


def convert(value: Any, dtype: Any, library: Library) -> Any:
    """`value`, a list of arrays and numbers too, as an array of `dtype` that the library computes with.

    A Python number that does not fit raises OverflowError on every library.
    """
    if is_python_scalar(value):
        require_fits(value, dtype)
    if isinstance(value, (list, tuple)) and tensor_library_of(value) is not None:
        return library.stack([convert(part, dtype, library) for part in value], 0)
    return library.convert(value, dtype)


def require_scalar(x: Any, use: str) -> None:
    """Raise ValueError, naming `use`, for what is no scalar."""
    shape = static_shape(x)
    if shape:
        raise ValueError(f"{use} takes a scalar, not shape {shape}; reduce it (any, all, sum, min, max) or index it")
