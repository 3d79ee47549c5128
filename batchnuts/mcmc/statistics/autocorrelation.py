"""Effective sample sizes of means, from the autocorrelations of chains that are given in blocks.

Few chains have the field's estimator (Vehtari et al. 2021), of chains in halves and as ArviZ computes it. Its lags end
at half a chain, and its autocovariances are about each chain's own mean, so that of 10 to 20 draws of each chain it is
1.3 to 2 times too high. From MANY_CHAINS on there is a better one: the mean of all chains is known, autocovariances
about it have no such bias, and lags go up to the length of a chain. Summed over all lags they are the variance between
the chains' means; the sum ends earlier where autocorrelations do, which makes it less noisy (decision 62).

Power spectra are added up over chains before they are transformed back: one inverse transform for a coefficient.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MANY_CHAINS = 16
"""Chains from which on autocovariances are about the mean of all of them."""

ROUNDS = 6
"""Rounds in which a variance of a mean is found that depends on its own estimate."""

SHORTEST = 1.0
"""The shortest autocorrelation time within chains on their own: what is less cannot be told from few draws."""


def length_of_transforms(minimum: int) -> int:
    """The lowest product of twos, threes and fives that is no lower: transforms of such lengths are fast."""
    best = 1 << (minimum - 1).bit_length()
    fives = 1
    while fives < best:
        threes = fives
        while threes < best:
            best = min(best, threes << (-(-minimum // threes) - 1).bit_length())
            threes *= 3
        fives *= 5
    return best


class Autocovariances:
    """Sums of products at each lag, of chains of `draws` values each of so many coefficients."""

    def __init__(self, count: int, draws: int) -> None:
        self.count, self.draws = count, draws
        self.length = length_of_transforms(2 * draws)
        self.power = np.zeros((count, self.length // 2 + 1))
        self.means: list[Array] = []
        self.reference = np.zeros(count)
        self.sums, self.weighted = np.zeros((2, count, draws))
        """Of each draw's distances from the chain's mean over chains; and these times the chain's mean."""

    def add(self, centred: Array, mean: Array) -> None:
        """Chains [coefficients, chains, draws] less their means [coefficients, chains]."""
        parts = np.fft.rfft(centred, n=self.length, axis=2).view(np.float64)  # real and imaginary ones in turn
        self.power += np.einsum("kcf,kcf->kf", parts, parts).reshape(self.count, -1, 2).sum(axis=2)
        if not self.means:
            self.reference = mean.mean(axis=1)  # near the mean of all, so that no digits are lost
        self.sums += centred.sum(axis=1)
        self.weighted += np.einsum("kcn,kc->kn", centred, mean - self.reference[:, None])
        self.means.append(mean)

    @property
    def mean(self) -> Array:
        """[coefficients, chains]."""
        return np.concatenate(self.means, axis=1)

    def about_own_means(self) -> Array:
        """[coefficients, draws]: at each lag the sum over all chains of products of distances from a chain's mean."""
        products: Array = np.fft.irfft(self.power, n=self.length, axis=1)[:, : self.draws]
        return products

    def about_common_mean(self) -> Array:
        """Autocovariances of distances from the mean of all chains."""
        mean = self.mean
        common = mean.mean(axis=1)
        between = self.weighted - (common - self.reference)[:, None] * self.sums
        # of draws that are the first ones of a pair at a lag, and of those that are the second ones
        firsts = np.cumsum(between, axis=1)[:, ::-1]
        seconds = np.cumsum(between[:, ::-1], axis=1)[:, ::-1]
        squares = ((mean - common[:, None]) ** 2).sum(axis=1)
        pairs = self.draws - np.arange(self.draws)
        products: Array = self.about_own_means() + firsts + seconds + squares[:, None] * pairs
        return products


def common_mean_size(products: Autocovariances) -> Array:
    """Effective sizes [coefficients] of the mean of many chains.

    The autocorrelation time is that of a mean of `draws` values, 1 + 2 sum (1 - k/draws) rho_k, over Geyer's initial
    monotone sequence. The mean of all is itself estimated, which takes its variance from every autocovariance; that is
    added again. As with few chains a size is at most size * log10(size).
    """
    chains, draws = products.mean.shape[1], products.draws
    total = chains * draws
    shortest = 1.0 / np.log10(total)
    covariance = products.about_common_mean() / (chains * (draws - np.arange(draws)))
    time = np.maximum(_time(covariance), shortest)
    for _ in range(2):
        lost = covariance[:, 0] * time / np.maximum(total - time, 1.0)
        time = np.maximum(_time(covariance + lost[:, None]), shortest)
    size: Array = total / time
    return size


def own_mean_size(products: Autocovariances) -> Array:
    """Effective sizes [coefficients] if chains differed by chance alone: from autocovariances within each of them.

    A chain's own mean takes its variance from them; that is added again, at most as much as half of the draws in one
    allow. So the size says nothing of chains that have moved little; it is too small for none that are far apart.
    """
    chains, draws = products.mean.shape[1], products.draws
    covariance = products.about_own_means() / (chains * (draws - np.arange(draws)))
    time = np.maximum(_time(covariance), SHORTEST)
    for _ in range(ROUNDS):
        lost = covariance[:, 0] * time / np.maximum(draws - time, draws / 2)
        time = np.clip(_time(covariance + lost[:, None]), SHORTEST, draws / 2)
    size: Array = chains * draws / time
    return size


def _time(covariance: Array) -> Array:
    """Autocorrelation times [coefficients] of means, from autocovariances [coefficients, draws]."""
    count, draws = covariance.shape
    lags = draws // 2 * 2
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = (covariance / covariance[:, :1])[:, :lags].reshape(count, -1, 2)
        pairs = correlation.sum(axis=2)
        counted = np.logical_and.accumulate(pairs > 0, axis=1)
        monotone = np.minimum.accumulate(np.where(counted, pairs, 0.0), axis=1)
        weighted = (correlation * (1.0 - np.arange(lags) / draws).reshape(-1, 2)).sum(axis=2) * (monotone / pairs)
    time: Array = 2.0 * np.where(counted, weighted, 0.0).sum(axis=1) - 1.0
    return time


def split_chains_size(products: Autocovariances) -> Array:
    """Effective sizes [coefficients] of few chains, given as halves: section 3.2 of Vehtari et al. 2021.

    Autocorrelations of all chains together (equation 10), summed in pairs up to the first pair whose sum is not
    positive, and made monotone (Geyer's initial monotone sequence).
    """
    count, draws, means = products.count, products.draws, products.mean
    chains = means.shape[1]
    size = chains * draws
    # the mean over chains of the autocovariance at each lag, each sum divided by the number of draws
    covariance = products.about_own_means() / chains / draws
    within = covariance[:, 0] * draws / (draws - 1.0)
    total = covariance[:, 0].copy()  # equation 3: (N - 1)/N W
    if chains > 1:
        total += means.var(axis=1, ddof=1)  # + B/N
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
    effective_size: Array = size / np.maximum(-1.0 + 2.0 * summed + half, 1.0 / np.log10(size))
    return effective_size
