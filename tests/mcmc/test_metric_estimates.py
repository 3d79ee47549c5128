"""Estimates of the metric against closed forms, and where draws say little."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchnuts.mcmc.execution.metric_draws import draws_with_gradients
from batchnuts.mcmc.kernel.metric import make_metric
from batchnuts.mcmc.kernel.metric_estimates import (
    MetricParameters,
    diagonal_estimate,
    estimate,
    fisher_diagonal,
    geometric_mean,
)
from batchnuts.mcmc.settings.metric_kinds import METRIC_KINDS

RNG = np.random.default_rng(2026)


def gaussian_draws(covariance: np.ndarray, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draws of N(5, covariance), and the gradients of its log density there."""
    z = np.random.default_rng(seed).normal(size=(n, len(covariance)))
    x = z @ np.linalg.cholesky(covariance).T
    return 5.0 + x, -np.linalg.solve(covariance, x.T).T


def wishart(dimension: int, seed: int = 1) -> np.ndarray:
    """A covariance without structure, of variances far from each other."""
    a = np.random.default_rng(seed).normal(size=(dimension, 2 * dimension))
    scales = np.geomspace(1e-3, 1e3, dimension)
    return scales[:, None] * (a @ a.T / (2 * dimension)) * scales


def spiked(dimension: int, seed: int = 2) -> np.ndarray:
    """The identity but for three directions: variances 400, 50 and 1/100, then scaled."""
    directions = np.linalg.qr(np.random.default_rng(seed).normal(size=(dimension, 3)))[0]
    covariance = np.eye(dimension) + (directions * (np.array([400.0, 50.0, 0.01]) - 1)) @ directions.T
    scales = np.geomspace(0.01, 10.0, dimension)
    return scales[:, None] * covariance * scales


def condition(metric: MetricParameters, covariance: np.ndarray) -> float:
    """That of the covariance in the coordinates of the metric; 1 where M^-1 is the covariance, up to a factor."""
    found = np.sort(np.linalg.eigvals(np.linalg.solve(metric.covariance(), covariance)).real)
    return float(found[-1] / found[0])


@pytest.mark.parametrize("n", [3, 5, 50])
def test_the_diagonal_estimate_is_exact_for_a_diagonal_gaussian(n: int) -> None:
    variances = np.geomspace(1e-8, 1e8, 12)
    found = estimate("diag", *gaussian_draws(np.diag(variances), n), rank=4)
    np.testing.assert_allclose(found.inverse_mass, variances, rtol=1e-6)


def test_the_diagonal_estimate_is_between_fisher_and_variance() -> None:
    """With weights R^2 and 1 - R^2, where R^2 of a coordinate is 1 / (C_ii P_ii): one is alone, others are tied."""
    covariance = wishart(6)
    covariance[0, 1:] = covariance[1:, 0] = 0.0
    x, g = gaussian_draws(covariance, 200_000)
    variance, precision = np.diag(covariance), np.diag(np.linalg.inv(covariance))
    r_squared = 1 / (variance * precision)
    assert r_squared[0] == pytest.approx(1.0)
    assert (r_squared[1:] < 0.9).all()
    fisher = np.sqrt(variance / precision)
    np.testing.assert_allclose(fisher_diagonal(x - x.mean(axis=0), g - g.mean(axis=0)), fisher, rtol=0.02)
    wanted = fisher**r_squared * variance ** (1 - r_squared)
    np.testing.assert_allclose(estimate("diag", x, g, rank=4).inverse_mass, wanted, rtol=0.02)


@pytest.mark.parametrize("n", [30, 200])
def test_the_dense_estimate_is_exact_for_a_gaussian(n: int) -> None:
    covariance = wishart(8)
    found = estimate("dense", *gaussian_draws(covariance, n), rank=4)
    scales = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(
        found.covariance() / scales / scales[:, None], covariance / scales / scales[:, None], atol=1e-6
    )
    np.testing.assert_allclose(
        found.root() @ found.root(), found.covariance() / np.sqrt(np.outer(*[found.inverse_mass] * 2)), rtol=1e-6
    )


@pytest.mark.parametrize(("dimension", "n"), [(40, 300), (100, 1000), (200, 100)])
def test_the_low_rank_estimate_recovers_a_spiked_covariance(dimension: int, n: int) -> None:
    covariance = spiked(dimension)
    draws = gaussian_draws(covariance, n)
    plain = condition(estimate("diag", *draws, rank=8), covariance)
    found = estimate("low_rank", *draws, rank=8)
    assert len(found.eigenvalues) <= 8
    assert plain > 1000
    assert condition(found, covariance) < (10 if n > dimension else plain / 100)
    gram = found.eigenvectors.T @ found.eigenvectors
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-9)


def test_the_low_rank_estimate_has_no_directions_where_none_are_needed() -> None:
    variances = np.geomspace(1e-4, 1e4, 30)
    found = estimate("low_rank", *gaussian_draws(np.diag(variances), 100), rank=8)
    assert found.eigenvalues.shape == (0,)
    np.testing.assert_allclose(found.inverse_mass, variances, rtol=1e-6)


