"""The moments and ranks to which draws are reduced: what each statistic of convergence.py is computed from, by name.

Draws are looked at as they are, in their own dtype, sorted once (rank_normal.py), and converted to float64 in blocks of
chains. So a coefficient takes 12 bytes for each draw besides the draws themselves, and a few megabytes for the blocks.

Source: Vehtari, Gelman, Simpson, Carpenter, Buerkner, "Rank-normalization, folding, and localization: an improved
R-hat", Bayesian Analysis 2021, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.chain_moments import Array, ChainMoments, Part, chain_moments
from batchnuts.mcmc.statistics.rank_normal import NormalScores, Ranking

TAILS = (0.05, 0.95)
"""The quantiles whose effective sample sizes make the tail ESS."""

SUMMARY, NESTED, STUCK, NOISE = "summary", "nested", "stuck", "noise"
"""What else can be asked for: means, standard deviations and quantiles; what nested R-hat, stuck chains, and the noise
of R-hat need."""

WORKING_BYTES = 12
"""For each draw of a coefficient: its place in ascending order, and its rank."""

Scores = Callable[[int], NormalScores]
"""Normal scores among so many values; one that remembers them saves time where there are many coefficients."""


@dataclass(frozen=True, eq=False)
class RankMoments:
    """Moments of normal scores [coefficients, chains, draws]; `folded`: of scores of distances from the median."""

    scores: ChainMoments
    folded: ChainMoments | None


@dataclass(frozen=True, eq=False)
class Reduced:
    """What was asked for of draws [coefficients, chains, draws]. Arrays have only the coefficients that vary."""

    varies: NDArray[np.bool_]
    """[all coefficients]: which are finite, and not the same in all draws."""
    finite: NDArray[np.bool_]
    """[all coefficients]."""
    first: Array
    """[all coefficients]: the smallest value: the only one of those that do not vary."""
    chains: int
    draws: int
    """Draws of each chain."""
    values: ChainMoments | None = None
    """Moments of the draws themselves; None if no coefficient varies."""
    quantiles: Array = field(default_factory=lambda: np.empty((2, 0)))
    """[TAILS, coefficients]: linear between draws (Hyndman and Fan's type 7)."""
    whole: RankMoments | None = None
    """Moments of scores among all draws."""
    halves: RankMoments | None = None
    """Moments of scores among the draws in halves of chains, which are all draws if their number per chain is even."""
    tail_sizes: Array | None = None
    """[TAILS, coefficients]: effective sizes of the indicator of being at most the quantile."""
    squares: ChainMoments | None = None
    """Moments of squared distances from the mean."""
    discrete: NDArray[np.bool_] | None = None
    """[coefficients]: whose draws are all integers, as states, indicators and counts are."""

    def of_all(self, varying: Array, constant: Array | float = np.nan) -> Array:
        """[all coefficients]: the number of each that varies, and a constant for those that do not."""
        result = np.broadcast_to(np.asarray(constant, np.float64), self.varies.shape).copy()
        result[self.varies] = varying
        return result


@np.errstate(over="ignore", invalid="ignore")  # of numbers whose squares overflow: then moments are not finite
def reduce_draws(values: NDArray[Any], wanted: Collection[str], scores: Scores = NormalScores) -> Reduced:
    """Reduce draws [coefficients, chains, draws], C-contiguous float32 or float64.

    wanted: which of convergence.STATISTICS and of SUMMARY, NESTED, STUCK and NOISE, which goes with r_hat. Statistics
    need 4 draws of each chain (chain_moments.MINIMUM_DRAWS), STUCK MINIMUM_DRAWS_JUDGED (stuck_chains.py).
    """
    low, high = values.min(axis=(1, 2)), values.max(axis=(1, 2))
    finite = np.isfinite(low) & np.isfinite(high)  # NaN is the smallest and the largest
    varies = finite & (low != high)
    first, (_, chains, length) = low.astype(np.float64), values.shape
    if not varies.any():
        return Reduced(varies, finite, first, chains, length)
    if not varies.all():
        values = values[varies]
    names, shape = set(wanted), (len(values), chains, length)

    def draws(start: int, stop: int) -> Array:
        return values[:, start:stop].astype(np.float64)

    of_values = chain_moments(draws, shape, effective_size="mcse_mean" in names)
    ranking = Ranking(values.reshape(len(values), -1))
    quantiles = [_quantile(ranking, probability) for probability in TAILS] if SUMMARY in names else np.empty((2, 0))
    return Reduced(
        varies,
        finite,
        first,
        chains,
        length,
        values=of_values,
        quantiles=np.asarray(quantiles),
        tail_sizes=_tail_sizes(draws, shape, ranking) if "ess_tail" in names else None,
        squares=_squares(draws, shape, of_values) if "mcse_sd" in names else None,
        discrete=_all_integers(values) if STUCK in names else None,
        **_rank_moments(ranking, shape, names, scores),
    )


def _all_integers(values: NDArray[Any]) -> NDArray[np.bool_]:
    """[coefficients]: whether all of the draws [coefficients, chains, draws] are. Numbers of a million or more are not:
    where a dtype rounds that far, they may be of a real number."""

    def are(draws: NDArray[Any]) -> NDArray[np.bool_]:
        axes = tuple(range(1, draws.ndim))
        return ((draws == np.rint(draws)) & (np.abs(draws) < 1e6)).all(axis=axes)  # type: ignore[no-any-return]

    discrete = are(values[:, :, 0])  # which rules out almost all others
    discrete[discrete] = are(values[discrete])
    return discrete


def _rank_moments(
    ranking: Ranking, shape: tuple[int, int, int], names: set[str], scores: Scores
) -> dict[str, RankMoments | None]:
    """`whole` and `halves` of Reduced, which are one if chains have an even number of draws."""
    draws, even = shape[2], shape[2] % 2 == 0
    whole, halves, noise = {NESTED, STUCK} & names, {"r_hat", "ess_bulk"} & names, NOISE in names
    ranks = np.empty(shape, ranking.dtype)
    moments: dict[str, RankMoments | None] = {"whole": None, "halves": None}
    if whole or (halves and even):
        folded = NESTED in names or ("r_hat" in names and even)
        moments["whole"] = _moments_of_scores(
            ranking, ranks, scores, folded, "ess_bulk" in names and even, noise and even
        )
        moments["halves"] = moments["whole"] if even else None
    if halves and not even:
        ranking.leave_out(draws, draws // 2)
        ranks[:, :, draws // 2] = 1  # of no meaning: halves are without it
        moments["halves"] = _moments_of_scores(ranking, ranks, scores, "r_hat" in names, "ess_bulk" in names, noise)
    return moments


def _moments_of_scores(
    ranking: Ranking, ranks: NDArray[Any], scores: Scores, folded: bool, effective_size: bool, noise: bool
) -> RankMoments:
    """ranks: memory for them, [coefficients, chains, draws]."""
    normal = scores(ranking.size)

    def part(start: int, stop: int) -> Array:
        return normal.of(ranks[:, start:stop])

    ranking.ranks(ranks.reshape(-1))
    of_scores = chain_moments(part, ranks.shape, effective_size=effective_size, own_mean=noise)
    if not folded:
        return RankMoments(of_scores, None)
    ranking.folded_ranks(ranks.reshape(-1))
    return RankMoments(of_scores, chain_moments(part, ranks.shape, own_mean=noise))


def _quantile(ranking: Ranking, probability: float) -> Array:
    """A quantile of each row, as NumPy computes it."""
    place = (ranking.size - 1) * probability
    below = int(place)
    low, high = ranking.at(below), ranking.at(min(below + 1, ranking.size - 1))
    share = place - below
    between: Array = low + (high - low) * share if share < 0.5 else high - (high - low) * (1.0 - share)
    return between


def _tail_sizes(draws: Part, shape: tuple[int, int, int], ranking: Ranking) -> Array:
    """Effective sizes of both tails, by section 4.3 of the paper."""
    sizes: list[Any] = []
    for probability in TAILS:
        # Hyndman and Fan's type 7, in the arithmetic of SciPy's mquantiles, which ArviZ uses: a quantile that rounding
        # puts on the other side of a draw would change the indicator
        size = ranking.size
        place = size * probability + (1.0 + probability * -1.0)
        below = int(np.floor(np.clip(place, 1, size - 1)))
        share = np.clip(place - below, 0, 1)
        quantile = (1.0 - share) * ranking.at(below - 1) + share * ranking.at(below)

        def part(start: int, stop: int, quantile: Array = quantile) -> Array:
            return (draws(start, stop) <= quantile[:, None, None]).astype(np.float64)

        sizes.append(chain_moments(part, shape, effective_size=True).effective_size)
    return np.stack(sizes)


def _squares(draws: Part, shape: tuple[int, int, int], of_values: ChainMoments) -> ChainMoments:
    mean = of_values.overall_mean

    def part(start: int, stop: int) -> Array:
        distance = draws(start, stop)
        distance -= mean[:, None, None]
        distance *= distance
        return distance

    return chain_moments(part, shape, effective_size=True)


def in_order(draws: NDArray[Any]) -> NDArray[Any]:
    """Draws [chains, draws, coefficients] as `reduce_draws` takes them: float32 stays, all else becomes float64."""
    dtype = np.float32 if draws.dtype == np.float32 else np.float64
    return np.ascontiguousarray(draws.transpose(2, 0, 1), dtype=dtype)
