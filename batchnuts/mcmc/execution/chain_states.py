"""What passes from one step of a run to the next: all chains between stretches, and where the draws begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.storage.draws import WarmupReport


@dataclass(frozen=True, eq=False)
class ChainStates:
    """All chains between stretches, on the host; every array [chains, ...]."""

    position: np.ndarray
    """[chains, dimension]."""
    log_density: np.ndarray
    gradient: np.ndarray
    """[chains, dimension], of the log-density."""
    metric: MetricParameters
    """The metric of all chains; where they do not share a diagonal metric, that of each chain."""
    inverse_mass: np.ndarray
    """[chains, dimension]: those of the metric, in the model's dtype."""
    step_size: np.ndarray
    """[chains]; likewise."""
    transitions_done: int = 0


@dataclass(frozen=True, eq=False)
class InDraws:
    """After warmup: all that the draws depend on."""

    states: ChainStates
    warmup: WarmupReport
    earlier: int = 0
    """Draws of each chain that were made before these states, where a run that had ended is made longer."""
