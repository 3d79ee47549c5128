"""Whether chains have arrived, at the end of warmup, before draws begin.

Log-densities tell most: of draws in d dimensions they lie within some sqrt(d) nats, wherever in the posterior a chain
is, and they have exponential tails.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.late_chains import late_by_moments
from batchnuts.mcmc.statistics.outliers import FAR, FEWEST, NATS, spread
from batchnuts.mcmc.statistics.window_moments import Moments

IMPLAUSIBLE, EACH = 2000.0, 5.0
"""Nats, and nats for each dimension, below what the upper half of all chains has, from which on a chain cannot be in a
mode of any weight: that would have to be exp(5) times as wide in every direction to hold as much."""

DEEP = 50.0
"""The same, where a mode in which chains move would hold exp(-DEEP) of what the highest one holds if it was exp(EACH)
times as wide in every direction: chains so low go on warming up, or start again."""

STILL = 1e-4
"""Standard deviations of all chains that one at least moves in some coordinate, if it moves."""


def implausible(moments: Moments, log_density: NDArray[np.floating]) -> NDArray[np.bool_]:
    """[chains]: which are where no mode of any weight can be, while half of all chains agree about a higher place.

    Those whose log-density [chains] is IMPLAUSIBLE nats below, and those that are far below by what others hold and did
    not move in the window with these moments. A chain that moves in a mode of its own is neither.
    """
    drawn = moments.count > 0
    result = np.zeros(len(drawn), bool)
    if drawn.sum() < FEWEST:
        return result
    mean, variance = moments.mean[drawn], moments.variance[drawn]
    lp = log_density[drawn].astype(np.float64)
    upper = lp >= np.median(lp)
    depth = np.median(lp[upper]) - lp
    scale = spread(mean[upper], variance[upper])
    still = (variance[:, 1:] <= (STILL * scale[1:]) ** 2).all(axis=1)
    below = depth > FAR * scale[0] + NATS
    dimension = mean.shape[1] - 1
    result[drawn] = (depth > IMPLAUSIBLE + EACH * dimension + FAR * scale[0]) | (below & still) | ~np.isfinite(lp)
    return result


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
