"""Array functions for one-lane programs, the same on every backend.

Each function looks at the types of its arguments and computes with their library: TensorFlow, JAX, or NumPy and SciPy
(`arrays.library_of`). `libraries/` has the functions by the names that the tables below give them.

Rules that hold for all of them:

- **Types.** Arguments of one function meet in one dtype, found by NumPy 2's promotion rules on every library. Python
  scalars are weak: they take the dtype of the arrays they meet (a float that meets only integers makes float64, an
  integer that meets only bools makes int64). Functions of real analysis compute integers and bools in float64.
- **Python scalars.** When every argument is a Python scalar so is the result, so that literals stay weak.
- **Numerics.** Outside its domain a function gives NaN or infinity as IEEE 754 has it, without a warning: the lanes
  that wait while others work may hold any value. The libraries agree to a few units in the last place.
- **Vectorizing.** Every function can be traced, compiled by XLA, and vectorized by `pfor` or `jax.vmap` without running
  row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from batchnuts.autobatch.language.arrays import Array as Array
from batchnuts.autobatch.language.arrays import common_dtype as _common_dtype
from batchnuts.autobatch.language.arrays import convert as _convert
from batchnuts.autobatch.language.arrays import dtype_named as dtype_named
from batchnuts.autobatch.language.arrays import dtype_of as dtype_of
from batchnuts.autobatch.language.arrays import is_array as _is_array
from batchnuts.autobatch.language.arrays import is_python_scalar as is_python_scalar
from batchnuts.autobatch.language.arrays import library_of as _library_of
from batchnuts.autobatch.language.arrays import require_fits as _require_fits
from batchnuts.autobatch.language.arrays import static_shape as static_shape
from batchnuts.autobatch.language.arrays import tensor_library_of as _tensor_library_of
from batchnuts.autobatch.language.libraries.bounds import index_error as _index_error
from batchnuts.autobatch.language.pytree import flatten as _flatten
from batchnuts.autobatch.language.pytree import unflatten as _unflatten

_Function = Callable[..., Any]

_ANY, _REAL, _ROUNDING = "any number", "real analysis", "rounding"
"""What a function is defined on: `_REAL` computes integers in float64, `_ROUNDING` returns them as they are."""

_BITS, _INTEGERS, _NUMBERS = "integers and booleans", "integers", "integers and floats"
_KINDS = {_BITS: "biu", _INTEGERS: "iu", _NUMBERS: "iufc"}
"""What other functions are defined on, and the kinds of these dtypes."""


# How a function of the table is called


def _call(name: str, values: Sequence[Any], dtype: Any, **options: Any) -> Any:
    """The function of that name in the library of `values`, all of them converted to `dtype`."""
    library = _library_of(*values)
    with np.errstate(all="ignore"):
        result = getattr(library, name)(*[_convert(value, dtype, library) for value in values], **options)
    return result.item() if is_python_scalar(*values) else result


def _require_kind(name: str, domain: str, dtype: Any, *values: Any) -> None:
    """Raise TypeError for a dtype that a function is not defined on, which libraries say late or not at all."""
    if dtype.kind not in _KINDS.get(domain, dtype.kind):
        dtypes = " and ".join(str(dtype_of(value)) for value in values)
        raise TypeError(f"{name} takes {domain}, found {dtypes}: cast with ops.cast(value, dtype)")


# How the rows of the table become functions


def _publish(function: _Function, name: str, summary: str) -> _Function:
    function.__name__, function.__qualname__, function.__doc__ = name, name, summary
    return function


def _elementwise(name: str, domain: str, summary: str) -> _Function:
    def unary(x: Array) -> Array:
        dtype = _common_dtype((x,), domain == _REAL)
        _require_kind(name, domain, dtype, x)
        if domain == _ROUNDING and dtype.kind in "biu":
            return x
        return _call(name, (x,), dtype)

    return _publish(unary, name, f"{summary} Elementwise; shape of `x`.")


def _pairwise(name: str, domain: str, summary: str) -> _Function:
    def binary(x: Array, y: Array) -> Array:
        dtype = _common_dtype((x, y), domain == _REAL)
        _require_kind(name, domain, dtype, x, y)
        return _call(name, (x, y), dtype)

    return _publish(binary, name, f"{summary} Elementwise with broadcasting.")


def _logical(name: str, summary: str) -> _Function:
    def connective(*arguments: Array) -> Array:
        return _call(name, [nonzero(argument) for argument in arguments], bool)

    return _publish(connective, name, f"{summary} Elementwise, without short circuit; numbers count as `x != 0`.")


def _reduction(name: str, target: _Function, summary: str) -> _Function:
    def reduce(x: Array, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
        dtype = target(_common_dtype((x,)))
        if dtype.kind == "b":
            x = nonzero(x)
        return _call(name, (x,), dtype, axis=axis, keepdims=keepdims)

    return _publish(reduce, name, f"{summary} Over `axis` (an index, several, or None: over all).")


# The table: name, where integers are computed, meaning

exp = _elementwise("exp", _REAL, "e to the power `x`.")
log = _elementwise("log", _REAL, "Natural logarithm.")
log1p = _elementwise("log1p", _REAL, "log(1 + x), precise near 0.")
expm1 = _elementwise("expm1", _REAL, "exp(x) - 1, precise near 0.")
sqrt = _elementwise("sqrt", _REAL, "Square root.")
sin = _elementwise("sin", _REAL, "Sine of radians.")
cos = _elementwise("cos", _REAL, "Cosine of radians.")
tan = _elementwise("tan", _REAL, "Tangent of radians.")
tanh = _elementwise("tanh", _REAL, "Hyperbolic tangent.")
sigmoid = _elementwise("sigmoid", _REAL, "1 / (1 + exp(-x)).")
softplus = _elementwise("softplus", _REAL, "log(1 + exp(x)), without overflow.")
erf = _elementwise("erf", _REAL, "Error function.")
erfinv = _elementwise("erfinv", _REAL, "Inverse of the error function.")
gammaln = _elementwise("gammaln", _REAL, "Logarithm of the absolute value of the gamma function.")
lgamma = _elementwise("gammaln", _REAL, "`gammaln` by its name in C, Stan and TensorFlow.")
isfinite = _elementwise("isfinite", _REAL, "Neither NaN nor infinite; bool.")
isnan = _elementwise("isnan", _REAL, "Not a number; bool.")

_as_real = _elementwise("positive", _REAL, "`x` itself.")
square = _elementwise("square", _NUMBERS, "x * x.")
abs = _elementwise("abs", _ANY, "Absolute value (the smallest signed integer wraps).")
sign = _elementwise("sign", _NUMBERS, "-1, 0 or 1 in the dtype of `x`; NaN stays.")

floor = _elementwise("floor", _ROUNDING, "Largest integer not above `x`.")
ceil = _elementwise("ceil", _ROUNDING, "Smallest integer not below `x`.")
round = _elementwise("round", _ROUNDING, "Nearest integer, halves to the even one as Python has it.")

minimum = _pairwise("minimum", _ANY, "Minimum; NaN if either is NaN.")
maximum = _pairwise("maximum", _ANY, "Maximum; NaN if either is NaN.")
logaddexp = _pairwise(
    "logaddexp", _REAL, "log(exp(x) + exp(y)) without overflow; -inf for two -inf, with finite gradients."
)

bitwise_and = _pairwise("bitwise_and", _BITS, "Bits set in both; integers or bools.")
bitwise_or = _pairwise("bitwise_or", _BITS, "Bits set in either; integers or bools.")
bitwise_xor = _pairwise("bitwise_xor", _BITS, "Bits set in one of the two; integers or bools.")
# The amount of a shift lies in [0, width of the dtype); what others give depends on the backend.
left_shift = _pairwise("left_shift", _INTEGERS, "`x` times 2**y modulo 2**width.")
right_shift = _pairwise(
    "right_shift", _INTEGERS, "`x` divided by 2**y and rounded down, so a signed integer keeps its sign."
)

logical_not = _logical("logical_not", "True where false.")
logical_and = _logical("logical_and", "Both true.")
logical_or = _logical("logical_or", "Either true.")

any = _reduction("any", lambda dtype: np.dtype(bool), "Whether any element is true (not 0).")
all = _reduction("all", lambda dtype: np.dtype(bool), "Whether all elements are true (not 0).")
sum = _reduction(
    "sum", lambda dtype: np.dtype(np.int64) if dtype.kind == "b" else dtype, "Sum in one dtype; counts bools."
)
mean = _reduction(
    "mean",
    lambda dtype: np.dtype(np.float64) if dtype.kind in "biu" else dtype,
    "Arithmetic mean; of integers in float64.",
)
min = _reduction("min", lambda dtype: dtype, "Minimum; NaN if any element is NaN.")
max = _reduction("max", lambda dtype: dtype, "Maximum; NaN if any element is NaN.")

_product = _pairwise("multiply", _NUMBERS, "x * y.")


# Functions with arguments of their own


def matmul(x: Array, y: Array) -> Array:
    """Matrix product; vectors [k] count as a row on the left and as a column on the right."""
    dtype = _common_dtype((x, y))
    _require_kind("matmul", _NUMBERS, dtype, x, y)
    return _call("matmul", (x, y), dtype)


def take(x: Array, indices: Any, axis: int = 0) -> Array:
    """The elements of `x` along an axis at constant integer indices, an array of NumPy's of any shape.

    They count from 0, and not from the end: raises IndexError for a negative one, or one beyond the axis; TypeError
    for indices that are values of a lane.
    """
    if _tensor_library_of(*_flatten(indices)[0]) is not None:
        raise TypeError("the indices of ops.take must be constants, found values of a lane; write x[i]")
    places = np.asarray(indices)
    shape, library = static_shape(x), _tensor_library_of(x)
    length = np.shape(x)[axis] if library is None else None if shape is None else shape[axis]
    error = None if length is None or places.dtype.kind not in "iu" else _index_error(places, length)
    if error is not None:
        raise error
    if library is None or shape is None:
        return np.take(x, places, axis=axis)
    axis = axis % len(shape)
    gathered = library.gather(x, places.reshape(-1), axis)
    whole: list[Any] = [*shape[:axis], *places.shape, *shape[axis + 1 :]]
    return gathered if places.ndim == 1 else reshape(gathered, whole)


def cumsum(x: Array, axis: int = -1) -> Array:
    """Sums along an axis up to each element, of floats. ValueError for one number."""
    if static_shape(x) == ():
        raise ValueError("cumsum takes an array, found one number")
    return _call("cumsum", (_as_real(x),), _common_dtype((_as_real(x),)), axis=axis)


def logsumexp(x: Array, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) over `axis` (None: over all), without overflow; -inf where all are."""
    x = _as_real(x)
    largest = max(x, axis, True)
    largest = where(isfinite(largest), largest, 0)
    total = log(sum(exp(x - largest), axis, keepdims))
    return total + (largest if keepdims else sum(largest, axis, False) if axis is not None else reshape(largest, ()))


