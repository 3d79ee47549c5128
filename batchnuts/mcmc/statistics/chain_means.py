"""The mean of all draws of each chain, and its last draw, kept up to date while draws come in, in whatever parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.window_moments import BLOCK, Centre, Float


class ChainMeans:
    """Sums of the positions of each chain [chains, dimension] in float64.

    Numbers are added one draw after another, so the sums do not depend, to the last bit, on the parts in which draws
    come. They are less a chain's first draw, so that none of its digits are lost.
    """

    def __init__(self, chains: int, dimension: int, dtype: Any, step_dtype: Any) -> None:
        self.count = np.zeros(chains, np.int64)
        """[chains]: draws of each."""
        self.first = np.zeros((chains, dimension), dtype)
        self.total = np.zeros((chains, dimension))
        self.last = np.zeros((chains, dimension), dtype)
        """The last draw of each."""
        self.step_size = np.zeros(chains, step_dtype)
        """The step size of that draw."""

    def add(
        self, chains: NDArray[np.int64], position: NDArray[Any], step_size: NDArray[Any], count: NDArray[np.int64]
    ) -> None:
        """The next draws of some chains [n]: the first `count` [n] of position [n, draws, dimension], step_size [n,
        draws]."""
        has_new = count > 0
        if not has_new.any():
            return
        if not has_new.all():
            chains, position, step_size, count = chains[has_new], position[has_new], step_size[has_new], count[has_new]
        rows = np.arange(len(chains))
        begins = self.count[chains] == 0
        self.first[chains[begins]] = position[begins, 0]
        lacks = np.arange(position.shape[1]) >= count[:, None]
        for start in range(0, position.shape[2], BLOCK):
            columns = slice(start, start + BLOCK)
            terms = position[:, :, columns].astype(np.float64)
            with np.errstate(all="ignore"):
                terms -= self.first[chains, None, columns]
            terms[lacks] = 0.0  # may be anything; adding 0 changes nothing
            total = self.total[chains, columns]
            for row in range(terms.shape[1]):  # in this order: NumPy's own sums choose theirs by the array's shape
                total += terms[:, row]
            self.total[chains, columns] = total
        self.last[chains] = position[rows, count - 1]
        self.step_size[chains] = step_size[rows, count - 1]
        self.count[chains] += count

    def centre(self, chains: NDArray[np.int64]) -> Centre:
        """The centre of some chains, which all have draws."""
        mean: Float = self.first[chains] + self.total[chains] / self.count[chains, None]
        pooled = np.average(mean, axis=0, weights=self.count[chains])
        return Centre(pooled, mean.var(axis=0) / len(chains))

    def saved(self) -> dict[str, NDArray[Any]]:
        """All arrays by name, for `restore`."""
        return dict(vars(self))

    def restore(self, saved: dict[str, NDArray[Any]]) -> None:
        """Take over what `saved` gave of the same chains."""
        for name, array in vars(self).items():
            array[...] = saved[name]


def chain_means(position: NDArray[Any], step_size: NDArray[Any], done: NDArray[Any]) -> ChainMeans:
    """The ChainMeans of draws in memory.

    position: [chains, draws, dimension]. step_size: [chains, draws]. done: [chains], draws of each.
    """
    means = ChainMeans(len(position), position.shape[2], position.dtype, step_size.dtype)
    chains = np.arange(len(position))
    for start in range(0, position.shape[1], ROWS):
        part = slice(start, start + ROWS)
        means.add(chains, position[:, part], step_size[:, part], np.clip(done - start, 0, position[:, part].shape[1]))
    return means


ROWS = 64
"""Draws that are added together."""
