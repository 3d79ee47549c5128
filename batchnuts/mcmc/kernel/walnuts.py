"""WALNUTS for one chain: what stands at the leaves of NUTS (nuts.py) where the step size adapts within the orbit.

[W] Bou-Rabee, Carpenter, Kleppe, Liu, "The Within-Orbit Adaptive Leapfrog No-U-Turn Sampler", JMLR 27(113), 2026, arXiv
2506.18746. An orbit consists of macro steps of a fixed time h, and each is made of as many micro steps, 1, 2, 4, ...
leapfrogs of size h/1, h/2, h/4, ..., as its stretch of the orbit needs. The orbit's doubling, its U-turns and the
selection of a state are those of NUTS (`nuts.make_doubling`); only the leaf is another.

This is WALNUTS-D ([W] section 4.1): the number of micro steps is a function of the state. A macro step belongs to the
orbit if the way back takes the same number; then it is its own inverse, in volume too, and an orbit is the same from
whichever of its states it is built. Where the way back would take fewer, the orbit ends, as it does at a U-turn.

Macro steps need uneven numbers of gradients, and chains are out of step by that: all of them meet in one place, the
loop of `leapfrogs`, on their way forth and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchnuts.autobatch import BatchedFunction, batch, ops
from batchnuts.mcmc.kernel.hamiltonian import drift, kick, without_overflow
from batchnuts.mcmc.kernel.nuts import NutsOptions, Proposal, Subtree, Trajectory, Walk, larger, make_doubling

Array = Any


class MacroPoint(NamedTuple):
    """The end of a macro step: `hamiltonian.Point` with its energy."""

    position: Array
    momentum: Array
    force: Array
    index: Array
    energy: Array


class MicroSteps(NamedTuple):
    """Where some micro steps from a state have led, and how the energy varied on the way."""

    position: Array
    momentum: Array
    gradient: Array
    force: Array
    """`Metric.force` of the gradient."""
    log_density: Array
    energy: Array
    variation: Array
    """H+ - H-, the largest less the smallest energy of the states on the way, both ends included ([W] section 2)."""
    taken: Array
    """Leapfrogs made: fewer than asked for where the variation exceeded the tolerance."""


@dataclass(frozen=True)
class WalnutsOptions(NutsOptions):
    """Constants of the sampler; see SamplerSettings for their meaning. `leapfrogs_per_leaf` is the minimum number of
    micro steps in a macro step; `divergence_threshold` is not used."""

    energy_tolerance: float = 0.5
    """delta of [W]."""
    max_step_halvings: int = 10


def make_walnuts(value_and_gradient: Callable[..., tuple[Array, Array]], options: WalnutsOptions) -> BatchedFunction:
    """The program `nuts_transition(key, position, log_density, gradient, step_size, inverse_mass, max_tree_depth,
    data)`.

    Its arguments are those of `nuts.make_nuts`; step_size is that of the coarsest micro steps, so h of [W] with one of
    them. Returns a Transition, of which `acceptance_rate` is the mean over macro steps of exp(-variation) with the
    coarsest micro steps: what the macro step is adapted to. `n_steps` counts all gradients, those of tries that were
    refined and of the ways back included. `diverging`: no allowed number of micro steps met the tolerance.
    """
    return make_doubling(make_macro_step(value_and_gradient, options), MacroPoint, options)


def make_macro_step(value_and_gradient: Callable[..., tuple[Array, Array]], options: WalnutsOptions) -> BatchedFunction:
    """The program `macro_step(walk, trajectory)`: the leaf of `make_doubling`, whose points are MacroPoints."""
    tolerance = options.energy_tolerance
    coarsest = options.leapfrogs_per_leaf
    max_halvings = options.max_step_halvings
    selection = options.selection
    dtype = options.dtype
    metric = options.metric
    velocity_of, force_of = metric.velocity, metric.force

    @batch
    def leapfrogs(
        position: Array,
        momentum: Array,
        force: Array,
        energy: Array,
        step: Array,
        count: Array,
        inverse_mass: Array,
        data: tuple[Array, ...],
    ) -> MicroSteps:
        """`count` micro steps, each a leapfrog ([W] equation (11)), while the energy varies by at most the tolerance.

        What varies by more is not admissible, wherever it ends: so a try costs no more gradients than it must.
        """
        log_density = -energy
        gradient = force  # there is a first micro step, which sets both
        lowest = energy
        highest = energy
        taken = 0
        while (taken < count) & (highest - lowest <= tolerance):
            momentum = kick(momentum, force, step)
            velocity = velocity_of(momentum, inverse_mass)
            position = drift(position, velocity, step)
            log_density, gradient = value_and_gradient(position, data)
            force = force_of(gradient, inverse_mass)
            momentum = kick(momentum, force, step)
            kinetic = metric.kinetic_energy(momentum, inverse_mass)
            log_density = without_overflow(log_density, kinetic)
            energy = kinetic - log_density
            energy = ops.where(energy < float("inf"), energy, float("inf"))  # NaN
            lowest = ops.minimum(lowest, energy)
            highest = ops.maximum(highest, energy)
            taken += 1
        return MicroSteps(position, momentum, gradient, force, log_density, energy, highest - lowest, taken)

    @batch
    def macro_step(walk: Walk, trajectory: Trajectory) -> tuple[Walk, Subtree]:
        """One new state of the orbit, with as few micro steps as the tolerance allows.

        The while loops are `micro` of [W] equation (12), the smallest number 2**k of micro steps with H+ - H- <= delta:
        the first finds it from the start; the second makes sure that no smaller one is admissible from the end, back
        in time. (The number itself is: forth and back its states are the same.)
        """
        position, momentum, force, index, energy = walk.point
        inverse_mass, data = trajectory.inverse_mass, trajectory.data
        step = trajectory.step
        count = coarsest
        halvings = 0
        end = leapfrogs(position, momentum, force, energy, step, count, inverse_mass, data)
        n_steps = walk.n_steps + end.taken
        acceptance = ops.exp(-end.variation)
        while (end.variation > tolerance) & (halvings < max_halvings) & (end.log_density < float("inf")):
            step = 0.5 * step
            count = 2 * count
            halvings += 1
            end = leapfrogs(position, momentum, force, energy, step, count, inverse_mass, data)
            n_steps += end.taken

        admissible = end.variation <= tolerance
        valid = admissible
        while valid & (halvings > 0):
            step = 2.0 * step
            count = count // 2
            halvings -= 1
            back = leapfrogs(end.position, end.momentum, end.force, end.energy, -step, count, inverse_mass, data)
            n_steps += back.taken
            valid = back.variation > tolerance

        gain = trajectory.initial_energy - end.energy
        gain = ops.where(gain < float("inf"), gain, -float("inf"))  # a density of +inf: not a state that may be drawn
        log_weight = gain
        if selection == "slice":
            log_weight = ops.where(gain >= trajectory.log_slice, ops.zeros_like(gain), -float("inf"))
        index = index + ops.cast(ops.where(trajectory.step > 0, 1, -1), dtype)
        new_walk = Walk(
            MacroPoint(end.position, end.momentum, end.force, index, end.energy),
            n_steps,
            walk.acceptance_sum + ops.where(end.log_density == float("inf"), float("inf"), acceptance),
            larger(walk.max_energy_error, -gain),
            walk.diverging | ops.logical_not(admissible),
        )
        proposal = Proposal(end.position, end.gradient, ops.stack([end.log_density, end.energy, index]))
        return new_walk, Subtree(end.momentum, end.momentum, proposal, log_weight, 0, valid)

    return macro_step
