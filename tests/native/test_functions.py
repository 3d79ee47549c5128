"""Functions in machine code, element by element: against exact values, in units in the last place, and at the ends."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
from llvmlite import ir

from batchnuts.autobatch import batch, ops
from batchnuts.autobatch.language.libraries.numpy import NUMPY
from batchnuts.autobatch.native import function_table
from batchnuts.autobatch.native.arrays import Emitter
from batchnuts.autobatch.native.compile import code_of
from batchnuts.autobatch.native.types import POINTER, number

COUNT = 4096


@functools.cache
def compiled(name: str, dtypes: tuple[str, ...], result: str, *constants: float) -> Callable[..., np.ndarray]:
    """The function of arrays [COUNT] and constants, in a loop that LLVM may vectorize; `cast` and `bitcast` go to
    `result`."""
    module = ir.Module(name)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * (len(dtypes) + 1)), "f")
    b = ir.IRBuilder(function.append_basic_block("entry"))
    body = function.append_basic_block("body")
    b.branch(body)
    b.position_at_end(body)
    em = Emitter(b, None)
    with em.loop(COUNT) as i:
        arrays = [em.memory(np.dtype(d), (COUNT,), p) for d, p in zip(dtypes, function.args, strict=False)]
        elements = [array.element((i,)) for array in arrays]
        if name in ("cast", "bitcast"):
            element = getattr(function_table, name)(b, elements[0], np.dtype(dtypes[0]), np.dtype(result))
        else:
            known = [number(np.dtype(dtypes[0]), value) for value in constants]
            element = function_table.RULES[name](b, np.dtype(dtypes[0]), *elements, *known)
        em.store(element, em.at(function.args[-1], em.offset((i,), (COUNT,), np.dtype(result))))
    b.ret_void()
    code = code_of(module)
    call = code.function("f", *[ctypes.c_void_p] * (len(dtypes) + 1))

    def run(*arrays: Any) -> np.ndarray:
        size = len(np.atleast_1d(arrays[0]))
        given = [np.resize(np.asarray(a, d), COUNT) for a, d in zip(arrays, dtypes, strict=True)]
        out = np.empty(COUNT, result)
        call(*(a.ctypes.data for a in given), out.ctypes.data)
        return out[:size]

    return run


def spread(dtype: str, low: float, high: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers of all sizes, and evenly spread ones, within bounds."""
    even = rng.uniform(max(low, -1e3), min(high, 1e3), count)
    sizes = np.exp(rng.uniform(np.log(np.finfo(dtype).tiny), np.log(min(high, 1e30)), count))
    both = np.concatenate([even, sizes, -sizes if low < 0 else sizes])
    return np.clip(both, low, high).astype(dtype)


EXACT: dict[str, tuple[Callable[[Any], Any], float, float, float]] = {
    "exp": (mpmath.exp, -103.0, 88.0, 1.0),
    "expm1": (mpmath.expm1, -50.0, 88.0, 2.0),
    "log": (mpmath.log, 0.0, 1e38, 1.0),
    "log1p": (mpmath.log1p, -0.9999, 1e30, 1.5),
    "sigmoid": (lambda x: 1 / (1 + mpmath.exp(-x)), -80.0, 80.0, 2.5),
    "softplus": (lambda x: mpmath.log1p(mpmath.exp(x)), -80.0, 80.0, 2.0),
    "tanh": (mpmath.tanh, -30.0, 30.0, 3.0),
    "sqrt": (mpmath.sqrt, 0.0, 1e30, 0.5),
    "erf": (mpmath.erf, -5.0, 5.0, 1.0),
    "sin": (mpmath.sin, -1e4, 1e4, 0.5),
    "cos": (mpmath.cos, -1e4, 1e4, 0.5),
    "tan": (mpmath.tan, -1e4, 1e4, 2.0),
    "gammaln": (mpmath.loggamma, 1e-6, 1e6, 3.0),
    "digamma": (mpmath.digamma, 3.0, 1e6, 4.0),
}
"""The function, the ends of what is tried, and the most units in the last place, but for half of one."""


