"""Nested R-hat of Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari, Gelman, "Nested R-hat: Assessing the convergence
of Markov chain Monte Carlo when running many short chains", Bayesian Analysis 2024, arXiv 2110.13017.

R-hat is about sqrt(1 + C / S) for C chains with S effective draws together, if draws depend on each other: chains with
few draws have noisy means, which differ though all have converged. Chains that start at the same point form a
*superchain*. The mean over the M chains of a superchain is less noisy, so what is left of its distance from other
superchains' means comes from the different starts, and the chains can be short: one draw of each is enough where M is
large.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.chain_moments import Array, ChainMoments
from batchnuts.mcmc.reductions import NESTED, Reduced, in_order, reduce_draws


def limit_of(rhat: float, chains_each: float, draws: int) -> float:
    """The value that nested R-hat must be below, for superchains of `chains_each` chains with `draws` draws each.

    At stationarity, with independent draws, the square of nested R-hat is in expectation 1 + 1/M for N = 1, as in the
    paper, and 1 + 1 / (M (N + 1)) for more draws, however many superchains there are. The limit allows for that, and
    tends to `rhat` as M N grows:  sqrt(rhat^2 + 1 / (M N)).
    """
    return math.sqrt(rhat**2 + 1 / (chains_each * draws))


def nested_rhat(draws: NDArray[Any], superchain: NDArray[np.int64]) -> Array:
    """Nested R-hat of each coefficient: the largest of three, which see different failures.

    draws [chains, draws, coefficients], superchain [chains]: the number of each chain's, at least two different ones.
    Chains have at least two draws, or superchains two chains. Returns float64 [coefficients], at least 1; NaN for a
    coefficient that is not finite, or does not vary.

    The three are of the draws themselves, as in the paper (a chain far away shows in their variances); of their normal
    scores, and of the normal scores of their distances from the median (Vehtari et al. 2021: heavy tails, and spreads
    that differ). Draws are not split into halves: halves would belong to the same superchain, whose mean is the same.

    Raises ValueError for superchains that are not as described.
    """
    _require_superchains(superchain, draws.shape[1])
    return nested_of(reduce_draws(in_order(draws), {NESTED}), superchain)


def nested_of(reduced: Reduced, superchain: NDArray[np.int64]) -> Array:
    """The same, of draws that were reduced with NESTED among what was wanted."""
    _require_superchains(superchain, reduced.draws)
    if reduced.values is None:
        return np.full(len(reduced.varies), np.nan)
    assert reduced.whole is not None
    assert reduced.whole.folded is not None
    kinds = (reduced.values, reduced.whole.scores, reduced.whole.folded)
    return reduced.of_all(np.max([_nested(kind, superchain, reduced.draws) for kind in kinds], axis=0))


def nested_of_moments(moments: ChainMoments, superchain: NDArray[np.int64], length: int) -> Array:
    """Nested R-hat of the draws themselves alone: of moments of chains with `length` draws each, which do not have to
    be kept. Raises ValueError as `nested_rhat` does."""
    _require_superchains(superchain, length)
    found = _nested(moments, superchain, length)
    return np.where(moments.overall_variance > 0, found, np.nan)


def _require_superchains(superchain: NDArray[np.int64], length: int) -> None:
    _, sizes = np.unique(superchain, return_counts=True)
    if len(sizes) < 2 or (length == 1 and sizes.max() == 1):
        raise ValueError(
            f"nested R-hat needs two superchains, and two chains in one or two draws of each chain; found {len(sizes)} "
            f"superchains of {sizes.min()} to {sizes.max()} chains with {length} draws"
        )


def _nested(moments: ChainMoments, superchain: NDArray[np.int64], length: int) -> Array:
    """The paper's definition (section 2.2), which is for superchains of one size, with sizes that may differ.

    Of chains with `length` draws each.
    """
    order = np.argsort(superchain, kind="stable")
    _, sizes = np.unique(superchain, return_counts=True)
    starts = np.cumsum(sizes) - sizes
    of_chains = moments.mean[:, order]
    of_superchains = np.add.reduceat(of_chains, starts, axis=1) / sizes
    between = of_superchains.var(axis=1, ddof=1)  # B-hat of nu
    within = np.zeros(len(of_chains))  # W-hat of nu: the mean over superchains of B-tilde and W-tilde
    several = sizes > 1
    if several.any():  # one chain alone has no variance between chains
        squares = (of_chains - np.repeat(of_superchains, sizes, axis=1)) ** 2
        within += (np.add.reduceat(squares, starts, axis=1)[:, several] / (sizes[several] - 1)).mean(axis=1)
    if length > 1:
        variances = moments.variance[:, order] * (length / (length - 1))
        within += (np.add.reduceat(variances, starts, axis=1) / sizes).mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # superchains within which nothing varies: infinite
        ratio: Array = np.sqrt(1 + between / within)
    return ratio
