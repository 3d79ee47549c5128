"""The integrator's geometry, the momentum's distribution, and the criterion's symmetry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mcmc_models import quartic, quartic_alone
from scipy import stats

from batchnuts.autobatch import random
from batchnuts.mcmc.kernel.hamiltonian import drift, keeps_going, kick, value_and_gradient
from batchnuts.mcmc.kernel.metric import DIAGONAL
from batchnuts.mcmc.model.model import Model

INVERSE_MASS = np.array([0.6, 1.9])


def leapfrog(q: np.ndarray, p: np.ndarray, step: float, steps: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Some leapfrog steps on the density `quartic`, of the program's own pieces."""
    for _ in range(steps):
        p = kick(p, quartic_alone(q)[1], step)
        q = drift(q, DIAGONAL.velocity(p, INVERSE_MASS), step)
        p = kick(p, quartic_alone(q)[1], step)
    return q, p


def energy(q: np.ndarray, p: np.ndarray) -> float:
    return DIAGONAL.kinetic_energy(p, INVERSE_MASS) - quartic_alone(q)[0]


@pytest.fixture(params=range(5))
def point(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(request.param)
    return rng.normal(size=2), rng.normal(size=2) / np.sqrt(INVERSE_MASS)


def test_the_test_density_has_the_gradient_it_says(point: Any) -> None:
    q, direction = point
    e = 1e-5
    slope = (quartic_alone(q + e * direction)[0] - quartic_alone(q - e * direction)[0]) / (2 * e)
    np.testing.assert_allclose(slope, quartic_alone(q)[1] @ direction, rtol=1e-8)
    for mine, other in zip(quartic(q), quartic_alone(q), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-13)


@pytest.mark.parametrize("steps", [1, 30])
def test_leapfrog_is_reversible(point: Any, steps: int) -> None:
    """Both by a negative step, which NUTS takes, and by turning the momentum round."""
    q, p = point
    there = leapfrog(q, p, 0.1, steps)
    assert np.abs(there[0] - q).max() > 1e-3
    np.testing.assert_allclose(leapfrog(*there, -0.1, steps), (q, p), atol=1e-10)
    back = leapfrog(there[0], -there[1], 0.1, steps)
    np.testing.assert_allclose((back[0], -back[1]), (q, p), atol=1e-10)


@pytest.mark.parametrize("step", [0.05, 0.3])
def test_leapfrog_preserves_volume(point: Any, step: float) -> None:
    """The Jacobian of three steps, by central differences, has determinant 1, though no entry of it is trivial."""
    z, e = np.concatenate(point), 1e-5

    def flow(z: np.ndarray) -> np.ndarray:
        return np.concatenate(leapfrog(z[:2], z[2:], step, 3))

    jacobian = np.stack([(flow(z + e * unit) - flow(z - e * unit)) / (2 * e) for unit in np.eye(4)], axis=1)
    np.testing.assert_allclose(np.linalg.det(jacobian), 1.0, atol=1e-7)
    assert np.abs(jacobian - np.eye(4)).max() > 0.05


def test_the_energy_error_is_of_second_order(point: Any) -> None:
    """Halving the step, over the same time, makes the error four times less."""
    q, p = point
    steps = np.array([0.02, 0.01, 0.005])
    errors = [abs(energy(*leapfrog(q, p, step, round(1.0 / step))) - energy(q, p)) for step in steps]
    orders = np.diff(np.log(errors)) / np.diff(np.log(steps))
    assert errors[0] < 1e-2
    np.testing.assert_allclose(orders, 2.0, atol=0.15)


def test_a_free_particle_moves_on_a_line() -> None:
    p = kick(np.array([1.0, -2.0]), np.zeros(2), 0.3)
    np.testing.assert_array_equal(p, [1.0, -2.0])
    np.testing.assert_allclose(
        drift(np.ones(2), DIAGONAL.velocity(p, INVERSE_MASS), 0.5), [1 + 0.5 * 0.6, 1 - 0.5 * 1.9 * 2]
    )
    np.testing.assert_allclose(kick(p, np.array([4.0, 8.0]), 0.5), [2.0, 0.0])


def test_kinetic_energy() -> None:
    assert DIAGONAL.kinetic_energy(np.array([2.0, 3.0]), np.array([0.5, 2.0])) == 0.5 * (0.5 * 4 + 2 * 9)


def test_the_momentum_has_the_mass_as_covariance() -> None:
    draws = 20_000
    inverse_mass = np.array([0.25, 1.0, 9.0])
    keys = random.lane_keys(5, draws)
    momenta = np.stack([DIAGONAL.sample_momentum(key, inverse_mass, "float64") for key in keys])
    white = momenta * np.sqrt(inverse_mass)
    pvalues = [stats.kstest(white[:, i], stats.norm.cdf).pvalue for i in range(3)]
    pvalues += [stats.ttest_1samp(white[:, i] * white[:, j], 0).pvalue for i, j in ((0, 1), (0, 2), (1, 2))]
    assert min(pvalues) > 1e-3 / 6, pvalues


def test_the_momentum_has_the_dtype_asked_for() -> None:
    key = random.lane_keys(0, 1)[0]
    assert DIAGONAL.sample_momentum(key, np.ones(3, "float32"), "float32").dtype == np.float32
    assert DIAGONAL.sample_momentum(key, np.ones(3), "float64").dtype == np.float64


def test_the_criterion_does_not_care_which_end_is_which() -> None:
    """Exchanging the ends, or running all of it backwards in time, changes nothing."""
    rng = np.random.default_rng(0)
    answers = set()
    for _ in range(200):
        first, last, middle = rng.normal(size=(3, 4)) + 0.3
        inverse_mass = rng.uniform(0.5, 2, 4)
        total = first + last + middle
        answer = bool(keeps_going(first, last, inverse_mass * total))
        assert answer == keeps_going(last, first, inverse_mass * total)
        assert answer == keeps_going(-last, -first, inverse_mass * -total)
        assert answer == (first @ (inverse_mass * total) > 0 and last @ (inverse_mass * total) > 0)
        answers.add(answer)
    assert answers == {True, False}


def test_the_criterion_uses_the_metric() -> None:
    """A trajectory straight in the space in which the metric is round goes on, though it looks turned without it."""
    first, last = np.array([1.0, 1.0]), np.array([1.0, -1.5])
    assert not keeps_going(first, last, DIAGONAL.velocity(first + last, np.array([0.1, 1.0])))
    assert keeps_going(first, last, DIAGONAL.velocity(first + last, np.array([1.0, 0.1])))


def test_nan_ends_a_trajectory() -> None:
    bad = np.array([np.nan, 1.0])
    assert not keeps_going(bad, np.ones(2), np.ones(2))
    assert not keeps_going(np.ones(2), np.ones(2), bad)


def test_value_and_gradient_by_tensorflow_and_by_hand() -> None:
    import tensorflow as tf

    def log_density(q: Any) -> Any:
        return -tf.reduce_sum(q**4)

    def by_hand(q: Any) -> tuple[Any, Any]:
        return -tf.reduce_sum(q**4, axis=1), -4 * q**3

    plain = Model.from_function(log_density, dimension=2, dtype="float64")
    twin = Model(name="twin", log_density=log_density, dimension=2, dtype="float64", batched_value_and_gradient=by_hand)
    q = np.array([1.5, -0.5])
    for model in (plain, twin):
        function = value_and_gradient(model)
        assert function.costly
        value, gradient = function(q) if model is plain else [x[0] for x in by_hand(q[None])]
        np.testing.assert_allclose(value, -(1.5**4 + 0.5**4))
        np.testing.assert_allclose(gradient, [-4 * 1.5**3, 4 * 0.5**3])
