"""TensorFlow. Imported when its first tensor is seen."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from typing_extensions import override

from batchnuts.autobatch.language.libraries.library import Array, Function, Traced
from batchnuts.autobatch.language.libraries.tensors import Formulas
from batchnuts.autobatch.language.libraries.type_rules import NotTyped
from batchnuts.autobatch.pfor.calls import ElementwiseFunction
from batchnuts.autobatch.pfor.traced_once import TracedOnce

_XLA_EXPONENTS = 64
"""XLA reads an integer exponent modulo 64."""


def _by_kind(boolean: Function, integer: Function) -> Any:
    return staticmethod(lambda x, y: (boolean if x.dtype == bool else integer)(x, y))


def _erfinv(x: Array) -> Array:
    """TensorFlow's own, without XLA, is a function of (x + 1) / 2, which has few digits of small numbers and of those
    near 1: here of negative ones only, and with one step of Newton's method where they are small."""
    sign = tf.where(x > 0.0, -tf.ones_like(x), tf.ones_like(x))
    y = sign * tf.math.erfinv(sign * x)
    step = (tf.math.erf(y) - x) * tf.exp(y * y) * (0.5 * np.sqrt(np.pi))
    return y - tf.stop_gradient(tf.where(tf.abs(x) < 0.5, step, tf.zeros_like(x)))


