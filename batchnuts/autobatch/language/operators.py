"""Python's operators on one lane's values: what the compiler calls for `+`, `//`, `<` and the rest.

- **Types.** Operands meet by NumPy 2's promotion on every backend, Python scalars weak: `int32 + int64` is int64,
  `n * 0.5` of an integer `n` is float64, `/` of integers is float64. Between two booleans Python's arithmetic (1 + 1
  is 2) and NumPy's (True or True) differ, so it is refused. Values that are no arrays keep Python's own operators.
- **Meaning.** `//` and `%` round down and have the divisor's sign, on floats too. Integers wrap, floats are IEEE 754's.
- **Checks.** An operation without a defined result (an integer divided by zero, say) never raises on a lane: it is
computed with a harmless operand, and `Checks` notes that the lane must stop.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, KeysView, Sequence, ValuesView
from typing import Any

import numpy as np

from batchnuts.autobatch.language import ops
from batchnuts.autobatch.language.arrays import (
    common_dtype,
    convert,
    dtype_of,
    is_array,
    is_python_scalar,
    is_tensor,
    require_fits,
    require_scalar,
    static_shape,
    tensorflow,
    uses_tensorflow,
)


class Checks:
    """Per check of an expression: whether it held every time the expression evaluated it.

    A check is a Python bool where its operands are Python's own numbers or cannot go wrong (floats), else a scalar
    boolean array of the lane.
    """

    def __init__(self, inputs: Sequence[Any] = ()) -> None:
        self._graphs = [value.graph for value in inputs if _is_symbolic(value)][:1]
        self._held: dict[int, Any] = {}

    def note(self, check: int, held: Any) -> None:
        """The check was evaluated once more. In a function that TensorFlow itself calls, nothing can be noted."""
        if self._graphs and _is_symbolic(held) and held.graph is not self._graphs[0]:
            return
        before = self._held.get(check, True)
        self._held[check] = held if before is True else before if held is True else ops.logical_and(before, held)

    def results(self, count: int) -> tuple[Any, ...]:
        """Checks 0 to count - 1; one that was never evaluated held."""
        return tuple(self._held.get(check, True) for check in range(count))


def _is_symbolic(value: Any) -> bool:
    return is_tensor(value) and hasattr(value, "graph")


# Promotion


def _is_bool(x: Any) -> bool:
    return isinstance(x, (bool, np.bool_)) or (is_array(x) and dtype_of(x).kind == "b")


def _refuse_bools(symbol: str, x: Any, y: Any) -> None:
    if _is_bool(x) and _is_bool(y):
        raise TypeError(
            f"`{symbol}` of two booleans: Python counts them as 0 and 1, arrays do not. Write int(a) {symbol} int(b) "
            "to count, or & | ^ for logic"
        )


def _as_arrays(x: Any, y: Any) -> tuple[Any, Any]:
    """Both operands; beside an array, a list as the array that NumPy would make of it."""
    if is_array(x) and isinstance(y, (list, tuple)):
        y = convert(y, dtype_of(y), uses_tensorflow(y))
    elif is_array(y) and isinstance(x, (list, tuple)):
        x = convert(x, dtype_of(x), uses_tensorflow(x))
    return x, y


def _operands(x: Any, y: Any) -> tuple[Any, Any] | None:
    """Both operands if at least one is a tensor and both are numeric; else None."""
    if not (is_tensor(x) or is_tensor(y)):
        return None
    numeric = all(is_array(value) or isinstance(value, (bool, int, float, complex)) for value in (x, y))
    return (x, y) if numeric else None


def _require_fits(x: Any, y: Any) -> None:
    """NumPy raises for integers that do not fit, but makes floats infinite."""
    for number, array in ((x, y), (y, x)):
        if is_python_scalar(number) and is_array(array) and dtype_of(array).kind == "f":
            require_fits(number, dtype_of(array))


def _promoted(x: Any, y: Any, real: bool = False) -> tuple[Any, Any]:
    """Numeric operands as tensors of their common dtype."""
    if is_tensor(x) and is_tensor(y) and x.dtype == y.dtype and not (real and not x.dtype.is_floating):
        return x, y
    dtype = common_dtype((x, y), real)
    return convert(x, dtype, True), convert(y, dtype, True)


_Binary = Callable[[Any, Any], Any]


def _arithmetic(name: str, symbol: str, python: _Binary, tensor: _Binary, real: bool = False) -> _Binary:
    """The operator as it is, on tensors `tensor` of the promoted operands."""

    def on_lanes(x: Any, y: Any) -> Any:
        x, y = _as_arrays(x, y)
        operands = _operands(x, y)
        if operands is None:
            if is_array(x) or is_array(y):
                if not real:
                    _refuse_bools(symbol, x, y)
                _require_fits(x, y)
            return python(x, y)
        if not real:
            _refuse_bools(symbol, *operands)
        return tensor(*_promoted(*operands, real))

    on_lanes.__name__ = on_lanes.__qualname__ = name
    return on_lanes


def _tensor_subtract(x: Any, y: Any) -> Any:
    """Of unsigned integers x - y is not(not(x) + y): TensorFlow makes `0 - y` a negation, which it lacks for them."""
    return ~(~x + y) if x.dtype.is_unsigned else x - y


add = _arithmetic("add", "+", operator.add, operator.add)
subtract = _arithmetic("subtract", "-", operator.sub, _tensor_subtract)
_times = _arithmetic("multiply", "*", operator.mul, operator.mul)


def multiply(x: Any, y: Any) -> Any:
    """`x * y`. TypeError for a list or tuple repeated by a value of the lane."""
    for sequence, count in ((x, y), (y, x)):
        if isinstance(sequence, (list, tuple, str)) and is_array(count) and static_shape(count) == ():
            raise TypeError(
                f"a {type(sequence).__name__} times a lane's number has no length at compile time. Give the length as "
                "a constant, or fill a buffer with autobatch.write"
            )
    return _times(x, y)


static_divide = _arithmetic("static_divide", "/", operator.truediv, operator.truediv, real=True)


def divide(x: Any, y: Any) -> Any:
    """`x / y`; of integers in float64. By zero as IEEE 754 has it, also where both are Python's numbers."""
    if is_python_scalar(x, y) and y == 0:
        with np.errstate(all="ignore"):
            return float(np.true_divide(x, y))
    return static_divide(x, y)