def transpose(x: Array) -> Array:
    """Matrices [..., n, k] with the last two axes exchanged."""
    return _call("transpose", (x,), _common_dtype((x,)))


def cholesky(x: Array) -> Array:
    """The lower triangular factor L with `L @ L.T == x`, of symmetric positive definite matrices [..., n, n].

    NaN for another matrix; TensorFlow raises an error instead where it does not compile with XLA.
    """
    return _call("cholesky", (_as_real(x),), _common_dtype((_as_real(x),)))


def solve_triangular(matrix: Array, b: Array, lower: bool = True, transposed: bool = False) -> Array:
    """The solution of `matrix @ x == b` for a triangular matrix [n, n], b a vector [n] or a matrix [n, k].

    Of the other triangle nothing is read. transposed: of `matrix.T @ x == b`.
    """
    dtype = _common_dtype((_as_real(matrix), _as_real(b)))
    vector = len(static_shape(b) or ()) == 1
    library = _library_of(matrix, b)
    right = _convert(b, dtype, library)
    if vector:
        right = right[..., None]
    solution = _call("solve_triangular", (matrix, right), dtype, lower=lower, transposed=transposed)
    return solution[..., 0] if vector else solution


def nonzero(x: Array) -> Array:
    """`x` as bools: `x != 0` for numbers (NaN is true, as in Python)."""
    if is_python_scalar(x):
        return bool(x)
    dtype, library = dtype_of(x), _library_of(x)
    return x if dtype.kind == "b" else library.not_equal(_convert(x, dtype, library), dtype.type(0))