def units(found: np.ndarray, x: np.ndarray, exact: Callable[[Any], Any], bits: int = 200) -> np.ndarray:
    """The error of each result, in units in the last place. bits: of what is computed with."""
    with mpmath.workprec(bits):
        truths = [exact(mpmath.mpf(float(v))) for v in x]
        errors = [abs(mpmath.mpf(float(f)) - t) for f, t in zip(found, truths, strict=True)]
        nearest = np.array([float(t) for t in truths]).astype(found.dtype)
        return np.array([float(e) for e in errors]) / np.spacing(np.abs(nearest)).astype(float)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EXACT)
def test_errors_in_units_in_the_last_place(name: str, dtype: str) -> None:
    exact, low, high, bound = EXACT[name]
    x = spread(dtype, low, high, 150, np.random.default_rng(1))
    found = compiled(name, (dtype,), dtype)(x)
    error = units(found, x, exact)
    assert error.max() <= bound + 0.5, (x[error.argmax()], found[error.argmax()])


def of_all_sizes(dtype: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Positive numbers from the smallest subnormal one to the largest."""
    bounds = np.finfo(dtype)
    ends = [bounds.smallest_subnormal, bounds.tiny, bounds.max]
    return np.array([*np.exp(rng.uniform(np.log(ends[0]), np.log(bounds.max), count)), *ends], dtype)


def beside(dtype: str, places: Any, rng: np.random.Generator) -> np.ndarray:
    """The nearest numbers to some places, those after and before them, and others near."""
    near = np.asarray(places).astype(dtype)
    far = near * (1 + np.exp(rng.uniform(-30, -3, near.shape)) * rng.choice([-1, 1], near.shape))
    return np.concatenate([near, np.nextafter(near, 0, dtype=dtype), np.nextafter(near, np.inf, dtype=dtype), far])


def hard_for_turns(dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Beside multiples of pi/2, and of all sizes: from 10^5 or 10^6 on the C library computes."""
    multiples = np.concatenate([np.arange(1, 20), rng.integers(20, 60_000, 60), rng.integers(60_000, 10**12, 40)])
    x = np.concatenate([beside(dtype, multiples * (np.pi / 2), rng), of_all_sizes(dtype, 100, rng)])
    return np.concatenate([x, -x, beside(dtype, [1e5, 1e6], rng)]).astype(dtype)


def hard_for_erf(dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Where one formula takes over from another, where the result rounds to 1, and small numbers."""
    x = np.concatenate(
        [beside(dtype, [*rng.uniform(0.9, 1.1, 40), 3.9, 4, 5.9, 6, 26], rng), of_all_sizes(dtype, 50, rng)]
    )
    return np.concatenate([x, -x]).astype(dtype)


def hard_for_gammaln(dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Beside the zeros 1 and 2, where one formula takes over from another, and of all sizes."""
    places = [0.5, np.sqrt(0.5), *[1.0] * 60, np.sqrt(2), 1.5, *[2.0] * 60, 2.5, *rng.uniform(2.5, 3, 40)]
    x = np.concatenate([beside(dtype, places, rng), of_all_sizes(dtype, 100, rng)])
    return x[x < np.finfo(dtype).max / 1e4].astype(dtype)


HARD: dict[str, Callable[[str, np.random.Generator], np.ndarray]] = {
    "sin": hard_for_turns,
    "cos": hard_for_turns,
    "tan": hard_for_turns,
    "erf": hard_for_erf,
    "gammaln": hard_for_gammaln,
}
"""Arguments where a function's error may be larger."""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", HARD)
def test_errors_where_functions_are_hard(name: str, dtype: str) -> None:
    """The bounds of the table; subnormal results are as exact."""
    exact, _, _, bound = EXACT[name]
    x = HARD[name](dtype, np.random.default_rng(5))
    found = compiled(name, (dtype,), dtype)(x)
    error = units(found, x, exact, 1300)  # the remainder of the largest numbers takes as many
    assert error.max() <= bound + 0.5, (x[error.argmax()], found[error.argmax()])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_logarithm_of_the_gamma_function_of_negative_numbers(dtype: str) -> None:
    """The C library's: beside zeros the error is one of 4 units of 1. Poles at integers."""
    x = np.concatenate([np.random.default_rng(6).uniform(-30, 0, 200), [-2.457024738220801, -2.7476826467274127]])
    x = x.astype(dtype)
    found = compiled("gammaln", (dtype,), dtype)(x)
    exact = np.array([float(mpmath.re(mpmath.loggamma(float(v)))) for v in x])
    assert (np.abs(found - exact) <= 4 * np.finfo(dtype).eps * np.maximum(1, np.abs(exact))).all()
    poles = np.array([-1, -2, -30, -1e6, -np.finfo(dtype).max], dtype)
    np.testing.assert_array_equal(compiled("gammaln", (dtype,), dtype)(poles), np.inf)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_digamma_beside_its_zeros_and_poles(dtype: str) -> None:
    """The error is one of its terms: beside zeros of 8 units of 1, and by reflection beside poles of the result."""
    x = np.random.default_rng(6).uniform(-30, 3, 400).astype(dtype)
    x = x[np.abs(x - np.rint(x)) > 0.01]
    found = compiled("digamma", (dtype,), dtype)(x)
    exact = np.array([float(mpmath.digamma(float(v))) for v in x])
    slack = np.abs(x) * np.finfo(dtype).eps * (1 + exact**2)  # the argument of tan is rounded
    assert (np.abs(found - exact) <= 8 * np.finfo(dtype).eps * np.maximum(1, np.abs(exact)) + slack).all()
    ends = np.array([0.0, -0.0, -1.0, -7.0, np.inf, -np.inf, np.nan], dtype)
    expected = [-np.inf, np.inf, np.nan, np.nan, np.inf, np.nan, np.nan]
    np.testing.assert_array_equal(compiled("digamma", (dtype,), dtype)(ends), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "rare"), [("sin", 1e7), ("gammaln", -1.5)])
def test_a_rare_argument_changes_no_other_element(name: str, rare: float, dtype: str) -> None:
    """What is computed in the C library is so for one element of a vector."""
    x = np.random.default_rng(7).uniform(0.1, 5, 512).astype(dtype)
    usual = compiled(name, (dtype,), dtype)(x)
    is_rare = np.arange(512) % 37 == 3
    found = compiled(name, (dtype,), dtype)(np.where(is_rare, rare, x))
    np.testing.assert_array_equal(found[~is_rare], usual[~is_rare])
    np.testing.assert_allclose(found[is_rare], getattr(NUMPY, name)(rare), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 0.01), ("float64", 0.8)])
