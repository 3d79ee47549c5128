"""Array functions for one-lane programs, the same on every backend.

Each function looks at the types of its arguments: if any of them is a TensorFlow tensor or variable it computes with
TensorFlow, else with NumPy and SciPy. TensorFlow is not imported before a tensor is seen.

Rules that hold for all of them:

- **Types.** Arguments of one function are promoted to one dtype, by NumPy 2's rules on both backends. Python scalars
are weak: they take the dtype of the arrays they are combined with (a float with integers only gives float64, an integer
with bools only gives int64). Functions of real analysis compute integers and bools in float64.
- **Python scalars.** When every argument is a Python scalar so is the result, so that literals stay weak.
- **Numerics.** Outside its domain a function gives NaN or infinity as IEEE 754 has it, without a warning: the lanes
  that wait while others work may hold any value. NumPy and TensorFlow agree to a few units in the last place.
- **Vectorizing.** Every function can be traced, compiled by XLA and converted by `pfor` without running row by row.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special

from batchnuts.autobatch.language.arrays import Array as Array
from batchnuts.autobatch.language.arrays import common_dtype as _common_dtype
from batchnuts.autobatch.language.arrays import convert as _convert
from batchnuts.autobatch.language.arrays import dtype_named as dtype_named
from batchnuts.autobatch.language.arrays import dtype_of as dtype_of
from batchnuts.autobatch.language.arrays import is_python_scalar as is_python_scalar
from batchnuts.autobatch.language.arrays import require_fits as _require_fits
from batchnuts.autobatch.language.arrays import static_shape as static_shape
from batchnuts.autobatch.language.arrays import tensorflow as _tensorflow
from batchnuts.autobatch.language.arrays import uses_tensorflow as uses_tensorflow

_Function = Callable[..., Any]
_Tensor = str | Callable[..., Any]
"""A TensorFlow function: its dotted name below `tensorflow`, or one defined here."""

_ANY, _REAL, _ROUNDING = "any number", "real analysis", "rounding"
"""What a function is defined on: `_REAL` computes integers in float64, `_ROUNDING` returns them as they are."""


# How a function of the table is called


def _call(numpy_function: _Function, tensor: _Tensor, values: Sequence[Any], dtype: Any, **options: Any) -> Any:
    """The result of the function that fits the types of `values`, all of them converted to `dtype`."""
    if uses_tensorflow(*values):
        function: Any = operator.attrgetter(tensor)(_tensorflow()) if isinstance(tensor, str) else tensor
        return function(*[_convert(value, dtype, True) for value in values], **options)
    with np.errstate(all="ignore"):
        result = numpy_function(*[_convert(value, dtype, False) for value in values], **options)
    return result.item() if is_python_scalar(*values) else result


# How the rows of the table become functions


def _publish(function: _Function, name: str, summary: str) -> _Function:
    function.__name__, function.__qualname__, function.__doc__ = name, name, summary
    return function


def _elementwise(name: str, numpy_function: _Function, tensor: _Tensor, domain: str, summary: str) -> _Function:
    def unary(x: Array) -> Array:
        dtype = _common_dtype((x,), domain == _REAL)
        if domain == _ROUNDING and dtype.kind in "biu":
            return x
        return _call(numpy_function, tensor, (x,), dtype)

    return _publish(unary, name, f"{summary} Elementwise; shape of `x`.")


def _pairwise(name: str, numpy_function: _Function, tensor: _Tensor, domain: str, summary: str) -> _Function:
    def binary(x: Array, y: Array) -> Array:
        return _call(numpy_function, tensor, (x, y), _common_dtype((x, y), domain == _REAL))

    return _publish(binary, name, f"{summary} Elementwise with broadcasting.")


def _logical(name: str, numpy_function: _Function, tensor: _Tensor, summary: str) -> _Function:
    def connective(*arguments: Array) -> Array:
        return _call(numpy_function, tensor, [nonzero(argument) for argument in arguments], bool)

    return _publish(connective, name, f"{summary} Elementwise, without short circuit; numbers count as `x != 0`.")


def _reduction(name: str, numpy_function: _Function, tensor: _Tensor, target: _Function, summary: str) -> _Function:
    def reduce(x: Array, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
        dtype = target(_common_dtype((x,)))
        if dtype.kind == "b":
            x = nonzero(x)
        return _call(numpy_function, tensor, (x,), dtype, axis=axis, keepdims=keepdims)

    return _publish(reduce, name, f"{summary} Over `axis` (an index, several, or None: over all).")


# TensorFlow formulations where no single op of TensorFlow does what NumPy's function does


def _tensor_abs(x: Any) -> Any:
    return x if x.dtype.is_unsigned or x.dtype.is_bool else _tensorflow().abs(x)


def _tensor_sign(x: Any) -> Any:
    tf = _tensorflow()
    return tf.cast(x != tf.zeros_like(x), x.dtype) if x.dtype.is_unsigned else tf.sign(x)


def _tensor_logaddexp(x: Any, y: Any) -> Any:
    # Ordered by comparison, not by maximum(), so that the gradient at a tie is (1/2, 1/2). An infinite larger argument
    # is the result itself; then no difference is computed, as infinity minus infinity would put NaN into value and
    # gradient.
    tf = _tensorflow()
    ordered = x >= y
    larger, smaller, zero = tf.where(ordered, x, y), tf.where(ordered, y, x), tf.zeros_like(x)
    finite = tf.math.is_finite(larger)
    gap = tf.where(finite, smaller, zero) - tf.where(finite, larger, zero)
    rest = tf.where(finite, tf.math.log1p(tf.exp(gap)), zero)
    either_nan = tf.math.is_nan(x) | tf.math.is_nan(y)
    return tf.where(either_nan, x + y, larger + rest)


def _tensor_matmul(x: Any, y: Any) -> Any:
    # A matrix times a vector is computed as the vector, a row, times the transposed matrix: TensorFlow's vectorizer
    # turns rows of many lanes into one matrix by a reshape, but columns only by transposes.
    tf = _tensorflow()
    if x.shape.rank == 0 or y.shape.rank == 0:
        raise ValueError(f"matmul takes vectors and matrices, not shapes {tuple(x.shape)} and {tuple(y.shape)}")
    if x.shape.rank == 1 and y.shape.rank == 1:
        return _sum_of_vector(x * y)
    if y.shape.rank == 1:
        return tf.squeeze(tf.matmul(y[tf.newaxis, :], x, transpose_b=True), axis=-2)
    if x.shape.rank == 1:
        return tf.squeeze(tf.matmul(x[tf.newaxis, :], y), axis=-2)
    return tf.matmul(x, y)


def _sum_of_vector(x: Any) -> Any:
    # On processors XLA sums rows of more than 32 by windows, without vector instructions. Halves are added until the
    # rest is short; on 64 rows of 100 that takes a fifth of the time.
    tf = _tensorflow()
    length = x.shape[0]
    if length is None:
        return tf.reduce_sum(x)
    over = []
    while length > _LONGEST_PLAIN_SUM:
        half = length // 2
        if length % 2:
            over.append(x[2 * half])
        x, length = x[:half] + x[half : 2 * half], half
    return tf.add_n([tf.reduce_sum(x), *over])


_LONGEST_PLAIN_SUM = 32
"""Elements of a row that XLA's compiler for processors sums in one plain loop."""


