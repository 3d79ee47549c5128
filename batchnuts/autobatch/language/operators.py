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
    library_of,
    require_fits,
    require_scalar,
    static_shape,
    tensor_library_of,
)
from batchnuts.autobatch.language.libraries.library import TensorLibrary
from batchnuts.autobatch.language.structures import has_arrays, same, structures_compared


class Checks:
    """Per check of an expression: whether it held every time the expression evaluated it.

    A check is a Python bool where its operands are Python's own numbers or cannot go wrong (floats), else a scalar
    boolean array of the lane.
    """

    def __init__(self, inputs: Sequence[Any] = ()) -> None:
        self._traces = [trace for trace in map(_trace_of, inputs) if trace is not None]
        self._held: dict[int, Any] = {}

    def note(self, check: int, held: Any) -> None:
        """The check was evaluated once more. In a function that the library itself calls, nothing can be noted."""
        trace = _trace_of(held)
        if self._traces and trace is not None and not any(trace is own_trace for own_trace in self._traces):
            return
        before = self._held.get(check, True)
        self._held[check] = held if before is True else before if held is True else ops.logical_and(before, held)

    def results(self, count: int) -> tuple[Any, ...]:
        """Checks 0 to count - 1; one that was never evaluated held."""
        return tuple(self._held.get(check, True) for check in range(count))


def _trace_of(value: Any) -> object | None:
    library = tensor_library_of(value)
    return None if library is None else library.trace_of(value)


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
        y = convert(y, dtype_of(y), library_of(y))
    elif is_array(y) and isinstance(x, (list, tuple)):
        x = convert(x, dtype_of(x), library_of(x))
    return x, y


def _library_of_operands(x: Any, y: Any) -> TensorLibrary | None:
    """The library of the tensors, if at least one operand is one and both are numeric; else None: Python's operator."""
    numeric = all(is_array(value) or isinstance(value, (bool, int, float, complex)) for value in (x, y))
    return tensor_library_of(x, y) if numeric else None


def _require_fits(x: Any, y: Any) -> None:
    """NumPy raises for integers that do not fit, but makes floats infinite."""
    for number, array in ((x, y), (y, x)):
        if is_python_scalar(number) and is_array(array) and dtype_of(array).kind == "f":
            require_fits(number, dtype_of(array))


def _promoted(library: TensorLibrary, x: Any, y: Any, real: bool = False) -> tuple[Any, Any]:
    """Numeric operands as tensors of their common dtype."""
    dtype = common_dtype((x, y), real)
    return convert(x, dtype, library), convert(y, dtype, library)


_Binary = Callable[[Any, Any], Any]

_NUMPYS = (np.ndarray, np.generic)
"""Types of NumPy's arrays."""


def _arithmetic(name: str, symbol: str, python: _Binary, function: str, real: bool = False) -> _Binary:
    """Python's operator as it is; on tensors the library's `function` of the promoted operands."""

    def on_lanes(x: Any, y: Any) -> Any:
        if isinstance(x, _NUMPYS) and isinstance(y, _NUMPYS) and (real or "b" not in (x.dtype.kind, y.dtype.kind)):
            return python(x, y)  # what most operations are on NumPy, where each lane makes all of them
        x, y = _as_arrays(x, y)
        library = _library_of_operands(x, y)
        if library is None:
            if is_array(x) or is_array(y):
                if not real:
                    _refuse_bools(symbol, x, y)
                _require_fits(x, y)
            return python(x, y)
        if not real:
            _refuse_bools(symbol, x, y)
        return getattr(library, function)(*_promoted(library, x, y, real))

    on_lanes.__name__ = on_lanes.__qualname__ = name
    return on_lanes


add = _arithmetic("add", "+", operator.add, "add")
subtract = _arithmetic("subtract", "-", operator.sub, "subtract")
_times = _arithmetic("multiply", "*", operator.mul, "multiply")


def multiply(x: Any, y: Any) -> Any:
    """`x * y`. TypeError for a list or tuple repeated by a value of the lane."""
    for sequence, count in ((x, y), (y, x)):
        if isinstance(sequence, (list, tuple, str)) and is_array(count) and static_shape(count) == ():
            raise TypeError(
                f"a {type(sequence).__name__} times a lane's number has no length at compile time. Give the length as "
                "a constant, or fill a buffer with autobatch.write"
            )
    return _times(x, y)


static_divide = _arithmetic("static_divide", "/", operator.truediv, "divide", real=True)


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


def _as_one_sign(library: TensorLibrary, x: Any, y: Any) -> tuple[Any, Any]:
    """Of int64 and uint64, which would meet in float64 and be rounded: order by sign and then by bits, in int64."""
    signs, bits = [], []
    for value in (x, y):
        signed = convert(value, "int64", library)
        sign = 1 if dtype_of(value).kind == "u" else -1
        signs.append(ops.where(library.less(signed, np.int64(0)), sign, ops.zeros_like(signed)))
        bits.append(signed)
    # the differing sign decides; alike, the 64 bits compare as they stand
    alike = library.equal(*signs)
    return ops.where(alike, bits[0], signs[0]), ops.where(alike, bits[1], signs[1])


