"""batchnuts.densities: values of SciPy, gradients, what is outside of a range, and the same on every library."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from array_libraries import as_jax, in_jax, needs_jax
from scipy import integrate, special, stats

from batchnuts import densities
from batchnuts.autobatch.pfor import vectorized_map

REAL = np.array([-7.5, -0.3, 0.0, 1.2, 40.0])
MU = np.array([0.5, -0.3, 2.0, 1.0, 30.0])
SIGMA = np.array([0.2, 1.0, 3.0, 0.7, 10.0])
POSITIVE = np.array([1e-3, 0.4, 1.0, 3.3, 60.0])
SHAPE = np.array([0.3, 1.0, 2.5, 7.9, 45.0])
RATE = np.array([2.0, 0.1, 1.0, 3.0, 0.7])
UNIT = np.array([0.01, 0.2, 0.5, 0.7, 0.995])
COUNT = np.array([0, 1, 3, 12, 40])
TRIALS = np.array([5, 1, 4, 20, 40])
LOGIT = np.array([-30.0, -2.0, 0.0, 0.7, 25.0])
CATEGORY = np.array([0, 2, 1, 2, 0])
LOGITS = np.array([0.3, -1.2, 2.0])
CUTS = np.array([-1.0, 2.5])
SIMPLEX = np.array([[0.2, 0.3, 0.5], [0.05, 0.9, 0.05]])
FACTOR = np.array([[1.3, 0.0, 0.0], [-0.4, 0.8, 0.0], [0.2, 0.5, 1.9]])
COVARIANCE = FACTOR @ FACTOR.T
VECTORS = np.array([[0.1, -0.4, 2.0], [1.0, 0.3, -0.7]])
MEAN = np.array([0.5, 0.0, -1.0])
CORRELATION = np.linalg.cholesky(np.array([[1.0, 0.3, -0.2], [0.3, 1.0, 0.5], [-0.2, 0.5, 1.0]]))


@dataclass(frozen=True)
class Case:
    """Arguments, the log-density of each element by SciPy, and where arguments with outside values lie."""

    arguments: tuple[Any, ...]
    expected: Any
    outside: tuple[tuple[int, float], ...] = ()
    """Pairs: the number of an argument, and a value there that makes its element impossible."""
    discrete: tuple[int, ...] = ()
    """Arguments that are no numbers to differentiate by."""
    matrix: tuple[int, ...] = ()
    """Arguments that belong to all elements."""

    @property
    def continuous(self) -> tuple[int, ...]:
        return tuple(n for n in range(len(self.arguments)) if n not in self.discrete)


def ordered(x: Any, eta: Any) -> Any:
    above = np.concatenate([[-np.inf], CUTS, [np.inf]])
    return np.log(special.expit(eta - above[x]) - special.expit(eta - above[x + 1]))


CASES: dict[str, Case] = {
    "normal": Case((REAL, MU, SIGMA), stats.norm.logpdf(REAL, MU, SIGMA), ((2, 0.0), (2, -1.0))),
    "std_normal": Case((REAL,), stats.norm.logpdf(REAL)),
    "student_t": Case(
        (REAL, SHAPE, MU, SIGMA), stats.t.logpdf(REAL, SHAPE, MU, SIGMA), ((1, 0.0), (1, -1.0), (3, 0.0), (3, -1.0))
    ),
    "cauchy": Case((REAL, MU, SIGMA), stats.cauchy.logpdf(REAL, MU, SIGMA), ((2, 0.0), (2, -1.0))),
    "laplace": Case((REAL, MU + 0.1, SIGMA), stats.laplace.logpdf(REAL, MU + 0.1, SIGMA), ((2, 0.0), (2, -1.0))),
    "double_exponential": Case((REAL, 0.1, SIGMA), stats.laplace.logpdf(REAL, 0.1, SIGMA), ((2, 0.0), (2, -1.0))),
    "logistic": Case((REAL, MU, SIGMA), stats.logistic.logpdf(REAL, MU, SIGMA), ((2, 0.0), (2, -1.0))),
    "gumbel": Case((REAL, MU, SIGMA), stats.gumbel_r.logpdf(REAL, MU, SIGMA), ((2, 0.0), (2, -1.0))),
    "uniform": Case(
        (REAL, REAL - 0.1, REAL + SIGMA),
        stats.uniform.logpdf(REAL, REAL - 0.1, SIGMA + 0.1),
        ((0, -100.0), (0, 100.0), (1, 90.0), (2, -90.0)),
    ),
    "half_normal": Case((POSITIVE, SIGMA), stats.halfnorm.logpdf(POSITIVE, 0, SIGMA), ((0, -1.0), (1, 0.0), (1, -1.0))),
    "half_cauchy": Case(
        (POSITIVE, SIGMA), stats.halfcauchy.logpdf(POSITIVE, 0, SIGMA), ((0, -1.0), (1, 0.0), (1, -1.0))
    ),
    "half_student_t": Case(
        (POSITIVE, SHAPE, SIGMA),
        math.log(2) + stats.t.logpdf(POSITIVE, SHAPE, 0, SIGMA),
        ((0, -1.0), (1, 0.0), (2, 0.0), (2, -1.0)),
    ),
    "lognormal": Case(
        (POSITIVE, MU, SIGMA), stats.norm.logpdf(np.log(POSITIVE), MU, SIGMA) - np.log(POSITIVE), ((0, 0.0), (2, 0.0))
    ),
    "exponential": Case((POSITIVE, RATE), stats.expon.logpdf(POSITIVE, 0, 1 / RATE), ((0, -1.0), (1, 0.0), (1, -1.0))),
    "gamma": Case(
        (POSITIVE, SHAPE, RATE),
        stats.gamma.logpdf(POSITIVE, SHAPE, 0, 1 / RATE),
        ((0, -1.0), (0, 0.0), (1, 0.0), (1, -0.5), (2, 0.0), (2, -1.0)),
    ),
    "inv_gamma": Case(
        (POSITIVE, SHAPE, RATE),
        stats.invgamma.logpdf(POSITIVE, SHAPE, 0, RATE),
        ((0, -1.0), (0, 0.0), (1, 0.0), (1, -0.5), (2, 0.0), (2, -1.0)),
    ),
    "chi_square": Case((POSITIVE, SHAPE), stats.chi2.logpdf(POSITIVE, SHAPE), ((0, -1.0), (1, 0.0), (1, -0.5))),
    "weibull": Case(
        (POSITIVE, SHAPE / 5, SIGMA),
        stats.weibull_min.logpdf(POSITIVE, SHAPE / 5, 0, SIGMA),
        ((0, -1.0), (0, 0.0), (1, 0.0), (1, -0.5), (2, 0.0), (2, -1.0)),
    ),
    "pareto": Case(
        (POSITIVE + 2, 1.9 * np.ones(5), SHAPE),
        stats.pareto.logpdf(POSITIVE + 2, SHAPE, 0, 1.9),
        ((0, 1.0), (1, 0.0), (2, 0.0), (2, -1.0)),
    ),
    "beta": Case(
        (UNIT, SHAPE, SHAPE[::-1].copy()),
        stats.beta.logpdf(UNIT, SHAPE, SHAPE[::-1]),
        ((0, 0.0), (0, 1.0), (0, -0.1), (0, 1.1), (1, 0.0), (1, -1.0), (2, 0.0)),
    ),
    "beta_proportion": Case(
        (UNIT, UNIT[::-1].copy(), SHAPE),
        stats.beta.logpdf(UNIT, UNIT[::-1] * SHAPE, (1 - UNIT[::-1]) * SHAPE),
        ((0, 1.1), (1, 0.0), (1, 1.0), (1, -0.1), (1, 1.1), (2, 0.0), (2, -1.0)),
    ),
    "bernoulli": Case(
        (np.array([0, 1, 1, 0, 1]), UNIT),
        stats.bernoulli.logpmf([0, 1, 1, 0, 1], UNIT),
        ((0, 2.0), (0, -1.0), (0, 0.5), (1, -0.1), (1, 1.1)),
        (0,),
    ),
    "bernoulli_logit": Case(
        (np.array([0, 1, 1, 0, 1]), LOGIT),
        -np.logaddexp(0, LOGIT * [1, -1, -1, 1, -1]),
        ((0, 2.0), (0, -1.0), (0, 0.5)),
        (0,),
    ),
    "binomial": Case(
        (COUNT, TRIALS, UNIT),
        stats.binom.logpmf(COUNT, TRIALS, UNIT),
        ((0, 41.0), (0, -1.0), (0, 0.5), (1, -1.0), (2, -0.1), (2, 1.1)),
        (0, 1),
    ),
    "binomial_logit": Case(
        (COUNT, TRIALS, LOGIT / 5),
        stats.binom.logpmf(COUNT, TRIALS, special.expit(LOGIT / 5)),
        ((0, 41.0), (0, -1.0), (0, 0.5), (1, -1.0)),
        (0, 1),
    ),
    "beta_binomial": Case(
        (COUNT, TRIALS, SHAPE, RATE),
        stats.betabinom.logpmf(COUNT, TRIALS, SHAPE, RATE),
        ((0, 41.0), (0, -1.0), (2, 0.0), (3, -1.0)),
        (0, 1),
    ),
    "poisson": Case((COUNT, POSITIVE), stats.poisson.logpmf(COUNT, POSITIVE), ((0, -1.0), (0, 0.5), (1, -1.0)), (0,)),
    "poisson_log": Case((COUNT, MU / 9), stats.poisson.logpmf(COUNT, np.exp(MU / 9)), ((0, -1.0), (0, 0.5)), (0,)),
    "neg_binomial_2": Case(
        (COUNT, POSITIVE, SHAPE),
        stats.nbinom.logpmf(COUNT, SHAPE, SHAPE / (SHAPE + POSITIVE)),
        ((0, -1.0), (0, 0.5), (1, 0.0), (1, -1.0), (2, 0.0), (2, -0.5)),
        (0,),
    ),
    "neg_binomial_2_log": Case(
        (COUNT, MU / 9, SHAPE),
        stats.nbinom.logpmf(COUNT, SHAPE, SHAPE / (SHAPE + np.exp(MU / 9))),
        ((0, -1.0), (0, 0.5), (2, 0.0), (2, -0.5)),
        (0,),
    ),
    "categorical": Case(
        (CATEGORY, SIMPLEX[0]),
        np.log(SIMPLEX[0][CATEGORY]),
        ((0, -1.0), (0, 3.0), (0, 0.5)),
        (0,),
        (1,),
    ),
    "categorical_logit": Case(
        (CATEGORY, LOGITS),
        special.log_softmax(LOGITS)[CATEGORY],
        ((0, -1.0), (0, 3.0), (0, 0.5)),
        (0,),
        (1,),
    ),
    "ordered_logistic": Case(
        (CATEGORY, MU / 9, CUTS), ordered(CATEGORY, MU / 9), ((0, -1.0), (0, 3.0), (0, 0.5)), (0,), (2,)
    ),
    "multinomial": Case(
        (np.array([[1, 0, 4], [2, 3, 1]]), SIMPLEX),
        np.array(
            [stats.multinomial.logpmf([1, 0, 4], 5, SIMPLEX[0]), stats.multinomial.logpmf([2, 3, 1], 6, SIMPLEX[1])]
        ),
        ((0, -1.0), (0, 0.5), (1, -0.1)),
        (0,),
    ),
    "dirichlet": Case(
        (SIMPLEX, SHAPE[:3]),
        np.array([stats.dirichlet.logpdf(x, SHAPE[:3]) for x in SIMPLEX]),
        ((0, -0.1), (0, 0.0)),
        (),
        (1,),
    ),
    "multi_normal": Case(
        (VECTORS, MEAN, COVARIANCE), stats.multivariate_normal.logpdf(VECTORS, MEAN, COVARIANCE), (), (), (1, 2)
    ),
    "multi_normal_cholesky": Case(
        (VECTORS, MEAN, FACTOR), stats.multivariate_normal.logpdf(VECTORS, MEAN, COVARIANCE), (), (), (1, 2)
    ),
    "multi_normal_prec": Case(
        (VECTORS, MEAN, np.linalg.inv(COVARIANCE)),
        stats.multivariate_normal.logpdf(VECTORS, MEAN, COVARIANCE),
        (),
        (),
        (1, 2),
    ),
    "lkj_corr_cholesky": Case((CORRELATION, 2.5), None, (), (), (0, 1)),
}


def function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(densities, name)
    return found


def value_and_gradients_in_jax(name: str, arguments: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    import jax

    value, gradients = jax.value_and_grad(function(name), CASES[name].continuous)(*arguments)
    return value, list(gradients)


def value_and_gradients_in_tensorflow(name: str, arguments: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    watched = [arguments[n] for n in CASES[name].continuous]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        value = function(name)(*arguments)
    return value, tape.gradient(value, watched, unconnected_gradients="zero")


@functools.cache
def of_all(library: str, dtype: str, places: tuple[tuple[str, tuple[int, float] | None], ...]) -> list[Any]:
    """Values and gradients of densities, some with an impossible element, as one program."""
    arguments = [with_outside(name, place, dtype) for name, place in places]
    if library == "jax":
        run = in_jax(lambda lists: each(value_and_gradients_in_jax, lists), lanes=False)
        lists = [tuple(map(as_jax, values)) for values in arguments]
    else:
        run = tf.function(lambda lists: each(value_and_gradients_in_tensorflow, lists), jit_compile=True)
        lists = [tuple(map(tf.constant, values)) for values in arguments]

    def each(evaluated: Callable[..., Any], lists: Any) -> Any:
        return [evaluated(name, values) for (name, _), values in zip(places, lists, strict=True)]

    return [(np.asarray(value), [np.asarray(g) for g in gradients]) for value, gradients in run(lists)]


def with_outside(name: str, place: tuple[int, float] | None, dtype: Any = np.float64) -> list[np.ndarray]:
    """A case's arguments, one of them with an impossible value for its second element."""
    case = CASES[name]
    arguments = [np.array(values) for values in case.arguments]
    if place is not None:
        number, value = place
        if arguments[number].ndim == 0 or number in case.matrix:
            raise ValueError(f"{name}: argument {number} belongs to all elements")
        arguments[number] = arguments[number].astype(np.float64)
        arguments[number][(1, 0) if arguments[number].ndim == 2 else 1] = value
    return [values.astype(dtype) if values.dtype.kind == "f" else values for values in arguments]


