"""Chains with draws far from all others, as those that begin before they have arrived: what ranks do not show.

One chain of 64 that comes down from its start within its draws may double a standard deviation, and its ranks are those
of a chain in the tail. Two tests look at sizes instead of ranks. Neither takes Cauchy's tails for a start:

- Log-densities: the first draws of a chain lie further below what is typical (the median chain's mean) than all draws
  of all other chains, by more than RATIO times. Log-densities have exponential tails, also where coordinates have none
  of their moments.
- Moments: the mean square of a chain's draws, about the median of all chains' means, is larger than that of all others,
  by more than MOMENT_RATIO times on a logarithmic scale, on which the tails of Cauchy's distribution are exponential.
  Heavier tails would still give alarms; there log-densities say that the chain is where the posterior is. Of runs that
  keep no draws log-densities are not at hand, and the alarms stay.

Both ask for a gap between the chains that are named and all others, so several may be late, up to a fifth of all.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.autocorrelation import Array
from batchnuts.mcmc.statistics.draw_blocks import DrawBlock, as_block, parts_of

FEWEST_CHAINS = 32
"""With fewer chains too little is known of the tail of their moments."""

FEWEST_DENSITIES, FEWEST_DRAWS = 4, 200
"""Chains, and draws of all others together, from which on log-densities tell what others hold; or FEWEST_CHAINS."""

MOST = 0.2
"""Share of chains beyond which none is late: then the chains disagree, which other tests see."""

FIRST = 5
"""The draws that begin a chain."""

RATIO, NATS = 3.0, 10.0
"""How many times further below the typical log-density than all others, and by how many nats more."""

SHOWS = 3.0
"""How many times more than others' depth a log-density would have to fall, for its not falling to say something."""

MOMENT_RATIO, MOMENT_MARGIN = 3.0, 3.0
"""The same of logarithms of mean squares. The margin, with twice the logarithm of the number of coefficients, is in
units of the decay of the exponential tail that chains let expect: 2 for Cauchy variables, much less for normal ones."""

TAIL = 0.9
"""The decay is the distance of this quantile from the median, over what it is of an exponential tail of decay 1."""


def beyond_a_gap(own: Array, all_of_it: Array, ratio: float, margin: Array | float) -> NDArray[np.bool_]:
    """[..., chains]: those whose number `own` exceeds `ratio` times that of all other chains in `all_of_it`, and a
    margin; at most MOST of the chains, or none.

    own, all_of_it [..., chains]: distances from what is typical. margin: a number, or [..., 1].
    """
    chains = own.shape[-1]
    order = np.argsort(-own, axis=-1, kind="stable")
    largest = np.take_along_axis(own, order, axis=-1)
    # of each number of chains that are taken away: the largest distance among those that are left
    remaining = np.take_along_axis(all_of_it, order, axis=-1)
    remaining = np.maximum.accumulate(remaining[..., ::-1], axis=-1)[..., ::-1]
    most = max(1, int(MOST * chains))
    gaps = largest[..., :most] > ratio * np.maximum(remaining[..., 1 : most + 1], 0.0) + margin
    count = np.where(gaps.any(axis=-1), most - np.argmax(gaps[..., ::-1], axis=-1), 0)
    mask = np.zeros(own.shape, bool)
    np.put_along_axis(mask, order, np.arange(chains) < count[..., None], axis=-1)
    return mask


def late_by_density(log_density: NDArray[Any] | DrawBlock) -> NDArray[np.bool_]:
    """[chains]: whose first draws lie below what all draws of others hold, of log-densities [chains, draws]."""
    chains, draws = as_block(log_density).shape[:2]
    enough = chains >= FEWEST_DENSITIES and (chains - 1) * draws >= FEWEST_DRAWS
    if not draws or not (enough or chains >= FEWEST_CHAINS):
        return np.zeros(chains, bool)
    depth, depth_first = _depths(log_density)
    return beyond_a_gap(depth_first, depth, RATIO, NATS)


def within_by_density(log_ratio: Array, log_density: NDArray[Any] | DrawBlock) -> NDArray[np.bool_]:
    """[chains]: whose log-densities [chains, draws] say that they are where the posterior is, in a heavy tail of it.

    log_ratio [chains]: of `late_by_moments`. So much further away, normal tails would have made draws so much less
    probable that it shows beside those of others; and no draw of the chain lies below what others hold.
    """
    depth, _ = _depths(log_density)
    largest = np.max(depth[~np.isfinite(log_ratio)], initial=0.0) + NATS
    with np.errstate(over="ignore"):
        expected = 0.5 * np.exp(log_ratio)
    within: NDArray[np.bool_] = (expected > SHOWS * largest) & (depth <= largest)
    return within


def _depths(log_density: NDArray[Any] | DrawBlock) -> tuple[Array, Array]:
    """[chains]: how far below what is typical, the median chain's mean, the lowest draw of each chain is; and the
    lowest of its FIRST ones."""
    block = as_block(log_density)
    chains, draws = block.shape[:2]
    low, low_first, total = np.full(chains, np.inf), np.full(chains, np.inf), np.zeros(chains)
    for part, rows, _, values in parts_of(block):
        of_part = values[:, :, 0].astype(np.float64)
        total[part] += of_part.sum(axis=1)
        low[part] = np.minimum(low[part], of_part.min(axis=1))
        if rows.start < FIRST:
            low_first[part] = np.minimum(low_first[part], of_part[:, : FIRST - rows.start].min(axis=1))
    typical = float(np.median(total)) / draws
    return typical - low, typical - low_first


def mean_log_density(log_density: NDArray[Any] | DrawBlock) -> Array:
    """[chains]: the mean of each chain's log-densities [chains, draws]."""
    block = as_block(log_density)
    total = np.zeros(block.shape[0])
    for part, _, _, values in parts_of(block):
        total[part] += values[:, :, 0].sum(axis=1, dtype=np.float64)
    return total / block.shape[1]


def late_by_moments(mean: Array, variance: Array, coefficients: int) -> Array:
    """[chains]: infinite but for those whose draws are larger than those of all others, in one of the coefficients of
    these moments: for these the logarithm of how many times larger their mean square is than the median chain's, the
    smallest of such coefficients.

    mean, variance [some coefficients, chains]; coefficients: so many in all. Coefficients in which most chains do not
    move, as rare events, say nothing.
    """
    chains = mean.shape[1]
    none = np.full(chains, np.inf)
    if chains < FEWEST_CHAINS or not len(mean):
        return none
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        middle = np.median(mean, axis=1, keepdims=True)
        size = np.log(variance + (mean - middle) ** 2)
        distance = size - np.median(size, axis=1, keepdims=True)
        decay = np.quantile(distance, TAIL, axis=1, keepdims=True) / math.log(0.5 / (1.0 - TAIL))
        usable = np.isfinite(distance).all(axis=1) & (decay[:, 0] > 0)
    if not usable.any():
        return none
    margin = decay[usable] * (MOMENT_MARGIN + 2.0 * math.log(coefficients))
    is_late = beyond_a_gap(distance[usable], distance[usable], MOMENT_RATIO, margin)
    smallest: Array = np.where(is_late, distance[usable], np.inf).min(axis=0)
    return smallest
