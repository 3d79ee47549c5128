"""Packaged models against densities written another way: with SciPy, loops, sums over all paths, another solver."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from array_libraries import needs_jax
from scipy import integrate, special, stats

from batchnuts.autobatch import ops
from batchnuts.mcmc.model.model import Model
from batchnuts.models import REGISTRY, build
from batchnuts.models import densities as written
from batchnuts.models.lotka_volterra import HARES, LYNXES

Values = dict[str, Any]


def make(name: str, dtype: str = "float64", **options: Any) -> Model:
    return build(REGISTRY[name].options(name=name, dtype=dtype, **options))


def values_of(model: Model, seed: int = 1) -> Values:
    return model.constrain(np.random.default_rng(seed).uniform(-1, 1, model.dimension))


def radon(model: Model, p: Values) -> float:
    data = {name: array for name, (_, array) in model.constant_data.items()}
    total = stats.norm.logpdf(p["gamma"], 0, 2).sum() + stats.norm.logpdf(p["beta"], 0, 2)
    total += stats.norm.logpdf(p["eta"]).sum() + stats.halfnorm.logpdf(p["tau"]) + stats.halfnorm.logpdf(p["sigma"])
    for y, county, floor in zip(model.observed_data["y"][1], data["county_of"], data["first_floor"], strict=True):
        mean = p["gamma"][0] + p["gamma"][1] * data["uranium"][county] + p["tau"] * p["eta"][county] + p["beta"] * floor
        total += stats.norm.logpdf(y, mean, p["sigma"])
    return float(total)


def item_response(model: Model, p: Values) -> float:
    answers = model.observed_data["y"][1]
    total = stats.norm.logpdf(p["mu_b"], 0, 2) + stats.halfnorm.logpdf(p["sigma_b"], scale=2)
    total += stats.norm.logpdf(p["theta"]).sum() + stats.norm.logpdf(p["b"], p["mu_b"], p["sigma_b"]).sum()
    if "a" in p:
        total += stats.lognorm.logpdf(p["a"], 0.5).sum()
    for person, item in np.ndindex(*answers.shape):
        slope = p["a"][item] if "a" in p else 1.0
        probability = special.expit(slope * (p["theta"][person] - p["b"][item]))
        total += stats.bernoulli.logpmf(int(answers[person, item]), probability)
    return float(total)


def stochastic_volatility(model: Model, p: Values) -> float:
    y = model.observed_data["y"][1]
    total = stats.norm.logpdf(p["mu"], 0, 5) + stats.beta.logpdf((p["phi"] + 1) / 2, 20, 1.5)
    total += stats.halfnorm.logpdf(p["sigma"], scale=0.5) + stats.norm.logpdf(p["z"]).sum()
    h = p["h_1"]
    total += stats.norm.logpdf(h, p["mu"], p["sigma"] / math.sqrt(1 - p["phi"] ** 2))
    for t in range(len(y)):
        if t:
            h = p["mu"] + p["phi"] * (h - p["mu"]) + p["sigma"] * p["z"][t - 1]
        total += stats.norm.logpdf(y[t], 0, math.exp(h / 2))
    return float(total)


def gaussian_process(model: Model, p: Values) -> float:
    x, y = model.constant_data["x"][1], model.observed_data["y"][1]
    covariance = p["amplitude"] ** 2 * np.exp(-((x[:, None] - x) ** 2) / (2 * p["length"] ** 2))
    covariance += (p["noise"] ** 2 + 1e-8 * p["amplitude"] ** 2) * np.eye(len(x))
    total = stats.multivariate_normal(np.zeros(len(x)), covariance).logpdf(y)
    total += stats.invgamma.logpdf(p["length"], 5, scale=5) + stats.halfnorm.logpdf(p["amplitude"], scale=2)
    return float(total + stats.halfnorm.logpdf(p["noise"]))


def hidden_markov(model: Model, p: Values) -> float:
    y, k = model.observed_data["y"][1], len(p["mean"])
    paths = []
    for path in itertools.product(range(k), repeat=len(y)):
        steps = sum(math.log(p["moves"][a, b]) for a, b in itertools.pairwise(path)) - math.log(k)
        paths.append(steps + stats.norm.logpdf(y, p["mean"][list(path)], p["sigma"][list(path)]).sum())
    total = special.logsumexp(paths) + stats.norm.logpdf(p["mean"], 0, 3).sum() + math.log(math.factorial(k))
    total += sum(stats.dirichlet.logpdf(row, 1 + 4 * np.eye(k)[i]) for i, row in enumerate(p["moves"]))
    return float(total + stats.lognorm.logpdf(p["sigma"], 0.5).sum())


def horseshoe(model: Model, p: Values) -> float:
    x, y = model.constant_data["x"][1], model.observed_data["y"][1]
    rows, columns = x.shape
    shrunk = p["slab"] * p["lambda"] ** 2 / (p["slab"] + p["tau"] ** 2 * p["lambda"] ** 2)
    probability = special.expit(p["intercept"] + x @ (p["z"] * p["tau"] * np.sqrt(shrunk)))
    total = stats.bernoulli.logpmf(y.astype(int), probability).sum() + stats.norm.logpdf(p["intercept"], 0, 2)
    total += stats.norm.logpdf(p["z"]).sum() + stats.halfcauchy.logpdf(p["lambda"]).sum()
    total += stats.halfcauchy.logpdf(p["tau"], scale=2 / (columns - 2) * 2 / math.sqrt(rows))
    return float(total + stats.invgamma.logpdf(p["slab"], 2, scale=8))


def lotka_volterra(model: Model, p: Values) -> float:
    def slopes(_: float, z: np.ndarray) -> list[float]:
        u, v = z
        return [(p["alpha"] - p["beta"] * v) * u, (-p["gamma"] + p["delta"] * u) * v]

    solved = integrate.solve_ivp(slopes, (0, 20), p["start"], t_eval=np.arange(21), rtol=1e-10, atol=1e-10).y
    total = stats.norm.logpdf([p["alpha"], p["gamma"]], 1, 0.5).sum()
    total += stats.norm.logpdf([p["beta"], p["delta"]], 0.05, 0.05).sum()
    total += stats.lognorm.logpdf(p["sigma"], 1, scale=math.exp(-1)).sum()
    total += stats.lognorm.logpdf(p["start"], 1, scale=10).sum()
    for pelts, populations, sigma in zip((HARES, LYNXES), solved, p["sigma"], strict=True):
        total += stats.lognorm.logpdf(pelts, sigma, scale=populations).sum()
    return float(total)


CASES: dict[str, tuple[Callable[[Model, Values], float], dict[str, Any]]] = {
    "radon": (radon, {"counties": 4, "houses": 12}),
    "item_response": (item_response, {"persons": 4, "items": 3}),
    "item_response-1PL": (item_response, {"persons": 4, "items": 3, "parametrization": "1PL"}),
    "stochastic_volatility": (stochastic_volatility, {"length": 11}),
    "gaussian_process": (gaussian_process, {"points": 7}),
    "hidden_markov": (hidden_markov, {"states": 2, "length": 7}),
    "horseshoe": (horseshoe, {"rows": 9, "columns": 5, "relevant": 2}),
    "lotka_volterra": (lotka_volterra, {"steps": 50}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_the_density_of_its_docstring(name: str) -> None:
    reference, options = CASES[name]
    model = make(name.partition("-")[0], **options)
    for seed in range(3):
        p = values_of(model, seed)
        if name == "lotka_volterra":
            p = {k: v[0] for k, v in model.initializer(np.random.default_rng(seed), 1).items()}  # type: ignore[misc]
        np.testing.assert_allclose(model.log_density(p), reference(model, p), rtol=1e-6 if "lotka" in name else 1e-10)
        if model.log_likelihood is not None:
            given = model.log_likelihood(p)
            assert np.shape(given) == np.shape(next(iter(model.observed_data.values()))[1])
            assert np.sum(given) < model.log_density(p) + 100


@needs_jax
@pytest.mark.parametrize("name", CASES)
def test_both_libraries_give_the_same_gradient(name: str) -> None:
    from batchnuts.autobatch.machine import tensor_library

    options = {"steps": 2} if name == "lotka_volterra" else CASES[name][1]
    model = make(name.partition("-")[0], **options)
    position = model.initial_positions(np.random.default_rng(2), 1)[0]
    results = []
    for backend in ("jax", "tensorflow"):
        library = tensor_library(backend)
        results.append(library.differentiated(model.flat_log_density)(library.tensor(position)))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda x: written.half_cauchy(x, 3.0), lambda x: stats.halfcauchy.logpdf(x, scale=3)),
        (lambda x: written.lognormal(x, 0.3, 2.0), lambda x: stats.lognorm.logpdf(x, 2, scale=math.exp(0.3))),
        (lambda x: written.inverse_gamma(x, 2.5, 3.0), lambda x: stats.invgamma.logpdf(x, 2.5, scale=3)),
        (lambda x: written.beta(x / 4, 2.5, 1.5), lambda x: stats.beta.logpdf(x / 4, 2.5, 1.5)),
    ],
)
def test_densities_are_those_of_scipy(found: Callable[..., Any], expected: Callable[..., Any]) -> None:
    x = np.array([0.1, 0.7, 1.0, 2.3])
    np.testing.assert_allclose(found(x), expected(x), rtol=1e-12)


def test_predictions_of_a_gaussian_process_follow_the_data() -> None:
    """The mean of the function at the observed places is near the observations where there is little noise."""
    model = make("gaussian_process", points=30)
    p = {"length": 1.2, "amplitude": 1.5, "noise": 0.05}
    assert model.predictive is not None
    from batchnuts.autobatch import random

    drawn = np.stack([model.predictive(p, key)["f"] for key in random.lane_keys(0, 50)])
    grid = model.constant_data["grid_x"][1]
    x, y = model.constant_data["x"][1], model.observed_data["y"][1]
    nearest = np.abs(grid[:, None] - x).argmin(axis=1)
    close = np.abs(grid - x[nearest]) < 0.05
    assert close.sum() > 3
    assert np.abs(drawn.mean(axis=0) - y[nearest])[close].max() < 0.6
    assert ops.all(np.isfinite(drawn))


def test_fewer_features_matter_than_there_are() -> None:
    with pytest.raises(ValueError, match="relevant: found 5; expected fewer than the columns, 5"):
        make("horseshoe", columns=5, relevant=5)


@needs_jax
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
@pytest.mark.parametrize(
    "name", [name for name in REGISTRY if name not in ("logistic_regression", "correlated_gaussian")]
)
def test_functions_of_draws_are_traced_by_either_library(name: str, backend: str) -> None:
    """With shapes that fit, in the dtype of the model: what a run checks before it begins."""
    from batchnuts.mcmc.model.library_choice import DensityLibrary
    from batchnuts.mcmc.model.quantities import check_quantities

    model = make(name, "float32", **CASES.get(name, (None, {}))[1])
    check_quantities(model, DensityLibrary(backend, ""), model.initial_positions(np.random.default_rng(0), 1)[0])
