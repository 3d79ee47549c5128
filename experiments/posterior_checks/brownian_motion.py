"""The posterior of a Brownian motion that is seen with noise, at some times, when neither scale is known.

    log innovation ~ Normal(0, 2),  log noise ~ Normal(0, 2)
    x[0] ~ Normal(0, innovation),  x[t] ~ Normal(x[t - 1], innovation),  y[t] ~ Normal(x[t], noise) where y is seen

Given both scales all of it is normal, so their posterior is an integral over two numbers, here a sum over a grid of
their logarithms. Mean and variance of x are those of normal distributions, mixed with the same weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from batchnuts.experiments.posterior_checks.moments import Moment, Moments

PRIOR_SCALE = 2.0
"""Standard deviation of both logarithms in the prior."""

LARGEST = np.log(10.0)
POINTS = 200
"""The points of each axis of the grid."""


def posterior(
    observations: NDArray[np.float64], smallest: tuple[float, float] = (-6.0, -14.0), points: int = POINTS
) -> Moments:
    """Moments of `innovation_noise_scale`, `observation_noise_scale` (scalars) and `locs` [times].

    observations [times]: NaN where there is none. smallest: logarithms of innovation and noise, the grid's first.
    """
    innovation, noise = (np.linspace(start, LARGEST, points) for start in smallest)
    observed = np.isfinite(observations)
    times = np.arange(1.0, len(observations) + 1.0)
    covariance = np.minimum.outer(times, times)  # of x, for an innovation of 1
    eigenvalues, vectors = np.linalg.eigh(covariance[np.ix_(observed, observed)])
    rotated = vectors.T @ observations[observed]
    # [innovation, noise, eigenvalue]: what is seen has this variance along each eigenvector
    variance = np.exp(2 * innovation)[:, None, None] * eigenvalues + np.exp(2 * noise)[None, :, None]
    log_weights = -0.5 * np.sum(np.log(variance) + rotated**2 / variance, axis=2)
    log_weights -= 0.5 * (innovation[:, None] ** 2 + noise[None, :] ** 2) / PRIOR_SCALE**2
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()

    # x given what is seen: normal, mean s^2 C (s^2 K + o^2)^-1 y, variance s^2 diag - s^4 C (s^2 K + o^2)^-1 C'
    gain = np.exp(2 * innovation)[:, None, None] / variance
    across = covariance[:, observed] @ vectors
    mean = (gain * rotated) @ across.T
    spread = np.exp(2 * innovation)[:, None, None] * (times - gain @ (across**2).T)
    moments = {"locs": _mixed(mean, spread, weights)}
    for name, values in (("innovation_noise_scale", innovation[:, None]), ("observation_noise_scale", noise[None, :])):
        moments[name] = _mixed(
            np.broadcast_to(np.exp(values), weights.shape)[..., None], np.zeros(1), weights, scalar=True
        )
    return moments


def _mixed(
    mean: NDArray[np.float64], variance: NDArray[np.float64], weights: NDArray[np.float64], *, scalar: bool = False
) -> Moment:
    """The moment of a mixture of distributions with these means and variances [innovation, noise, elements]."""
    mixed_mean = np.einsum("in,ine->e", weights, mean)
    sd = np.sqrt(np.einsum("in,ine->e", weights, (mean - mixed_mean) ** 2 + variance))
    return Moment.exact(mixed_mean[0], sd[0]) if scalar else Moment.exact(mixed_mean, sd)
