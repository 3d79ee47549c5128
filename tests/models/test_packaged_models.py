import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from batchnuts.models import REGISTRY, build
from batchnuts.models.correlated_gaussian import CorrelatedGaussianOptions, covariance_matrix

OPTIONS = [
    {"name": "logistic_regression", "rows": 40, "columns": 5},
    {"name": "logistic_regression", "rows": 40, "columns": 5, "intercept": True},
    {"name": "correlated_gaussian", "dimension": 6},
    {"name": "correlated_gaussian", "dimension": 6, "covariance": "ar1", "correlation": -0.5},
    {"name": "correlated_gaussian", "dimension": 6, "covariance": "equicorrelated", "correlation": 0.5},
    {"name": "correlated_gaussian", "dimension": 6, "covariance": "diagonal", "condition_number": 1000.0},
]


def make(options, dtype="float32"):
    return build(REGISTRY[options["name"]].options(**options, dtype=dtype))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-10)])
@pytest.mark.parametrize("options", OPTIONS)
def test_batched_gradient_is_autodiff_of_the_single_density(options, dtype, tolerance):
    model = make(options, dtype)
    position = model.initial_positions(np.random.default_rng(0), 7)
    position[0] = 0.0  # where logits are zero, which a derivative of max(z, 0) or |z| may get wrong
    value, gradient = model.batched_value_and_gradient(tf.constant(position))
    assert value.dtype.name == gradient.dtype.name == dtype
    assert (value.shape, gradient.shape) == ([7], [7, model.dimension])
    for lane, row in enumerate(position):
        with tf.GradientTape() as tape:
            point = tf.constant(row)
            tape.watch(point)
            single = model.flat_log_density(point)
        assert single.shape == []
        assert single.dtype.name == dtype
        np.testing.assert_allclose(value[lane], single, rtol=tolerance)
        np.testing.assert_allclose(gradient[lane], tape.gradient(single, point), rtol=tolerance, atol=tolerance * 10)


def test_logistic_regression_is_the_textbook_density():
    model = make(OPTIONS[0], "float64")
    x, y = model.constant_data["x"][1], model.observed_data["y"][1]
    beta = np.linspace(-1, 1, 5)
    probability = 1 / (1 + np.exp(-x @ beta))
    want = np.sum(np.log(np.where(y == 1, probability, 1 - probability))) - 0.5 * beta @ beta
    np.testing.assert_allclose(model.flat_log_density(tf.constant(beta)), want, rtol=1e-12)


def test_logistic_regression_far_out_is_finite():
    model = make(OPTIONS[0])
    value, gradient = model.batched_value_and_gradient(tf.fill([1, 5], 1e4))
    assert np.isfinite(value).all()
    assert np.isfinite(gradient).all()


def test_synthetic_data_follow_their_seed():
    first, again = make(OPTIONS[0]), make(OPTIONS[0])
    other = make({**OPTIONS[0], "data_seed": 1})
    np.testing.assert_array_equal(first.constant_data["x"][1], again.constant_data["x"][1])
    assert not np.array_equal(first.constant_data["x"][1], other.constant_data["x"][1])
    assert set(np.unique(first.observed_data["y"][1])) == {0, 1}


def test_intercept_is_a_named_column_of_ones():
    model = make(OPTIONS[1])
    assert model.element_names()[:2] == ["beta[intercept]", "beta[0]"]
    assert (model.constant_data["x"][1][:, 0] == 1).all()


@pytest.mark.parametrize("options", OPTIONS[2:])
def test_gaussian_truth_belongs_to_its_density(options):
    model = make(options, "float64")
    if options.get("covariance") == "diagonal":
        truth = np.diag(model.constant_data["true_variance"][1])
    else:
        truth = model.constant_data["true_covariance"][1]
    assert (model.constant_data["true_mean"][1] == 0).all()
    # The gradient is -precision x, so at the columns of the covariance it is minus the identity.
    _, gradient = model.batched_value_and_gradient(tf.constant(truth))
    np.testing.assert_allclose(gradient, -np.eye(6), atol=1e-9)


def test_covariances_are_as_documented():
    def matrix(**options):
        return covariance_matrix(CorrelatedGaussianOptions(dimension=4, **options))

    assert matrix(covariance="ar1", correlation=0.5)[0, 3] == 0.125
    assert matrix(covariance="equicorrelated", correlation=0.5)[0, 3] == 0.5
    np.testing.assert_allclose(np.diag(matrix(covariance="diagonal", condition_number=8.0)), [1, 2, 4, 8])
    root = np.random.default_rng(1).standard_normal((4, 4))
    np.testing.assert_allclose(matrix(), root @ root.T / 4 + 0.1 * np.eye(4))


@pytest.mark.parametrize("folder", ["models", "configs", "experiments"])
def test_source_folders_refuse_to_be_imported_at_top_level(folder):
    root = Path(__file__).resolve().parents[2]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import {folder}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"ImportError: Import batchnuts.{folder}" in done.stderr


def test_the_funnel_is_its_textbook_density():
    model = make({"name": "neal_funnel", "dimension": 4, "scale": 2.0}, "float64")
    v, x = -1.3, np.array([0.2, -0.7, 1.1])
    want = -0.5 * (v / 2) ** 2 - np.log(2.0 * np.sqrt(2 * np.pi))
    want += np.sum(-0.5 * x**2 / np.exp(v) - 0.5 * np.log(2 * np.pi * np.exp(v)))
    np.testing.assert_allclose(model.flat_log_density(tf.constant([v, *x], tf.float64)), want, rtol=1e-12)


def test_eight_schools_is_one_density_in_two_parametrizations():
    from scipy import stats

    mu, log_tau, eta = 3.0, 0.7, np.linspace(-1, 1, 8)
    tau = np.exp(log_tau)
    theta = mu + tau * eta
    noncentered, centered = (
        make({"name": "eight_schools", "parametrization": name}, "float64") for name in ("noncentered", "centered")
    )
    y, sigma = noncentered.observed_data["y"][1], noncentered.constant_data["sigma"][1]
    want = stats.norm.logpdf(y, theta, sigma).sum() + stats.norm.logpdf(mu, 0, 5)
    want += stats.halfcauchy.logpdf(tau, scale=5) + log_tau
    of_eta, of_theta = want + stats.norm.logpdf(eta).sum(), want + stats.norm.logpdf(theta, mu, tau).sum()
    found = noncentered.flat_log_density(tf.constant([mu, log_tau, *eta], tf.float64))
    np.testing.assert_allclose(found, of_eta, rtol=1e-12)
    found = centered.flat_log_density(tf.constant([mu, log_tau, *theta], tf.float64))
    np.testing.assert_allclose(found, of_theta, rtol=1e-12)