def _bitwise(boolean: str, integer: str) -> _Function:
    return lambda x, y: operator.attrgetter(boolean if x.dtype.is_bool else integer)(_tensorflow())(x, y)


def _ordered(boolean: str, before: _Function) -> _Function:
    # tf.minimum and tf.maximum lose a NaN under XLA on processors, as in min(1, NaN) = 1. Comparison and select do not.
    def extreme(x: Any, y: Any) -> Any:
        tf = _tensorflow()
        return getattr(tf, boolean)(x, y) if x.dtype.is_bool else tf.where(before(x, y) | (x != x), x, y)

    return extreme


def _reduced(boolean: str, number: str) -> _Function:
    def extreme(x: Any, axis: Any, keepdims: bool) -> Any:
        tf = _tensorflow()
        minimum = getattr(tf, boolean if x.dtype.is_bool else number)(x, axis, keepdims)
        if not x.dtype.is_floating:
            return minimum
        return tf.where(tf.reduce_any(x != x, axis, keepdims), tf.constant(np.nan, x.dtype), minimum)  # as in _ordered

    return extreme


# The table: name, NumPy's function, TensorFlow's function, where integers are computed, meaning

exp = _elementwise("exp", np.exp, "exp", _REAL, "e to the power `x`.")
log = _elementwise("log", np.log, "math.log", _REAL, "Natural logarithm.")
log1p = _elementwise("log1p", np.log1p, "math.log1p", _REAL, "log(1 + x), precise near 0.")
expm1 = _elementwise("expm1", np.expm1, "math.expm1", _REAL, "exp(x) - 1, precise near 0.")
sqrt = _elementwise("sqrt", np.sqrt, "sqrt", _REAL, "Square root.")
sin = _elementwise("sin", np.sin, "sin", _REAL, "Sine of radians.")
cos = _elementwise("cos", np.cos, "cos", _REAL, "Cosine of radians.")
tan = _elementwise("tan", np.tan, "tan", _REAL, "Tangent of radians.")
tanh = _elementwise("tanh", np.tanh, "tanh", _REAL, "Hyperbolic tangent.")
sigmoid = _elementwise("sigmoid", scipy.special.expit, "sigmoid", _REAL, "1 / (1 + exp(-x)).")
softplus = _elementwise(
    "softplus", functools.partial(np.logaddexp, 0), "nn.softplus", _REAL, "log(1 + exp(x)), without overflow."
)
erf = _elementwise("erf", scipy.special.erf, "math.erf", _REAL, "Error function.")
erfinv = _elementwise("erfinv", scipy.special.erfinv, "math.erfinv", _REAL, "Inverse of the error function.")
isfinite = _elementwise("isfinite", np.isfinite, "math.is_finite", _REAL, "Neither NaN nor infinite; bool.")
isnan = _elementwise("isnan", np.isnan, "math.is_nan", _REAL, "Not a number; bool.")

