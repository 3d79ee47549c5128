"""What primitives gave in a run, in the types that were inferred for it.

TensorFlow and JAX give what was inferred, since they trace. NumPy runs a user's function for each lane, and it may give
another type there than it gave for stand-in values.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from batchnuts.autobatch.errors import Source, unexpected_result
from batchnuts.autobatch.ir.program import Primitive, TensorType
from batchnuts.autobatch.language.arrays import read_only, tensor_library_of

_NUMBERS = (bool, int, float, complex)
_NUMPYS = frozenset({np.ndarray, *(np.dtype(code).type for code in np.typecodes["All"])})
"""NumPy's own types of arrays and numbers, and none derived from them."""

_dtype = functools.cache(np.dtype)
_HELD_BY = {"b": "biufc", "i": "iufc", "u": "iufc", "f": "fc", "c": "c"}
"""The kinds of dtypes whose arrays can have the values of a dtype, by its kind."""


def in_type(value: Any, type_: TensorType, function: Primitive, source: Source | None) -> Any:
    """One lane's result of a primitive in its variable's type, which can have another dtype where it came from a
    literal. A NumPy array comes back as a view that cannot be written: what changed it would change a variable.

    Raises TypeConflictError where a user's function gave another shape, or a value that the dtype does not hold.
    """
    dtype = _dtype(type_.dtype)
    if function.of_language and type(value) in _NUMPYS and value.dtype is dtype:
        return read_only(value[()])  # as nearly always on NumPy, where each lane has it
    library = tensor_library_of(value)
    if library is not None and library.dtype_of(value) == dtype:
        return value
    if library is not None and (function.of_language or library.trace_of(value) is not None):
        return library.cast(value, dtype)
    if function.of_language:  # by rules, so its type is right
        return read_only(
            np.asarray(value, dtype)[()]
            if isinstance(value, _NUMBERS)
            else np.asarray(value).astype(dtype, copy=False)[()]
        )
    array = _as_array(value)
    if array.shape != type_.shape or not _holds(dtype, array, type(value) in _NUMBERS):
        shown = f"{value!r:.60}" if array.dtype.kind not in _HELD_BY else f"{array.dtype}{list(array.shape)}"
        raise unexpected_result(shown, type_, source)
    return read_only(array.astype(dtype, copy=False)[()])


def _as_array(value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:  # a list of unequal rows
        return np.array(None)


def _holds(dtype: np.dtype[Any], array: np.ndarray, weak: bool) -> bool:
    """Whether a dtype holds the values; a Python float (weak) may be rounded, and one of NumPy not."""
    if dtype.kind not in _HELD_BY.get(array.dtype.kind, ""):
        return False
    if np.can_cast(array.dtype, dtype) or (weak and dtype.kind in "fc"):
        return True
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    return bool(((cast == array) | ((cast != cast) & (array != array))).all())