def where(condition: Array, x: Array, y: Array) -> Array:
    """`x` where `condition` is true (not 0), else `y`, elementwise with broadcasting, in their common dtype.

    Both are evaluated. A NaN in the part not selected does not reach the result, but it can reach a gradient: make the
    argument safe first, as in `log(where(x > 0, x, 1))`.
    """
    dtype, condition, library = _common_dtype((x, y)), nonzero(condition), _library_of(condition, x, y)
    result = library.where(condition, _convert(x, dtype, library), _convert(y, dtype, library))
    return result.item() if is_python_scalar(condition, x, y) else result


def dot(x: Array, y: Array) -> Array:
    """Inner product of two vectors; with a matrix as `matmul`, with a scalar the product."""
    return (_product if () in (static_shape(x), static_shape(y)) else matmul)(x, y)


def norm(x: Array, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """Euclidean length over `axis` (None: over all), with gradient 0 at the origin.

    The squares are summed as they are: lengths beyond the square root of the dtype's largest number are infinite.
    """
    squares = sum(square(_as_real(x)), axis, keepdims)
    if _tensor_library_of(squares) is None:  # which has no gradients
        return sqrt(squares)
    positive = nonzero(squares)
    return where(positive, sqrt(where(positive, squares, 1)), 0)


def full_like(x: Array, value: Array) -> Array:
    """An array of the shape and dtype of `x` that holds `value` (anything that broadcasts to that shape).

    Arrays are cast, as NumPy does; OverflowError for a Python number that the dtype does not hold.
    """
    dtype, library = _common_dtype((x,)), _library_of(x, value)
    if is_python_scalar(value):
        _require_fits(value, dtype)
    shaped = x if _is_array(x) else _convert(x, dtype, library)
    result = library.full_like(shaped, _convert(value, dtype, library))
    return result.item() if is_python_scalar(x, value) else result


clip = _publish(
    lambda x, low, high: minimum(maximum(x, low), high),
    "clip",
    "The nearest point of [low, high], elementwise with broadcasting; `high` where low > high.",
)
zeros_like = _publish(lambda x: full_like(x, 0), "zeros_like", "Zeros of the shape and dtype of `x`.")
ones_like = _publish(lambda x: full_like(x, 1), "ones_like", "Ones of the shape and dtype of `x`.")


def cast(x: Array, dtype: Any) -> Array:
    """`x` in the dtype of that name ("float32", "int64", "bool", ...); the result is never weak.

    To integers it drops the fraction; integers wrap; to bool it is `x != 0`. A float that the integer dtype cannot hold
    (NaN, out of range) gives an integer that depends on the backend.
    """
    target = dtype_named(dtype)
    if target.kind == "b":
        truths = nonzero(x)
        return np.bool_(truths) if isinstance(truths, bool) else truths
    return _library_of(x).cast(x, target)


def bitcast(x: Array, dtype: Any) -> Array:
    """The bits of `x` read as another dtype of the same size; ValueError if the sizes differ or one is bool."""
    source, target, library = dtype_of(x), dtype_named(dtype), _library_of(x)
    if source.itemsize != target.itemsize or "b" in source.kind + target.kind:
        raise ValueError(f"cannot read the bits of {source} as {target}: their sizes differ or one of them is bool")
    return library.bitcast(_convert(x, source, library), target)


def _joined(name: str, arrays: Sequence[Array], axis: int) -> Array:
    dtype, library = _common_dtype(arrays), _library_of(*arrays)
    return getattr(library, name)([_convert(array, dtype, library) for array in arrays], axis=axis)


def stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Arrays of one shape laid along a new axis, in their common dtype (of Python scalars alone: int64, float64)."""
    return _joined("stack", arrays, axis)


def concatenate(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Arrays laid end to end along an axis they have, in their common dtype."""
    return _joined("concatenate", arrays, axis)


def reshape(x: Array, shape: int | Sequence[int]) -> Array:
    """`x` with another shape of the same size, row-major; one extent may be -1."""
    extents = [shape] if isinstance(shape, (int, np.integer)) else list(shape)
    library = _library_of(x)
    return library.reshape(_convert(x, dtype_of(x), library), extents)


def scan(step: _Function, carry: Any, rows: Any = None, length: int | None = None) -> tuple[Any, Any]:
    """A loop with a known number of trips, for densities and primitives: differentiable, and not unrolled.

    `step(carry, row)` gives the next carry and what is stacked, as a tuple; `row` is the trip's element of `rows` along
    their first axes (None without any: give `length`). carry, rows and results are arrays, or structures of arrays; the
    carry keeps its dtypes and shapes. Returns the last carry and the stacked results [length, ...], or None of None.

    Raises ValueError without rows and length, for rows of other lengths, and where the carry changes its structure.
    """
    (carried, of_carry), (row_leaves, of_rows) = _flatten(carry), ([], None) if rows is None else _flatten(rows)
    lengths = {(static_shape(row) or (None,))[0] for row in row_leaves} | ({length} if length is not None else set())
    if len(lengths) != 1 or None in lengths:
        raise ValueError(f"scan: found the lengths {sorted(map(str, lengths))}; expected one for all rows, or length=")
    trips = int(next(iter(lengths)) or 0)
    trees: list[Any] = []

    def on_leaves(carried: Sequence[Any], row_leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        after, result = step(
            _unflatten(of_carry, carried), None if of_rows is None else _unflatten(of_rows, row_leaves)
        )
        leaves, tree = _flatten(after)
        if tree != of_carry:
            raise ValueError(f"scan: the carry is {of_carry} and becomes {tree}; expected the same structure")
        stacked, of_result = ([], None) if result is None else _flatten(result)
        trees.append(of_result)
        return leaves, stacked

    first, results = on_leaves(carried, [row[0] for row in row_leaves])
    library = _library_of(*carried, *row_leaves, *first, *results)  # of what step finds around it too
    dtypes = [_common_dtype((before, after)) for before, after in zip(carried, first, strict=True)]

    def converted(carried: Sequence[Any], row_leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        after, stacked = on_leaves(carried, row_leaves)
        after = [_convert(value, dtype, library) for value, dtype in zip(after, dtypes, strict=True)]
        return after, [_convert(value, dtype_of(value), library) for value in stacked]

    start = [_convert(value, dtype, library) for value, dtype in zip(carried, dtypes, strict=True)]
    last, stacked = library.scan(converted, start, list(row_leaves), trips)
    return _unflatten(of_carry, last), None if trees[0] is None else _unflatten(trees[0], stacked)
