"""Nested R-hat of Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari, Gelman, "Nested R-hat: Assessing the convergence
of Markov chain Monte Carlo when running many short chains", Bayesian Analysis 2024, arXiv 2110.13017.

R-hat is about sqrt(1 + C / S) for C chains with S effective draws together, if draws depend on each other: chains with
few draws have noisy means, which differ though all have converged. Chains that start at the same point form a
*superchain*. The mean over the M chains of a superchain is less noisy, so what is left of its distance from other
superchains' means comes from the different starts, and the chains can be short: one draw of each is enough where M is
large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.statistics.chain_moments import Array, ChainMoments
from batchnuts.mcmc.statistics.reductions import NESTED, Reduced, in_order, reduce_draws
from batchnuts.mcmc.statistics.rhat_noise import RhatNoise, noise_of_superchains


@dataclass(frozen=True, eq=False)
class NestedRhat:
    """Nested R-hat of each coefficient [coefficients], with what chance alone adds to it."""

    rhat: Array
    """At least 1; NaN for a coefficient that is not finite, or does not vary."""
    noise: RhatNoise


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
    return nested_of(reduce_draws(in_order(draws), {NESTED}), superchain).rhat


def nested_of(reduced: Reduced, superchain: NDArray[np.int64]) -> NestedRhat:
    """The same with its noise, of draws that were reduced with NESTED among what was wanted.

    The largest noise of the three kinds counts.
    """
    _require_superchains(superchain, reduced.draws)
    if reduced.values is None:
        nothing = np.full(len(reduced.varies), np.nan)
        return NestedRhat(nothing, _noise(nothing, superchain, 3))
    assert reduced.whole is not None
    assert reduced.whole.folded is not None
    kinds = (reduced.values, reduced.whole.scores, reduced.whole.folded)
    rhat, scale = np.max([_nested(kind, superchain, reduced.draws) for kind in kinds], axis=0)
    return NestedRhat(reduced.of_all(rhat), _noise(reduced.of_all(scale), superchain, len(kinds)))


def nested_of_moments(moments: ChainMoments, superchain: NDArray[np.int64], length: int) -> NestedRhat:
    """Nested R-hat of the draws themselves alone: of moments of chains with `length` draws each, which do not have to
    be kept. Raises ValueError as `nested_rhat` does."""
    _require_superchains(superchain, length)
    rhat, scale = _nested(moments, superchain, length)
    return NestedRhat(np.where(moments.overall_variance > 0, rhat, np.nan), _noise(scale, superchain, 1))


def _noise(scale: Array, superchain: NDArray[np.int64], kinds: int) -> RhatNoise:
    return noise_of_superchains(scale, len(superchain), len(np.unique(superchain)), kinds)


def _require_superchains(superchain: NDArray[np.int64], length: int) -> None:
    _, sizes = np.unique(superchain, return_counts=True)
    if len(sizes) < 2 or (length == 1 and sizes.max() == 1):
        raise ValueError(
            f"nested R-hat needs two superchains, and two chains in one or two draws of each chain; found {len(sizes)} "
            f"superchains of {sizes.min()} to {sizes.max()} chains with {length} draws"
        )


def _nested(moments: ChainMoments, superchain: NDArray[np.int64], length: int) -> tuple[Array, Array]:
    """The paper's definition (section 2.2), which is for superchains of one size, with sizes that may differ; and the
    scale of its noise: the variance of a superchain's mean that chains within superchains let expect.

    Of chains with `length` draws each.
    """
    order = np.argsort(superchain, kind="stable")
    _, sizes = np.unique(superchain, return_counts=True)
    starts = np.cumsum(sizes) - sizes
    of_chains = moments.mean[:, order]
    of_superchains = np.add.reduceat(of_chains, starts, axis=1) / sizes
    between = of_superchains.var(axis=1, ddof=1)  # B-hat of nu
    within = np.zeros(len(of_chains))  # W-hat of nu: the mean over superchains of B-tilde and W-tilde
    among = np.zeros(len(of_chains))
    several = sizes > 1
    if several.any():  # one chain alone has no variance between chains
        squares = (of_chains - np.repeat(of_superchains, sizes, axis=1)) ** 2
        among = (np.add.reduceat(squares, starts, axis=1)[:, several] / (sizes[several] - 1)).mean(axis=1)
        within += among
    if length > 1:
        variances = moments.variance[:, order] * (length / (length - 1))
        within += (np.add.reduceat(variances, starts, axis=1) / sizes).mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # superchains within which nothing varies: infinite
        return np.sqrt(1 + between / within), among * (1.0 / sizes).mean() / within