USUAL: tuple[tuple[str, None], ...] = tuple((name, None) for name in CASES)
OUTSIDE = tuple((name, place) for name, case in CASES.items() for place in case.outside)
"""Every density with every argument that can be out of its range."""


def numerical_gradient(name: str, number: int) -> np.ndarray:
    """Of the sum, by an argument, from values of NumPy."""
    arguments = [np.array(values, np.float64) for values in CASES[name].arguments]
    gradient = np.zeros(arguments[number].shape)
    pointwise = {} if CASES[name].expected is None else {"pointwise": True}
    for index in np.ndindex(gradient.shape):
        step = 1e-5 * max(1e-2, abs(float(arguments[number][index])))
        ends = []
        for sign in (1, -1, 2, -2):
            moved = [values.copy() for values in arguments]
            moved[number][index] += sign * step
            ends.append(np.asarray(function(name)(*moved, **pointwise)))
        gradient[index] = np.sum(8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * step)
    return gradient


def test_every_density_has_a_case_and_says_what_it_is() -> None:
    assert set(densities.__all__) == set(CASES)
    assert all(inspect.getdoc(function(name)) for name in CASES)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.expected is not None])
def test_values_are_those_of_scipy(name: str) -> None:
    case = CASES[name]
    each = function(name)(*case.arguments, pointwise=True)
    np.testing.assert_allclose(each, case.expected, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(function(name)(*case.arguments), np.sum(case.expected), rtol=1e-11)
    assert np.shape(function(name)(*case.arguments)) == ()


def test_lkj_is_normalized() -> None:
    for eta in (0.7, 1.0, 2.5):

        def density(r: float, eta: float = eta) -> float:
            factor = np.array([[1.0, 0.0], [r, math.sqrt(1 - r * r)]])
            return math.exp(densities.lkj_corr_cholesky(factor, eta))

        assert integrate.quad(density, -1, 1)[0] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("eta", [0.7, 1.0, 2.5])
def test_lkj_is_that_of_tensorflow_probability(eta: float) -> None:
    import tensorflow_probability as tfp

    expected = tfp.distributions.CholeskyLKJ(3, np.float64(eta)).log_prob(CORRELATION)
    assert densities.lkj_corr_cholesky(CORRELATION, eta) == pytest.approx(float(expected), rel=1e-11)


@pytest.mark.parametrize(("name", "place"), OUTSIDE)
def test_what_is_out_of_range_is_impossible_and_nothing_else(name: str, place: tuple[int, float]) -> None:
    found = function(name)(*with_outside(name, place), pointwise=True)
    expected = np.array(CASES[name].expected)
    expected[1] = -np.inf
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ordered_logistic", (CATEGORY, MU, CUTS[::-1])),
        ("categorical", (CATEGORY, np.array([0.5, 0.7, -0.2]))),
        ("dirichlet", (SIMPLEX, np.array([1.0, 0.0, 2.0]))),
        ("multi_normal", (VECTORS, MEAN, np.ones([3, 3]))),
        ("multi_normal_prec", (VECTORS, MEAN, -COVARIANCE)),
        ("multi_normal_cholesky", (VECTORS, MEAN, FACTOR * [1, 0, 1])),
        ("lkj_corr_cholesky", (CORRELATION * [1, 1, 0], 2.0)),
        ("lkj_corr_cholesky", (CORRELATION, 0.0)),
    ],
)
def test_parameters_of_all_elements_out_of_range(name: str, arguments: tuple[Any, ...]) -> None:
    assert function(name)(*arguments) == -np.inf


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.outside])
def test_nan_stays(name: str) -> None:
    """Of any argument: what is NaN is no -inf, so that a mistake in a model is seen."""
    for number in CASES[name].continuous:
        assert np.isnan(function(name)(*with_nan(name, number))), number


