"""The draws of a window of warmup, reduced to moments of each chain: what is compared between chains and windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.draw_blocks import DrawBlock, as_block

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
    """Moments of the log-density (column 0) and of every number of the position, for each chain; float64."""

    mean: Float
    """[chains, 1 + dimension]."""
    variance: Float
    """[chains, 1 + dimension], about the chain's own mean, divided by `count`."""
    count: NDArray[np.int64]
    """[chains]: draws of each."""
    squared_error: Float
    """[chains, 1 + dimension]: of the mean, as a chain's batches tell it; zero where they were not asked for."""

    def of(self, chains: NDArray[Any]) -> Moments:
        """The moments of some chains, by number or mask."""
        return Moments(self.mean[chains], self.variance[chains], self.count[chains], self.squared_error[chains])

    def without(self, chains: NDArray[np.bool_]) -> Moments:
        """The same, but of these chains no draw."""
        return replace(self, count=np.where(chains, 0, self.count))

    def joined(self, more: Moments) -> Moments:
        """The moments of the draws of both, of the same chains; errors as if the means were independent."""
        count = self.count + more.count
        share = (more.count / np.maximum(count, 1))[:, None]
        mean = self.mean + share * (more.mean - self.mean)
        between = share * (1.0 - share) * (more.mean - self.mean) ** 2
        variance = (1.0 - share) * self.variance + share * more.variance + between
        squared_error = (1.0 - share) ** 2 * self.squared_error + share**2 * more.squared_error
        return Moments(mean, variance, count, squared_error)

    @property
    def pooled_mean(self) -> Float:
        """[columns], over all draws of all chains."""
        return np.average(self.mean, axis=0, weights=self.count)

    @property
    def centre(self) -> Centre:
        """The centre of all columns."""
        return Centre(self.pooled_mean, self.mean.var(axis=0) / len(self.mean))

    @property
    def pooled_variance(self) -> Float:
        """[columns], over all draws of all chains, about their pooled mean."""
        about = self.variance + (self.mean - self.pooled_mean) ** 2
        return np.average(about, axis=0, weights=self.count)


BATCHES = 4
"""Batches of a chain's draws, one after another: the variance between their means tells how well the chain's mean is
known. A batch that is not longer than draws depend on each other makes it too small, never too large."""

VALUES = 2**17
"""Numbers, in float64, that are processed together; or one draw's columns of a chain's draws if these are more."""

BLOCK = 64
"""The numbers of a position that are processed at a time."""

COPIES = 2
"""The most copies of these values while they are processed."""


def moments_of(
    position: NDArray[Any] | DrawBlock,
    log_density: NDArray[Any] | DrawBlock,
    done: NDArray[Any],
    *,
    second_half: bool,
    errors: bool = False,
) -> Moments:
    """Moments of what each chain has drawn, or of the second half of that.

    position [chains, draws, dimension], a block (draw_blocks.py) that may be on a disk; log_density [chains, draws], or
    a block of one coefficient; done [chains]: how many of these draws each chain has. Chains without a draw have count
    0. errors: whether `squared_error` is computed, which needs two draws in a batch. Sums are of float64, of a few
    chains at a time: besides the result they take `moments_bytes`.
    """
    chains, draws, dimension = position.shape
    skipped = done // 2 if second_half else np.zeros_like(done)
    count = done - skipped
    mean, variance = np.empty((2, chains, 1 + dimension))
    error = np.zeros((chains, 1 + dimension))
    density = as_block(log_density)
    # about the first draw of each chain, so that squares lose no digits; rows that a chain has not drawn weigh nothing
    with np.errstate(invalid="ignore", over="ignore"):
        for part in _chains_at_once(chains, draws, dimension):
            weight = _weights(skipped[part], done[part], draws)
            batches = _batches(skipped[part], done[part], draws) if errors else None
            mean[part, :1], variance[part, :1], error[part, :1] = _reduced(density[part, :, :], weight, batches)
            values = position[part, :, :]
            for start in range(0, dimension, BLOCK):
                columns = slice(1 + start, 1 + start + BLOCK)
                block = values[:, :, start : start + BLOCK]
                mean[part, columns], variance[part, columns], error[part, columns] = _reduced(block, weight, batches)
    return Moments(mean, variance, count.astype(np.int64), error)


def moments_bytes(chains: int, draws: int, dimension: int) -> int:
    """Bytes of what `moments_of` gives and of the values that it looks at together."""
    columns = draws * min(BLOCK, dimension)
    return 3 * 8 * chains * (1 + dimension) + COPIES * 8 * max(min(VALUES, chains * columns), columns)


def _chains_at_once(chains: int, draws: int, dimension: int) -> Iterator[slice]:
    step = max(1, VALUES // max(1, draws * min(BLOCK, dimension)))
    for start in range(0, chains, step):
        yield slice(start, min(start + step, chains))


def _weights(skipped: NDArray[Any], done: NDArray[Any], draws: int) -> Float:
    """[chains, draws]: of draws `skipped` to `done` of each chain; they sum to 1, or to 0 where there are none."""
    numbers = np.arange(draws)
    counted = (numbers >= skipped[:, None]) & (numbers < done[:, None])
    weight: Float = counted / np.maximum(done - skipped, 1)[:, None]
    return weight


def _batches(skipped: NDArray[Any], done: NDArray[Any], draws: int) -> Float:
    """[BATCHES, chains, draws]: such weights for each batch; 0 where a chain has too few draws for batches."""
    bounds = skipped + np.arange(BATCHES + 1)[:, None] * (done - skipped) // BATCHES
    enough = done - skipped >= 2 * BATCHES
    weights: Float = np.stack([_weights(bounds[i], bounds[i + 1], draws) for i in range(BATCHES)]) * enough[:, None]
    return weights


def _reduced(values: NDArray[Any], weight: Float, batches: Float | None) -> tuple[Float, Float, Float]:
    """Mean, variance and squared error of the mean, [chains, columns] each, of values [chains, draws, columns].

    weight [chains, draws] sums to 1; batches: see `_batches`.
    """
    included = np.where(weight[:, :, None] > 0, values, 0.0).astype(np.float64, copy=False)
    first = np.take_along_axis(included, np.argmax(weight > 0, axis=1)[:, None, None], axis=1)
    included -= first
    mean = np.einsum("cnk,cn->ck", included, weight)
    variance = np.einsum("cnk,cnk,cn->ck", included, included, weight) - mean**2
    error = np.zeros_like(mean)
    if batches is not None:
        error = np.stack([np.einsum("cnk,cn->ck", included, batch) for batch in batches]).var(axis=0, ddof=1) / BATCHES
    return mean + first[:, 0], np.maximum(variance, 0.0), error