_as_real = _elementwise("_as_real", np.positive, "identity", _REAL, "`x` itself.")
square = _elementwise("square", np.square, "square", _ANY, "x * x.")
abs = _elementwise("abs", np.abs, _tensor_abs, _ANY, "Absolute value (the smallest signed integer wraps).")
sign = _elementwise("sign", np.sign, _tensor_sign, _ANY, "-1, 0 or 1 in the dtype of `x`; NaN stays.")

floor = _elementwise("floor", np.floor, "floor", _ROUNDING, "Largest integer not above `x`.")
ceil = _elementwise("ceil", np.ceil, "math.ceil", _ROUNDING, "Smallest integer not below `x`.")
round = _elementwise("round", np.rint, "round", _ROUNDING, "Nearest integer, halves to the even one as Python has it.")

minimum = _pairwise("minimum", np.minimum, _ordered("logical_and", operator.le), _ANY, "Minimum; NaN if either is NaN.")
maximum = _pairwise("maximum", np.maximum, _ordered("logical_or", operator.ge), _ANY, "Maximum; NaN if either is NaN.")
logaddexp = _pairwise(
    "logaddexp",
    np.logaddexp,
    _tensor_logaddexp,
    _REAL,
    "log(exp(x) + exp(y)) without overflow; -inf for two -inf, with finite gradients.",
)

bitwise_and = _pairwise(
    "bitwise_and",
    np.bitwise_and,
    _bitwise("logical_and", "bitwise.bitwise_and"),
    _ANY,
    "Bits set in both; integers or bools.",
)
bitwise_or = _pairwise(
    "bitwise_or",
    np.bitwise_or,
    _bitwise("logical_or", "bitwise.bitwise_or"),
    _ANY,
    "Bits set in either; integers or bools.",
)
bitwise_xor = _pairwise(
    "bitwise_xor",
    np.bitwise_xor,
    _bitwise("math.logical_xor", "bitwise.bitwise_xor"),
    _ANY,
    "Bits set in one of the two; integers or bools.",
)
# The amount of a shift lies in [0, width of the dtype); what others give depends on the backend.
left_shift = _pairwise("left_shift", np.left_shift, "bitwise.left_shift", _ANY, "`x` times 2**y modulo 2**width.")
right_shift = _pairwise(
    "right_shift",
    np.right_shift,
    "bitwise.right_shift",
    _ANY,
    "`x` divided by 2**y and rounded down, so a signed integer keeps its sign.",
)

logical_not = _logical("logical_not", np.logical_not, "logical_not", "True where false.")
logical_and = _logical("logical_and", np.logical_and, "logical_and", "Both true.")
logical_or = _logical("logical_or", np.logical_or, "logical_or", "Either true.")

any = _reduction("any", np.any, "reduce_any", lambda dtype: np.dtype(bool), "Whether any element is true (not 0).")
all = _reduction("all", np.all, "reduce_all", lambda dtype: np.dtype(bool), "Whether all elements are true (not 0).")
# NumPy alone would widen small integers here; TensorFlow's rule, to keep the dtype, is used, and bools are counted.
sum = _reduction(
    "sum",
    lambda x, **options: np.sum(x, dtype=x.dtype, **options),
    "reduce_sum",
    lambda dtype: np.dtype(np.int64) if dtype.kind == "b" else dtype,
    "Sum in one dtype; counts bools.",
)
mean = _reduction(
    "mean",
    np.mean,
    "reduce_mean",
    lambda dtype: np.dtype(np.float64) if dtype.kind in "biu" else dtype,
    "Arithmetic mean; of integers in float64.",
)
min = _reduction(
    "min", np.min, _reduced("reduce_all", "reduce_min"), lambda dtype: dtype, "Minimum; NaN if any element is NaN."
)
max = _reduction(
    "max", np.max, _reduced("reduce_any", "reduce_max"), lambda dtype: dtype, "Maximum; NaN if any element is NaN."
)

