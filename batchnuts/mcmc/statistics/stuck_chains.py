"""Chains that stay where others are not: what R-hat of many chains does not see.

R-hat is a ratio of variances, so one chain among C can add little to it however far away it is: its normal scores are
about z = Phi^-1(1 - 1/(2 C)), and z^2/C of the variance is 0.03 for 256 chains and 0.01 for 1,024. Nested R-hat sees
even less of it, and nothing of chains that are stuck in several places in equal shares of each superchain. Two tests
close these holes. Both look at normal scores (rank_normal.py), so heavy tails do not matter, and both take chains of at
least MINIMUM_DRAWS_JUDGED draws:

- *Stuck*: the mean score of a chain is further from the median of all chains than chance allows, by the robust spread
  of the chains' own means. This spread contains whatever autocorrelation there is, so nothing is assumed about it.
  Where it is wide, since each chain has few effective draws, a chain is still stuck that is ten robust standard
  deviations away and stays there, as in warmup (warmup/outliers.py), or of which no coefficient moved.
- *Persistence*: how much of the variance is in differences between chains that last. The covariance over chains of the
  means of their first and second halves is that: draws of a chain that has forgotten its first half in its second add
  nothing to it, however few effective draws it has. So it is 0 for chains that mix, and 1 for chains that do not move.

Only real numbers are looked at for stuck chains. Of a state that is rare, say, the means of chains are Poisson and not
normal numbers, and a chain that never had it is not one that did not move.

Persistence needs no chain to be rare: it sees two modes with equal shares, and any number of modes. It is the variance
component of a random-effects analysis of variance, with halves as the repeated measurements; the same term between
chains of one superchain is B-tilde of Margossian et al. 2024 (section 2.2), which also has the noise of short chains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.chain_moments import Array, ChainMoments
from batchnuts.mcmc.statistics.outliers import FAR, NATS, far_and_stay, spread
from batchnuts.mcmc.statistics.quantile_functions import normal_exceeded
from batchnuts.mcmc.statistics.rank_normal import BLOCK
from batchnuts.mcmc.statistics.reductions import STUCK, Reduced, in_order, reduce_draws

MINIMUM_DRAWS_JUDGED = 10
"""The fewest draws of a chain: with fewer, a stuck chain cannot be distinguished from one in the tail."""

FEWEST_CHAINS_JUDGED = 32
"""Below this number R-hat itself sees one chain: it has a seventh of the variance, or more."""

BY_CHANCE = 1e-4
"""Chance that, of all chains and coefficients together, a normal mean of independent chains counts as stuck."""

MOST_STUCK = 0.2
"""Share of chains beyond which they do not count as stuck: then the chains disagree, which persistence sees."""

PERSISTENCE_LIMIT = 0.4
"""Two modes of equal shares, far apart, have 0.64 (their scores are half-normal), and a fifth of the chains elsewhere
0.49. Chains that mix reach it where they have fewer draws than 0.9 times the autocorrelation time."""

STILL = 1e-4
"""A chain whose variance is below this share of the median chain's, in each coefficient, has not moved."""


@dataclass(frozen=True, eq=False)
class StuckChains:
    """Chains that are stuck, and how much of a variance lasts."""

    mask: NDArray[np.bool_]
    """[chains]."""
    persistence: NDArray[np.float64]
    """[coefficients], about 0 to 1; 0 where there are too few draws, or it does not vary."""
    furthest: NDArray[np.intp]
    """[chains]: the coefficient in which each chain is furthest from the others."""
    how_far: NDArray[np.float64]
    """[chains]: in that coefficient, in standard deviations of draws."""