_NO_NUMBERS = (str, bytes, dict, type(None))
"""Types whose values equal no number, which libraries refuse to compare."""


def _comparison(name: str, python: _Binary, ordered: bool) -> _Binary:
    def on_lanes(x: Any, y: Any) -> Any:
        if isinstance(x, _NUMPYS) and isinstance(y, _NUMPYS):
            return python(x, y)
        x, y = _as_arrays(x, y)
        library = _library_of_operands(x, y)
        if library is None:
            if not (is_array(x) or is_array(y)):
                held = has_arrays(x) or has_arrays(y)
                return structures_compared(python, x, y, _BY_PYTHONS) if held else python(x, y)
            if not ordered and isinstance(y if is_array(x) else x, _NO_NUMBERS):
                return name == "not_equal"
            _require_fits(x, y)
            return python(x, y)
        everywhere = _against_outside(name, x, y)
        if everywhere is not None:
            return library.full_like(x if is_array(x) else y, np.bool_(everywhere))
        integers = all(is_array(value) and dtype_of(value).kind in "iu" for value in (x, y))
        if integers and common_dtype((x, y)).kind == "f":
            a, b = _as_one_sign(library, x, y)
        else:
            a, b = _promoted(library, x, y)
        if ordered and dtype_of(a).kind == "b":
            a, b = convert(a, "uint8", library), convert(b, "uint8", library)
        return getattr(library, name)(a, b)

    on_lanes.__name__ = on_lanes.__qualname__ = name
    return on_lanes


equal = _comparison("equal", operator.eq, ordered=False)
not_equal = _comparison("not_equal", operator.ne, ordered=False)
less = _comparison("less", operator.lt, ordered=True)
less_equal = _comparison("less_equal", operator.le, ordered=True)
greater = _comparison("greater", operator.gt, ordered=True)
greater_equal = _comparison("greater_equal", operator.ge, ordered=True)

_BY_PYTHONS: dict[_Binary, _Binary] = {
    operator.eq: equal,
    operator.lt: less,
    operator.le: less_equal,
    operator.gt: greater,
    operator.ge: greater_equal,
}


def contains(x: Any, values: Any) -> Any:
    """`x in values`: whether `x` equals an element of an array, tuple, list, range, set, or a dict's key or value."""
    if is_array(x) and isinstance(values, range):
        return _in_range(x, values)
    if is_array(values):
        return ops.any(equal(x, values))
    if not isinstance(values, (tuple, list, set, frozenset, dict, KeysView, ValuesView)):
        return x in values
    elements = list(values)
    if not any(map(has_arrays, (x, *elements))):
        return x in values
    return functools.reduce(ops.logical_or, [same(x, element, equal) for element in elements], False)


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


def identical(x: Any, y: Any) -> bool:
    """`x is y`: False of a value of the lane and an object such as None. TypeError for two values, which would be the
    same object or not by the way they are stored.
    """
    if all(is_array(value) or is_python_scalar(value) for value in (x, y)):
        raise TypeError(
            "`is` compares objects, which values of the lane are not: compare numbers with ==, and write `b` or "
            "`not b` of a boolean"
        )
    return x is y


def not_identical(x: Any, y: Any) -> bool:
    """`x is not y`."""
    return not identical(x, y)


def _require_bits(symbol: str, *values: Any) -> None:
    """Raise TypeError for arrays and numbers of which an operator of bits is not defined."""
    if any(is_array(v) for v in values) and not all(isinstance(v, int) or _kind(v) in "biu" for v in values):
        dtypes = " and ".join(str(dtype_of(value)) for value in values)
        raise TypeError(
            f"`{symbol}` takes integers and booleans, found {dtypes}. Cast with ops.cast(value, 'int64'), or write "
            "`and`, `or` and `not` between conditions"
        )


def _kind(value: Any) -> str:
    return value.dtype.kind if isinstance(value, _NUMPYS) else dtype_of(value).kind


def _delegated(name: str, symbol: str, python: _Binary, function: _Binary) -> _Binary:
    def on_lanes(x: Any, y: Any) -> Any:
        x, y = _as_arrays(x, y)
        if symbol != "@" and all(is_array(v) or is_python_scalar(v) for v in (x, y)):
            _require_bits(symbol, x, y)
        return python(x, y) if _library_of_operands(x, y) is None else function(x, y)

    on_lanes.__name__ = on_lanes.__qualname__ = name
    return on_lanes


bitwise_and = _delegated("bitwise_and", "&", operator.and_, ops.bitwise_and)
bitwise_or = _delegated("bitwise_or", "|", operator.or_, ops.bitwise_or)
bitwise_xor = _delegated("bitwise_xor", "^", operator.xor, ops.bitwise_xor)
matmul = _delegated("matmul", "@", operator.matmul, ops.matmul)


