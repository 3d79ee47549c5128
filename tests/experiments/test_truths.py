"""Moments that are known by mathematics or quadrature, or published with a target."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from batchnuts.experiments.posterior_checks import brownian_motion, stochastic_volatility
from batchnuts.experiments.posterior_checks.moments import Moment, compare, summarize, transformed
from batchnuts.experiments.posterior_checks.truths import known_moments
from batchnuts.mcmc.model.model import Model
from batchnuts.models import REGISTRY, build


def gaussian_draws(rng: np.random.Generator, model: Any) -> dict[str, Any]:
    return {"x": rng.multivariate_normal(np.zeros(3), model.constant_data["true_covariance"][1], (4, 2000))}


def funnel_draws(rng: np.random.Generator, model: Any) -> dict[str, Any]:
    v = rng.normal(0, 3, (4, 2000))
    return {"v": v, "x": np.exp(v / 2)[..., None] * rng.normal(size=(4, 2000, 2))}


def test_the_known_moments_of_the_gaussian_and_the_funnel() -> None:
    rng = np.random.default_rng(3)
    for name, draw in (("correlated_gaussian", gaussian_draws), ("neal_funnel", funnel_draws)):
        options = REGISTRY[name].options(name=name, dimension=3)
        model = build(options)
        truth = known_moments(options, model)
        assert truth is not None
        found, _ = summarize(transformed(draw(rng, model), {"x": "log"} if name == "neal_funnel" else {}))
        assert max(abs(one.z) for one in compare(found, truth)) < 4
    of_radon = REGISTRY["radon"].options(name="radon")
    assert known_moments(of_radon, build(of_radon)) is None


def test_the_moments_of_a_brownian_motion_are_those_of_normal_distributions_mixed() -> None:
    seen = np.array([0.2, np.nan, 0.5, 0.1])
    there, times = np.isfinite(seen), np.arange(1.0, 5.0)
    covariance = np.minimum.outer(times, times)
    points = 30
    weights, means, seconds = [], [], []
    for log_innovation in np.linspace(-6, brownian_motion.LARGEST, points):
        for log_noise in np.linspace(-14, brownian_motion.LARGEST, points):
            innovation, noise = np.exp(log_innovation), np.exp(log_noise)
            of_seen = innovation**2 * covariance[np.ix_(there, there)] + noise**2 * np.eye(3)
            prior = stats.norm.pdf(log_innovation, scale=2) * stats.norm.pdf(log_noise, scale=2)
            weights.append(prior * stats.multivariate_normal(cov=of_seen).pdf(seen[there]))
            gain = np.linalg.solve(of_seen, innovation**2 * covariance[there]).T
            mean = gain @ seen[there]
            variance = np.diag(innovation**2 * (covariance - gain @ covariance[there]))
            means.append([innovation, noise, *mean])
            seconds.append([innovation**2, noise**2, *(mean**2 + variance)])
    mean, second = (np.average(values, axis=0, weights=weights) for values in (means, seconds))
    found = brownian_motion.posterior(seen, points=points)
    names = ("innovation_noise_scale", "observation_noise_scale", "locs")
    np.testing.assert_allclose(np.hstack([found[name].mean for name in names]), mean, rtol=1e-9)
    np.testing.assert_allclose(np.hstack([found[name].sd for name in names]), np.sqrt(second - mean**2), rtol=1e-7)


def test_the_likelihood_of_a_volatility_is_an_integral_over_all_days() -> None:
    """Of three days, by a Gauss-Hermite rule for each; and a prior that data say nothing about stays as it is."""
    returns, scale, mean = np.array([0.5, -2.0, 1.2]), np.array([0.2, 0.7]), np.array([-0.3, 1.0])
    nodes, weights = np.polynomial.hermite_e.hermegauss(70)
    z = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"))
    of_nodes = np.multiply.outer(np.multiply.outer(weights, weights), weights) / weights.sum() ** 3
    for persistence in (0.3, 0.95):
        expected = np.zeros((2, 2))
        for i, j in np.ndindex(2, 2):
            h = [mean[j] + scale[i] / np.sqrt(1 - persistence**2) * z[0]]
            for day in (1, 2):
                h.append(mean[j] + persistence * (h[-1] - mean[j]) + scale[i] * z[day])
            density = np.prod([stats.norm.pdf(y, scale=np.exp(at / 2)) for y, at in zip(returns, h, strict=True)], 0)
            expected[i, j] = np.log((of_nodes * density).sum())
        found = stochastic_volatility._log_likelihood(returns, persistence, scale, mean, points=201)
        np.testing.assert_allclose(found - found[0, 0], expected - expected[0, 0], atol=2e-7)


def test_the_prior_of_a_volatility_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def flat(returns: Any, persistence: float, scale: Any, mean: Any, points: int) -> Any:
        return np.zeros((len(scale), len(mean)))

    monkeypatch.setattr(stochastic_volatility, "_log_likelihood", flat)
    found = stochastic_volatility.posterior(np.array([-1.0, 1.0]))["persistence_of_volatility"]
    prior = stats.beta(20, 1.5, loc=-1, scale=2)
    np.testing.assert_allclose([found.mean, found.sd], [prior.mean(), prior.std()], rtol=2e-3)


def test_published_moments_are_compared_where_they_are_known() -> None:
    """As a target of the Inference Gym has them: standard errors in the denominator, exact without any, and left out
    where only that of the other moment is known."""
    columns = [[1.0, 0.3, 3.0, 0.4], [2.0, 0.3, np.nan, np.nan], [2.0, 0.3, 3.0, np.nan], [1.0, np.nan, 8.4, np.nan]]
    table = np.array(columns).T  # rows in the order of its STATISTICS
    model = Model.from_function(
        lambda q: -0.5 * q[0] ** 2, dimension=4, ground_truth={"theta": (("statistic", "axis"), table)}
    )
    truth = known_moments(None, model)
    assert truth is not None
    found = {"theta": Moment(np.full(4, 2.0), np.array([2.0, 9.0, 9.0, 9.0]), np.full(4, 0.4), np.full(4, 0.3))}
    assert [(one.element, one.statistic, round(one.z, 9)) for one in compare(found, truth)] == [
        ("theta[0]", "mean", 2.0), ("theta[0]", "sd", -2.0), ("theta[1]", "mean", 0.0), ("theta[2]", "mean", 0.0),
        ("theta[3]", "mean", 2.5), ("theta[3]", "sd", 2.0),
    ]  # fmt: skip


@pytest.mark.parametrize("target", ["StochasticVolatilitySP500Small", "VectorizedStochasticVolatilitySP500Small"])
def test_exact_moments_take_the_place_of_published_ones(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the parameters that they are known of; the volatilities stay as published."""
    data = SimpleNamespace(sp500_returns=lambda num_points: {"centered_returns": np.arange(num_points)})
    monkeypatch.setitem(sys.modules, "inference_gym", SimpleNamespace(internal=SimpleNamespace(data=data)))
    monkeypatch.setitem(sys.modules, "inference_gym.internal", SimpleNamespace(data=data))
    exact = {"mean_log_volatility": Moment.exact(7.0, 1.0)}
    asked = []
    monkeypatch.setattr(stochastic_volatility, "posterior", lambda returns: asked.append(len(returns)) or exact)
    table = np.array([[8.0], [0.01], [1.0], [0.01]])
    published = dict.fromkeys(("mean_log_volatility", "log_volatility"), (("statistic",), table[:, 0]))
    model = Model.from_function(lambda q: -0.5 * q[0] ** 2, dimension=1, ground_truth=published)
    truth = known_moments(SimpleNamespace(inference_gym=target), model)
    assert truth is not None
    assert (asked, float(truth["mean_log_volatility"].mean), float(truth["log_volatility"].mean)) == ([100], 7.0, 8.0)
    other = known_moments(SimpleNamespace(inference_gym="StochasticVolatilitySP500"), model)
    assert other is not None
    assert float(other["mean_log_volatility"].mean) == 8.0
