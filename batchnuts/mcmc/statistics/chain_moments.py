"""Means and variances of chains and of their halves, and effective sample sizes, from blocks of chains.

What is looked at (draws, their squares, normal scores, indicators) exists for one block of chains at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.autocorrelation import (
    MANY_CHAINS,
    Autocovariances,
    common_mean_size,
    own_mean_size,
    split_chains_size,
)
from batchnuts.mcmc.statistics.rank_normal import BLOCK

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
    """[coefficients]: effective size of the mean; None if not asked for."""
    own_mean_size: Array | None = None
    """[coefficients]: the effective size if chains differed by chance alone; None if not asked for."""

    def of(self, coefficients: NDArray[Any]) -> ChainMoments:
        """The moments of some coefficients, by number or mask."""
        moments = self.mean, self.variance, self.half_mean, self.half_variance
        sizes = (None if sizes is None else sizes[coefficients] for sizes in (self.effective_size, self.own_mean_size))
        return ChainMoments(*(array[coefficients] for array in moments), *sizes)

    @property
    def overall_mean(self) -> Array:
        """[coefficients]."""
        return self.mean.mean(axis=1)  # type: ignore[no-any-return]

    @property
    def overall_variance(self) -> Array:
        """[coefficients], divided by the number of values."""
        return self.variance.mean(axis=1) + self.mean.var(axis=1)  # type: ignore[no-any-return]


def chain_moments(
    part: Part, shape: tuple[int, int, int], *, effective_size: bool = False, own_mean: bool = False
) -> ChainMoments:
    """The ChainMoments of values of this shape [coefficients, chains, draws], which `part` gives.

    effective_size, own_mean: whether these sizes are asked for, of at least MINIMUM_DRAWS draws.
    """
    count, chains, draws = shape
    half = draws // 2 if draws >= MINIMUM_DRAWS else 0
    mean, variance = np.empty((count, chains)), np.empty((count, chains))
    half_mean, half_variance = np.empty((2, count, 2, chains * bool(half)))
    split = chains < MANY_CHAINS
    products = Autocovariances(count, half if split else 2 * half) if (effective_size or own_mean) and half else None
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    step = max(1, BLOCK // (count * draws))
    for start in range(0, chains, step):
        block = slice(start, min(start + step, chains))
        values = part(block.start, block.stop)
        mean[:, block], variance[:, block] = _mean_and_variance(values)
        if not half:
            continue
        halves = np.stack([values[:, :, :half], values[:, :, -half:]], axis=1)
        half_mean[:, :, block] = halves.mean(axis=3)
        if products is not None:
            np.minimum(low, halves.min(axis=(1, 2, 3)), out=low)
            np.maximum(high, halves.max(axis=(1, 2, 3)), out=high)
            if not split:
                products.add(*_centred(halves.swapaxes(1, 2).reshape(count, -1, 2 * half)))
        halves -= half_mean[:, :, block, None]
        half_variance[:, :, block] = _sums_of_squares(halves) / (half - 1)
        if products is not None and split:
            products.add(halves.reshape(count, -1, half), half_mean[:, :, block].reshape(count, -1))
    estimators = {split_chains_size if split else common_mean_size: effective_size, own_mean_size: own_mean}
    sizes = [
        _of_varying(estimate(products), high - low, products) if wanted and products is not None else None
        for estimate, wanted in estimators.items()
    ]
    return ChainMoments(mean, variance, half_mean.reshape(count, -1), half_variance.reshape(count, -1), *sizes)


def _centred(values: Array) -> tuple[Array, Array]:
    """Chains less their means, and these."""
    mean = values.mean(axis=2)
    return values - mean[:, :, None], mean


def _of_varying(sizes: Array, spread: Array, products: Autocovariances) -> Array:
    """Effective sizes [coefficients]; of values with no spread all count."""
    everything = float(products.mean.shape[1] * products.draws)
    return np.where(spread < np.finfo(float).resolution, everything, sizes)


def _mean_and_variance(values: Array) -> tuple[Array, Array]:
    centred, mean = _centred(values)
    return mean, _sums_of_squares(centred) / values.shape[2]


def _sums_of_squares(values: Array) -> Array:
    sums: Array = np.einsum("...n,...n->...", values, values)
    return sums