def negative(x: Any) -> Any:
    """`-x`; integers wrap, unsigned ones too."""
    if is_array(x) and _is_bool(x):
        raise TypeError("`-` of a boolean: write -int(a), or `not`")
    library = tensor_library_of(x)
    return -x if library is None else library.negative(x)


def positive(x: Any) -> Any:
    """`+x`: the value itself."""
    if is_array(x) and _is_bool(x):
        raise TypeError("`+` of a boolean: write int(a)")
    return x if is_array(x) else +x


def invert(x: Any) -> Any:
    """`~x`: all bits of an integer, `not` of a boolean array."""
    if isinstance(x, bool):
        raise TypeError("`~` of a Python boolean is an integer (~True is -2): write `not`")
    _require_bits("~", x)
    return ~x


# Division


_Division = Callable[..., Any]


def _safe_divisor(x: Any, y: Any, symbol: str, checks: Checks | None, check: int) -> Any:
    """`y`, with 1 in place of zeros of an integer divisor; these are noted, or raise without `checks`."""
    _refuse_bools(symbol, x, y)
    if common_dtype((x, y)).kind not in "iu":
        return y
    if tensor_library_of(y) is not None:
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


def _division(name: str, symbol: str, python: _Binary) -> _Division:
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
        library = _library_of_operands(x, y)
        if library is None:
            if not ((is_array(x) or is_python_scalar(x)) and (is_array(y) or is_python_scalar(y))):
                return python(x, y)
            _require_fits(x, y)
            return python(x, _safe_divisor(x, y, symbol, checks, check))
        return getattr(library, name)(*_promoted(library, x, _safe_divisor(x, y, symbol, checks, check)))

    on_lanes.__name__ = on_lanes.__qualname__ = name
    return on_lanes


floor_divide = _division("floor_divide", "//", operator.floordiv)
remainder = _division("remainder", "%", operator.mod)


def divmod_(x: Any, y: Any, checks: Checks | None = None, check: int = 0) -> tuple[Any, Any]:
    """`divmod(x, y)`."""
    return floor_divide(x, y, checks, check), remainder(x, y, checks, check)


# Powers and shifts


def power(x: Any, y: Any, checks: Checks | None = None, check: int = 0) -> Any:
    """`x ** y`. An integer to a negative integer power has no integer value: that is noted, or raises without
    `checks`."""
    x, y = _as_arrays(x, y)
    library = _library_of_operands(x, y)
    numeric = all(is_array(v) or is_python_scalar(v) for v in (x, y))
    if not numeric or (is_python_scalar(x, y) and checks is None):
        return x**y
    _refuse_bools("**", x, y)
    _require_fits(x, y)
    if common_dtype((x, y)).kind in "iu" and (is_python_scalar(y) or dtype_of(y).kind == "i"):
        if tensor_library_of(y) is not None:
            assert checks is not None
            checks.note(check, ops.all(greater_equal(y, 0)))
            y = ops.maximum(y, 0)
        else:
            held = bool(y >= 0) if is_python_scalar(y) else np.all(np.greater_equal(y, 0))
            if checks is not None:
                checks.note(check, held)
                y = y if held else ops.maximum(y, 0)
            elif not held:
                raise ValueError("an integer to a negative power is not an integer: write float(a) ** b")
    return x**y if library is None else library.power(*_promoted(library, x, y))


def _beyond(x: Any) -> Any:
    """What shifting an integer to the right by its width or more leaves: its sign."""
    return ops.zeros_like(x) if dtype_of(x).kind == "u" else ops.right_shift(x, 8 * dtype_of(x).itemsize - 1)


def _shift(name: str, symbol: str, python: _Binary, function: _Binary, beyond: Callable[[Any], Any]) -> _Division:
    """A shift; by the width of the dtype or more, what shifting bit by bit would leave (NumPy's rule)."""

    def on_lanes(x: Any, y: Any, checks: Checks | None = None, check: int = 0) -> Any:
        x, y = _as_arrays(x, y)
        library = _library_of_operands(x, y)
        if not all(is_array(v) or is_python_scalar(v) for v in (x, y)):
            return python(x, y)
        _require_bits(symbol, x, y)
        if is_python_scalar(y) or dtype_of(y).kind == "i":
            held = ops.all(greater_equal(y, 0)) if is_array(y) else y >= 0
            if checks is not None:
                checks.note(check, held)
                y = ops.maximum(y, 0)
            elif not held and tensor_library_of(y) is None:
                raise ValueError("negative shift count")
        if library is None:
            return python(x, y)
        _refuse_bools(symbol, x, y)
        a, b = _promoted(library, x, y)
        width = 8 * dtype_of(a).itemsize
        if is_python_scalar(y) and y < width:
            return function(a, b)
        fits = less(b, width)
        return ops.where(fits, function(a, ops.where(fits, b, 0)), beyond(a))

    on_lanes.__name__ = on_lanes.__qualname__ = name
    return on_lanes


left_shift = _shift("left_shift", "<<", operator.lshift, ops.left_shift, ops.zeros_like)
right_shift = _shift("right_shift", ">>", operator.rshift, ops.right_shift, _beyond)
