"""The isokinetic dynamics: its turns are exact, its steps reversible, their volume is what its theorem needs, and short
steps leave the posterior as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mcmc_models import gaussian_primitive, quartic, quartic_alone
from scipy.integrate import solve_ivp

from batchnuts.autobatch import ops, primitive, random
from batchnuts.mcmc.kernel.isokinetic import IsokineticSteps, make_isokinetic
from batchnuts.mcmc.kernel.metric import make_metric
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters

SLOPE = np.array([3.0, -1.0, 0.5, 0.0, 2.0])


@primitive(costly=True)
def slope(position, data=()):
    """A density of constant force, as it is between two kicks."""
    return ops.sum(SLOPE * position), SLOPE + 0.0 * position


@primitive(costly=True)
def half_space(position, data=()):
    """A normal distribution, of which the half with a negative first coordinate has no density."""
    inside = position[0] > 0
    value = ops.where(inside, -0.5 * ops.sum(position * position), float("nan"))
    return value, ops.where(inside, -position, float("nan") * position)


def run(
    density: Any,
    position: np.ndarray,
    velocity: np.ndarray,
    evaluated: Callable[[np.ndarray], Any],
    *,
    step: float = 0.1,
    decoherence: float = np.inf,
    count: int = 1,
    metric: MetricParameters | None = None,
    backend: str = "numpy",
) -> IsokineticSteps:
    """Steps of chains [chains, dimension]; `evaluated`: log-density and gradient at one position, by NumPy alone."""
    chains, dimension = position.shape
    log_density, gradient = (np.array(each) for each in zip(*map(evaluated, position), strict=True))
    form = make_metric("diag" if metric is None else metric.kind, dimension, "float64", 4)
    inverse_mass = np.ones(dimension) if metric is None else form.set(metric)
    program = make_isokinetic(density, dimension, "float64", form)
    control = np.full(chains, step), np.full(chains, decoherence), np.zeros(chains, int), np.full(chains, count)
    arguments = position, velocity, log_density, gradient, np.broadcast_to(inverse_mass, position.shape), *control
    return IsokineticSteps(*program.run(random.lane_keys(0, chains), *arguments, backend=backend))


def directions(chains: int, dimension: int, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(chains, dimension))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def test_a_turn_is_the_exact_flow_of_a_constant_force() -> None:
    """And the kinetic energy grows by the work of the force on the particle, which moves at a speed of one."""
    position, velocity = np.zeros((4, 5)), directions(4, 5)
    result = run(slope, position, velocity, lambda x: (SLOPE @ x, SLOPE), step=0.7)

    def flow(_: float, state: np.ndarray) -> np.ndarray:
        u = state[:5]
        return np.append((SLOPE - u * (u @ SLOPE)) / 4, u @ SLOPE)

    for chain in range(4):
        exact = solve_ivp(flow, (0, 0.7), np.append(velocity[chain], 0.0), rtol=1e-11, atol=1e-12).y[:, -1]
        np.testing.assert_allclose(result.velocity[chain], exact[:5], atol=1e-9)
        grown = result.error_sum[chain] + result.log_density[chain]
        np.testing.assert_allclose(grown, exact[5], atol=1e-9)


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_a_turn_neither_overflows_nor_loses_its_direction(size: float) -> None:
    """In a force without bound the particle goes where it points; in none it goes on."""
    velocity = directions(3, 5)

    @primitive(costly=True)
    def scaled(position, data=()):
        return ops.sum(size * SLOPE * position), size * SLOPE + 0.0 * position

    result = run(scaled, np.zeros((3, 5)), velocity, lambda x: (size * SLOPE @ x, size * SLOPE), step=1e-3)
    expected = velocity if size < 1 else np.broadcast_to(SLOPE / np.linalg.norm(SLOPE), velocity.shape)
    going = result.velocity if size < 1 else np.where(result.made[:, None] > 0, result.velocity, expected)
    np.testing.assert_allclose(going, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(result.velocity, axis=1), 1.0, atol=1e-12)


@pytest.fixture(params=range(4))
def point(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(request.param).normal(size=(1, 2)), directions(1, 2, request.param)


@pytest.mark.parametrize("count", [1, 25])
def test_without_noise_steps_are_reversible(point: Any, count: int) -> None:
    there = run(quartic, *point, quartic_alone, count=count)
    assert np.abs(there.position - point[0]).max() > 0.05
    back = run(quartic, there.position, -there.velocity, quartic_alone, count=count)
    np.testing.assert_allclose(back.position, point[0], atol=1e-6)  # rounding grows on the way
    np.testing.assert_allclose(-back.velocity, point[1], atol=1e-6)
    np.testing.assert_allclose(back.error_sum, -there.error_sum, atol=1e-6)


def test_the_volume_changes_by_what_the_energy_error_says(point: Any) -> None:
    """pi(x') |det J| = pi(x) exp(-error): with an error of none the posterior is invariant ([M] theorem 1). The
    velocity's coordinate is its angle."""
    position, velocity = point
    z, e = np.append(position[0], np.arctan2(velocity[0, 1], velocity[0, 0])), 1e-5

    def flow(z: np.ndarray) -> np.ndarray:
        end = run(quartic, z[None, :2], np.array([[np.cos(z[2]), np.sin(z[2])]]), quartic_alone, step=0.4)
        return np.append(end.position[0], np.arctan2(end.velocity[0, 1], end.velocity[0, 0]))

    jacobian = np.stack([(flow(z + e * unit) - flow(z - e * unit)) / (2 * e) for unit in np.eye(3)], axis=1)
    end = run(quartic, position, velocity, quartic_alone, step=0.4)
    change = end.log_density[0] - quartic_alone(position[0])[0] + np.log(abs(np.linalg.det(jacobian)))
    np.testing.assert_allclose(change, -end.error_sum[0], atol=1e-6)
    assert abs(end.error_sum[0]) > 1e-5


def test_the_energy_error_is_of_second_order(point: Any) -> None:
    """Halving the step, over the same time, makes the error four times less."""
    sizes = np.array([0.01, 0.005, 0.0025])
    errors = [abs(run(quartic, *point, quartic_alone, step=s, count=round(1 / s)).error_sum[0]) for s in sizes]
    np.testing.assert_allclose(np.diff(np.log(errors)) / np.diff(np.log(sizes)), 2.0, atol=0.2)


@pytest.mark.parametrize("kind", ["dense", "low_rank"])
def test_a_metric_with_correlations_is_a_linear_map_of_the_position(kind: str) -> None:
    """A' A = M^-1: the same as the density of A^-1 x with the identity."""
    density, covariance = gaussian_primitive(6)
    precision = np.linalg.inv(covariance)
    scales = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / scales / scales[:, None])
    chosen = slice(None) if kind == "dense" else slice(2, None)
    metric = MetricParameters(kind, scales**2, vectors[:, chosen], values[chosen])
    root = scales[:, None] * metric.root()
    inner = root.T @ precision @ root

    @primitive(costly=True)
    def mapped(position, data=()):
        gradient = -ops.sum(inner * position, axis=-1)
        return 0.5 * ops.sum(position * gradient), gradient

    y, velocity = np.random.default_rng(3).normal(size=(5, 6)), directions(5, 6)
    common: dict[str, Any] = {"step": 0.5, "decoherence": 2.0, "count": 10}
    there = run(
        density, y @ root.T, velocity, lambda x: (-0.5 * x @ precision @ x, -precision @ x), metric=metric, **common
    )
    alone = run(mapped, y, velocity, lambda y: (-0.5 * y @ inner @ y, -inner @ y), **common)
    np.testing.assert_allclose(there.position, alone.position @ root.T, atol=1e-9)
    np.testing.assert_allclose(there.error_squares, alone.error_squares, atol=1e-9)


