"""Rank-normalization of draws (Vehtari et al. 2021, section 4.1), many coefficients at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_OFFSET = 3 / 8
"""Blom's, in equation 14 of the paper."""

Array = NDArray[np.float64]


def rank_normal(rows: NDArray[Any]) -> Array:
    """The normal score of each value among those of its row: arrays [rows, values] to float64 of the same shape.

    z = Phi^-1((r - 3/8) / (S + 1/4)), equation 14 of Vehtari, Gelman, Simpson, Carpenter, Buerkner 2021, with r the
    rank among the row's S values, 1 to S; equal values have the mean of their ranks. No value may be NaN.
    """
    order = np.argsort(rows, axis=1)
    return _scores(np.take_along_axis(rows, order, axis=1), order)


def folded(rows: Array) -> Array:
    """The distance of each value [rows, values] from its row's median (Vehtari et al. 2021, section 4.2)."""
    return np.abs(rows - np.median(rows, axis=1, keepdims=True))


def _scores(ascending: NDArray[Any], order: NDArray[np.intp]) -> Array:
    """Scores in the places where values stood before they were sorted; `order` is that of `argsort`."""
    from scipy.special import ndtri

    size = ascending.shape[1]
    first = np.ones(ascending.shape, bool)
    first[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    starts = np.flatnonzero(first)  # of runs of equal values, over all rows; each row begins with one
    lengths = np.diff(starts, append=ascending.size)
    # ranks of a run are start + 1 to start + length; doubled means of ranks are integers, from 2 to 2 S
    doubled = 2 * (starts % size) + lengths + 1
    lower = ndtri((np.arange(size + 1) / 2 - _OFFSET) / (size - 2 * _OFFSET + 1))
    by_rank = np.concatenate([lower, [0.0], -lower[::-1]])  # symmetric about the middle rank
    scores = np.empty(ascending.shape)
    np.put_along_axis(scores, order, np.repeat(by_rank[doubled], lengths).reshape(ascending.shape), axis=1)
    return scores
