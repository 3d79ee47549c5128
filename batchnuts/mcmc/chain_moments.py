"""Means and variances of chains and of their halves, and effective sample sizes, from blocks of chains.

What is looked at (draws, their squares, normal scores, indicators) exists for one block of chains at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.rank_normal import BLOCK

Array = NDArray[np.float64]

MINIMUM_DRAWS = 4
"""Halves of chains need at least two draws each."""

Part = Callable[[int, int], Array]
"""A function of the first chain and of the one after the last: the values [coefficients, chains, draws] between, which
whoever asks may change."""


@dataclass(frozen=True, eq=False)
class ChainMoments:
    """Means and variances of the chains of values [coefficients, chains, draws]; halves leave out a middle draw."""

    mean: Array
    """[coefficients, chains]."""
    variance: Array
    """[coefficients, chains], about the chain's own mean, divided by the number of draws."""
    half_mean: Array
    """[coefficients, 2 chains]: first halves, then second ones; empty for fewer than MINIMUM_DRAWS draws."""
    half_variance: Array
    """[coefficients, 2 chains], divided by the number of draws less 1."""
    effective_size: Array | None = None
    """[coefficients]: of the mean, from chains' halves; None if not asked for."""

    def of(self, coefficients: NDArray[Any]) -> ChainMoments:
        """Those of some coefficients, by number or mask."""
        sizes = None if self.effective_size is None else self.effective_size[coefficients]
        halves = self.half_mean[coefficients], self.half_variance[coefficients]
        return ChainMoments(self.mean[coefficients], self.variance[coefficients], *halves, sizes)

    @property
    def overall_mean(self) -> Array:
        """[coefficients]."""
        return self.mean.mean(axis=1)  # type: ignore[no-any-return]

    @property
    def overall_variance(self) -> Array:
        """[coefficients], divided by the number of values."""
        return self.variance.mean(axis=1) + self.mean.var(axis=1)  # type: ignore[no-any-return]


def chain_moments(part: Part, shape: tuple[int, int, int], *, effective_size: bool = False) -> ChainMoments:
    """The ChainMoments of values of this shape [coefficients, chains, draws], which `part` gives."""
    count, chains, draws = shape
    half = draws // 2 if draws >= MINIMUM_DRAWS else 0
    mean, variance = np.empty((count, chains)), np.empty((count, chains))
    half_mean, half_variance = np.empty((2, count, 2, chains * bool(half)))
    sizes = EffectiveSize(count, half) if effective_size else None
    step = max(1, BLOCK // (count * draws))
    for start in range(0, chains, step):
        block = slice(start, min(start + step, chains))
        values = part(block.start, block.stop)
        mean[:, block], variance[:, block] = _mean_and_variance(values)
        if not half:
            continue
        halves = np.stack([values[:, :, :half], values[:, :, -half:]], axis=1)
        half_mean[:, :, block] = halves.mean(axis=3)
        halves -= half_mean[:, :, block, None]
        half_variance[:, :, block] = _sums_of_squares(halves) / (half - 1)
        if sizes is not None:
            sizes.add(halves.reshape(count, -1, half), half_mean[:, :, block].reshape(count, -1))
            sizes.bound(values, half)
    return ChainMoments(
        mean,
        variance,
        half_mean.reshape(count, -1),
        half_variance.reshape(count, -1),
        sizes.result() if sizes is not None else None,
    )


def _mean_and_variance(values: Array) -> tuple[Array, Array]:
    mean = values.mean(axis=2)
    return mean, _sums_of_squares(values - mean[:, :, None]) / values.shape[2]


def _sums_of_squares(values: Array) -> Array:
    sums: Array = np.einsum("...n,...n->...", values, values)
    return sums


def effective_size(values: Array) -> Array:
    """Effective sample size of the mean [coefficients], of chains [coefficients, chains, draws] of at least two draws.

    Chains are taken as they are, not as halves.
    """
    sizes = EffectiveSize(len(values), values.shape[2])
    mean = values.mean(axis=2)
    sizes.add(values - mean[:, :, None], mean)
    sizes.bound(values, 0)
    return sizes.result()


def _length_of_transforms(minimum: int) -> int:
    """The lowest product of twos, threes and fives that is no lower: transforms of such lengths are fast."""
    found = 1 << (minimum - 1).bit_length()
    fives = 1
    while fives < found:
        threes = fives
        while threes < found:
            found = min(found, threes << (-(-minimum // threes) - 1).bit_length())
            threes *= 3
        fives *= 5
    return found


class EffectiveSize:
    """The effective sample size of means, of chains that are given in blocks.

    Section 3.2 of Vehtari et al. 2021: autocorrelations of all chains together (equation 10), summed in pairs up to the
    first pair whose sum is not positive, and made monotone (Geyer's initial monotone sequence). Power spectra are added
    up over chains before they are transformed back: one inverse transform for a coefficient.
    """

    def __init__(self, count: int, draws: int) -> None:
        self.count, self.draws = count, draws
        self.length = _length_of_transforms(2 * draws)
        self.power = np.zeros((count, self.length // 2 + 1))
        self.means: list[Array] = []
        self.low, self.high = np.full(count, np.inf), np.full(count, -np.inf)

    def add(self, centred: Array, mean: Array) -> None:
        """Chains [coefficients, chains, draws] less their means [coefficients, chains]."""
        parts = np.fft.rfft(centred, n=self.length, axis=2).view(np.float64)  # real and imaginary ones in turn
        self.power += np.einsum("kcf,kcf->kf", parts, parts).reshape(self.count, -1, 2).sum(axis=2)
        self.means.append(mean)

    def bound(self, values: Array, half: int) -> None:
        """The values of these chains [coefficients, chains, draws]; half: draws of halves, where these are looked at.

        A middle draw that they leave out does not count.
        """
        halves = (values[:, :, :half], values[:, :, -half:]) if half else (values,)
        for part in halves:
            np.minimum(self.low, part.min(axis=(1, 2)), out=self.low)
            np.maximum(self.high, part.max(axis=(1, 2)), out=self.high)

    def result(self) -> Array:
        """[coefficients]."""
        count, draws = self.count, self.draws
        means = np.concatenate(self.means, axis=1)
        chains = means.shape[1]
        size = chains * draws
        # the mean over chains of the autocovariance at each lag, each sum divided by the number of draws
        covariance = np.fft.irfft(self.power / chains, n=self.length, axis=1)[:, :draws] / draws
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
        time = np.maximum(-1.0 + 2.0 * summed + half, 1.0 / np.log10(size))
        still = self.high - self.low < np.finfo(float).resolution
        return np.where(still, float(size), size / time)
