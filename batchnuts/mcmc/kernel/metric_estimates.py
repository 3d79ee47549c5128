"""Estimates of each kind of metric from positions of chains and the gradients of the log density there.

M^-1 minimizes the sample Fisher divergence between the density and a Gaussian of that covariance (Seyboldt, Carlson,
Carpenter, arXiv 2603.18845; nutpie). With Cx the covariance of positions and Cg that of gradients, the minimum is where

    M^-1 Cg M^-1 = Cx,    M^-1 = Cg^-1 # Cx    (the geometric mean of Cx and the inverse of Cg)

and for a diagonal M^-1 this is sqrt(var x_i / var g_i). Of a Gaussian, gradients are -(its precision) (x - mean): the
estimate is then exact from few draws, where the variance of n draws alone is wrong by a share of sqrt(2/n).

**Coordinates that depend on others.** With R_i the correlation of x_i and g_i, `diag` is

    log M^-1_i = R_i^2 log sqrt(var x_i / var g_i) + (1 - R_i^2) log var x_i

where R_i^2 is the share of var g_i that x_i itself explains: of a Gaussian with covariance C and precision P it is
1 / (C_ii P_ii). It is small for scales of a hierarchy, whose gradients depend on all that they scale. They mix slowest,
and the Fisher estimate, which for them is far below the variance, makes that worse (docs/results/metric.md).

**Few draws.** How far an estimate can be trusted shows in how well gradients are a linear function of positions: the
logarithm of the ratio of the deviations of two variables, from n draws, has the variance (1 - R^2) / (n - 2), where R
is their correlation (Pitman 1939, Morgan 1939). With the variance 2 / n of log var x, of Gaussian draws, and their
covariance (1 - R^2) / n, the estimate above has (1 - R^2) (2 - R^4) / n. Both vanish where gradients are linear.
Estimates are shrunk by these: of a coordinate towards the geometric mean over all, by the variance between coordinates
(empirical Bayes); of a matrix towards its diagonal. Draws are counted as if they were independent; those of one chain
are not, so an estimate from a single chain is shrunk too little.

**No information.** By Stein's identity cov(x_i, g_i) = -1, so var x_i * var g_i >= 1. Where it is less than
MINIMUM_PRODUCT of that, and gradients are no linear function either, the density is flat where the chains are: then the
estimate is the variance of positions. Where positions do not vary it is the inverse variance of gradients, and where
neither does the geometric mean over the others. So all estimates are positive and finite.

All arrays are float64; n draws come from all chains alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.settings.metric_kinds import METRIC_KINDS
from batchnuts.settings.schema import in_words

Floats = NDArray[np.float64]


MINIMUM_PRODUCT = 1e-4
"""Less than this share of the smallest possible product of two variances is no noise of a sample."""

CUTOFF = 2.0
"""low_rank: eigenvalues of the scaled covariance within this factor of the bulk are left at it (nutpie's cutoff)."""

BOUND = 1e24
"""Inverse masses are between 1/BOUND and BOUND, so that float32 holds them, their square roots and their inverses.
Eigenvalues of the scaled covariance are between their square roots."""


def of_all_chains(variances: Floats) -> Floats:
    """[dimension]: the variances, or, of those that chains have of their own [chains, dimension], geometric means."""
    return np.exp(np.log(variances).mean(axis=0)) if variances.ndim == 2 else variances


@dataclass(frozen=True, eq=False)
class MetricParameters:
    """M^-1 = S (I + U (Lambda - I) U') S, with S the diagonal matrix of sqrt(inverse_mass).

    inverse_mass [dimension], or [chains, dimension] where chains have diagonal metrics of their own; U: `eigenvectors`
    [dimension, k], orthonormal columns; Lambda: `eigenvalues` [k]. A diagonal metric has k = 0, a dense one k =
    dimension.
    """

    kind: str
    """One of METRIC_KINDS."""
    inverse_mass: Floats
    eigenvectors: Floats
    eigenvalues: Floats

    def __str__(self) -> str:
        """The text in a run's summary."""
        directions = f", {in_words(len(self.eigenvalues), 'direction')} corrected"
        return self.kind + (directions if METRIC_KINDS[self.kind].is_limited else "")

    def root(self) -> Floats:
        """The symmetric square root of I + U (Lambda - I) U': [dimension, dimension]."""
        identity = np.eye(len(self.inverse_mass))
        return identity + (self.eigenvectors * (np.sqrt(self.eigenvalues) - 1.0)) @ self.eigenvectors.T

    def scales(self) -> Floats:
        """[2, dimension]: the variances of the coordinates under N(0, M^-1), and given all others."""
        squares = self.eigenvectors**2
        marginal = self.inverse_mass * (1.0 + squares @ (self.eigenvalues - 1.0))
        conditional = self.inverse_mass / (1.0 + squares @ (1.0 / self.eigenvalues - 1.0))
        return np.stack([marginal, conditional])

    def covariance(self) -> Floats:
        """M^-1: [dimension, dimension]."""
        scales = np.sqrt(self.inverse_mass)
        inner = np.eye(len(scales)) + (self.eigenvectors * (self.eigenvalues - 1.0)) @ self.eigenvectors.T
        return scales[:, None] * inner * scales


def unit_metric(dimension: int, kind: str = "unit") -> MetricParameters:
    """The identity: where warmup starts."""
    return MetricParameters(kind, np.ones(dimension), np.zeros((dimension, 0)), np.zeros(0))


def estimate(kind: str, positions: NDArray[Any], gradients: NDArray[Any], rank: int) -> MetricParameters:
    """The metric of that kind for draws [n, dimension] and the gradients of the log density [n, dimension] there.

    rank: the most directions of `low_rank`. Rows that are not finite are left out. Raises ValueError for shapes that
    differ; with fewer than three rows nothing is known, and the result is the identity.
    """
    if positions.shape != gradients.shape or positions.ndim != 2:
        raise ValueError(
            f"positions and gradients must have one shape [n, dimension]; found {positions.shape} and {gradients.shape}"
        )
    x, g = positions.astype(np.float64), gradients.astype(np.float64)
    finite = np.isfinite(x).all(axis=1) & np.isfinite(g).all(axis=1)
    x, g = x[finite], g[finite]
    if not METRIC_KINDS[kind].is_adapted or len(x) < 3:
        return unit_metric(positions.shape[1], kind)
    eps = [float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0 for dtype in (x.dtype, gradients.dtype)]
    return _ESTIMATES[kind](_centred(x, eps[0]), _centred(g, eps[1]), rank)


def _centred(draws: Floats, eps: float) -> Floats:
    """Without their mean. What is no more than rounding, of values computed to a relative precision of eps, is zero."""
    centred = draws - draws.mean(axis=0)
    varies = np.abs(centred).max(axis=0) > 32 * eps * np.abs(draws).max(axis=0)
    return np.where(varies, centred, 0.0)


def diagonal_estimate(x: Floats, g: Floats) -> Floats:
    """Inverse masses [dimension] of `diag` from centred draws and gradients [n, dimension], n at least 3."""
    return _diagonal(x, g, depends=True)


def fisher_diagonal(x: Floats, g: Floats) -> Floats:
    """Inverse masses of the diagonal Gaussian of minimum Fisher divergence; matrices are estimated in its scales."""
    return _diagonal(x, g, depends=False)


def _diagonal(x: Floats, g: Floats, depends: bool) -> Floats:
    n = len(x)
    var_x, var_g, cov = (x * x).mean(axis=0), (g * g).mean(axis=0), (x * g).mean(axis=0)
    has_x, has_g = var_x > 0, var_g > 0
    has_both = has_x & has_g
    log_x, log_g = np.log(np.where(has_x, var_x, 1.0)), np.log(np.where(has_g, var_g, 1.0))
    r_squared = np.where(has_both, np.minimum((cov * np.exp(-0.5 * (log_x + log_g))) ** 2, 1.0), 0.0)
    flat = ~has_g | ((log_x + log_g < np.log(MINIMUM_PRODUCT)) & (r_squared < 0.5))
    log_ratio, variance = 0.5 * (log_x - log_g), (1.0 - r_squared) / (n - 2)
    if depends:
        share = np.maximum(1.0 - (1.0 - r_squared) * (n - 1) / (n - 2), 0.0)  # R^2, without its bias of few draws
        log_ratio = share * log_ratio + (1.0 - share) * log_x
        variance *= 2.0 - r_squared**2
    log_estimate = np.select([has_x & flat, has_both, has_g], [log_x, log_ratio, -log_g], 0.0)
    has_any = has_x | has_g
    typical, spread = (log_estimate[has_any].mean(), log_estimate[has_any].var()) if has_any.any() else (0.0, 0.0)
    spread = max(spread - variance[has_any].mean(), 0.0) if has_any.any() else 0.0  # without the noise
    weight = np.where(variance > 0, spread / (spread + variance + np.finfo(float).tiny), 1.0)
    deviation = np.where(has_any, weight * (log_estimate - typical), 0.0)
    estimate: Floats = np.exp(np.clip(typical + deviation, -np.log(BOUND), np.log(BOUND)))
    return estimate


def _diag(x: Floats, g: Floats, rank: int) -> MetricParameters:
    diagonal = diagonal_estimate(x, g)
    return MetricParameters("diag", diagonal, np.zeros((len(diagonal), 0)), np.zeros(0))


def _dense(x: Floats, g: Floats, rank: int) -> MetricParameters:
    """The dense estimate, made in coordinates in which the diagonal one is 1 (see the module)."""
    diagonal = fisher_diagonal(x, g)
    scales = np.sqrt(diagonal)
    x, g = x / scales, g * scales
    cov_x, cov_g = x.T @ x / len(x), g.T @ g / len(g)
    weight = _weight_of_target(x, g)
    shrunk = [_shrunk(cov, np.where(np.diag(cov) > 0, np.diag(cov), 1.0), weight) for cov in (cov_x, cov_g)]
    eigenvalues, eigenvectors = np.linalg.eigh(geometric_mean(*shrunk))
    return MetricParameters("dense", diagonal, eigenvectors, _bounded(eigenvalues))


def _low_rank(x: Floats, g: Floats, rank: int) -> MetricParameters:
    """The dense estimate only in the span of the leading directions of positions and of gradients.

    The first are those of large eigenvalues of M^-1, the second those of small ones. In the rest of space M^-1 is a
    multiple of the identity, the bulk, found in the same way from the traces there.
    """
    diagonal = fisher_diagonal(x, g)
    scales = np.sqrt(diagonal)
    x, g = x / scales, g * scales
    # Columns of the same direction leave others that mean nothing, and are as good as any.
    basis = np.linalg.qr(np.concatenate([_leading(x, rank), _leading(g, rank)], axis=1))[0]
    within_x, within_g = x @ basis, g @ basis
    covs = [draws.T @ draws / len(draws) for draws in (within_x, within_g)]
    typical = [max((draws * draws).mean(), 0.0) or 1.0 for draws in (x, g)]
    weight = _weight_of_target(within_x, within_g)
    shrunk = [_shrunk(cov, np.full(len(cov), size), weight) for cov, size in zip(covs, typical)]
    eigenvalues, directions = np.linalg.eigh(geometric_mean(*shrunk))
    eigenvalues = _bounded(eigenvalues)  # rounding makes small ones negative, far from the posterior
    bulk = _bulk(x, g, basis)
    if bulk is None:  # the basis spans everything
        bulk = float(np.exp(np.median(np.log(eigenvalues))))
    distance = np.abs(np.log(eigenvalues / bulk))
    leading = np.argsort(-distance)[:rank]
    leading = leading[distance[leading] > np.log(CUTOFF)]
    eigenvectors = basis @ directions[:, leading]
    bulk = _bulk(x, g, eigenvectors) or bulk
    ratios = _bounded(eigenvalues[leading] / bulk)
    return MetricParameters("low_rank", diagonal * bulk, eigenvectors, ratios)


_ESTIMATES: dict[str, Callable[[Floats, Floats, int], MetricParameters]] = {
    "diag": _diag,
    "dense": _dense,
    "low_rank": _low_rank,
}
"""By kind, of centred draws and gradients [n, dimension], and the rank."""


def _leading(draws: Floats, rank: int) -> Floats:
    """The directions [dimension, at most rank] in which centred draws [n, dimension] vary most."""
    n, dimension = draws.shape
    if dimension <= n:
        return np.linalg.eigh(draws.T @ draws)[1][:, -rank:]
    values, vectors = np.linalg.eigh(draws @ draws.T)  # of the smaller matrix: draws' @ vectors are its directions
    leading = np.flatnonzero(values > 1e-12 * values[-1])[-rank:]
    directions: Floats = draws.T @ vectors[:, leading] / np.sqrt(values[leading])
    return directions


def _bulk(x: Floats, g: Floats, basis: Floats) -> float | None:
    """sqrt of the ratio of the traces of covariances outside of the span of the basis [dimension, k]; None where
    nothing is outside."""
    if basis.shape[1] >= basis.shape[0]:
        return None
    outside = [np.sum(draws**2) - np.sum((draws @ basis) ** 2) for draws in (x, g)]
    rounding = [1e-10 * np.sum(draws**2) for draws in (x, g)]
    if any(part <= bound for part, bound in zip(outside, rounding)):
        return 1.0
    return float(np.sqrt(outside[0] / outside[1]))


def _bounded(eigenvalues: Floats) -> Floats:
    bounded: Floats = np.clip(eigenvalues, BOUND**-0.5, BOUND**0.5)
    return bounded


def _weight_of_target(x: Floats, g: Floats) -> float:
    """By how much matrices from centred draws [n, m] are shrunk, from 0 to 1; see the module.

    With no more draws than dimensions gradients always are a linear function of positions, which says nothing: then
    draws count as much as m others that agree with the target.
    """
    n, m = x.shape
    free = n - 1 - m
    if free <= 0:
        return float(m / (m + n - 1.0))
    fitted = x @ np.linalg.lstsq(x, g, rcond=None)[0]
    total = float(np.sum(g * g))
    unexplained = float(np.sum((g - fitted) ** 2)) / total if total > 0 else 1.0
    variance = m * unexplained / free
    return float(variance / (1.0 + variance))


def _shrunk(covariance: Floats, target: Floats, weight: float) -> Floats:
    """(1 - weight) covariance + weight target; a diagonal entry of zero, of what does not vary, is the target's."""
    shrunk = (1.0 - weight) * covariance + weight * np.diag(target)
    constant = np.diag(covariance) == 0
    shrunk[constant, constant] = target[constant]
    return shrunk


def geometric_mean(cov_x: Floats, cov_g: Floats) -> Floats:
    """cov_g^-1 # cov_x, the symmetric solution of M cov_g M = cov_x, of symmetric positive semidefinite matrices.

    M = cov_g^-1/2 (cov_g^1/2 cov_x cov_g^1/2)^1/2 cov_g^-1/2. Eigenvalues of one matrix below MINIMUM_PRODUCT divided
    by the largest of the other are raised to that (Stein's identity, see the module).
    """
    largest = [max(float(np.linalg.eigvalsh(cov)[-1]), np.finfo(float).tiny) for cov in (cov_x, cov_g)]
    values_x, vectors_x = np.linalg.eigh(cov_x)
    values_g, vectors_g = np.linalg.eigh(cov_g)
    values_x, values_g = (
        np.maximum(values_x, MINIMUM_PRODUCT / largest[1]),
        np.maximum(values_g, MINIMUM_PRODUCT / largest[0]),
    )
    cov_x = (vectors_x * values_x) @ vectors_x.T
    root, inverse_root = ((vectors_g * values_g**power) @ vectors_g.T for power in (0.5, -0.5))
    middle_values, middle_vectors = np.linalg.eigh(root @ cov_x @ root)
    middle = (middle_vectors * np.sqrt(np.maximum(middle_values, 0.0))) @ middle_vectors.T
    mean = inverse_root @ middle @ inverse_root
    symmetric: Floats = 0.5 * (mean + mean.T)
    return symmetric
