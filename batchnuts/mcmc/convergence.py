"""R-hat, effective sample sizes and Monte Carlo errors of many coefficients at once, during a run and after it.

They are what ArviZ's `rhat(method="rank")`, `ess` and `mcse` give, to rounding. ArviZ computes one coefficient at a
time in Python, which takes longer than sampling does, and its import alone as long as all else that a short run does
after its draws (decision 46). Here the normal scores come from one table for all coefficients, and power spectra are
averaged over chains before they are transformed back: one inverse transform for a coefficient.

Ranks change with every new draw, so these statistics cannot be updated draw by draw. Check points whose numbers of
draws grow geometrically (`stopping_rule.py`) bound the cost of all of them together by a multiple of the last one's.

Sources: Vehtari, Gelman, Simpson, Carpenter, Buerkner, "Rank-normalization, folding, and localization: an improved
R-hat", Bayesian Analysis 2021, sections 3 and 4; Geyer, "Practical Markov chain Monte Carlo", 1992, on truncation.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.rank_normal import folded, rank_normal

TAILS = (0.05, 0.95)
"""The quantiles whose effective sample sizes make the tail ESS."""

STATISTICS = ("r_hat", "ess_bulk", "ess_tail", "mcse_mean", "mcse_sd")
"""What can be asked for."""

MINIMUM_DRAWS = 4
"""Halves of chains need at least two draws each."""

Array = NDArray[np.float64]


def convergence(draws: NDArray[Any], names: Collection[str]) -> dict[str, Array]:
    """Those of STATISTICS that are named, each float64 [coefficients].

    draws [chains, draws, coefficients], of at least 4 draws, and at least 2 chains for `r_hat`. NaN for a coefficient
    that is not finite everywhere, or does not vary.
    """
    coefficients = draws.shape[2]
    values = np.ascontiguousarray(draws.transpose(2, 0, 1), dtype=np.float64)
    flat = values.reshape(coefficients, -1)
    varies = np.asarray(np.isfinite(flat).all(axis=1))
    varies[varies] = (flat[varies] != flat[varies, :1]).any(axis=1)
    if not varies.any():
        return {name: np.full(coefficients, np.nan) for name in STATISTICS if name in names}
    values, flat = values[varies], flat[varies]
    found: dict[str, Array] = {}
    if {"r_hat", "ess_bulk"} & set(names):
        halves = _halves(values)
        scores = rank_normal(halves.reshape(len(halves), -1)).reshape(halves.shape)
        if "r_hat" in names:
            of_folded = rank_normal(folded(halves.reshape(len(halves), -1))).reshape(halves.shape)
            found["r_hat"] = np.maximum(_rhat(scores), _rhat(of_folded))
        if "ess_bulk" in names:
            found["ess_bulk"] = effective_size(scores)
    if "ess_tail" in names:
        found["ess_tail"] = np.min([_ess_of_quantile(values, flat, probability) for probability in TAILS], axis=0)
    if "mcse_mean" in names:
        found["mcse_mean"] = flat.std(axis=1, ddof=1) / np.sqrt(effective_size(_halves(values)))
    if "mcse_sd" in names:
        found["mcse_sd"] = _error_of_sd(values)
    result = {}
    for name, part in found.items():
        result[name] = np.full(coefficients, np.nan)
        result[name][varies] = part
    return result


def _error_of_sd(values: Array) -> Array:
    """Monte Carlo standard error of the standard deviation, of [coefficients, chains, draws].

    The variance's error is that of a mean, of squares; the root's is that over twice the root (delta method).
    """
    squares = (values - values.mean(axis=(1, 2), keepdims=True)) ** 2
    variance = squares.mean(axis=(1, 2))
    of_variance = ((squares**2).mean(axis=(1, 2)) - variance**2) / effective_size(_halves(squares))
    error: Array = np.sqrt(of_variance / variance) / 2
    return error


def _halves(values: Array) -> Array:
    """Chains [coefficients, chains, draws] as halves [coefficients, 2 chains, draws // 2], without a middle draw."""
    half = values.shape[2] // 2
    return np.concatenate([values[:, :, :half], values[:, :, -half:]], axis=1)


def _rhat(values: Array) -> Array:
    """Equation 4 of Vehtari et al. 2021, of [coefficients, chains, draws]."""
    draws = values.shape[2]
    between = draws * values.mean(axis=2).var(axis=1, ddof=1)
    within = values.var(axis=2, ddof=1).mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that each stay where they are: infinite
        ratio: Array = np.sqrt((between / within + draws - 1) / draws)
    return ratio


def _ess_of_quantile(values: Array, flat: Array, probability: float) -> Array:
    """That of the indicator of being at most the quantile (section 4.3 of the paper)."""
    size = flat.shape[1]
    # Hyndman and Fan's type 7, in the arithmetic of SciPy's mquantiles, which ArviZ uses: a quantile that rounding
    # puts on the other side of a draw would change the indicator
    place = size * probability + (1.0 + probability * -1.0)
    below = int(np.floor(np.clip(place, 1, size - 1)))
    share = np.clip(place - below, 0, 1)
    near = np.partition(flat, (below - 1, below), axis=1)
    quantile = (1.0 - share) * near[:, below - 1] + share * near[:, below]
    return effective_size(_halves((values <= quantile[:, None, None]).astype(np.float64)))


def effective_size(values: Array) -> Array:
    """Effective sample size of the mean [coefficients], of chains [coefficients, chains, draws] of at least two draws.

    Section 3.2 of Vehtari et al. 2021: autocorrelations of all chains together (equation 10), summed in pairs up to the
    first pair whose sum is not positive, and made monotone (Geyer's initial monotone sequence).
    """
    count, chains, draws = values.shape
    size = chains * draws
    covariance = _mean_autocovariance(values)
    within = covariance[:, 0] * draws / (draws - 1.0)
    total = covariance[:, 0].copy()  # equation 3: (N - 1)/N W
    if chains > 1:
        total += values.mean(axis=2).var(axis=1, ddof=1)  # + B/N
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = 1.0 - (within[:, None] - covariance) / total[:, None]  # equation 10
    correlation[:, 0] = 1.0
    pairs = correlation[:, : draws // 2 * 2].reshape(count, -1, 2).sum(axis=2)
    # The last pair that is looked at: the first one whose sum is not positive, but none of the last three lags.
    ends = ~(pairs > 0)
    last = np.where(ends.any(axis=1), ends.argmax(axis=1), pairs.shape[1])
    last = np.minimum(last, max((draws - 3) // 2, 0))
    counted = np.arange(pairs.shape[1]) < last[:, None]
    summed = np.where(counted, np.minimum.accumulate(pairs, axis=1), 0.0).sum(axis=1)
    rows = np.arange(count)
    even = correlation[rows, 2 * last]
    # of the last pair only its even lag is counted, and not where the pair's sum is negative because of it
    half = np.where((pairs[rows, last] >= 0) | (even > 0), even, 0.0)
    time = np.maximum(-1.0 + 2.0 * summed + half, 1.0 / np.log10(size))
    result: Array = size / time
    flat = values.reshape(count, -1)
    still = flat.max(axis=1) - flat.min(axis=1) < np.finfo(float).resolution
    return np.where(still, float(size), result)


def _mean_autocovariance(values: Array) -> Array:
    """The mean over chains of the autocovariance at each lag [coefficients, draws], each sum divided by `draws`."""
    from scipy.fft import irfft, next_fast_len, rfft

    draws = values.shape[2]
    length = next_fast_len(2 * draws, real=True)
    spectrum = rfft(values - values.mean(axis=2, keepdims=True), n=length, axis=2)
    power = (spectrum.real**2 + spectrum.imag**2).mean(axis=1)
    covariance: Array = irfft(power, n=length, axis=1)[:, :draws] / draws
    return covariance