def _against_outside(name: str, x: Any, y: Any) -> bool | None:
    """The result, equal for all elements, of comparing with a Python integer outside the dtype; None for others."""
    for number, array, swapped in ((y, x, False), (x, y, True)):
        if type(number) is int and is_array(array) and dtype_of(array).kind in "iu":
            limits = np.iinfo(dtype_of(array))
            if not limits.min <= number <= limits.max:
                holds = ("less", "less_equal") if (number > limits.max) != swapped else ("greater", "greater_equal")
                return name in ("not_equal", *holds)
    return None


def _as_one_sign(a: Any, b: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """int64 and uint64 meet in float64, which rounds both. In its place, order by sign and then by bits: int64."""
    tf = tensorflow()
    kinds = {dtype_of(v) for v in (x, y) if is_array(v)}
    if not (a.dtype == tf.float64 and len(kinds) == 2 and all(kind.kind in "iu" for kind in kinds)):
        return a, b
    signs, bits = [], []
    for value in (x, y):
        signed = convert(value, "int64", True)
        signs.append(tf.cast(signed < 0, tf.int64) * (1 if dtype_of(value).kind == "u" else -1))
        bits.append(signed)
    # different signs decide; for equal signs the 64 bits are compared directly
    return tf.where(signs[0] == signs[1], bits[0], signs[0]), tf.where(signs[0] == signs[1], bits[1], signs[1])


def _comparison(name: str, python: _Binary, tensor: str, ordered: bool) -> _Binary:
    def on_lanes(x: Any, y: Any) -> Any:
        x, y = _as_arrays(x, y)
        operands = _operands(x, y)
        if operands is None:
            _require_fits(x, y)
            return python(x, y)
        everywhere = _against_outside(name, *operands)
        if everywhere is not None:
            array = operands[0] if is_array(operands[0]) else operands[1]
            return tensorflow().fill(array.shape, everywhere)
        a, b = _as_one_sign(*_promoted(*operands), *operands)
        if ordered and a.dtype.is_bool:
            a, b = convert(a, "uint8", True), convert(b, "uint8", True)
        return getattr(tensorflow(), tensor)(a, b)

    on_lanes.__name__ = on_lanes.__qualname__ = name
    return on_lanes


equal = _comparison("equal", operator.eq, "equal", ordered=False)
not_equal = _comparison("not_equal", operator.ne, "not_equal", ordered=False)
less = _comparison("less", operator.lt, "less", ordered=True)
less_equal = _comparison("less_equal", operator.le, "less_equal", ordered=True)
greater = _comparison("greater", operator.gt, "greater", ordered=True)
greater_equal = _comparison("greater_equal", operator.ge, "greater_equal", ordered=True)


def contains(x: Any, values: Any) -> Any:
    """`x in values`: whether the scalar `x` equals an element of an array, tuple, list, range, set, or a dict's key."""
    if is_array(x) and isinstance(values, range):
        return _in_range(x, values)
    if is_array(x) and isinstance(values, (set, frozenset, dict, KeysView, ValuesView)):
        values = tuple(value for value in values if is_array(value) or is_python_scalar(value))
        if not values:
            return False
    if not (is_array(values) or (isinstance(values, (tuple, list)) and any(map(is_array, (x, *values))))):
        return x in values
    found = [ops.any(equal(x, value)) for value in ([values] if is_array(values) else values)]
    return functools.reduce(ops.logical_or, found, False)


def _in_range(x: Any, values: range) -> Any:
    """Whether the number `x` is one of a range's."""
    require_scalar(x, "`in` of a range")
    kind = dtype_of(x).kind
    wide = ops.cast(x, "float64" if kind == "f" else "int64")
    if not values:
        return not_equal(wide, wide) if kind != "f" else ops.logical_and(equal(wide, 0), not_equal(wide, 0))
    number = wide if kind == "b" else x
    low, high = min(values[0], values[-1]), max(values[0], values[-1])
    inside = ops.logical_and(greater_equal(number, low), less_equal(number, high))
    if abs(values.step) == 1 and kind != "f":
        return inside
    return ops.logical_and(inside, equal(remainder(subtract(wide, low), abs(values.step)), 0))


def not_contains(x: Any, values: Any) -> Any:
    """`x not in values`."""
    return ops.logical_not(contains(x, values))


def _delegated(name: str, python: _Binary, function: _Binary) -> _Binary:
    def on_lanes(x: Any, y: Any) -> Any:
        x, y = _as_arrays(x, y)
        operands = _operands(x, y)
        return python(x, y) if operands is None else function(*operands)

    on_lanes.__name__ = on_lanes.__qualname__ = name
    return on_lanes


bitwise_and = _delegated("bitwise_and", operator.and_, ops.bitwise_and)
bitwise_or = _delegated("bitwise_or", operator.or_, ops.bitwise_or)
bitwise_xor = _delegated("bitwise_xor", operator.xor, ops.bitwise_xor)
matmul = _delegated("matmul", operator.matmul, ops.matmul)


def negative(x: Any) -> Any:
    """`-x`; integers wrap, unsigned ones too."""
    if is_array(x) and _is_bool(x):
        raise TypeError("`-` of a boolean: write -int(a), or `not`")
    if is_tensor(x) and x.dtype.is_unsigned:
        return ~x + tensorflow().ones_like(x)
    return -x


def positive(x: Any) -> Any:
    """`+x`: the value itself."""
    if is_array(x) and _is_bool(x):
        raise TypeError("`+` of a boolean: write int(a)")
    return x if is_array(x) else +x


def invert(x: Any) -> Any:
    """`~x`: all bits of an integer, `not` of a boolean array."""
    if isinstance(x, bool):
        raise TypeError("`~` of a Python boolean is an integer (~True is -2): write `not`")
    return ~x


# Division


_Division = Callable[..., Any]


def _safe_divisor(x: Any, y: Any, symbol: str, checks: Checks | None, check: int) -> Any:
    """`y`, with 1 in place of zeros of an integer divisor; these are noted, or raise without `checks`."""
    _refuse_bools(symbol, x, y)
    if common_dtype((x, y)).kind not in "iu":
        return y
    if is_tensor(y):
        nonzero = ops.nonzero(y)
        if checks is not None:
            checks.note(check, ops.all(nonzero))
        return ops.where(nonzero, y, ops.ones_like(y))
    held = bool(np.all(np.not_equal(y, 0))) if is_python_scalar(y) else np.all(np.not_equal(y, 0))
    if checks is not None:
        checks.note(check, held)
    elif not held:
        raise ZeroDivisionError(f"integer `{symbol}` by zero")
    if held:
        return y
    return 1 if is_python_scalar(y) else np.where(np.equal(y, 0), np.ones_like(y), y)[()]


def _division(name: str, symbol: str, python: _Binary, integers: _Binary, floats: _Binary) -> _Division:
    def on_lanes(x: Any, y: Any, checks: Checks | None = None, check: int = 0) -> Any:
        if is_python_scalar(x, y):
            if checks is None or y != 0:
                return python(x, y)
            if isinstance(x, int) and isinstance(y, int):
                checks.note(check, False)
                return python(x, 1)
            with np.errstate(all="ignore"):
                return float(python(np.float64(x), np.float64(y)))
        x, y = _as_arrays(x, y)
        operands = _operands(x, y)
        if operands is None:
            if not ((is_array(x) or is_python_scalar(x)) and (is_array(y) or is_python_scalar(y))):
                return python(x, y)
            _require_fits(x, y)
            return python(x, _safe_divisor(x, y, symbol, checks, check))
        y = _safe_divisor(*operands, symbol, checks, check)
        a, b = _promoted(operands[0], y)
        if a.dtype.is_integer:
            return integers(a, b)
        if a.dtype.size == 2:  # for which TensorFlow has no remainder; NumPy computes it in float32 too
            return convert(floats(convert(a, "float32", True), convert(b, "float32", True)), dtype_of(a), True)
        return floats(a, b)

    on_lanes.__name__ = on_lanes.__qualname__ = name
    return on_lanes


def _without_minus_one(y: Any) -> tuple[Any, Any]:
    """Where signed `y` is -1, and `y` with 1 there: the smallest integer over -1 traps on some processors."""
    tf = tensorflow()
    static = tf.get_static_value(y)
    if y.dtype.is_unsigned or (static is not None and not (static == -1).any()):
        return None, y
    minus_one = y == -tf.ones_like(y)
    return minus_one, tf.where(minus_one, tf.ones_like(y), y)


def _tensor_floor_divide_integers(x: Any, y: Any) -> Any:
    tf = tensorflow()
    minus_one, safe = _without_minus_one(y)
    quotient = tf.math.floordiv(x, safe)
    return quotient if minus_one is None else tf.where(minus_one, -quotient, quotient)


def _tensor_remainder_integers(x: Any, y: Any) -> Any:
    return tensorflow().math.floormod(x, _without_minus_one(y)[1])


def _tensor_remainder_floats(x: Any, y: Any) -> Any:
    """C's fmod, moved to the divisor's sign, as Python and NumPy do; a zero remainder has the divisor's sign too."""
    tf = tensorflow()
    remainder = tf.truncatemod(x, y)
    zero = tf.zeros_like(remainder)
    moved = tf.where((y < 0) != (remainder < 0), remainder + y, remainder)
    return tf.where(remainder == zero, tf.where(y < 0, -zero, zero), moved)


def _tensor_floor_divide_floats(x: Any, y: Any) -> Any:
    """(x - remainder) / y to the nearest integer: floor(x / y) would round 1.0 // 0.1 up to 10.

    With C's remainder, and one less where Python's has the other sign: x - (x % y) would be infinite for an infinite y.
    """
    tf = tensorflow()
    remainder = tf.truncatemod(x, y)
    quotient = (x - remainder) / y
    quotient = tf.where((remainder != 0) & ((y < 0) != (remainder < 0)), quotient - 1, quotient)
    below = tf.floor(quotient)
    nearest = tf.where(quotient - below > 0.5, below + 1, below)
    plain = x / y
    signed_zero = plain * tf.zeros_like(x)
    return tf.where(y == 0, plain, tf.where(quotient == 0, signed_zero, nearest))


floor_divide = _division(
    "floor_divide", "//", operator.floordiv, _tensor_floor_divide_integers, _tensor_floor_divide_floats
)
remainder = _division("remainder", "%", operator.mod, _tensor_remainder_integers, _tensor_remainder_floats)


def divmod_(x: Any, y: Any, checks: Checks | None = None, check: int = 0) -> tuple[Any, Any]:
    """`divmod(x, y)`."""
    return floor_divide(x, y, checks, check), remainder(x, y, checks, check)


# Powers and shifts


_XLA_EXPONENTS = 64
"""XLA reads an integer exponent modulo 64."""


def _is_half(y: Any) -> bool:
    static = tensorflow().get_static_value(y)
    return static is not None and bool((np.abs(static) == 0.5).any())


def _tensor_power(x: Any, y: Any) -> Any:
    tf = tensorflow()
    if x.dtype.is_floating:
        power = tf.pow(x, y)
        # TensorFlow computes a square root, which differs for -0.0 and -inf
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


def power(x: Any, y: Any, checks: Checks | None = None, check: int = 0) -> Any:
    """`x ** y`. An integer to a negative integer power has no integer value: that is noted, or raises without
    `checks`."""
    x, y = _as_arrays(x, y)
    operands = _operands(x, y)
    numeric = all(is_array(v) or is_python_scalar(v) for v in (x, y))
    if not numeric or (is_python_scalar(x, y) and checks is None):
        return x**y
    _refuse_bools("**", x, y)
    _require_fits(x, y)
    if common_dtype((x, y)).kind in "iu" and (is_python_scalar(y) or dtype_of(y).kind == "i"):
        if is_tensor(y):
            assert checks is not None
            checks.note(check, ops.all(y >= 0))
            y = ops.maximum(y, 0)
        else:
            held = bool(y >= 0) if is_python_scalar(y) else np.all(np.greater_equal(y, 0))
            if checks is not None:
                checks.note(check, held)
                y = y if held else ops.maximum(y, 0)
            elif not held:
                raise ValueError("an integer to a negative power is no integer: write float(a) ** b")
    if operands is None:
        return x**y
    return _tensor_power(*_promoted(operands[0] if is_tensor(x) else x, y))


def _zeros(x: Any) -> Any:
    return tensorflow().zeros_like(x)


def _signs(x: Any) -> Any:
    """-1 where an integer tensor is negative, else 0."""
    zeros = _zeros(x)
    return zeros if x.dtype.is_unsigned else tensorflow().where(x < zeros, -tensorflow().ones_like(x), zeros)


def _shift(name: str, python: _Binary, function: _Binary, beyond: Callable[[Any], Any]) -> _Division:
    """A shift; by the width of the dtype or more, what shifting bit by bit would leave (NumPy's rule)."""

    def on_lanes(x: Any, y: Any, checks: Checks | None = None, check: int = 0) -> Any:
        x, y = _as_arrays(x, y)
        operands = _operands(x, y)
        if not all(is_array(v) or is_python_scalar(v) for v in (x, y)):
            return python(x, y)
        if is_python_scalar(y) or dtype_of(y).kind == "i":
            held = ops.all(y >= 0) if is_array(y) else y >= 0
            if checks is not None:
                checks.note(check, held)
                y = ops.maximum(y, 0)
            elif not is_tensor(y) and not held:
                raise ValueError("negative shift count")
        if operands is None:
            return python(x, y)
        _refuse_bools("<<" if name == "left_shift" else ">>", x, y)
        a, b = _promoted(x, y)
        width = 8 * a.dtype.size
        if is_python_scalar(y) and y < width:
            return function(a, b)
        tf = tensorflow()
        fits = b < convert(width, b.dtype.as_numpy_dtype, True)
        return tf.where(fits, function(a, tf.where(fits, b, tf.zeros_like(b))), beyond(a))

    on_lanes.__name__ = on_lanes.__qualname__ = name
    return on_lanes


left_shift = _shift("left_shift", operator.lshift, ops.left_shift, _zeros)
right_shift = _shift("right_shift", operator.rshift, ops.right_shift, _signs)
