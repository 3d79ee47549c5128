"""The step size: the first one, and its adaptation during warmup by dual averaging.

Both are written for one chain, in the language, and run inside the machine, so chains adapt while they are out of step
with each other. Between the windows of warmup their step sizes are pooled, on the host (warmup/pooling.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from batchnuts.autobatch import BatchedFunction, batch, ops
from batchnuts.autobatch.machine import map_leaves
from batchnuts.mcmc.kernel.hamiltonian import drift, kick, without_overflow
from batchnuts.mcmc.kernel.metric import DIAGONAL, Metric

Array = Any

GAMMA, T0, KAPPA = 0.05, 10.0, 0.75
"""Constants of dual averaging, the values of [H] section 3.2.1."""

SETTLED_GAMMA = 0.2
"""gamma once the chains have agreed on a step size: with 0.05 each chain's step size varies so widely about the optimum
that the pooled one is about 30% too small (on a 10-d Gaussian acceptance 0.91, with 0.2 it is 0.81; target 0.8). The
median over chains averages out what a single chain would learn more slowly."""


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
    """mu: the value that log_step is shrunk towards."""
    gamma: Array
    """gamma: the strength of the shrinkage, so the larger, the less one acceptance rate moves the step size."""


class StepSizeAdaptation(Protocol):
    """How a chain's step size follows its acceptance rates: functions, in the language, of a state that it carries.

    The state is a NamedTuple of scalars, among them `log_step`, the log of the step size to use next, and
    `log_step_mean`, that of the one to use once adaptation has ended, which is pooled over chains.
    """

    def start(self, log_step: Array, settled: bool = False) -> Any:
        """The state before the first transition of a window; settled: all chains have agreed on the step size."""

    def after(self, state: Any, acceptance_rate: Array) -> Any:
        """The state after a transition with that acceptance rate."""


@dataclass(frozen=True)
class DualAveragingAdaptation:
    """Nesterov's dual averaging ([H] section 3.2), towards a mean acceptance statistic of `target`."""

    target: float

    def start(self, log_step: Array, settled: bool = False) -> DualAveraging:
        """The state before the first transition of a window."""
        return start_adaptation(log_step, settled)

    def after(self, state: DualAveraging, acceptance_rate: Array) -> DualAveraging:
        """The state after a transition with that acceptance rate."""
        return adapt(state, acceptance_rate, self.target)


def start_adaptation(log_step: Array, settled: bool = False) -> DualAveraging:
    """The state before the first transition.

    Where little is known of the step size mu = log(10 step), to try large steps before small ones, and gamma is small,
    to move fast ([H] section 3.2.1). Once all chains have agreed on a step size, neither is needed.
    """
    zero = log_step - log_step
    boldness, gamma = (1.0, SETTLED_GAMMA) if settled else (10.0, GAMMA)
    center = log_step + np.log(boldness).astype(log_step.dtype)
    return DualAveraging(
        log_step=log_step, log_step_mean=log_step, error_mean=zero, count=zero, center=center, gamma=zero + gamma
    )


def adapt(state: DualAveraging, acceptance_rate: Array, target: float) -> DualAveraging:
    """The state after a transition with that acceptance rate ([H] Algorithm 5, warmup branch)."""
    count = state.count + 1.0
    weight = 1.0 / (count + T0)
    error_mean = (1.0 - weight) * state.error_mean + weight * (target - acceptance_rate)
    log_step = state.center - error_mean * ops.sqrt(count) / state.gamma
    mix = ops.exp(-KAPPA * ops.log(count))
    log_step_mean = mix * log_step + (1.0 - mix) * state.log_step_mean
    return state._replace(log_step=log_step, log_step_mean=log_step_mean, error_mean=error_mean, count=count)


def changed_if(adapting: Array, changed: Any, state: Any) -> Any:
    """The changed state of an adaptation where `adapting` holds, the state itself elsewhere."""
    return map_leaves(lambda new, old: ops.where(adapting, new, old), changed, state)


def make_first_step_size(value_and_gradient: Any, dtype: str, metric: Metric = DIAGONAL) -> BatchedFunction:
    """The program `first_step_size`: a step size at which one leapfrog step is accepted about 8 times in 10.

    [H] Algorithm 4, with Stan's threshold 0.8: from the step given, double or halve until the acceptance probability of
    one step crosses it. One chain: key uint32[2]; position, gradient, inverse_mass [dimension]; log_density, step
    scalars; data what the density takes beside the position. Returns the step size, and the last place that was tried
    with its log-density: the search ends where that is +inf.
    """
    velocity_of, force_of = metric.velocity, metric.force

    @batch
    def first_step_size(
        key: Array,
        position: Array,
        log_density: Array,
        gradient: Array,
        inverse_mass: Array,
        step: Array,
        data: tuple[Array, ...] = (),
    ) -> tuple[Array, Array, Array]:
        """Double or halve until the acceptance crosses the threshold, at most 50 times."""
        momentum = metric.sample_momentum(key, inverse_mass, dtype)
        energy = metric.kinetic_energy(momentum, inverse_mass) - log_density
        force = force_of(gradient, inverse_mass)
        there, log_density_there = position, log_density
        larger = False
        tries = 0
        searching = True
        while searching:
            half = kick(momentum, force, step)
            velocity = velocity_of(half, inverse_mass)
            there = drift(position, velocity, step)
            log_density_there, gradient_there = value_and_gradient(there, data)
            force_there = force_of(gradient_there, inverse_mass)
            kinetic = metric.kinetic_energy(kick(half, force_there, step), inverse_mass)
            log_density_there = without_overflow(log_density_there, kinetic)
            gain = energy - (kinetic - log_density_there)
            # log 0.8; False for NaN, and for an energy that overflows, which must not be accepted
            accepted = (gain > -0.2231435513142097) & (gain < float("inf"))
            if tries == 0:
                larger = accepted
            searching = (accepted == larger) & (tries < 50) & (log_density_there != float("inf"))
            if searching:
                step = step * 2.0 if larger else step * 0.5
            tries += 1
        return step, there, log_density_there

    return first_step_size