matmul = _publish(
    lambda x, y: _call(np.matmul, _tensor_matmul, (x, y), _common_dtype((x, y))),
    "matmul",
    "Matrix product; vectors [k] count as a row on the left and as a column on the right.",
)
_product = _pairwise("_product", np.multiply, "multiply", _ANY, "x * y.")


# Functions with arguments of their own


def nonzero(x: Array) -> Array:
    """`x` as bools: `x != 0` for numbers (NaN is true, as in Python)."""
    if is_python_scalar(x):
        return bool(x)
    dtype = dtype_of(x)
    if dtype.kind == "b":
        return x
    return _convert(x, dtype, True) != 0 if uses_tensorflow(x) else np.not_equal(x, 0)


def where(condition: Array, x: Array, y: Array) -> Array:
    """`x` where `condition` is true (not 0), else `y`, elementwise with broadcasting, in their common dtype.

    Both are evaluated. A NaN in the part not selected does not reach the result, but it can reach a gradient: make the
    argument safe first, as in `log(where(x > 0, x, 1))`.
    """
    dtype, condition = _common_dtype((x, y)), nonzero(condition)
    if uses_tensorflow(condition, x, y):
        return _tensorflow().where(condition, _convert(x, dtype, True), _convert(y, dtype, True))
    result = np.where(condition, _convert(x, dtype, False), _convert(y, dtype, False))
    return result.item() if is_python_scalar(condition, x, y) else result[()]


def dot(x: Array, y: Array) -> Array:
    """Inner product of two vectors; with a matrix as `matmul`, with a scalar the product."""
    return (_product if () in (static_shape(x), static_shape(y)) else matmul)(x, y)


def norm(x: Array, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Array:
    """Euclidean length over `axis` (None: over all), with gradient 0 at the origin.

    The squares are summed as they are: lengths beyond the square root of the dtype's largest number are infinite.
    """
    squares = sum(square(_as_real(x)), axis, keepdims)
    if not uses_tensorflow(squares):
        return sqrt(squares)
    tf = _tensorflow()
    zero, safe = squares == 0, tf.where(squares == 0, tf.ones_like(squares), squares)
    return tf.where(zero, tf.zeros_like(squares), tf.sqrt(safe))


def full_like(x: Array, value: Array) -> Array:
    """An array of the shape and dtype of `x` that holds `value` (anything that broadcasts to that shape).

    Arrays are cast, as NumPy does; OverflowError for a Python number that the dtype does not hold.
    """
    if is_python_scalar(value):
        _require_fits(value, _common_dtype((x,)))
    if uses_tensorflow(x, value):
        tf, dtype, shape = _tensorflow(), _common_dtype((x,)), static_shape(x)
        known = shape is not None and None not in shape
        return tf.broadcast_to(_convert(value, dtype, True), shape if known else tf.shape(x))
    result = np.full_like(x, value)
    return result.item() if is_python_scalar(x, value) else result[()]


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
    if uses_tensorflow(x):
        return _convert(x, target, True)
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(target)[()]


def bitcast(x: Array, dtype: Any) -> Array:
    """The bits of `x` read as another dtype of the same size; ValueError if the sizes differ or one is bool."""
    source, target = dtype_of(x), dtype_named(dtype)
    if source.itemsize != target.itemsize or "b" in source.kind + target.kind:
        raise ValueError(f"cannot read the bits of {source} as {target}: their sizes differ or one of them is bool")
    if uses_tensorflow(x):
        return _tensorflow().bitcast(_convert(x, source, True), target)
    return np.asarray(x).view(target)[()]


def _joined(numpy_function: _Function, tensorflow_name: str, arrays: Sequence[Array], axis: int) -> Array:
    dtype, tensors = _common_dtype(arrays), uses_tensorflow(*arrays)
    function = getattr(_tensorflow(), tensorflow_name) if tensors else numpy_function
    return function([_convert(array, dtype, tensors) for array in arrays], axis=axis)


def stack(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Arrays of one shape laid along a new axis, in their common dtype (of Python scalars alone: int64, float64)."""
    return _joined(np.stack, "stack", arrays, axis)


def concatenate(arrays: Sequence[Array], axis: int = 0) -> Array:
    """Arrays laid end to end along an axis they have, in their common dtype."""
    return _joined(np.concatenate, "concat", arrays, axis)


def reshape(x: Array, shape: int | Sequence[int]) -> Array:
    """`x` with another shape of the same size, row-major; one extent may be -1."""
    extents = [shape] if isinstance(shape, (int, np.integer)) else list(shape)
    if not uses_tensorflow(x):
        return np.reshape(x, extents)
    return _tensorflow().reshape(_convert(x, dtype_of(x), True), extents)