class TensorFlowLibrary(Formulas):
    """The `TensorLibrary` of TensorFlow: eager tensors, those of graphs, and variables."""

    name = "TensorFlow"

    @override
    def dtype_of(self, x: Array) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(x.dtype.as_numpy_dtype)
        return dtype

    @override
    def static_shape(self, x: Array) -> tuple[int | None, ...] | None:
        return None if x.shape.rank is None else tuple(x.shape)

    @override
    def convert(self, x: Any, dtype: Any) -> Array:
        return tf.cast(tf.convert_to_tensor(x) if tf.is_tensor(x) else np.asarray(x, dtype=dtype), dtype)

    cast = convert

    exp = staticmethod(tf.exp)
    log = staticmethod(tf.math.log)
    log1p = staticmethod(tf.math.log1p)
    expm1 = staticmethod(tf.math.expm1)
    sqrt = staticmethod(tf.sqrt)
    sin = staticmethod(tf.sin)
    cos = staticmethod(tf.cos)
    tan = staticmethod(tf.tan)
    tanh = staticmethod(tf.tanh)
    sigmoid = staticmethod(tf.sigmoid)
    softplus = staticmethod(tf.nn.softplus)
    erf = staticmethod(tf.math.erf)
    erfinv = staticmethod(_erfinv)
    gammaln = staticmethod(tf.math.lgamma)
    digamma = staticmethod(tf.math.digamma)
    isfinite = staticmethod(tf.math.is_finite)
    isnan = staticmethod(tf.math.is_nan)
    positive = staticmethod(tf.identity)
    square = staticmethod(tf.square)
    floor = staticmethod(tf.floor)
    ceil = staticmethod(tf.math.ceil)
    round = staticmethod(tf.round)

    @override
    def abs(self, x: Array) -> Array:
        return x if x.dtype.is_unsigned or x.dtype.is_bool else tf.abs(x)

    @override
    def sign(self, x: Array) -> Array:
        return tf.cast(x != tf.zeros_like(x), x.dtype) if x.dtype.is_unsigned else tf.sign(x)

    multiply = staticmethod(operator.mul)
    add = staticmethod(operator.add)
    divide = staticmethod(operator.truediv)
    truncated_remainder = staticmethod(tf.truncatemod)

    @override
    def subtract(self, x: Array, y: Array) -> Array:
        """x - y. TensorFlow makes of `0 - y` a negation, which it lacks for unsigned integers."""
        return ~(~x + y) if x.dtype.is_unsigned else x - y

    @override
    def negative(self, x: Array) -> Array:
        return ~x + tf.ones_like(x) if x.dtype.is_unsigned else -x

    equal = staticmethod(tf.equal)
    not_equal = staticmethod(tf.not_equal)
    less = staticmethod(tf.less)
    less_equal = staticmethod(tf.less_equal)
    greater = staticmethod(tf.greater)
    greater_equal = staticmethod(tf.greater_equal)

    bitwise_and = _by_kind(tf.logical_and, tf.bitwise.bitwise_and)
    bitwise_or = _by_kind(tf.logical_or, tf.bitwise.bitwise_or)
    bitwise_xor = _by_kind(tf.math.logical_xor, tf.bitwise.bitwise_xor)
    left_shift = staticmethod(tf.bitwise.left_shift)
    right_shift = staticmethod(tf.bitwise.right_shift)
    logical_not = staticmethod(tf.logical_not)
    logical_and = staticmethod(tf.logical_and)
    logical_or = staticmethod(tf.logical_or)

    # Division and powers

    def _floor_divide_integers(self, x: Array, y: Array) -> Array:
        minus_one, safe = _without_minus_one(y)
        quotient = tf.math.floordiv(x, safe)
        return quotient if minus_one is None else tf.where(minus_one, -quotient, quotient)

    def _remainder_of_integers(self, x: Array, y: Array) -> Array:
        return tf.math.floormod(x, _without_minus_one(y)[1])

    @override
    def power(self, x: Array, y: Array) -> Array:
        if x.dtype.is_floating:
            power = tf.pow(x, y)
            # TensorFlow makes a root of it, which has another value for -0.0 and -inf
            return tf.where((x == 0) | (x == -np.inf), tf.pow(tf.abs(x), y), power) if _is_half(y) else power
        if x.dtype.is_complex:
            return tf.pow(x, y)
        # the wrapped product of the low bits is the same in every wider dtype, signed or not
        static = tf.get_static_value(y)
        base, dtype = tf.cast(x, tf.int64), x.dtype
        if static is not None and (static < _XLA_EXPONENTS).all():
            return tf.cast(tf.pow(base, tf.cast(y, tf.int64)), dtype)
        exponent, result = tf.cast(y, tf.uint64), tf.ones_like(base)
        for digit in range(0, dtype.size * 8 - (not dtype.is_unsigned), 6):
            if digit:
                half = tf.pow(base, tf.constant(_XLA_EXPONENTS // 2, tf.int64))
                base = half * half
            shifted = tf.bitwise.right_shift(exponent, tf.constant(digit, tf.uint64))
            low = tf.bitwise.bitwise_and(shifted, tf.constant(_XLA_EXPONENTS - 1, tf.uint64))
            result *= tf.pow(base, tf.cast(low, tf.int64))
        return tf.cast(result, dtype)

    # Reductions

    any = staticmethod(tf.reduce_any)
    all = staticmethod(tf.reduce_all)
    sum = staticmethod(tf.reduce_sum)
    mean = staticmethod(tf.reduce_mean)

    @override
    def min(self, x: Array, axis: Any, keepdims: bool) -> Array:
        return _or_nan(tf.reduce_all if x.dtype.is_bool else tf.reduce_min, x, axis, keepdims)

    @override
    def max(self, x: Array, axis: Any, keepdims: bool) -> Array:
        return _or_nan(tf.reduce_any if x.dtype.is_bool else tf.reduce_max, x, axis, keepdims)

    def _matrix_product(self, x: Array, y: Array) -> Array:
        # A matrix times a vector is computed as the vector, a row, times the transposed matrix: TensorFlow's vectorizer
        # turns rows of many lanes into one matrix by a reshape, but columns only by transposes.
        if y.shape.rank == 1:
            return tf.squeeze(tf.matmul(y[tf.newaxis, :], x, transpose_b=True), axis=-2)
        if x.shape.rank == 1:
            return tf.squeeze(tf.matmul(x[tf.newaxis, :], y), axis=-2)
        return tf.matmul(x, y)

    _total = staticmethod(tf.add_n)

    # Along an axis, and matrices

    cumsum = staticmethod(tf.cumsum)
    transpose = staticmethod(tf.linalg.matrix_transpose)
    cholesky = staticmethod(tf.linalg.cholesky)

    @override
    def solve_triangular(self, matrix: Array, b: Array, lower: bool, transposed: bool) -> Array:
        return tf.linalg.triangular_solve(matrix, b, lower=lower, adjoint=transposed)

    @override
    def scan(
        self, step: Function, carry: list[Array], rows: list[Array], length: int
    ) -> tuple[list[Array], list[Array]]:
        """The contract's scan, as a loop of TensorFlow's whose number of trips XLA knows."""
        if not length:
            return carry, []
        tensors = [tf.convert_to_tensor(row) for row in rows]
        first = step(carry, [row[0] for row in tensors])[1]  # for dtypes and shapes; not evaluated
        arrays = [tf.TensorArray(x.dtype, length, element_shape=x.shape) for x in map(tf.convert_to_tensor, first)]

        def body(trip: Array, carry: list[Array], arrays: list[Any]) -> tuple[Array, list[Array], list[Any]]:
            after, outputs = step(carry, [tf.gather(row, trip) for row in tensors])
            return trip + 1, after, [array.write(trip, x) for array, x in zip(arrays, outputs, strict=True)]

        start = (tf.constant(0), [tf.convert_to_tensor(x) for x in carry], arrays)
        _, after, filled = tf.while_loop(lambda trip, *_: trip < length, body, start, maximum_iterations=length)
        return after, [array.stack() for array in filled]

    # Arrays

    where = staticmethod(tf.where)
    stack = staticmethod(tf.stack)
    concatenate = staticmethod(tf.concat)
    reshape = staticmethod(tf.reshape)
    bitcast = staticmethod(tf.bitcast)

    @override
    def full_like(self, x: Array, value: Array) -> Array:
        shape = tf.TensorShape(x.shape)
        return tf.broadcast_to(value, tuple(shape) if shape.is_fully_defined() else tf.shape(x))

    @override
    def parts_of_last_axis(self, x: Array, sizes: Sequence[int]) -> list[Array]:
        """The parts by one op, whose gradient is one too."""
        parts: list[Array] = tf.split(x, list(sizes), axis=-1) if len(sizes) > 1 else [x]
        return parts

    @override
    def split_last_axis(self, x: Array, shape: tuple[int, ...]) -> Array:
        lead = x.shape[:-1]
        if lead.is_fully_defined():
            return tf.reshape(x, [*lead, *shape])
        return tf.reshape(x, tf.concat([tf.shape(x)[:-1], np.array(shape, np.int32)], axis=0))

    @override
    def gather(self, x: Array, index: Array, axis: int) -> Array:
        return tf.gather(x, index, axis=axis)

    @override
    def scatter_add(self, x: Array, index: Array, axis: int, extent: int) -> Array:
        rank = x.shape.rank
        order = [axis % rank, *(a for a in range(rank) if a != axis % rank)]
        sums = tf.math.unsorted_segment_sum(tf.transpose(x, order), index, extent)
        return tf.transpose(sums, np.argsort(order))

    @override
    def call_c(self, arrays: tuple[Array, ...], key: str) -> list[Array]:
        raise TypeError("TensorFlow cannot call a function of C; machine code, JAX and NumPy can")

    @override
    def with_gradient(self, value: Array, x: Array, gradient: Array) -> Array:
        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def known(x: Array) -> Any:
            return tf.stop_gradient(value), lambda adjoint: adjoint * gradient

        return known(x)

    # Programs

    @override
    def kernel(self, function: Function) -> Function:
        """The function as one op in a graph."""
        one_op = ElementwiseFunction(function)

        def of_words(*words: Array) -> tuple[Array, ...]:
            tensors = [tf.convert_to_tensor(word, tf.uint32) for word in words]
            have_ranks = all(tensor.shape.rank is not None for tensor in tensors)
            results = (one_op if have_ranks else function)(*tensors)
            return tuple(map(_once, results))

        return of_words

    # Functions

    tensor = staticmethod(tf.convert_to_tensor)

    @override
    def call(self, function: Function, *tensors: Array) -> Any:
        return function(*tensors)

    untransformed = staticmethod(tf.autograph.experimental.do_not_convert)
    as_callers = from_caller = staticmethod(lambda x: x)

    @override
    def without_reverse(self, function: Function, message: str) -> Function:
        def refuse(*_: Array) -> Array:
            raise TypeError(message)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def without(*arrays: Array) -> Any:  # stop_gradient: else a program is traced that keeps all for a gradient
            return function(*map(tf.stop_gradient, arrays)), refuse

        return lambda *arrays: without(*arrays)

    compiled = staticmethod(lambda function: function)

    @override
    def result_shapes(self, function: Function, *tensors: Array) -> Any:
        traced = tf.function(function, autograph=False).get_concrete_function(*tensors)
        return tf.nest.map_structure(lambda leaf: tuple(leaf.shape), traced.structured_outputs)

    @override
    def traced(self, function: Function, *tensors: Array) -> Traced:
        """The shapes alone."""
        return Traced(self.result_shapes(function, *tensors))

    @override
    def differentiated(
        self, function: Function, on_identity: Callable[[str], None] | None = None
    ) -> Callable[..., tuple[Any, Array | None]]:
        """`value_and_gradient`, run eagerly."""
        return functools.partial(self.value_and_gradient, function)

    @override
    def value_and_gradient(self, function: Function, x: Array, *others: Array) -> tuple[Any, Array | None]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x, *others)
        if not tf.is_tensor(value) or value.shape.rank != 0:
            return value, None
        gradient = tape.gradient(value, x)
        return value, None if gradient is None else tf.convert_to_tensor(gradient)

    @override
    def recorded_gradient(self, function: Function, x: Array, *others: Array) -> tuple[Array, Array]:
        raise NotTyped("TensorFlow's functions")

    @override
    def traced_once(self, function: Function, xla: bool) -> Function:
        """The function as a call of one graph function, in any graph."""
        return TracedOnce(function, xla=xla)

    @override
    def identity_of(self, function: Function, *arrays: Array) -> str | None:
        """The identity of the function compiled by XLA."""
        from batchnuts.autobatch.language.libraries.tensorflow_identity import identity_of

        return identity_of(function, *arrays)

    @override
    def key_by_identity(self, *identity: str) -> str | None:
        from batchnuts.autobatch.language.libraries.tensorflow_identity import key_by_identity

        return key_by_identity(*identity)

    @override
    def trace_of(self, x: Array) -> object | None:
        """The graph that `x` is in."""
        return getattr(x, "graph", None)


def _once(words: Array) -> Array:
    """The same words: marked for `pfor`, so that XLA does not compute them again for each that makes use of them."""
    return tf.raw_ops.Snapshot(input=words)


def _without_minus_one(y: Array) -> tuple[Array | None, Array]:
    """Where signed `y` is -1, and `y` with 1 there: the least integer over -1 traps some processors."""
    static = tf.get_static_value(y)
    if y.dtype.is_unsigned or (static is not None and not (static == -1).any()):
        return None, y
    minus_one = y == -tf.ones_like(y)
    return minus_one, tf.where(minus_one, tf.ones_like(y), y)


def _is_half(y: Array) -> bool:
    static = tf.get_static_value(y)
    return static is not None and bool((np.abs(static) == 0.5).any())


def _or_nan(reduction: Function, x: Array, axis: Any, keepdims: bool) -> Array:
    """The minimum or maximum; of floats NaN if there is one, which XLA on processors can lose (`minimum`)."""
    extreme = reduction(x, axis, keepdims)
    if not x.dtype.is_floating:
        return extreme
    return tf.where(tf.reduce_any(x != x, axis, keepdims), tf.constant(np.nan, x.dtype), extreme)


LIBRARY = TensorFlowLibrary()