@pytest.mark.parametrize("depends", [False, True])
def test_few_draws_are_shrunk(depends: bool) -> None:
    """Of pairs of strongly correlated coordinates the estimates, from few draws, are wild."""
    covariance = np.kron(np.eye(5), np.array([[1.0, 0.99], [0.99, 1.0]]))
    r_squared = 1 / (np.diag(covariance) * np.diag(np.linalg.inv(covariance))) if depends else np.ones(10)
    truth = np.diag(covariance) * r_squared ** (r_squared / 2) if depends else np.full(10, np.sqrt(1 - 0.99**2))
    errors: dict[str, list[np.ndarray]] = {"raw": [], "shrunk": []}
    for seed in range(200):
        x, g = (draws - draws.mean(axis=0) for draws in gaussian_draws(covariance, 5, seed))
        variance, ratio = x.var(axis=0), x.std(axis=0) / g.std(axis=0)
        share = (x * g).mean(axis=0) ** 2 / variance / g.var(axis=0) if depends else np.ones(10)
        errors["raw"].append(np.log(ratio**share * variance ** (1 - share) / truth))
        errors["shrunk"].append(np.log((diagonal_estimate if depends else fisher_diagonal)(x, g) / truth))
    rms = {name: float(np.sqrt(np.mean(np.square(values)))) for name, values in errors.items()}
    assert rms["shrunk"] < 0.8 * rms["raw"]


@pytest.mark.parametrize("kind", ["dense", "low_rank"])
@pytest.mark.parametrize("n", [3, 10, 25])
def test_a_matrix_from_few_draws_is_no_worse_than_the_diagonal(kind: str, n: int) -> None:
    """Of a density that is no Gaussian: each row of Gaussian draws is stretched by a factor of its own."""
    covariance = wishart(20)
    x, g = gaussian_draws(covariance, n)
    stretch = np.random.default_rng(3).gamma(2.0, size=(n, 1))
    x, g = (x - 5) * stretch, g / stretch
    plain = condition(estimate("diag", x, g, rank=8), covariance)
    assert condition(estimate(kind, x, g, rank=8), covariance) < 3 * plain


