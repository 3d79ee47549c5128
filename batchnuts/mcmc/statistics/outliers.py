"""Chains that are far from all others and stay there: they are left out when the metric and step size are pooled.

One chain among 256 that never reaches the typical set would else set the metric for all: its distance enters the
variance squared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.window_moments import Float, Moments

FAR = 10.0
"""Robust standard deviations from the median beyond which a chain's mean is far from the others'."""

STAYS = 0.1
"""A chain that is far and crosses more than this share of the distance (its standard deviation in the window) is on its
way, or in a heavy tail, and counts like any other."""

MOST = 0.2
"""Share of chains beyond which they are no outliers: then the chains disagree, and none is left out."""

NATS = 10.0
"""A log-density that is no further below the others' is within what they hold."""

FEWEST = 8
"""Chains below which none is an outlier: too few to tell which of them are the others."""


def find_outliers(moments: Moments) -> NDArray[np.bool_]:
    """[chains]: which are outliers: of a window's moments, those of all chains that have drawn in it.

    Far in any coordinate, or in the log-density below the others.
    """
    drawn = moments.count > 0
    outliers = np.zeros(len(drawn), bool)
    if drawn.sum() < FEWEST:
        return outliers
    drawn_moments = moments.of(drawn)
    away = far_and_stay(drawn_moments.mean, drawn_moments.variance)
    with np.errstate(invalid="ignore"):
        away[:, 0] &= drawn_moments.mean[:, 0] < np.median(drawn_moments.mean[:, 0])
    outliers[drawn] = away.any(axis=1) | ~np.isfinite(drawn_moments.mean).all(axis=1)
    return outliers if outliers.sum() <= MOST * drawn.sum() else np.zeros_like(outliers)


def far_and_stay(mean: Float, variance: Float) -> NDArray[np.bool_]:
    """[chains, columns]: where a chain is far from the others, on either side, and does not cross the distance.

    mean, variance [chains, columns]: of the draws of each chain.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(mean - np.median(mean, axis=0))
        far = distance > FAR * spread(mean, variance)
        return far & (np.sqrt(variance) < STAYS * distance)


def spread(mean: Float, variance: Float) -> Float:
    """[columns]: a standard deviation of draws that few chains cannot move: of medians between and within chains."""
    low, high = np.quantile(mean, (0.25, 0.75), axis=0)
    between = (high - low) / 1.349  # of a normal distribution
    return np.sqrt(between**2 + np.median(variance, axis=0))  # type: ignore[no-any-return]