def find_stuck(draws: NDArray[Any], at_once: int = BLOCK) -> StuckChains:
    """Stuck chains, and the persistence of each coefficient, of draws [chains, draws, coefficients].

    Measured on normal autoregressive chains (decision 45): none of 5,160 sets of draws, of 64 to 1,024 chains, had a
    stuck chain, so fewer than 1 in 1,000 have by mistake (95% confidence); and none whose autocorrelation time is below
    0.45 of a chain's draws had a persistence above its limit. at_once: how many numbers are looked at together.
    Coefficients that are not finite count as if they did not vary.
    """
    chains, length, count = draws.shape
    width = max(1, at_once // max(chains * length, 1))
    starts = range(0, count, width) if has_enough_draws(draws.shape) else ()
    parts = (in_order(draws[:, :, start : start + width]) for start in starts)
    return stuck_of((evidence_of(reduce_draws(part, {STUCK})) for part in parts), chains, count)


@dataclass(frozen=True, eq=False)
class StuckEvidence:
    """What is seen of some coefficients; those that do not vary have zeros, and no chain of them has moved."""

    persistence: Array
    """[coefficients]."""
    distance: Array
    """[coefficients, chains]: of each chain from the others, in standard deviations of the means of scores."""
    of_values: Array
    """[coefficients, chains]: of each chain from the others, in standard deviations of draws; scores are bounded."""
    away: NDArray[np.bool_]
    """[coefficients, chains]: far from the others, and it stays there."""
    still: NDArray[np.bool_]
    """[coefficients, chains]: it has not moved, or the coefficient does not vary."""

    def of(self, coefficients: slice) -> StuckEvidence:
        """The evidence of some coefficients."""
        return StuckEvidence(
            self.persistence[coefficients],
            self.distance[coefficients],
            self.of_values[coefficients],
            self.away[coefficients],
            self.still[coefficients],
        )


def has_enough_draws(shape: tuple[int, ...]) -> bool:
    """Whether there are enough of the draws [chains, draws, ...]."""
    return shape[0] >= 2 and shape[1] >= MINIMUM_DRAWS_JUDGED


def evidence_of(reduced: Reduced) -> StuckEvidence:
    """The StuckEvidence of draws that were reduced with STUCK among what was wanted, of which there are enough."""
    varies, of_draws = reduced.varies, reduced.values
    if of_draws is None:
        nothing = np.zeros((len(varies), 0))
        return StuckEvidence(np.zeros(len(varies)), nothing, nothing, nothing.astype(bool), nothing.astype(bool))
    assert reduced.whole is not None
    scores = reduced.whole.scores
    shape = (len(varies), scores.mean.shape[1])
    distance, of_values, away, still = np.zeros(shape), np.zeros(shape), np.zeros(shape, bool), np.ones(shape, bool)
    first, second = _halves(scores, reduced.draws)
    distance[varies] = _distance(scores.mean, first, second)
    of_values[varies] = _of_values(of_draws)
    away[varies] = far_and_stay(of_draws.mean.T, of_draws.variance.T).T
    still[varies] = of_draws.variance <= STILL * np.median(of_draws.variance, axis=1, keepdims=True)
    discrete = np.zeros(len(varies), bool)
    discrete[varies] = reduced.discrete
    distance[discrete], away[discrete], still[discrete] = 0.0, False, True  # as those that do not vary
    persistence = reduced.of_all(_lasting(first, second) / scores.overall_variance, 0.0)
    return StuckEvidence(persistence, distance, of_values, away, still)


def evidence_of_moments(moments: ChainMoments, draws: int, halves: int) -> StuckEvidence:
    """The StuckEvidence of draws that were not kept, of which moments are all that is known.

    There are `draws` of each chain, and `halves` in each half.

    Without scores, how far a chain is counts only where it stays there or does not move; persistence is of the draws
    themselves, so that heavy tails hide some of it.
    """
    variance = moments.overall_variance
    chains = moments.mean.shape[1]
    still = moments.variance <= STILL * np.median(moments.variance, axis=1, keepdims=True)
    away = far_and_stay(moments.mean.T, moments.variance.T).T
    persistence = np.zeros(len(variance))
    if halves and chains > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            persistence = _lasting(moments.half_mean[:, :chains], moments.half_mean[:, chains:]) / variance
    enough = has_enough_draws((chains, draws))
    return StuckEvidence(
        np.nan_to_num(persistence) * enough,
        np.zeros_like(moments.mean),
        _of_values(moments),
        away & enough,
        still & enough,
    )


def stuck_of(parts: Iterable[StuckEvidence], chains: int, count: int) -> StuckChains:
    """The verdict on `count` coefficients together, whose evidence is given in parts."""
    mask = np.zeros(chains, bool)
    persistence = np.zeros(count)
    furthest = np.zeros(chains, np.intp)
    largest, of_values, start = np.zeros(chains), np.zeros(chains), 0
    still, away = np.ones(chains, bool), np.zeros(chains, bool)
    for part in parts:
        size = len(part.persistence)
        persistence[start : start + size] = part.persistence
        if part.distance.size:
            far = np.where((part.distance > 0) | part.away, part.of_values, 0.0)
            furthest = np.where(far.max(axis=0) > of_values, start + far.argmax(axis=0), furthest)
            of_values = np.maximum(of_values, far.max(axis=0))
            largest = np.maximum(largest, part.distance.max(axis=0))
            away |= part.away.any(axis=0)
            still &= part.still.all(axis=0)
        start += size
    if chains >= FEWEST_CHAINS_JUDGED and start:
        limit = normal_exceeded(BY_CHANCE / (2 * chains * count))
        is_stuck = (largest > limit) | away | still
        mask = is_stuck if is_stuck.sum() <= MOST_STUCK * chains else mask
    return StuckChains(mask, persistence, furthest, of_values)


def far_below(mean_log_density: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[chains]: whose mean log-density [chains] is FAR robust standard deviations below the median of all, and NATS."""
    low, middle, high = np.quantile(mean_log_density, (0.25, 0.5, 0.75))
    below: NDArray[np.bool_] = middle - mean_log_density > FAR * (high - low) / 1.349 + NATS
    return below


def _of_values(moments: ChainMoments) -> Array:
    """How far the means of chains are from their median, in standard deviations of draws: [coefficients, chains]."""
    with np.errstate(all="ignore"):  # of numbers whose squares overflow
        distance = np.abs(moments.mean - np.median(moments.mean, axis=1, keepdims=True))
        relative = distance / spread(moments.mean.T, moments.variance.T)[:, np.newaxis]
    return np.where(distance > 0, np.nan_to_num(relative, nan=np.inf), 0.0)


def _halves(scores: ChainMoments, draws: int) -> tuple[Array, Array]:
    """Means [coefficients, chains] of first halves, and of second halves with a middle draw."""
    chains, half = scores.mean.shape[1], draws // 2
    first = scores.half_mean[:, :chains]
    return first, (draws * scores.mean - half * first) / (draws - half)


def _distance(whole: Array, first: Array, second: Array) -> Array:
    """Of each chain's mean from the median of all, in standard deviations of such means: [coefficients, chains].

    Means of scores [coefficients, chains], also of both halves. The nearer one of two counts: of the whole chain, and
    sqrt(2) times that of its nearer half, so that a chain that was away for a part of the time is not stuck.
    """
    whole, first, second = _standardized(whole), _standardized(first), _standardized(second)
    same_side = (np.sign(first) == np.sign(whole)) & (np.sign(second) == np.sign(whole))
    nearer = np.sqrt(2.0) * np.minimum(np.abs(first), np.abs(second))
    return np.where(same_side, np.minimum(np.abs(whole), nearer), 0.0)


def _standardized(means: Array) -> Array:
    """Means [coefficients, chains] less their median, over a standard deviation that few of them cannot move."""
    low, middle, high = np.quantile(means, (0.25, 0.5, 0.75), axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):  # most chains at one place: whatever is elsewhere is far
        distance = (means - middle) / ((high - low) / 1.349)
    return np.where(means == middle, 0.0, distance)


def _lasting(first: Array, second: Array) -> Array:
    """Covariance over chains of the means of both halves [coefficients, chains]: [coefficients]."""
    first = first - first.mean(axis=1, keepdims=True)
    second = second - second.mean(axis=1, keepdims=True)
    covariance: Array = (first * second).sum(axis=1) / (first.shape[1] - 1)
    return covariance
