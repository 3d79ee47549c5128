"""R-hat, effective sample sizes and Monte Carlo errors of many coefficients at once, during a run and after it.

They are what ArviZ's `rhat(method="rank")`, `ess` and `mcse` give, to rounding. ArviZ computes one coefficient at a
time in Python, which takes longer than sampling does, and its import alone as long as all else that a short run does
after its draws (decision 46). Here one sort of a coefficient serves all of them (`reductions.py`, decision 52).

Ranks change with every new draw, so these statistics cannot be updated draw by draw. Check points whose numbers of
draws grow geometrically (`stopping_rule.py`) bound the cost of all of them together by a multiple of the last one's.

Source: Vehtari, Gelman, Simpson, Carpenter, Buerkner, "Rank-normalization, folding, and localization: an improved
R-hat", Bayesian Analysis 2021, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.chain_moments import Array, ChainMoments
from batchnuts.mcmc.statistics.reductions import Reduced, in_order, reduce_draws
from batchnuts.mcmc.statistics.rhat_noise import RhatNoise, noise_of_halves


def convergence(draws: NDArray[Any], names: Collection[str]) -> dict[str, Array]:
    """Those of STATISTICS that are named, each float64 [coefficients].

    draws [chains, draws, coefficients], of at least 4 draws, and at least 2 chains for `r_hat`. NaN for a coefficient
    that is not finite everywhere, or does not vary.
    """
    return convergence_of(reduce_draws(in_order(draws), names), names)


def convergence_of(reduced: Reduced, names: Collection[str]) -> dict[str, Array]:
    """The same, of draws that were reduced with these names among what was wanted."""
    if reduced.values is None:
        return {name: np.full(len(reduced.varies), np.nan) for name in STATISTICS if name in names}
    return {name: reduced.of_all(compute(reduced)) for name, compute in _COMPUTED.items() if name in names}


def _rhat(reduced: Reduced) -> Array:
    assert reduced.halves is not None
    assert reduced.halves.folded is not None
    half = reduced.draws // 2
    return np.maximum(split_rhat(reduced.halves.scores, half), split_rhat(reduced.halves.folded, half))


def _bulk_ess(reduced: Reduced) -> Array:
    assert reduced.halves is not None
    assert reduced.halves.scores.effective_size is not None
    return reduced.halves.scores.effective_size


def _tail_ess(reduced: Reduced) -> Array:
    assert reduced.tail_sizes is not None
    smallest: Array = reduced.tail_sizes.min(axis=0)
    return smallest


def _mcse_of_mean(reduced: Reduced) -> Array:
    values = reduced.values
    assert values is not None
    assert values.effective_size is not None
    count = values.mean.shape[1] * reduced.draws
    error: Array = np.sqrt(values.overall_variance * count / (count - 1) / values.effective_size)
    return error


def _mcse_of_sd(reduced: Reduced) -> Array:
    """The variance's error is that of a mean, of squares; the root's is that over twice the root (delta method)."""
    squares = reduced.squares
    assert squares is not None
    assert squares.effective_size is not None
    of_variance = squares.overall_variance / squares.effective_size
    error: Array = np.sqrt(of_variance / squares.overall_mean) / 2
    return error


_COMPUTED: Mapping[str, Callable[[Reduced], Array]] = {
    "r_hat": _rhat,
    "ess_bulk": _bulk_ess,
    "ess_tail": _tail_ess,
    "mcse_mean": _mcse_of_mean,
    "mcse_sd": _mcse_of_sd,
}
"""Of draws some of whose coefficients vary: the number of each of these."""

STATISTICS = tuple(_COMPUTED)
"""What `convergence` computes; what each needs is asked of `reduce_draws` by its name."""


def rhat_noise_of(reduced: Reduced) -> RhatNoise:
    """What chance alone adds to R-hat, of draws that were reduced with NOISE among what was wanted.

    The larger noise of the two kinds counts.
    """
    half = reduced.draws // 2
    if reduced.halves is None:
        return noise_of_halves(np.full(len(reduced.varies), np.nan), reduced.chains, half, 2)
    kinds = (reduced.halves.scores, reduced.halves.folded)
    sizes = [kind.own_mean_size for kind in kinds if kind is not None and kind.own_mean_size is not None]
    return noise_of_halves(reduced.of_all(np.min(sizes, axis=0)), reduced.chains, half, len(kinds))


def split_rhat(halves: ChainMoments, draws: int) -> Array:
    """Equation 4 of Vehtari et al. 2021, of chains' halves with so many draws each."""
    between = draws * halves.half_mean.var(axis=1, ddof=1)
    within = halves.half_variance.mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that each stay where they are: infinite
        ratio: Array = np.sqrt((between / within + draws - 1) / draws)
    return ratio
