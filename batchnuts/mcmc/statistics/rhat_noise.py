"""What R-hat shows of chains that have converged: its limit is a test, with a stated probability of a false alarm.

The square of R-hat exceeds 1 by the variance between means, of superchains or of halves of chains, over the variance
within them. Means of finite chains differ by chance, so this excess is a scale times a number of an F distribution.

- Superchains: the scale is the variance between the chains of one superchain, over their number and the variance
  within: an analysis of variance with chains as replicates (chains of one superchain share their start, so only chance
  makes them differ). Whatever the autocorrelation, it is in both variances.
- Chains on their own: the variance of the mean of half a chain, from autocovariances about each chain's own mean, so
  that chains which disagree do not widen their own limit (`autocorrelation.own_mean_size`).

R-hat fails a table of coefficients where one is above both 1.01 and the quantile that the largest of all exceeds with
probability FALSE_ALARM (Bonferroni). How often this is right and wrong was simulated (docs/results/false_alarms.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from batchnuts.mcmc.statistics.autocorrelation import Array
from batchnuts.mcmc.statistics.quantile_functions import f_exceeded

RHAT_LIMIT = 1.01
"""What R-hat must be below where there are many draws."""

FALSE_ALARM = 0.01
"""Probability that R-hat of chains which have converged fails a table of coefficients, at most."""

FEWEST_EFFECTIVE = 200
"""Effective draws that the noise is computed for at least: with fewer a verdict fails in any case, and a limit as wide
as they allow would say yes of chains that disagree."""

KNOWN = 2**16
"""Degrees of freedom of a variance that is known."""

SHARE_KNOWN = 0.25
"""Degrees of freedom of an autocorrelation time, as a share of the effective draws that it gives: autocorrelations at
several lags go into it."""


@dataclass(frozen=True, eq=False)
class RhatNoise:
    """The excess of the square of R-hat over 1 that chance alone gives: scale * F - offset."""

    scale: Array
    """[coefficients]."""
    first: int
    """Degrees of freedom of the numerator."""
    second: Array
    """[coefficients]: of the denominator."""
    kinds: int
    """The number of kinds of R-hat of which the largest is taken."""
    largest: float
    """The scale of FEWEST_EFFECTIVE draws: a limit is at most what it would allow if it were known exactly."""
    offset: float = 0.0
    allowed: bool = True
    """Whether the expectation of the excess is allowed for in a limit that is asked for, as in nested R-hat's paper."""

    def limits_for(self, rhat: float) -> Array:
        """[coefficients]: what R-hat must be below where `rhat` was asked for, by `sampler.until` say."""
        limits: Array = np.sqrt(rhat**2 + np.nan_to_num(self.scale) * self.allowed)
        return limits

    def limits(self, coefficients: int) -> Array:
        """[coefficients]: what R-hat fails above, among so many coefficients."""
        probability = FALSE_ALARM / (self.kinds * max(coefficients, 1))
        # rounded down to powers of two, so that few quantiles are computed
        powers = np.floor(np.log2(np.clip(np.nan_to_num(self.second, nan=1.0), 1.0, 2.0**40)))
        quantile = np.empty_like(self.scale)
        for power in np.unique(powers):
            quantile[powers == power] = f_exceeded(probability, self.first, int(2.0**power))
        most = self.largest * f_exceeded(probability, self.first, KNOWN)
        chance = 1.0 + np.minimum(np.nan_to_num(self.scale) * quantile, most) - self.offset
        limits: Array = np.sqrt(np.maximum(self.limits_for(RHAT_LIMIT) ** 2, chance))
        return limits


def joined_noise(parts: Sequence[RhatNoise]) -> RhatNoise:
    """The noise of some coefficients after others, of the same chains."""
    scale, second = (np.concatenate([getattr(part, name) for part in parts]) for name in ("scale", "second"))
    return replace(parts[0], scale=scale, second=second)


def noise_of_halves(sizes: Array, chains: int, half: int, kinds: int) -> RhatNoise:
    """That of R-hat of chains' halves with so many draws; sizes [coefficients]: `own_mean_size` of all draws."""
    sizes = np.maximum(sizes, FEWEST_EFFECTIVE)

    def over_within(size: Any) -> Any:
        """The variance of the mean of half a chain as a share of all, over what is left within halves."""
        share = np.minimum(2 * chains / size, 0.5)
        return share / (1.0 - share)

    largest = float(over_within(np.float64(FEWEST_EFFECTIVE)))
    freedom = 2 * chains - 1, SHARE_KNOWN * sizes
    return RhatNoise(over_within(sizes), *freedom, kinds, largest, offset=1.0 / half, allowed=False)


def noise_of_superchains(scale: Array, chains: int, superchains: int, kinds: int) -> RhatNoise:
    """That of nested R-hat; scale [coefficients]: the variance of a superchain's mean that its chains let expect, over
    that within superchains."""
    largest = superchains / FEWEST_EFFECTIVE
    freedom = superchains - 1, np.full(scale.shape, float(chains - superchains))
    return RhatNoise(np.minimum(scale, largest), *freedom, kinds, largest)
