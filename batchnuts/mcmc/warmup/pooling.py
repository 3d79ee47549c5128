"""What is pooled over chains after a window: over all of them, over the chains of each superchain, or over none."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError
from batchnuts.mcmc.execution.metric_draws import DrawsWithGradients
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters, estimate, unit_metric
from batchnuts.mcmc.statistics.window_moments import Float

Pool = Literal["all", "groups", "none"]

SHORT = 0.25
"""A chain whose adapted step size is below this share of the pooled one needs a shorter one where it is."""

DIVERGED, SELDOM = 0.2, 0.05
"""The share of a chain's transitions that diverges where it began a window with a step size that is too long for it;
and the share that does so at most in half of all chains, where the common step size suits them."""

CORRECTION = 4.0
"""By how much one window may correct a step size: far from its target an acceptance rate says little."""


def groups_of(pool: Pool, superchain: NDArray[np.int64]) -> NDArray[np.int64]:
    """[chains]: the number of the group that each chain shares its step size and metric with."""
    chains = len(superchain)
    return {"all": np.zeros(chains, np.int64), "groups": superchain, "none": np.arange(chains)}[pool]


def pooled_step_sizes(log_step_means: NDArray[Any], group: NDArray[np.int64], counts: NDArray[np.bool_]) -> Float:
    """[chains]: for each chain the exponential of the median over its group of the log step sizes [chains].

    counts [chains]: which chains do. Those without a finite one do not; a group without any that counts takes the
    median of all. Raises BatchnutsError if no chain has a finite step size.
    """
    logs = log_step_means.astype(np.float64)
    finite = np.isfinite(logs)
    if not finite.any():
        raise BatchnutsError(
            "No chain has a finite step size: the log-density or its gradient is NaN or infinite wherever chains go. "
            "Check the model near its initial positions."
        )
    usable = finite & counts if (finite & counts).any() else finite
    return np.exp(_by_group(group, usable, lambda members: np.median(logs[members])))


def corrected_step_size(
    log_step_used: Float, acceptance: Float, diverged: Float, counts: NDArray[np.bool_], target: float
) -> float:
    """The step size at which the mean acceptance rate of all chains is expected to be `target`.

    The share of a transition that is not accepted grows with the square of a small step size: the energy error of a
    trajectory is of second order, and 1 - acceptance of first order in it. So one window of many chains says how long
    steps may be, where dual averaging needs as many transitions as the target is close to 1. At most CORRECTION times
    what it was.

    log_step_used, acceptance, diverged [chains]: of the window's transitions. counts [chains]: which chains do. Those
    that diverge often do not, unless most do; they may need step sizes of their own.
    """
    seldom = counts & (diverged < DIVERGED)
    counts = seldom if 2 * seldom.sum() >= counts.sum() else counts
    if not counts.any():
        counts = np.ones_like(counts)
    refused = max(1.0 - float(acceptance[counts].mean()), 1e-12)
    factor = np.clip(math.sqrt((1.0 - target) / refused), 1.0 / CORRECTION, CORRECTION)
    return float(math.exp(log_step_used[counts].mean()) * factor)


def need_their_own(
    log_step_means: NDArray[Any], pooled: Float, diverged: Float, before: NDArray[np.bool_] | None
) -> NDArray[np.bool_]:
    """[chains]: which keep the step sizes that they adapted, since they cannot leave their place with the pooled ones.

    In the neck of a funnel, or in a narrow mode, all transitions of a chain diverge with a step size that suits the
    others; with its own it moves, stays if much of the posterior is there, and else comes out and shares theirs again.
    A chain is one whose transitions diverged in this window, or that had its own step size in it.

    log_step_means, pooled, diverged [chains]: the adapted log step sizes, the step sizes of groups, and the shares of
    transitions that diverged. before [chains]: which had their own; None: none had.
    """
    if np.median(diverged) > SELDOM:
        return np.zeros(len(pooled), bool)
    with np.errstate(invalid="ignore", over="ignore"):
        short = np.exp(log_step_means.astype(np.float64)) < SHORT * pooled
    blocked = diverged >= DIVERGED
    mask: NDArray[np.bool_] = short & (blocked if before is None else blocked | before)
    return mask


def pooled_metric(
    kind: str, rank: int, drawn: DrawsWithGradients, group: NDArray[np.int64], counts: NDArray[np.bool_]
) -> MetricParameters:
    """The metric of one group from the draws of its chains; of several groups a diagonal one for each chain.

    counts [chains]: which chains do; a group without any that counts takes that of all. kind, rank: see `estimate`.
    """
    usable = counts & drawn.valid.any(axis=1)
    if (group == group[0]).all():
        return estimate(kind, *drawn.of(usable), rank)
    inverse_mass = _by_group(group, usable, lambda members: estimate("diag", *drawn.of(members), rank).inverse_mass)
    return replace(unit_metric(inverse_mass.shape[1], kind), inverse_mass=inverse_mass)


def _by_group(group: NDArray[np.int64], usable: NDArray[np.bool_], statistic: Any) -> Float:
    """[chains, ...]: for each chain the statistic of the usable chains of its group; it takes a mask of chains."""
    numbers, place = np.unique(group, return_inverse=True)
    by_number = []
    for number in range(len(numbers)):
        members = (place == number) & usable
        by_number.append(statistic(members if members.any() else usable))
    values: Float = np.asarray(by_number)[place]
    return values
