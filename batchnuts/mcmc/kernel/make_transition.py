"""The transition, and the adaptation of its step size, that a run's settings ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchnuts.autobatch import BatchedFunction
from batchnuts.mcmc.kernel.metric import Metric
from batchnuts.mcmc.kernel.nuts import NutsOptions, make_nuts
from batchnuts.mcmc.kernel.step_size import DualAveragingAdaptation, StepSizeAdaptation
from batchnuts.mcmc.kernel.walnuts import WalnutsOptions, make_walnuts
from batchnuts.mcmc.settings.run_settings import SamplerSettings


def make_transition(
    value_and_gradient: Callable[..., tuple[Any, Any]], sampler: SamplerSettings, dtype: str, metric: Metric
) -> BatchedFunction:
    """The program of a transition (see transition.py) of a density whose positions are of that dtype."""
    if sampler.transition == "walnuts":
        walnuts = WalnutsOptions(
            leapfrogs_per_leaf=sampler.leapfrogs_per_leaf,
            dtype=dtype,
            metric=metric,
            selection=sampler.selection,
            energy_tolerance=sampler.energy_tolerance,
            max_step_halvings=sampler.max_step_halvings,
        )
        return make_walnuts(value_and_gradient, walnuts)
    options = NutsOptions(
        leapfrogs_per_leaf=sampler.leapfrogs_per_leaf,
        divergence_threshold=sampler.divergence_threshold,
        dtype=dtype,
        metric=metric,
        selection=sampler.selection,
    )
    return make_nuts(value_and_gradient, options)


def make_adaptation(sampler: SamplerSettings) -> StepSizeAdaptation:
    """How each chain adapts its step size in a window of warmup."""
    return DualAveragingAdaptation(sampler.target_acceptance)