def test_powers(dtype: str, bound: float) -> None:
    """Bases of all sizes and beside 1, with exponents for which the result is finite; subnormal results."""
    rng = np.random.default_rng(8)
    largest = float(np.log(np.finfo(dtype).max))
    sizes = of_all_sizes(dtype, 200, rng).astype(float)
    x = np.concatenate([sizes, 1 + sizes[sizes < 0.4], rng.uniform(0.68, 1.45, 300), rng.uniform(0, 20, 300)])
    x = x.astype(dtype).astype(float)
    x = x[(x != 1) & (x > 0)]
    y = rng.uniform(-1.1, 1, x.shape) * largest / np.abs(np.log(x)) * rng.choice([1, 1e-2], x.shape)
    y = np.where(np.log(x) * y > largest, -y, y)
    x, y = x.astype(dtype), y.astype(dtype)
    found = compiled("power", (dtype, dtype), dtype)(x, y)
    exponents = iter(y)
    error = units(found, x, lambda v: v ** mpmath.mpf(float(next(exponents))))
    assert error.max() <= bound + 0.5, (x[error.argmax()], y[error.argmax()], found[error.argmax()])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_that_are_numbers_of_the_dtype_are_exact(dtype: str) -> None:
    x, y = (a.ravel() for a in np.meshgrid(np.arange(-200, 200), np.arange(12)))
    exact = np.array([int(a) ** int(n) for a, n in zip(x, y, strict=True)], object)
    there = np.abs(exact) < 2 ** (np.finfo(dtype).nmant + 1)
    x, y, exact = x[there][:COUNT], y[there][:COUNT], exact[there][:COUNT]
    found = compiled("power", (dtype, dtype), dtype)(x.astype(dtype), y.astype(dtype))
    np.testing.assert_array_equal(found, exact.astype(dtype))


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, -1.0, 0.5])
def test_powers_with_a_known_exponent(exponent: float) -> None:
    """As those with one that is not known, zeros and infinities too."""
    x = np.array([*ENDS, 3.0, 7.1])
    expected = compiled("power", ("float64", "float64"), "float64")(x, np.full(x.shape, exponent))
    found = compiled("power", ("float64",), "float64", exponent)(x)
    np.testing.assert_allclose(found, expected, rtol=2 * np.finfo(float).eps)
    there = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[there]), np.signbit(expected[there]))


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 3.0), ("float64", 3.0)])
def test_the_inverse_error_function(dtype: str, bound: float) -> None:
    """Beside the ends, and small numbers too."""
    rng = np.random.default_rng(2)
    near = 1 - np.exp(rng.uniform(np.log(np.finfo(dtype).eps), 0, 100))
    places = beside(dtype, np.full(40, 1 - np.exp(-4)), rng)  # where one formula takes over from the other
    x = np.concatenate([rng.uniform(-1, 1, 200), near, -near, places, of_all_sizes(dtype, 50, rng), [0.0]]).astype(
        dtype
    )
    x = x[np.abs(x) < 1]
    found = compiled("erfinv", (dtype,), dtype)(x)
    assert units(found, x, mpmath.erfinv).max() <= bound
    ends = compiled("erfinv", (dtype,), dtype)(np.array([1, -1, 1.5, -np.inf, np.nan, 0.0, -0.0], dtype))
    np.testing.assert_array_equal(ends, [np.inf, -np.inf, np.nan, np.nan, np.nan, 0.0, -0.0])
    np.testing.assert_array_equal(np.signbit(ends[-2:]), [False, True])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_logarithm_of_a_sum_of_exponentials(dtype: str) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.normal(0, 20, 500).astype(dtype) for _ in range(2))
    found = compiled("logaddexp", (dtype, dtype), dtype)(x, y)
    np.testing.assert_allclose(found, np.logaddexp(x.astype(float), y), rtol=4 * np.finfo(dtype).eps)
    infinity = np.array([np.inf, -np.inf, np.inf, np.nan, 1.0, -np.inf], dtype)
    other = np.array([np.inf, -np.inf, -np.inf, 1.0, np.nan, 3.0], dtype)
    ends = compiled("logaddexp", (dtype, dtype), dtype)(infinity, other)
    np.testing.assert_array_equal(ends, np.array([np.inf, -np.inf, np.inf, np.nan, np.nan, 3.0], dtype))