def with_nan(name: str, number: int) -> list[np.ndarray]:
    arguments = [np.array(values, np.float64) for values in CASES[name].arguments]
    arguments[number][(0,) * arguments[number].ndim] = np.nan
    return arguments


def assert_numerical(found: list[Any], names: tuple[str, ...]) -> None:
    for name, (value, gradients) in zip(names, found, strict=True):
        np.testing.assert_allclose(value, function(name)(*CASES[name].arguments), rtol=1e-9, err_msg=name)
        for number, gradient in zip(CASES[name].continuous, gradients, strict=True):
            expected = numerical_gradient(name, number)
            if name in SYMMETRIC and number == 2:  # NumPy reads one half of it
                gradient = np.tril(gradient + gradient.T) - np.diag(np.diag(gradient))
            np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7, err_msg=f"{name} {number}")


SYMMETRIC = ("multi_normal", "multi_normal_prec")
TENSORS = [
    pytest.param("jax", marks=[needs_jax, pytest.mark.slow]),
    pytest.param("tensorflow", marks=pytest.mark.release),  # a minute each
]


@needs_jax
def test_gradients_of_some_are_numerical_ones() -> None:
    names = ("student_t",)
    assert_numerical(of_all("jax", "float64", tuple((name, None) for name in names)), names)


