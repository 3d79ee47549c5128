"""Whether chains have arrived: at absurd starts, that may be left for others; at the end of warmup, before draws begin.

Log-densities tell most: of draws in d dimensions they lie within some sqrt(d) nats, wherever in the posterior a chain
is, and they have exponential tails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.late_chains import late_by_moments
from batchnuts.mcmc.warmup.moments import Moments
from batchnuts.mcmc.warmup.outliers import FAR, FEWEST, spread

NATS = 10.0
"""A log-density that is no further below the others' is within what they hold."""

IMPLAUSIBLE, EACH = 2000.0, 5.0
"""Nats, and nats for each dimension, below what the upper half of all chains has, from which on a chain cannot be in a
mode of any weight: that would have to be exp(5) times as wide in every direction to hold as much."""

DEEP = 50.0
"""The same, where a mode in which chains move would hold exp(-DEEP) of what the highest one holds if it was exp(EACH)
times as wide in every direction: chains so low go on warming up, or start again."""

STILL = 1e-4
"""Standard deviations of all chains that one at least moves in some coordinate, if it moves."""

ABSURD, LOWEST = 1e4, 0.25
"""A start is absurd where its log-density is rounded to more than a nat, and lies further below the highest one than
that of the LOWEST quarter's upper end does by this factor."""


def absurd_starts(log_density: NDArray[np.floating]) -> NDArray[np.bool_]:
    """[starts]: where a log-density [starts] is absurd beside those of the others.

    There accepting is decided by rounding, so that a chain moves little or not at all. None where most starts are so.
    """
    if not len(log_density):
        return np.zeros(0, bool)
    depth = log_density.max() - log_density.astype(np.float64)
    rounded = np.spacing(np.abs(log_density)) > 1.0
    typical = max(float(np.quantile(depth, LOWEST)), 1.0)
    found = rounded & (depth > ABSURD * typical)
    return found if found.mean() <= 0.5 else np.zeros_like(found)


def implausible(moments: Moments, log_density: NDArray[np.floating]) -> NDArray[np.bool_]:
    """[chains]: which are where no mode of any weight can be, while half of all chains agree about a higher place.

    Those whose log-density [chains] is IMPLAUSIBLE nats below, and those that are far below by what others hold and did
    not move in the window with these moments. A chain that moves in a mode of its own is neither.
    """
    drawn = moments.count > 0
    found = np.zeros(len(drawn), bool)
    if drawn.sum() < FEWEST:
        return found
    mean, variance = moments.mean[drawn], moments.variance[drawn]
    lp = log_density[drawn].astype(np.float64)
    upper = lp >= np.median(lp)
    depth = np.median(lp[upper]) - lp
    scale = spread(mean[upper], variance[upper])
    still = (variance[:, 1:] <= (STILL * scale[1:]) ** 2).all(axis=1)
    below = depth > FAR * scale[0] + NATS
    dimension = mean.shape[1] - 1
    found[drawn] = (depth > IMPLAUSIBLE + EACH * dimension + FAR * scale[0]) | (below & still) | ~np.isfinite(lp)
    return found


def late(moments: Moments, log_density: NDArray[np.floating]) -> NDArray[np.bool_]:
    """[chains]: whose log-density [chains] at the end of a window is below what others hold."""
    return _below(moments, log_density, NATS)


def deep(moments: Moments, log_density: NDArray[np.floating]) -> NDArray[np.bool_]:
    """[chains]: whose log-density [chains] at the end of a window is so far below that they wait to arrive even where
    they come no nearer: nothing that matters can be there."""
    return _below(moments, log_density, DEEP + EACH * (moments.mean.shape[1] - 1))


def _below(moments: Moments, log_density: NDArray[np.floating], nats: float) -> NDArray[np.bool_]:
    """[chains]: whose log-density is further below the median chain's than its spread and so many nats allow."""
    if (moments.count > 0).sum() < FEWEST:
        return np.zeros(len(log_density), bool)
    typical, scale = np.median(moments.mean[:, 0]), spread(moments.mean[:, :1], moments.variance[:, :1])[0]
    below: NDArray[np.bool_] = typical - log_density > FAR * scale + nats
    return below


def far_away(moments: Moments) -> NDArray[np.bool_]:
    """[chains]: whose draws of a window are further away than those of all others in some coordinate."""
    mean, variance = moments.mean[:, 1:].T, moments.variance[:, 1:].T
    return np.isfinite(late_by_moments(mean, variance, len(mean)))