ENDS = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 1.5, 1e-40, 3e38, -3e38]
UNARY = ["exp", "expm1", "log", "log1p", "sqrt", "sigmoid", "softplus", "tanh", "erf", "gammaln", "sin", "cos", "tan"]
UNARY += ["abs", "sign", "floor", "ceil", "round", "negative", "square", "isfinite", "isnan"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_at_the_ends(name: str, dtype: str) -> None:
    """Zeros of both signs, infinities, NaN, subnormal and large numbers: as NumPy and SciPy have it."""
    x = np.array(ENDS, dtype)
    if name == "gammaln":
        x = x[x != -np.inf]  # libraries differ
    with np.errstate(all="ignore"):
        expected = getattr(NUMPY, name)(x)
    found = compiled(name, (dtype,), expected.dtype.name)(x)
    if expected.dtype == bool:
        np.testing.assert_array_equal(found, expected)
        return
    subnormal = np.finfo(dtype).tiny
    np.testing.assert_allclose(found, expected, rtol=16 * np.finfo(dtype).eps, atol=subnormal if name == "exp" else 0)
    if name != "sign":  # of -0 it has either
        there = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[there]), np.signbit(expected[there]))


BINARY = ["add", "subtract", "multiply", "floor_divide", "remainder", "minimum", "maximum", "power"]
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
INTEGERS = ["int8", "int32", "int64", "uint8", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", ["float32", "float64", *INTEGERS])
@pytest.mark.parametrize("name", [*BINARY, *COMPARISONS])
def test_pairs(name: str, dtype: str) -> None:
    """All pairs of numbers at the ends of the dtype and small ones; integers wrap."""
    if dtype.startswith("float"):
        values = np.array([*ENDS, 3.0, 7.0, -7.0], dtype)
    else:
        bounds = np.iinfo(dtype)
        values = np.array(
            [bounds.min, bounds.max, 0, 1, 2, 7, bounds.max - 1, *([-1, -7] if bounds.min else [])], dtype
        )
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    if name in ("floor_divide", "remainder") and not dtype.startswith("float"):
        x, y = x[y != 0], y[y != 0]  # what zero gives is open
        lowest = (x == np.iinfo(dtype).min) & (y.astype(float) == -1)
        x, y = x[~lowest], y[~lowest]
    if name == "power":
        keep = (y >= 0) & (np.abs(y.astype(float)) < 70) if not dtype.startswith("float") else np.ones(len(x), bool)
        x, y = x[keep], y[keep]
    with np.errstate(all="ignore"):
        expected = np.asarray(getattr(np, name)(x, y))
    found = compiled(name, (dtype, dtype), expected.dtype.name)(x, y)
    if name == "power" and dtype.startswith("float"):
        np.testing.assert_allclose(found, expected, rtol=4 * np.finfo(dtype).eps)
    else:
        np.testing.assert_array_equal(found, expected)
    if name == "remainder" and dtype.startswith("float"):
        there = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[there]), np.signbit(expected[there]))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
