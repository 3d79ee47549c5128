"""z-scores of a run's averages against known expectations, with Monte Carlo standard errors by ArviZ."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

ALPHA = 1e-3
"""Chance that one such test would fail by bad luck; the seeds are fixed, so a passing one goes on passing."""


def mcse(samples: np.ndarray) -> np.ndarray:
    """Standard errors of the means of samples [chains, draws, quantities]."""
    import arviz

    dataset = arviz.convert_to_dataset({"samples": samples.astype("float64")})
    return np.asarray(arviz.mcse(dataset, method="mean")["samples"])


def assert_expectations(samples: np.ndarray, expected: Any, largest_error: float) -> None:
    """Means of samples [chains, draws, quantities] against their expectations; Bonferroni over the quantities.

    `largest_error`: the test has no force if a standard error is above this share of the quantity's deviation.
    """
    samples = samples.astype("float64")
    errors = mcse(samples)
    assert (errors < largest_error * samples.std((0, 1))).all(), errors
    z = (samples.mean((0, 1)) - np.asarray(expected)) / errors
    threshold = stats.norm.isf(ALPHA / 2 / len(z))
    assert np.abs(z).max() < threshold, f"z-scores {np.round(z, 1)}, threshold {threshold:.2f}"
    # chains are independent: their own spread gives the standard error once more, without autocorrelations
    between = samples.mean(1).std(0, ddof=1) / np.sqrt(len(samples))
    assert (errors / between > 0.5).all(), errors / between
    assert (errors / between < 2).all(), errors / between
    # no z-scores may be too small either: the standard errors are what they say
    assert np.sum(z**2) > stats.chi2(len(z)).ppf(ALPHA) / 2
