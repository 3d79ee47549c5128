"""The isokinetic Langevin dynamics of one chain, by an unadjusted integrator: the burn-in of an ensemble of chains.

A particle moves at a speed of one, whatever the force; the force only turns it. With x the position after a linear map
by the metric (M^-1 = A A', position = A x), u a unit vector and g = d log pi / dx, in d dimensions,

    dx = u dt,    du = (I - u u') (g / (d - 1)) dt + noise that turns u,            ([M] equation (3), [R] section 2)

and pi is the stationary distribution of x ([M] theorem 1). No step is rejected for its energy error, so what chains
hold is wrong by a share that grows with the step size. Its control, and the metric, are the ensemble's
(warmup/ensemble.py).

Sources: [M] Robnik, De Luca, Silverstein and Seljak, "Microcanonical Hamiltonian Monte Carlo", JMLR 24 (2023); [R]
Robnik and Seljak, "Fluctuation without dissipation: microcanonical Langevin Monte Carlo", arXiv 2303.18221; [S] Ver
Steeg and Galstyan, "Hamiltonian dynamics with non-Newtonian momentum for rapid sampling", arXiv 2111.02434.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from batchnuts.autobatch import BatchedFunction, batch, ops, random
from batchnuts.mcmc.kernel.hamiltonian import drift
from batchnuts.mcmc.kernel.metric import DIAGONAL, Metric

Array = Any

DIVERGED = 1000.0
"""A step whose energy changes by more than this is not made: the particle turns back."""


class IsokineticSteps(NamedTuple):
    """A chain after some steps, and what the control of the step size needs of them."""

    position: Array
    velocity: Array
    """[dimension]: a unit vector."""
    log_density: Array
    gradient: Array
    error_sum: Array
    """The sum of the changes of the energy in steps that were made."""
    error_squares: Array
    """The sum of their squares."""
    made: Array
    """Steps that were made; the others diverged."""


def make_isokinetic(value_and_gradient: Any, dimension: int, dtype: str, metric: Metric = DIAGONAL) -> BatchedFunction:
    """The program `isokinetic_langevin`: some steps of one chain, each of which takes a gradient.

    One chain: key uint32[2]; position, velocity, gradient, inverse_mass [dimension], with dimension at least 2;
    log_density, step, decoherence scalars; first, count int64: step i uses the key folded with first + i; data what the
    density takes beside the position. Returns IsokineticSteps.
    """
    others = dimension - 1.0
    scaled_force, moved_by = metric.scaled_force, metric.scaled_velocity

    @batch
    def turned(velocity: Array, force: Array, step: Array) -> tuple[Array, Array]:
        """The velocity after a time `step` in a constant force, exactly ([S] section 3, [M] equation (16)); and by how
        much the kinetic energy, (d - 1) log of what the speed would be, has grown. Written without overflow."""
        size = ops.maximum(ops.norm(force), 1e-30)
        direction = force / size
        delta = step * size / others
        along = ops.dot(velocity, direction)
        decay = ops.exp(-delta)
        new = direction * ((1.0 - decay) * (1.0 + decay + along * (1.0 - decay))) + 2.0 * decay * velocity
        grown = delta + ops.log(0.5 * (1.0 + along + (1.0 - along) * decay * decay))
        return new / ops.norm(new), others * grown

    @batch
    def isokinetic_langevin(
        key: Array,
        position: Array,
        velocity: Array,
        log_density: Array,
        gradient: Array,
        inverse_mass: Array,
        step: Array,
        decoherence: Array,
        first: Array,
        count: Array,
        data: tuple[Array, ...] = (),
    ) -> IsokineticSteps:
        """Some noise, half a turn, a drift, half a turn: a splitting of the dynamics, symmetric but for the noise.

        decoherence: the time in which the velocity is forgotten.
        """
        error_sum = 0.0 * log_density
        error_squares = 0.0 * log_density
        made = 0
        done = 0
        kept = ops.exp(-step / decoherence)  # [R] equation (9), with all of it times `kept`, which cannot overflow
        noise = ops.sqrt((1.0 - kept) * (1.0 + kept) / dimension)
        while done < count:
            shaken = kept * velocity + noise * random.normal(random.fold_in(key, first + done), (dimension,), dtype)
            start = shaken / ops.norm(shaken)
            half, grown = turned(start, scaled_force(gradient, inverse_mass), 0.5 * step)
            there = drift(position, moved_by(half, inverse_mass), step)
            log_density_there, gradient_there = value_and_gradient(there, data)
            end, grown_more = turned(half, scaled_force(gradient_there, inverse_mass), 0.5 * step)
            error = grown + grown_more - (log_density_there - log_density)
            if ops.abs(error) < DIVERGED:  # not so of NaN
                position, velocity = there, end
                log_density, gradient = log_density_there, gradient_there
                error_sum += error
                error_squares += error * error
                made += 1
            else:
                velocity = -start
            done += 1
        return IsokineticSteps(position, velocity, log_density, gradient, error_sum, error_squares, made)

    return isokinetic_langevin