@pytest.mark.parametrize("library", TENSORS)
def test_gradients_are_numerical_ones(library: str) -> None:
    assert_numerical(of_all(library, "float64", USUAL), tuple(CASES))


@pytest.mark.parametrize("library", TENSORS)
def test_gradients_beside_what_is_out_of_range(library: str) -> None:
    """Elements that are possible have the gradient that they have alone; one that is not has zero."""
    usual = dict(zip(CASES, of_all(library, "float64", USUAL), strict=True))
    for (name, place), (value, gradients) in zip(OUTSIDE, of_all(library, "float64", OUTSIDE), strict=True):
        assert value == -np.inf, (name, place)
        for order, (number, gradient) in enumerate(zip(CASES[name].continuous, gradients, strict=True)):
            message = f"{name} {place} {number}"
            assert np.all(np.isfinite(gradient)), message
            if number in CASES[name].matrix or gradient.ndim != 1:
                continue
            expected = usual[name][1][order].copy()
            expected[1] = 0
            np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12, err_msg=message)


@pytest.mark.parametrize("library", TENSORS)
def test_float32_is_float64_rounded(library: str) -> None:
    """Though data are in float64: the arrays of the model decide."""
    usual = of_all(library, "float64", USUAL)
    for name, found, expected in zip(CASES, of_all(library, "float32", USUAL), usual, strict=True):
        for single, double in zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True):
            assert single.dtype == np.float32, name
            np.testing.assert_allclose(single, double, rtol=3e-4, atol=2e-3, err_msg=name)


