"""The estimators that `metrics` compares with `diag` are what they are called, and are what warmup uses meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from batchnuts.experiments.metrics import DIAGONAL, METRICS, estimated_by
from batchnuts.mcmc.execution.metric_draws import DrawsWithGradients
from batchnuts.mcmc.settings.metric_kinds import METRIC_KINDS
from batchnuts.mcmc.warmup.pooling import pooled_metric

COVARIANCE = np.array([[1.0, 1.8], [1.8, 4.0]])
PRECISION = np.linalg.inv(COVARIANCE)
CHAINS, DRAWS = 20, 500


@pytest.mark.parametrize(
    ("name", "expected"),
    [("variance", np.diag(COVARIANCE)), ("fisher", np.sqrt(np.diag(COVARIANCE) / np.diag(PRECISION)))],
)
def test_other_estimators_of_a_diagonal_metric(name: str, expected: np.ndarray) -> None:
    x = np.random.default_rng(1).multivariate_normal(np.ones(2), COVARIANCE, size=(CHAINS, DRAWS))
    drawn = DrawsWithGradients(x, -(x - 1.0) @ PRECISION, np.ones((CHAINS, DRAWS), bool), 0, 0)
    every = np.ones(CHAINS, bool)
    with estimated_by(name):
        found = pooled_metric("diag", 1, drawn, np.zeros(CHAINS, np.int64), every)
    np.testing.assert_allclose(found.inverse_mass, expected, rtol=0.05)
    ours = pooled_metric("diag", 1, drawn, np.zeros(CHAINS, np.int64), every)
    assert (np.abs(np.log(ours.inverse_mass / expected)) > 0.1).all(), "it is between the two"


def test_all_are_compared() -> None:
    assert set(METRICS) == {*DIAGONAL, *METRIC_KINDS} - {"unit"}
