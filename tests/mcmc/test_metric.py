"""The metrics in the machine: they move chains as their M^-1 says, whatever variables they compute with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mcmc_models import gaussian, gaussian_primitive, quartic, quartic_alone
from scipy import stats

from batchnuts.autobatch import ops, primitive, random
from batchnuts.mcmc.kernel.hamiltonian import keeps_going
from batchnuts.mcmc.kernel.metric import DIAGONAL, DenseMetric, LowRankMetric, Metric, make_metric
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.kernel.nuts import NutsOptions, Transition, make_nuts
from batchnuts.mcmc.kernel.step_size import make_first_step_size
from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import ExecutionSettings, SamplerSettings

Distribution = Callable[[np.ndarray], np.ndarray]

ALPHA = 1e-3
"""Chance that a statistical test of this file would fail by bad luck; the seeds are fixed."""


def parameters_of(covariance: np.ndarray) -> MetricParameters:
    """M^-1 = covariance."""
    scales = np.sqrt(np.diag(covariance))
    eigenvalues, eigenvectors = np.linalg.eigh(covariance / np.outer(scales, scales))
    return MetricParameters("dense", scales**2, eigenvectors, eigenvalues)


def with_covariance(kind: str, covariance: np.ndarray) -> tuple[Metric, np.ndarray]:
    """A metric of float64 with M^-1 = covariance (its diagonal for `diag`), and its inverse masses."""
    metric = make_metric(kind, len(covariance), "float64", rank=len(covariance))
    return metric, metric.set(parameters_of(covariance))


def transitions(
    metric: Metric, inverse_mass: np.ndarray, target: Any, q: np.ndarray, step: float, **how: Any
) -> Transition:
    """One from each row of q; target: the primitive, and a function of all rows."""
    density, values_and_gradients = target
    values, gradients = values_and_gradients(q)
    nuts = make_nuts(density, NutsOptions(dtype="float64", metric=metric))
    lanes = len(q)
    keys, masses = random.lane_keys(7, lanes), np.tile(inverse_mass, (lanes, 1))
    found: Transition = nuts.run(keys, q, values, gradients, np.full(lanes, step), masses, **how)
    return found


def gaussian_target(covariance: np.ndarray) -> tuple[Any, Callable[..., Any]]:
    precision = np.linalg.inv(covariance)

    @primitive
    def density(q: Any, data: Any = ()) -> Any:
        gradient = -ops.sum(precision * q, axis=-1)
        return 0.5 * ops.sum(q * gradient), gradient

    return density, lambda q: (-0.5 * np.sum(q * (q @ precision), axis=1), -q @ precision)


def assert_same(found: Transition, wanted: Transition, root: np.ndarray, rtol: float = 1e-9) -> None:
    assert len(set(wanted.n_steps.tolist())) > 1
    np.testing.assert_array_equal(found.n_steps, wanted.n_steps)
    np.testing.assert_allclose(found.position, wanted.position @ root, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(found.gradient @ root, wanted.gradient, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(found.energy, wanted.energy, rtol=rtol)


@pytest.mark.parametrize("kind", ["dense", "low_rank"])
def test_a_metric_is_the_identity_in_other_coordinates(kind: str) -> None:
    """NUTS of N(0, A A') with M^-1 = A A' visits A times what that of N(0, I) visits, by the same random numbers."""
    a = np.array([[1.0, 0.6, 0.2], [0.6, 1.2, -0.3], [0.2, -0.3, 0.8]])
    correlation = a @ a / np.sqrt(np.outer(np.diag(a @ a), np.diag(a @ a)))
    eigenvalues, eigenvectors = np.linalg.eigh(correlation)
    root = (eigenvectors * np.sqrt(eigenvalues)) @ eigenvectors.T  # symmetric, as the metric's own
    z = np.random.default_rng(7).normal(size=(12, 3))
    wanted = transitions(DIAGONAL, np.ones(3), gaussian_target(np.eye(3)), z, 0.3, backend="numpy")
    metric, inverse_mass = with_covariance(kind, correlation)
    found = transitions(metric, inverse_mass, gaussian_target(correlation), z @ root, 0.3, backend="numpy")
    assert_same(found, wanted, root)


WAYS: list[dict[str, str]] = [
    {"backend": "numpy"},
    {"backend": "jax"},
    {"backend": "tensorflow"},
    {"backend": "numpy", "executor": "unbatched"},
    {"backend": "numpy", "executor": "stackless"},
]


@pytest.mark.parametrize("kind", ["dense", pytest.param("low_rank", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "way",
    [pytest.param(w, marks=[pytest.mark.slow] * (w["backend"] == "tensorflow" or len(w) > 1)) for w in WAYS],
    ids=lambda way: "-".join(way.values()),
)
def test_with_a_diagonal_matrix_it_is_the_diagonal_metric(kind: str, way: dict[str, str]) -> None:
    """Scales in `inverse_mass`, and once more in the shared arrays."""
    scales = np.array([0.5, 3.0, 1.0, 0.2])
    target = gaussian_target(np.diag(scales * [1, 2, 1, 1]))
    q = np.random.default_rng(1).normal(size=(8, 4)) * np.sqrt(scales)
    wanted = transitions(DIAGONAL, scales, target, q, 0.4, backend="numpy")
    metric = make_metric(kind, 4, "float64", rank=4)
    for inner in (np.ones(4), np.array([1.0, 30.0, 0.5, 1.0])):
        inverse_mass = metric.set(MetricParameters("dense", scales / inner, np.eye(4), inner))
        assert_same(transitions(metric, inverse_mass, target, q, 0.4, **way), wanted, np.eye(4), 1e-8)


@pytest.mark.parametrize("kind", ["diag", "dense", "low_rank"])
def test_the_parts_of_a_metric_agree(kind: str) -> None:
    """Momenta have covariance M, energies are p' M^-1 p / 2, and products for the U-turn criterion those of M^-1."""
    covariance = np.array([[4.0, 1.0, 0.0], [1.0, 1.0, 0.3], [0.0, 0.3, 0.25]])
    metric, inverse_mass = with_covariance(kind, covariance)
    inverse = covariance if kind != "diag" else np.diag(np.diag(covariance))
    keys = random.lane_keys(3, 2000)
    momenta = np.stack([metric.sample_momentum(key, inverse_mass, "float64") for key in keys])
    masses = np.tile(inverse_mass, (len(momenta), 1))
    velocities = np.asarray(metric.velocity(momenta, masses))
    p = velocities @ np.linalg.inv(inverse)
    np.testing.assert_allclose(np.cov(p.T), np.linalg.inv(inverse), rtol=0.15, atol=0.15)
    energies = [metric.kinetic_energy(m, inverse_mass) for m in momenta[:5]]
    np.testing.assert_allclose(energies, 0.5 * np.sum(p[:5] * velocities[:5], axis=1))
    for first, last, total in np.arange(90).reshape(30, 3):
        dual = metric.dual(momenta[total], inverse_mass)
        np.testing.assert_allclose(momenta[first] @ dual, p[first] @ velocities[total], rtol=1e-9, atol=1e-12)
        going = keeps_going(momenta[first], momenta[last], dual)
        assert bool(going) == bool(keeps_going(p[first], p[last], velocities[total]))
    # Hamilton's equations in the metric's own momentum m = A^-1 p: dm/dt = A^-1 grad, by what is known of A above
    gradient = np.array([[1.0, -2.0, 0.5]])
    force = np.asarray(metric.force(gradient, masses[:1]))
    np.testing.assert_allclose(np.asarray(metric.velocity(force, masses[:1])), gradient @ inverse, rtol=1e-9)


def test_parameters_are_those_of_the_metric() -> None:
    covariance = np.array([[4.0, 1.0], [1.0, 1.0]])
    np.testing.assert_allclose(parameters_of(covariance).covariance(), covariance)
    wanted = [np.diag(covariance), 1 / np.diag(np.linalg.inv(covariance))]
    np.testing.assert_allclose(parameters_of(covariance).scales(), wanted)
    dense = DenseMetric(2, "float32")
    dense.set(parameters_of(covariance))
    np.testing.assert_allclose(dense.factor.value @ dense.factor.value, [[1, 0.5], [0.5, 1]], rtol=1e-6)
    narrow = LowRankMetric(2, 1, "float32")
    with pytest.raises(ValueError, match="shape"):
        narrow.set(parameters_of(covariance))


@pytest.mark.parametrize("kind", ["dense", "low_rank"])
def test_the_first_step_size_suits_the_metric(kind: str) -> None:
    """Of a Gaussian in coordinates that suit it: that of N(0, I)."""
    density, covariance = gaussian_primitive(6)
    found = {}
    keys = random.lane_keys(2, 32)
    for name, metric_kind in (("plain", "diag"), ("suited", kind)):
        metric, inverse_mass = with_covariance(metric_kind, covariance)
        q = np.random.default_rng(5).multivariate_normal(np.zeros(6), covariance, size=32)
        gradient = -q @ np.linalg.inv(covariance)
        search = make_first_step_size(density, "float64", metric)
        inputs = (keys, q, 0.5 * (q * gradient).sum(1), gradient, np.tile(inverse_mass, (32, 1)), np.full(32, 0.1))
        found[name] = np.median(search.run(*inputs, backend="numpy")[0])
    assert found["suited"] >= 2 * found["plain"]
    assert 0.5 < found["suited"] < 3


@pytest.mark.parametrize("kind", ["dense", pytest.param("low_rank", marks=pytest.mark.slow)])
def test_warmup_finds_the_metric_of_a_correlated_gaussian(kind: Any) -> None:
    model = gaussian(8, covariance="equicorrelated", correlation=0.9)
    sampler = SamplerSettings(chains=16, warmup=40, draws=20, seed=3, metric=kind)
    draws = run_chains(model, sampler, ExecutionSettings())
    covariance = model.constant_data["true_covariance"][1]
    assert draws.metric.kind == kind
    np.testing.assert_allclose(draws.metric.covariance(), covariance, rtol=1e-6 if kind == "dense" else 0.5)
    assert draws.stats["n_steps"].mean() < 8, "it would be some 15 in a diagonal metric"
    assert abs(draws.stats["acceptance_rate"].mean() - 0.8) < 0.1


# ---- invariance -------------------------------------------------------------------------------------------------


def quartic_draws(lanes: int) -> np.ndarray:
    """Exact draws of `quartic`, by rejection from N(0, I): the ratio of densities is at most e**0.75."""
    rng = np.random.default_rng(6)
    q = rng.normal(size=(6 * lanes, 2))
    log_ratio = -0.25 * (q**4).sum(axis=1) - q[:, 0] * np.sin(q[:, 1])
    kept = q[np.log(rng.uniform(size=len(q))) < log_ratio - 0.75]
    assert len(kept) >= lanes
    return kept[:lanes]


def quartic_marginals() -> list[Distribution]:
    """Distribution functions of its coordinates, integrated on a grid."""
    grid = np.linspace(-5, 5, 2001)
    q0, q1 = np.meshgrid(grid, grid, indexing="ij")
    weights = np.exp(-0.25 * (q0**4 + q1**4) - 0.5 * (q0**2 + q1**2) - q0 * np.sin(q1))
    marginals = []
    for axis in (1, 0):
        density = weights.sum(axis=axis)
        total = np.cumsum(0.5 * (density[1:] + density[:-1]))
        cumulative = np.concatenate([[0], total / total[-1]])
        marginals.append(functools.partial(np.interp, xp=grid, fp=cumulative))
    return marginals


def assert_within_bands(samples: np.ndarray, distributions: list[Distribution]) -> None:
    """Of each column the empirical distribution is within the band of Dvoretzky, Kiefer, Wolfowitz and Massart."""
    n, columns = samples.shape
    band = np.sqrt(np.log(2 * columns / ALPHA) / (2 * n))
    for column, distribution in zip(samples.T, distributions, strict=True):
        expected = distribution(np.sort(column))
        steps = np.arange(n + 1) / n
        assert max(np.abs(expected - steps[1:]).max(), np.abs(expected - steps[:-1]).max()) < band


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["diag", "dense", "low_rank", "unit"])
@pytest.mark.parametrize(("name", "backend"), [("gaussian", "native"), ("quartic", "native"), ("gaussian", "jax")])
def test_the_target_is_invariant(kind: str, name: str, backend: str) -> None:
    """Exact draws are still exact draws after a transition with a long step, in a metric that does not suit them."""
    lanes = 20_000
    m = np.array([[2.0, 0.9, 0.3], [0.9, 1.0, -0.2], [0.3, -0.2, 0.5]])
    if name == "gaussian":
        density, covariance = gaussian_primitive(3)
        white = np.linalg.inv(np.linalg.cholesky(covariance)).T
        q = np.random.default_rng(3).multivariate_normal(np.zeros(3), covariance, size=lanes)
        target = density, gaussian_target(covariance)[1]
        step = 0.45
    else:
        m, white, q, step = 0.4 * m[:2, :2], np.eye(2), quartic_draws(lanes), 0.8
        target = quartic, lambda q: tuple(np.array(x) for x in zip(*map(quartic_alone, q), strict=True))
    metric, inverse_mass = with_covariance(kind, m) if kind != "unit" else (DIAGONAL, np.ones(len(m)))
    assert_within_bands(*(checked := invariants(q, white, name)))
    found = transitions(metric, inverse_mass, target, q, step, backend=backend)
    assert 0.3 < found.acceptance_rate.mean() < 0.95, "the step is to be so long that weights differ"
    assert (found.position != q).any(axis=1).mean() > 0.7
    assert_within_bands(invariants(found.position, white, name)[0], checked[1])


def invariants(q: np.ndarray, white: np.ndarray, name: str) -> tuple[np.ndarray, list[Distribution]]:
    """Functions of positions [n, d] as columns, and their distributions."""
    if name == "quartic":
        return q, quartic_marginals()
    z = q @ white
    return np.column_stack([z, (z**2).sum(axis=1)]), [stats.norm.cdf] * 3 + [stats.chi2(3).cdf]
