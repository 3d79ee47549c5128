"""Logistic regression against a long run of another sampler (reference/make_logreg_reference.py)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from moments import mcse
from scipy import stats

from batchnuts.mcmc.run.sampling import run_chains
from batchnuts.mcmc.settings.run_settings import split_settings
from batchnuts.models.logistic_regression import LogisticRegressionOptions, build_logistic_regression, synthetic

REFERENCE = Path(__file__).parent / "reference" / "logreg.npz"
ALPHA = 1e-3


@pytest.mark.skipif(not REFERENCE.exists(), reason="no reference: run make_logreg_reference.py")
def test_the_reference_is_of_these_data() -> None:
    """The reference's mode is a mode of the packaged model's posterior."""
    with np.load(REFERENCE) as reference:
        features, labels = synthetic(10_000, 100, 0)
        features = features.astype("float32").astype("float64")
        mode = reference["map"]
        residual = labels - 1 / (1 + np.exp(-features @ mode))
        np.testing.assert_allclose(features.T @ residual, mode, atol=1e-6)
        assert json.loads(str(reference["settings"]))["max_rhat"] < 1.01


@pytest.mark.slow
@pytest.mark.skipif(not REFERENCE.exists(), reason="no reference: run make_logreg_reference.py")
def test_posterior_means_and_deviations_agree_with_the_reference() -> None:
    model = build_logistic_regression(LogisticRegressionOptions())
    draws = run_chains(model, *split_settings({"chains": 64, "warmup": 150, "draws": 100, "seed": 11}))
    position = draws.position.astype("float64")
    with np.load(REFERENCE) as reference:
        mean, sd = reference["mean"], reference["sd"]
        mean_error = np.hypot(mcse(position), reference["mcse"])
        centred = (position - position.mean((0, 1))) ** 2
        sd_error = np.hypot(mcse(centred) / (2 * sd), reference["sd_mcse"])
    z_mean = (position.mean((0, 1)) - mean) / mean_error
    z_sd = (position.std((0, 1), ddof=1) - sd) / sd_error
    threshold = stats.norm.isf(ALPHA / 2 / 200)
    assert np.abs(z_mean).max() < threshold, z_mean
    assert np.abs(z_sd).max() < threshold, z_sd
    # together they are as large as standard errors say
    for z in (z_mean, z_sd):
        low, high = stats.chi2(100).ppf([ALPHA / 2, 1 - ALPHA / 2])
        assert low / 2 < np.sum(z**2) < high * 1.5, np.sum(z**2)
    assert (mean_error < 0.05 * sd).all(), "the comparison has no force"
