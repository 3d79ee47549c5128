"""Superchains: groups of chains that start at the same position, by which the memory of the start can be measured.

Chains of one group that differ no more from those of another than from each other have forgotten where they started
(Margossian, Hoffman, Sountsov, Riou-Durand, Vehtari and Gelman, "Nested R-hat: assessing the convergence of Markov
chain Monte Carlo when running many short chains", 2024, section 3).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.settings.run_settings import SamplerSettings

SUPERCHAINS = 16
"""As many as are chosen automatically: enough starts to see that they disagree, and many chains of each."""

SMALLEST = 4
"""Chains of each superchain, at least, where their number is chosen automatically."""


def count_superchains(sampler: SamplerSettings) -> int:
    """As many as the settings ask for; by default SUPERCHAINS where chains suffice, else each chain is its own."""
    if sampler.superchains is not None:
        return sampler.superchains
    return SUPERCHAINS if sampler.chain_count >= SMALLEST * SUPERCHAINS else sampler.chain_count


def superchain_of(chains: int, count: int) -> NDArray[np.int64]:
    """[chains]: the number of each chain's superchain; sizes differ by one at most."""
    return np.arange(chains, dtype=np.int64) % count