def test_bits(name: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    bounds = np.iinfo(dtype)
    x = rng.integers(bounds.min, bounds.max, 200, dtype, endpoint=True)
    y = rng.integers(0, bounds.bits, 200).astype(dtype) if "shift" in name else x[::-1].copy()
    np.testing.assert_array_equal(compiled(name, (dtype, dtype), dtype)(x, y), getattr(np, name)(x, y))


@pytest.mark.parametrize("source", ["bool", "float32", "float64", "int8", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("target", ["bool", "float32", "float64", "int8", "int32", "int64", "uint8", "uint32"])
def test_casts(source: str, target: str) -> None:
    """Where the target holds the number; integers wrap."""
    values = np.array([0, 1, 0.75, 2.5, 100, 127, *([-1, -3.7] if source not in ("bool", "uint8", "uint64") else [])])
    x = values.astype(source)
    if target.startswith("u") and source.startswith("float"):
        x = x[x >= 0]
    np.testing.assert_array_equal(compiled("cast", (source,), target)(x), x.astype(target))


def test_a_float_outside_of_an_integers_range_gives_the_nearest() -> None:
    x = np.array([1e30, -1e30, np.inf, -np.inf, np.nan])
    bounds = np.iinfo("int32")
    expected = [bounds.max, bounds.min, bounds.max, bounds.min, 0]
    np.testing.assert_array_equal(compiled("cast", ("float64",), "int32")(x), expected)


def test_the_bits_of_a_float() -> None:
    x = np.array([1.0, -2.5, np.inf], "float32")
    np.testing.assert_array_equal(compiled("bitcast", ("float32",), "uint32")(x), x.view("uint32"))
    np.testing.assert_array_equal(compiled("bitcast", ("uint32",), "float32")(x.view("uint32")), x)


def test_there_is_a_rule_for_each_function_that_has_types() -> None:
    """What expressions can hold, machine code can compute."""
    from batchnuts.autobatch.language.libraries.type_rules import Types
    from batchnuts.autobatch.native import expressions

    names = {name for name in vars(Types) if not name.startswith("_")}
    names -= {"name", "dtype_of", "static_shape", "convert", "trace_of", "positive"}
    assert names - expressions.ELEMENTWISE - expressions.RULES.keys() == set()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 5), (16, 1), (17, 40), (100, 100), (300, 7)])
def test_products_with_a_constant_matrix(rows: int, columns: int, dtype: str) -> None:
    """At either side of a vector; 300 rows are more than the sums that are kept at a time."""
    rng = np.random.default_rng(0)
    matrix, x = rng.normal(size=(rows, columns)).astype(dtype), rng.normal(size=(3, columns)).astype(dtype)
    x[1, 0], x[2, -1] = np.inf, np.nan

    @batch
    def products(x: Any) -> Any:
        right, left = ops.matmul(matrix, x), ops.matmul(x, matrix.T)
        return right, left

    with np.errstate(invalid="ignore"):
        expected = x.astype(np.float64) @ matrix.T.astype(np.float64)
        bound = columns * np.finfo(dtype).eps * (np.abs(x) @ np.abs(matrix.T))
    for product in products.run(x, backend="native_numpy"):
        assert product.dtype == dtype
        np.testing.assert_array_equal(np.isnan(product), np.isnan(expected))
        np.testing.assert_array_equal(product[np.isinf(expected)], expected[np.isinf(expected)])
        assert (np.abs(product[0] - expected[0]) <= bound[0]).all()
