"""Operators on lanes: the same dtypes and values on TensorFlow and JAX as NumPy 2 (and so Python) has them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from array_libraries import HAS_JAX, as_jax, every_library, every_tensor, in_jax, needs_jax
from ways import rotating

from batchnuts.autobatch import ops
from batchnuts.autobatch.language import operators
from batchnuts.autobatch.language.indexing import item
from batchnuts.autobatch.language.operators import Checks

DTYPES = ("bool", "int8", "int32", "int64", "uint8", "uint32", "uint64", "float32", "float64")
VALUES = {
    "b": [True, False, True, True, False, True],
    "i": [-7, 7, -7, 6, 0, 1],
    "u": [7, 200, 9, 6, 0, 1],
    "f": [-7.5, 7.5, -1.0, 1.0, 0.0, -0.0],
}
OTHERS = {
    "b": [True, True, True, True, True, True],
    "i": [3, -3, -2, 4, 5, 2],
    "u": [3, 2, 4, 4, 5, 2],
    "f": [2.0, -2.0, 0.1, 0.1, -3.0, 0.7],
}
ARITHMETIC: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "+": (operators.add, operator.add),
    "-": (operators.subtract, operator.sub),
    "*": (operators.multiply, operator.mul),
    "/": (operators.divide, operator.truediv),
    "//": (operators.floor_divide, operator.floordiv),
    "%": (operators.remainder, operator.mod),
}
COMPARISONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "==": (operators.equal, operator.eq),
    "!=": (operators.not_equal, operator.ne),
    "<": (operators.less, operator.lt),
    "<=": (operators.less_equal, operator.le),
    ">": (operators.greater, operator.gt),
    ">=": (operators.greater_equal, operator.ge),
}
BITS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "&": (operators.bitwise_and, operator.and_),
    "|": (operators.bitwise_or, operator.or_),
    "^": (operators.bitwise_xor, operator.xor),
}


@pytest.fixture(autouse=True)
def _as_compiled_expressions_run() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def operands(first: str, second: str) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array(VALUES[np.dtype(first).kind], "int64" if first == "bool" else "float64").astype(first),
        np.array(OTHERS[np.dtype(second).kind], "float64").astype(second),
    )


def assert_equal(found: Any, expected: Any) -> None:
    assert ops.dtype_of(found) == expected.dtype
    np.testing.assert_array_equal(found, expected)
    if expected.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def ways(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """The results on arrays of all libraries, vectorized too."""
    tensors = [tf.constant(a) for a in arguments]

    @tf.function(jit_compile=True, autograph=False)
    def compiled(*lanes: Any) -> Any:
        return tf.vectorized_map(lambda lane: function(*lane), lanes, fallback_to_while_loop=False)

    found = {"numpy": function(*arguments), "eager": function(*tensors), "xla": compiled(*tensors)}
    if HAS_JAX:
        found["jax"] = function(*map(as_jax, arguments))
        found["jax xla"] = in_jax(function, lanes=True)(*arguments)
    return found


@every_tensor
@pytest.mark.parametrize("second", DTYPES)
@pytest.mark.parametrize("first", DTYPES)
def test_dtypes_meet_as_numpy_has_it(first: str, second: str, as_array: Callable[..., Any]) -> None:
    x, y = operands(first, second)
    both_bools = first == second == "bool"
    for symbol, (function, python) in {**ARITHMETIC, **COMPARISONS}.items():
        if both_bools and symbol in ("+", "-", "*", "//", "%"):
            for a, b in ((x, y), (as_array(x), as_array(y))):
                with pytest.raises(TypeError, match="of two booleans"):
                    function(a, b)
            continue
        assert_equal(function(x, y), python(x, y))
        assert_equal(function(as_array(x), as_array(y)), python(x, y))
    if np.result_type(x, y).kind != "f":
        for function, python in BITS.values():
            assert_equal(function(as_array(x), as_array(y)), python(x, y))


@every_tensor
@pytest.mark.parametrize("dtype", DTYPES)
def test_python_numbers_are_weak(dtype: str, as_array: Callable[..., Any]) -> None:
    x, _ = operands(dtype, dtype)
    for number in (3, 2.5):
        for symbol, (function, python) in {**ARITHMETIC, **COMPARISONS}.items():
            assert_equal(function(as_array(x), number), python(x, number))
            if symbol not in ("/", "//", "%"):
                assert_equal(function(number, as_array(x)), python(number, x))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float32", "float64"])
@pytest.mark.parametrize("symbol", ["//", "%", "/"])
def test_division_compiled_and_vectorized(symbol: str, dtype: str) -> None:
    x, y = operands(dtype, dtype)
    function, python = ARITHMETIC[symbol]
    expected = python(x, y)
    for way, found in ways(function, x, y).items():
        if symbol == "//" and way.endswith("xla") and dtype == "float32":  # XLA may multiply by a reciprocal
            np.testing.assert_allclose(found, expected, rtol=1e-6)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=way)


@pytest.mark.parametrize("function", [operators.floor_divide, operators.remainder])
def test_the_smallest_integer_over_minus_one_wraps(function: Callable[..., Any]) -> None:
    smallest = np.array([np.iinfo("int64").min, -7, 7])
    minus_one = np.array([-1, -1, -1])
    expected = operator.floordiv(smallest, minus_one) if function is operators.floor_divide else np.zeros(3)
    for way, found in ways(lambda x, y: function(x, y, Checks(), 0), smallest, minus_one).items():
        np.testing.assert_array_equal(found, expected, err_msg=way)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32", "float32", "float64"])
def test_powers(dtype: str) -> None:
    x, _ = operands(dtype, dtype)
    exponents = np.array([0, 1, 2, 3, 5, 7]).astype(dtype)
    expected = x**exponents
    for way, found in ways(lambda x, y: operators.power(x, y, Checks(), 0), x, exponents).items():
        assert ops.dtype_of(found) == expected.dtype
        np.testing.assert_allclose(np.asarray(found), expected, rtol=2e-6, err_msg=way)
    for as_array in (tf.constant, as_jax) if HAS_JAX else (tf.constant,):
        assert_equal(operators.power(as_array(x), 2), x**2)


def test_shifts_by_more_than_the_width_leave_nothing() -> None:
    x = np.array([-5, 5, -1, 1, 7])
    amounts = np.array([1, 63, 64, 100, 0])
    for function, python in (
        (operators.left_shift, operator.lshift),
        (operators.right_shift, operator.rshift),
    ):
        for found in ways(lambda a, b, f=function: f(a, b, Checks(), 0), x, amounts).values():
            np.testing.assert_array_equal(found, python(x, amounts))
        for as_array in (tf.constant, as_jax) if HAS_JAX else (tf.constant,):
            np.testing.assert_array_equal(function(as_array(x), 2), python(x, 2))
            with pytest.raises(ValueError, match="negative shift"):
                function(as_array(x), -1)


@every_library
def test_what_has_no_value_is_noted(as_array: Callable[..., Any]) -> None:
    x, zero = as_array(np.int64(7)), as_array(np.int64(0))
    for function, y, result in (
        (operators.floor_divide, zero, 7),
        (operators.remainder, zero, 0),
        (operators.power, as_array(np.int64(-2)), 1),
        (operators.left_shift, as_array(np.int64(-2)), 7),
    ):
        checks = Checks()
        assert int(function(x, y, checks, 1)) == result
        never, held = checks.results(2)
        assert never is True
        assert not bool(held)


@every_library
def test_static_mistakes_raise(as_array: Callable[..., Any]) -> None:
    x = as_array(np.arange(3))
    with pytest.raises(ZeroDivisionError, match="by zero"):
        operators.floor_divide(x, 0)
    with pytest.raises(ValueError, match="negative power"):
        operators.power(x, -1)
    with pytest.raises(TypeError, match="write -int"):
        operators.negative(operators.greater(x, 0))
    with pytest.raises(TypeError, match="write `not`"):
        operators.invert(True)


@every_library
def test_floats_need_no_check(as_array: Callable[..., Any]) -> None:
    y, checks = as_array(np.float32(0.0)), Checks()
    assert np.isnan(float(operators.remainder(y, y, checks, 0)))
    assert checks.results(1) == (True,)
    assert np.isinf(operators.divide(1, 0))


def test_other_values_keep_their_own_operators() -> None:
    assert operators.add((1,), (2,)) == (1, 2)
    assert operators.add("a", "b") == "ab"
    assert operators.multiply([1], 2) == [1, 1]
    assert operators.remainder("%d", 3) == "3"
    assert operators.equal("a", "a") is True


@every_tensor
def test_tensors_beside_other_values(as_array: Callable[..., Any]) -> None:
    class Mine:
        def __radd__(self, other: Any) -> str:
            return "mine"

    assert operators.add(as_array(1), Mine()) == "mine"
    np.testing.assert_array_equal(operators.add(as_array([1, 2]), [0.5, 1.5]), [1.5, 3.5])
    assert operators.negative(np.uint32(1)) == operators.negative(as_array(np.uint32(1)))


@needs_jax
def test_nothing_is_noted_in_a_function_that_jax_calls() -> None:
    import jax

    def lane(x: Any) -> tuple[Any, Any, Any]:
        checks = Checks((x,))

        def quotient(y: Any) -> Any:
            return operators.floor_divide(y, x, checks, 0)

        rounds, _ = jax.lax.scan(lambda carry, _: (quotient(carry), None), x, None, length=2)
        slope = jax.grad(lambda z: z * item(jax.numpy.ones(3), x, checks, 1))(1.0)
        return rounds, slope, checks.results(2)

    _, slope, (divided, inside) = in_jax(lane, lanes=True)(np.array([1, 5]))
    assert slope.tolist() == [1.0, 1.0]
    assert divided is True or np.asarray(divided).tolist() == [True, True]
    assert np.asarray(inside).tolist() == [True, False]


SPECIAL_DTYPES = [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", *DTYPES[-2:]]


def special_pairs(symbol: str, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of special values for which the operator has a value."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        special = {
            limits.max,
            limits.max - 1,
            limits.min,
            limits.min + 1,
            0,
            1,
            2,
            7,
            *((-1, -7) * (dtype.kind == "i")),
        }
        seconds = (
            {0, 1, 2, 3, 8 * dtype.itemsize - 1, 8 * dtype.itemsize, 100} if symbol in ("**", "<<", ">>") else special
        )
        pairs = [(x, y) for x in special for y in seconds if y or symbol not in ("//", "%")]
    else:
        some = [0.0, 0.5, 1.0, 2.5, 3.0, np.inf, float(np.finfo(dtype).max), float(np.finfo(dtype).tiny)]
        special_floats = [*some, *(-v for v in some), np.nan]
        pairs = list(itertools.product(special_floats, [0, 0.5, 1, 2] if symbol == "**" else special_floats))
    x, y = (np.array(values, dtype) for values in zip(*pairs))
    return x, y


@needs_jax
@pytest.mark.parametrize(
    ("dtype", "compiled"),
    rotating({name: np.dtype(name) for name in SPECIAL_DTYPES}, {"eager": False, "xla": True}, always=0),
)
def test_special_numbers_in_jax(dtype: np.dtype, compiled: bool) -> None:
    """Every operator, for all pairs of special values; those of TensorFlow are in test_silent_values."""
    checked = {"//", "%", "**", "<<", ">>"}
    more = {"**": (operators.power, operator.pow)}
    if dtype.kind in "iu":
        more |= {"<<": (operators.left_shift, operator.lshift), ">>": (operators.right_shift, operator.rshift), **BITS}
    for symbol, (function, python) in {**ARITHMETIC, **COMPARISONS, **more}.items():
        if symbol == "/" and dtype.kind in "iu":
            continue
        x, y = special_pairs(symbol, dtype)
        expected = python(x, y)

        def lanes(a: Any, b: Any, f: Any = function, more: bool = symbol in checked) -> Any:
            return f(a, b, Checks(), 0) if more else f(a, b)

        found = np.asarray(in_jax(lanes, lanes=True)(x, y) if compiled else lanes(as_jax(x), as_jax(y)))
        assert found.dtype == expected.dtype, symbol
        agree = (found == expected) & (np.signbit(found) == np.signbit(expected)) | (found != found) & (
            expected != expected
        )
        if expected.dtype.kind == "f":  # docs/language_meaning.md
            limits = np.finfo(expected.dtype)
            agree |= np.abs(found - expected) <= 4 * limits.eps * np.abs(expected)
            agree |= (found == 0) & (np.abs(expected) < limits.tiny)
        shown = list(zip(x[~agree], y[~agree], found[~agree], expected[~agree]))
        assert not shown, f"{symbol}: {len(shown)} are wrong; (x, y, found, expected) = {shown[:4]}"


# ---- indexing -------------------------------------------------------------------------------------------------------

TABLE = np.arange(24.0).reshape(2, 3, 4)


@every_library
@pytest.mark.parametrize(
    "index",
    [
        lambda i, j: i,
        lambda i, j: (i, j),
        lambda i, j: (i, slice(None), j),
        lambda i, j: (Ellipsis, j),
        lambda i, j: (1, j),
        lambda i, j: (slice(None), j, slice(1, 3)),
        lambda i, j: (i, None, j),
        lambda i, j: (i, j, -1),
        lambda i, j: (slice(None, None, -1), j),
    ],
)
def test_indices_of_a_lane(index: Callable[..., Any], as_array: Callable[..., Any]) -> None:
    for i, j in ((0, 2), (-1, -3), (1, 0)):
        expected = TABLE[index(i, j)]
        checks = Checks()
        found = item(as_array(TABLE), index(as_array(np.int64(i)), as_array(np.int32(j))), checks, 0)
        np.testing.assert_array_equal(found, expected)
        assert bool(checks.results(1)[0])


@every_library
def test_an_index_outside_is_noted_and_clamped(as_array: Callable[..., Any]) -> None:
    x = as_array(np.arange(3))
    for i, nearest in ((3, 2), (-4, 0), (100, 2), (-100, 0)):
        checks = Checks()
        assert int(item(x, as_array(np.int64(i)), checks, 0)) == nearest
        assert not bool(checks.results(1)[0])
    checks = Checks()
    np.testing.assert_array_equal(item(x, as_array(np.array([0, 3, -1])), checks, 0), [0, 2, 2])
    assert not bool(checks.results(1)[0])


@every_library
def test_indices_without_a_static_meaning(as_array: Callable[..., Any]) -> None:
    x, i = as_array(TABLE), as_array(np.int64(1))
    with pytest.raises(TypeError, match="bounds of a slice"):
        item(x, slice(None, i), Checks(), 0)
    with pytest.raises(TypeError, match="index of a tuple"):
        item((1.0, 2.0), i, Checks(), 0)
    with pytest.raises(TypeError, match="must be an integer, not bool"):
        item(x, as_array(np.array([True, False])), Checks(), 0)
    with pytest.raises(TypeError, match="one array of indices"):
        item(x, (i, as_array(np.array([0, 1]))), Checks(), 0)
    with pytest.raises(IndexError, match="too many indices"):
        item(x, (i, i, i, i), Checks(), 0)
    with pytest.raises(IndexError, match="empty"):
        item(as_array(np.zeros(0)), i, Checks(), 0)


def test_indexing_vectorizes_without_a_loop() -> None:
    rows = np.arange(12.0).reshape(2, 2, 3)
    i, j = np.array([1, 0]), np.array([-1, 5])

    def lane(x: Any, i: Any, j: Any) -> tuple[Any, Any]:
        checks = Checks((x,))
        return item(x, (i, j), checks, 0), checks.results(1)[0]

    for compiled in (False, True):

        @tf.function(jit_compile=compiled, autograph=False)
        def every(*lanes: Any) -> Any:
            return tf.vectorized_map(lambda values: lane(*values), lanes, fallback_to_while_loop=False)

        found, held = every(*map(tf.constant, (rows, i, j)))
        np.testing.assert_array_equal(found, [rows[0, 1, -1], rows[1, 0, 2]])
        assert held.numpy().tolist() == [True, False]
    if HAS_JAX:
        found, held = in_jax(lane, lanes=True)(rows, i, j)
        np.testing.assert_array_equal(found, [rows[0, 1, -1], rows[1, 0, 2]])
        assert held.tolist() == [True, False]