@needs_jax
def test_data_do_not_decide_the_dtype() -> None:
    found = densities.normal(REAL, as_jax(np.float32(0.5)), 1.0)
    assert found.dtype == np.float32
    assert densities.poisson(COUNT, as_jax(POSITIVE.astype(np.float32))).dtype == np.float32
    assert densities.normal(tf.constant(COUNT), 0, [1.0] * 5).dtype == np.float64
    with pytest.raises(TypeError, match="a density takes numbers, found complex128"):
        densities.normal(1j * REAL, 0.0, 1.0)


FAR = 10.0 ** np.linspace(-6, 6, 25)
WIDE: dict[str, tuple[Any, ...]] = {
    "normal": (np.concatenate([-FAR, FAR]), 0.0, 10.0 ** np.linspace(-3, 3, 50)),
    "student_t": (1e20 * np.concatenate([-FAR, FAR]), FAR.repeat(2), 0.0, 10.0 ** np.linspace(-3, 3, 50)),
    "cauchy": (1e20 * FAR, 0.0, FAR),
    "half_cauchy": (1e20 * FAR, FAR),
    "laplace": (FAR, 0.0, FAR[::-1]),
    "logistic": (FAR, 0.0, FAR[::-1]),
    "lognormal": (1e20 * FAR, 0.0, FAR[::-1]),
    "exponential": (FAR, FAR[::-1]),
    "gamma": (FAR, FAR[::-1], FAR),
    "inv_gamma": (FAR, FAR[::-1], FAR),
    "beta": (np.linspace(1e-6, 1 - 1e-6, 25), FAR, FAR[::-1]),
    "bernoulli_logit": (np.arange(25) % 2, 1e20 * FAR),
    "binomial_logit": (np.arange(25), 24, -1e20 * FAR),
    "poisson": (np.arange(25), FAR),
    "poisson_log": (np.arange(25), np.linspace(-1e6, 80, 25)),
    "neg_binomial_2": (np.arange(25) ** 2, FAR, FAR[::-1]),
    "neg_binomial_2_log": (np.arange(25) ** 2, np.linspace(-1e6, 80, 25), FAR),
    "ordered_logistic": (np.arange(25) % 3, 1e20 * FAR, CUTS),
    "categorical_logit": (np.arange(3), 1e20 * LOGITS),
}