def test_a_step_that_leaves_the_support_is_not_made() -> None:
    """The chain turns back where it was; what it holds is always finite."""
    position, velocity = np.array([[0.05, 0.3, 0.0], [2.0, 0.0, 0.0]]), np.array([[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])

    def inside(x: np.ndarray) -> tuple[float, np.ndarray]:
        return -0.5 * x @ x, -x

    result = run(half_space, position, velocity, inside, step=0.2)
    assert result.made.tolist() == [0, 1]
    np.testing.assert_array_equal(result.position[0], position[0])
    np.testing.assert_array_equal(result.velocity[0], -velocity[0])
    assert result.error_squares[0] == 0
    longer = run(half_space, position, velocity, inside, step=0.2, decoherence=2.0, count=200)
    assert (longer.made < 200).any()
    assert np.isfinite(longer.gradient).all()
    assert (longer.position[:, 0] > 0).all()


@pytest.mark.parametrize("backend", ["native", "jax", "tensorflow"])
def test_every_backend_makes_the_same_steps(backend: str) -> None:
    position, velocity = np.random.default_rng(0).normal(size=(3, 2)), directions(3, 2)
    common: dict[str, Any] = {"decoherence": 1.5, "count": 7, "step": 0.3}
    expected = run(quartic, position, velocity, quartic_alone, **common)
    result = run(quartic, position, velocity, quartic_alone, backend=backend, **common)
    for name, array in expected._asdict().items():
        np.testing.assert_allclose(getattr(result, name), array, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(("step", "bias"), [(0.3, 0.0), (1.5, 0.15)])
def test_short_steps_leave_the_posterior_as_it_is(step: float, bias: float) -> None:
    """Of 4,000 chains that begin in it, for several decoherence times; long ones narrow it by some percent."""
    density, covariance = gaussian_primitive(10)
    precision, chains = np.linalg.inv(covariance), 4000
    scales = np.sqrt(np.diag(covariance))
    start = np.random.default_rng(5).multivariate_normal(np.zeros(10), covariance, size=chains)
    metric = MetricParameters("diag", scales**2, np.zeros((10, 0)), np.zeros(0))
    result = run(
        density, start, directions(chains, 10), lambda x: (-0.5 * x @ precision @ x, -precision @ x),
        step=step, decoherence=np.sqrt(10), count=40, metric=metric, backend="native",
    )  # fmt: skip
    standard = result.position / scales
    assert np.abs(standard.mean(axis=0)).max() * np.sqrt(chains) < 3.5
    noise = np.sqrt(2 / chains)
    assert np.abs(standard.var(axis=0) - 1).max() < bias + 3.5 * noise
    moved = np.array([np.corrcoef(start[:, i], result.position[:, i])[0, 1] for i in range(10)])
    assert np.abs(moved).max() < 0.5, "chains forget where they began, or nothing is tested"
