"""Adaptation during warmup: the step size by dual averaging in every chain, the metric pooled over all chains.

`DualAveraging` is written for one chain, in the language, and runs inside the machine, so chains adapt while they are
out of step with each other. The pooled estimates are made on the host between the windows of warmup.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError, ops

Array = Any

GAMMA, T0, KAPPA = 0.05, 10.0, 0.75
"""Constants of dual averaging, the values of [H] section 3.2.1."""

SETTLED_GAMMA = 0.2
"""gamma once the chains have agreed on a step size: with 0.05 each chain's step size swings so widely about the one to
be found that the pooled one is about 30% too small (on a 10-d Gaussian acceptance 0.91, with 0.2 it is 0.81; target
0.8). The median over chains averages out what a single chain would learn more slowly."""


class DualAveraging(NamedTuple):
    """State of Nesterov's dual averaging for one chain's log step size ([H] section 3.2, equation (6)); scalars."""

    log_step: Array
    """log of the step size to use next."""
    log_step_mean: Array
    """The averaged iterate, the step size to use once adaptation has ended."""
    error_mean: Array
    """Running mean of target - acceptance rate (H-bar in [H])."""
    count: Array
    center: Array
    """mu: where log_step is drawn to."""
    gamma: Array
    """How strongly it is drawn there, and so how little it moves with one transition's acceptance rate."""


def start(log_step: Array, settled: bool = False) -> DualAveraging:
    """The state before the first transition.

    Where little is known of the step size mu = log(10 step), to try large steps before small ones, and gamma is small,
    to move fast ([H] section 3.2.1). Once all chains have agreed on a step size they need neither.
    """
    zero = log_step - log_step
    boldness, gamma = (1.0, SETTLED_GAMMA) if settled else (10.0, GAMMA)
    center = log_step + np.log(boldness).astype(log_step.dtype)
    return DualAveraging(log_step, log_step, zero, zero, center, zero + gamma)


def update(state: DualAveraging, acceptance_rate: Array, target: float) -> DualAveraging:
    """The state after a transition with that acceptance rate ([H] Algorithm 5, warmup branch)."""
    count = state.count + 1.0
    weight = 1.0 / (count + T0)
    error_mean = (1.0 - weight) * state.error_mean + weight * (target - acceptance_rate)
    log_step = state.center - error_mean * ops.sqrt(count) / state.gamma
    mix = ops.exp(-KAPPA * ops.log(count))
    log_step_mean = mix * log_step + (1.0 - mix) * state.log_step_mean
    return DualAveraging(log_step, log_step_mean, error_mean, count, state.center, state.gamma)


def update_if(adapting: Array, state: DualAveraging, acceptance_rate: Array, target: float) -> DualAveraging:
    """`update` where `adapting` holds, the state itself elsewhere."""
    changed = update(state, acceptance_rate, target)
    return DualAveraging(*(ops.where(adapting, new, old) for new, old in zip(changed, state)))


def pooled_step_size(log_step_means: NDArray[Any]) -> float:
    """One step size for all chains: the median of their log step sizes [chains], which no stuck chain moves.

    Chains without a finite one do not count. Raises BatchnutsError if none has one.
    """
    finite = log_step_means[np.isfinite(log_step_means)].astype("float64")
    if not len(finite):
        raise BatchnutsError(
            "No chain has a finite step size: the log-density or its gradient is NaN or infinite wherever chains go. "
            "Check the model near its initial positions."
        )
    return float(np.exp(np.median(finite)))


def pooled_inverse_mass(positions: NDArray[Any]) -> NDArray[Any]:
    """The diagonal inverse metric from draws [chains, draws, dimension] of all chains together.

    Each coordinate's variance about the mean over chains and draws, shrunk towards 1e-3 as in Stan with the weight of
    5 draws in n: n/(n+5) var + 5/(n+5) 1e-3. float64 [dimension].
    """
    flat = positions.reshape(-1, positions.shape[-1]).astype("float64")
    n = len(flat)
    shrunk: NDArray[Any] = n / (n + 5.0) * flat.var(axis=0, ddof=1) + 5.0 / (n + 5.0) * 1e-3
    return shrunk
