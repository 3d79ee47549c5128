"""The draws of a window of warmup, reduced to moments of each chain: what is compared between chains and windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Centre:
    """Where chains are: the mean over all of them, and how well it is known."""

    mean: Float
    """[columns]."""
    squared_error: Float
    """[columns]: of the mean, from the variance between chains."""

    @property
    def of_position(self) -> Centre:
        """Without column 0, the log-density."""
        return Centre(self.mean[1:], self.squared_error[1:])


@dataclass(frozen=True, eq=False)
class Moments:
    """Of the log-density (column 0) and every number of the position, for each chain; float64."""

    mean: Float
    """[chains, 1 + dimension]."""
    variance: Float
    """[chains, 1 + dimension], about the chain's own mean, divided by `count`."""
    count: NDArray[np.int64]
    """[chains]: draws of each."""

    def of(self, chains: NDArray[Any]) -> Moments:
        """Those of some chains, by number or mask."""
        return Moments(self.mean[chains], self.variance[chains], self.count[chains])

    @property
    def pooled_mean(self) -> Float:
        """[columns], over all draws of all chains."""
        return np.average(self.mean, axis=0, weights=self.count)

    @property
    def centre(self) -> Centre:
        """Of all columns."""
        return Centre(self.pooled_mean, self.mean.var(axis=0) / len(self.mean))

    @property
    def pooled_variance(self) -> Float:
        """[columns], over all draws of all chains, about their pooled mean."""
        about = self.variance + (self.mean - self.pooled_mean) ** 2
        return np.average(about, axis=0, weights=self.count)


def moments_of(position: NDArray[Any], log_density: NDArray[Any], done: NDArray[Any], *, second_half: bool) -> Moments:
    """Moments of what each chain has drawn, or of the second half of that.

    position [chains, draws, dimension]; log_density [chains, draws]; done [chains]: how many of these draws each chain
    has. Chains without a draw have count 0. Sums are of float64, without a copy of all draws.
    """
    numbers = np.arange(position.shape[1])
    skipped = done // 2 if second_half else np.zeros_like(done)
    count = done - skipped
    weight = ((numbers >= skipped[:, None]) & (numbers < done[:, None])) / np.maximum(count, 1)[:, None]
    # about the first draw of each chain, so that squares lose no digits; rows that a chain has not drawn weigh nothing
    with np.errstate(invalid="ignore", over="ignore"):
        columns = []
        for start in range(0, position.shape[2], BLOCK):
            columns.append(_mean_and_variance(position[:, :, start : start + BLOCK], weight))
        columns.insert(0, _mean_and_variance(log_density[:, :, None], weight))
    mean, variance = (np.concatenate(parts, axis=1) for parts in zip(*columns, strict=True))
    return Moments(mean, variance, count.astype(np.int64))


BLOCK = 64
"""Columns at a time."""


def _mean_and_variance(values: NDArray[Any], weight: Float) -> tuple[Float, Float]:
    """[chains, columns] each, of values [chains, draws, columns]; weight [chains, draws] sums to 1."""
    used = np.where(weight[:, :, None] > 0, values, 0.0).astype(np.float64)
    first = np.take_along_axis(used, np.argmax(weight > 0, axis=1)[:, None, None], axis=1)
    used = used - first
    mean = np.einsum("cnk,cn->ck", used, weight)
    variance = np.einsum("cnk,cnk,cn->ck", used, used, weight) - mean**2
    return mean + first[:, 0], np.maximum(variance, 0.0)