@pytest.mark.parametrize("name", WIDE)
def test_wide_ranges_are_finite_in_float32(name: str) -> None:
    """And are what float64 gives, within rounding of what cancels in the formula."""
    single = [np.asarray(values, np.float32) for values in WIDE[name]]
    found = function(name)(*single, pointwise=True)
    expected = function(name)(*[values.astype(np.float64) for values in single], pointwise=True)
    assert found.dtype == np.float32
    assert np.all(np.isfinite(found))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("student_t", (0.5, 1e6, 0.0, 1.0), stats.norm.logpdf(0.5)),
        ("neg_binomial_2", (3, 2.0, 1e6), stats.poisson.logpmf(3, 2.0)),
        ("neg_binomial_2_log", (3, math.log(2.0), 1e6), stats.poisson.logpmf(3, 2.0)),
        ("beta_binomial", (3, 10, 3e6, 7e6), stats.binom.logpmf(3, 10, 0.3)),
    ],
)
def test_limits_are_reached_in_float32(name: str, arguments: tuple[float, ...], expected: float) -> None:
    """Differences of logarithms of the gamma function at large arguments, which float32 rounds to whole numbers."""
    found = function(name)(*map(np.float32, arguments))
    assert found == pytest.approx(expected, abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_vectorized_by_pfor(name: str) -> None:
    """Of two rows at once, without running row by row."""
    rows = [np.stack([values, values]) for values in map(np.asarray, CASES[name].arguments)]
    found = vectorized_map(lambda row: function(name)(*row), [tf.constant(row) for row in rows], fallback=False)
    np.testing.assert_allclose(found, [function(name)(*CASES[name].arguments)] * 2, rtol=1e-9)