def flat(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates: Gaussian; without gradient; with one that is constant, but for rounding; never moved; both."""
    x = np.random.default_rng(4).normal(size=(n, 5)) * [1.0, 3.0, 3.0, 0.0, 0.0] + [0, 0, 0, 7.0, 7.0]
    g = np.zeros((n, 5), "float32")
    g[:, 0], g[:, 3] = -x[:, 0], np.random.default_rng(5).normal(size=n) / 2
    g[:, 2] = 5.0 + 1e-7 * np.random.default_rng(6).integers(-3, 4, n)
    return x.astype("float32"), g


def scaled(draws: tuple[np.ndarray, np.ndarray], *factors: list[float]) -> tuple[np.ndarray, np.ndarray]:
    x, g = (a * np.array(factor) for a, factor in zip(draws, factors))
    return x, g


def repeated(draws: tuple[np.ndarray, np.ndarray], times: int, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Each coordinate several times, in positions with further noise."""
    x, g = (np.repeat(a, times, axis=1) for a in draws)
    return x + noise * RNG.normal(size=x.shape), g


BAD = {
    "flat": flat(),
    "one row many times": (np.full((30, 4), 2.0), np.full((30, 4), -3.0)),
    "fewer than three rows": (RNG.normal(size=(2, 4)), RNG.normal(size=(2, 4))),
    "nothing finite": (np.full((9, 4), np.nan), np.ones((9, 4))),
    "a row is not finite": (np.where(np.arange(9)[:, None] == 4, np.inf, RNG.normal(size=(9, 4))), np.eye(9)[:, :4]),
    "equal coordinates": repeated(gaussian_draws(np.eye(1), 50), 4),
    "a flat direction": repeated(gaussian_draws(np.eye(2), 50), 2, 1.0),
    "huge and tiny": scaled(gaussian_draws(np.eye(3), 50), [1e15, 1, 1e-15], [1e-15, 1, 1e15]),
    "gradients of no relation": (RNG.normal(size=(50, 6)) * 1e-6, RNG.normal(size=(50, 6)) * 1e-6),
    "one dimension": gaussian_draws(np.eye(1), 20),
}


@pytest.mark.parametrize("kind", METRIC_KINDS)
@pytest.mark.parametrize("case", BAD)
def test_no_estimate_is_zero_or_infinite(kind: str, case: str) -> None:
    x, g = BAD[case]
    with np.errstate(all="raise", under="ignore"):
        found = estimate(kind, x, g, rank=3)
    inverse_mass = found.inverse_mass.astype("float32")
    assert found.kind == kind
    assert np.isfinite(inverse_mass).all()
    assert (inverse_mass > 0).all()
    assert np.isfinite(found.eigenvectors).all()
    assert (found.eigenvalues > 0).all()
    assert (found.eigenvalues < 1e13).all()
    assert np.linalg.eigvalsh(found.root())[0] > 0


def test_what_says_nothing_is_left_out() -> None:
    x, g = flat()
    found = estimate("diag", x, g, rank=1).inverse_mass
    np.testing.assert_allclose(found[0], 1.0, rtol=1e-5)
    np.testing.assert_allclose(found[1:3], x[:, 1:3].astype(float).var(axis=0), rtol=0.1)
    np.testing.assert_allclose(found[3], 1 / g[:, 3].var(), rtol=0.1)
    np.testing.assert_allclose(np.log(found[4]), np.log(found[:4]).mean(), atol=0.3)


def test_the_geometric_mean_solves_its_equation() -> None:
    a, b = (wishart(5, seed) for seed in (7, 8))
    a, b = (m / np.sqrt(np.outer(np.diag(m), np.diag(m))) for m in (a, b))
    mean = geometric_mean(a, b)
    np.testing.assert_allclose(mean @ b @ mean, a, atol=1e-10)


def test_shapes_that_differ_are_named() -> None:
    with pytest.raises(ValueError, match=r"found \(3, 2\) and \(3, 3\)"):
        estimate("diag", np.ones((3, 2)), np.ones((3, 3)), rank=1)


@pytest.mark.parametrize(
    ("chains", "transitions", "rows"),
    [(1, 3, [2, 1, 0]), (1, 1000, None), (256, 20, [19, 17, 14, 12, 9, 7, 4, 2]), (5000, 20, [19]), (2, 1, [0])],
)
def test_gradients_are_evaluated_at_some_draws_of_each_chain(chains: int, transitions: int, rows: Any) -> None:
    positions = np.arange(chains * transitions * 2.0).reshape(chains, transitions, 2)
    found, calls = gradients_of(positions, np.full(chains, transitions))
    assert found.useful == found.evaluated == chains * len(calls)
    assert found.valid.all()
    if rows is None:
        assert len(calls) == 199
    else:
        np.testing.assert_array_equal(found.positions, positions[:, rows])


def test_chains_that_made_fewer_transitions_give_fewer_draws() -> None:
    positions = np.arange(3 * 9 * 2.0).reshape(3, 9, 2)
    done = np.array([9, 2, 0])
    found, _ = gradients_of(positions, done)
    assert found.valid.sum(axis=1).tolist() == [9, 2, 0]
    assert (found.useful, found.evaluated) == (8 + 1, 3 * 8)
    np.testing.assert_array_equal(found.of(np.array([0]))[0], positions[0, ::-1])
    np.testing.assert_array_equal(found.of(np.array([False, True, True]))[0], positions[1, [1, 0]])
    later, _ = gradients_of(positions, done, first=done // 2)
    np.testing.assert_array_equal(later.of(np.array([0, 1]))[0], [*positions[0, :3:-1], positions[1, 1]])


@pytest.mark.parametrize(("at_once", "sizes"), [(2, [3] * 8), (7, [6] * 4), (100, [24])])
def test_gradients_of_several_draws_may_be_evaluated_in_one_call(at_once: int, sizes: list[int]) -> None:
    positions = np.arange(3 * 9 * 2.0).reshape(3, 9, 2)
    done = np.array([9, 2, 0])
    alone, _ = gradients_of(positions, done)
    together, calls = gradients_of(positions, done, at_once=at_once)
    assert [len(at) for at in calls] == sizes
    np.testing.assert_array_equal(together.gradients, alone.gradients)
    np.testing.assert_array_equal(together.positions, alone.positions)


def gradients_of(
    positions: np.ndarray, done: np.ndarray, first: Any = 0, at_once: int | None = None
) -> tuple[Any, list[np.ndarray]]:
    """With a gradient of minus the position; and the positions of each call."""
    chains, calls = len(positions), []

    def gradients_at(at: np.ndarray) -> np.ndarray:
        assert at.shape[0] % chains == 0
        assert at.shape[1] == 2
        assert at_once is not None or len(at) == chains
        calls.append(at)
        return -at

    last = positions[np.arange(chains), np.maximum(done - 1, 0)]
    found = draws_with_gradients(positions, first, done, -last, gradients_at, at_once=at_once)
    np.testing.assert_array_equal(found.gradients, -found.positions)
    return found, calls


def test_every_kind_has_its_estimate_and_its_form() -> None:
    """One that is entered in METRIC_KINDS alone would be found here, not by who asks for it."""
    x = np.random.default_rng(0).normal(size=(50, 3))
    for name, kind in METRIC_KINDS.items():
        parameters = estimate(name, x, -x, 2)
        assert parameters.kind == name
        assert bool(parameters.eigenvectors.size) <= kind.has_directions
        make_metric(name, 3, "float64", 2).set(parameters)
        assert kind.program is None or kind.program in METRIC_KINDS
