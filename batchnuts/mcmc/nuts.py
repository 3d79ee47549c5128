"""The No-U-Turn Sampler for one chain, recursive, in the language of autobatch.

Multinomial NUTS ([B] appendix A.3) as in Stan: a trajectory doubles, forwards or backwards at random, until it turns
back on itself; states are drawn from it with weight exp(-H) by progressive sampling.

The variables that are live across the recursive call of `build_subtree` need stacks. The integrator's point is threaded
through (passed to each call, taken from its result), so only five vectors of a finished first half are kept for the
second: its first and last momentum, its momentum sum, and its proposal's position and gradient. Where gradients are
cheap, the speed of the machine depends on the number of blocks that a chain goes through for each gradient: here four.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchnuts.autobatch import BatchedFunction, batch, ops, random
from batchnuts.mcmc.hamiltonian import Point, drift, keeps_going, kick
from batchnuts.mcmc.metric import DIAGONAL, Metric
from batchnuts.mcmc.transition import Transition

Array = Any

_MOMENTUM, _DIRECTION, _SWITCH, _MERGE = range(4)
"""What a transition's random numbers are for: the low bits of the integers folded into its key."""


class Proposal(NamedTuple):
    """A state drawn from a (sub)tree in proportion to exp(-H)."""

    position: Array
    gradient: Array
    log_density: Array
    energy: Array


class Walk(NamedTuple):
    """The values threaded through the recursion: the integrator's state and statistics so far."""

    point: Point
    n_steps: Array
    """Leapfrog steps taken in this transition."""
    acceptance_sum: Array
    """Sum over the new states of min(1, exp(H_0 - H)) ([H] equation (6), as a statistic of multinomial NUTS).

    Infinite as soon as a state's density was: that ends the trajectory there, and needs no further variable.
    """
    diverging: Array


class Subtree(NamedTuple):
    """The result of a finished subtree for the one that contains it."""

    first_momentum: Array
    """Momentum of its first state in the order of integration."""
    momentum_sum: Array
    """rho: the sum of the momenta of its states."""
    proposal: Proposal
    log_weight: Array
    """log of the sum over its states of exp(H_0 - H)."""
    tree_depth: Array
    """log2 of the number of its states, if it is valid."""
    valid: Array
    """False if it turned back on itself or diverged: then no state of it may be drawn."""


class Trajectory(NamedTuple):
    """The constants of building one trajectory in one direction."""

    key: Array
    step: Array
    """Signed step size: negative when integrating backwards in time."""
    inverse_mass: Array
    initial_energy: Array


@dataclass(frozen=True)
class NutsOptions:
    """Constants of the sampler; see SamplerSettings for their meaning."""

    max_tree_depth: int = 10
    leapfrogs_per_leaf: int = 1
    divergence_threshold: float = 1000.0
    dtype: str = "float32"
    metric: Metric = DIAGONAL


def swap_if(condition: Array, first: Point, second: Point) -> tuple[Point, Point]:
    """The two points, exchanged where the condition holds."""
    return (
        Point(*(ops.where(condition, b, a) for a, b in zip(first, second))),
        Point(*(ops.where(condition, a, b) for a, b in zip(first, second))),
    )


def choose(condition: Array, chosen: Proposal, otherwise: Proposal) -> Proposal:
    """One of two proposals."""
    return Proposal(*(ops.where(condition, a, b) for a, b in zip(chosen, otherwise)))


def event(trajectory_key: Array, purpose: int, number: Array) -> Array:
    """The key of one random decision within a transition."""
    return random.fold_in(trajectory_key, number * 4 + purpose)


def make_nuts(value_and_gradient: Callable[[Array], tuple[Array, Array]], options: NutsOptions) -> BatchedFunction:
    """The program `nuts_transition(key, position, log_density, gradient, step_size, inverse_mass)`.

    One chain: key uint32[2]; position, gradient, inverse_mass [dimension]; log_density, step_size scalars, all of
    dtype `options.dtype`. Returns a Transition.
    """
    max_tree_depth = options.max_tree_depth
    leapfrogs = options.leapfrogs_per_leaf
    threshold = options.divergence_threshold
    dtype = options.dtype
    metric = options.metric
    velocity_of, force_of = metric.velocity, metric.force

    def move(position: Array, velocity: Array, step: Array, log_density: Array) -> Array:
        """A step of the position, from which no leaf returns if its density is +inf; one leapfrog starts at none."""
        there = drift(position, velocity, step)
        return ops.where(log_density == float("inf"), position, there) if leapfrogs > 1 else there

    def no_u_turn(first: Array, last: Array, momentum_sum: Array, inverse_mass: Array) -> Array:
        """Of the trajectory between two states, by their momenta and the sum of the momenta on the way."""
        return keeps_going(first, last, metric.dual(momentum_sum, inverse_mass))

    @batch
    def leaf(walk: Walk, trajectory: Trajectory) -> tuple[Walk, Subtree]:
        """One new state: a few leapfrog steps, and a test of the energy."""
        position, momentum, force = walk.point
        log_density = trajectory.initial_energy
        for _ in range(leapfrogs):
            momentum = kick(momentum, force, trajectory.step)
            velocity = velocity_of(momentum, trajectory.inverse_mass)
            position = move(position, velocity, trajectory.step, log_density)
            log_density, gradient = value_and_gradient(position)
            force = force_of(gradient, trajectory.inverse_mass)
            momentum = kick(momentum, force, trajectory.step)
        energy = metric.kinetic_energy(momentum, trajectory.inverse_mass) - log_density
        log_weight = trajectory.initial_energy - energy
        # NaN, or an infinite density: not a state that may be drawn
        log_weight = ops.where(log_weight < float("inf"), log_weight, -float("inf"))
        diverging = ops.logical_not(log_weight >= -threshold)
        acceptance = ops.where(log_density == float("inf"), float("inf"), ops.exp(ops.minimum(log_weight, 0.0)))
        new_walk = Walk(
            Point(position, momentum, force),
            walk.n_steps + leapfrogs,
            walk.acceptance_sum + acceptance,
            walk.diverging | diverging,
        )
        proposal = Proposal(position, gradient, log_density, energy)
        return new_walk, Subtree(momentum, momentum, proposal, log_weight, 0, ops.logical_not(diverging))

    @batch
    def build_subtree(walk: Walk, tree_depth: Array, trajectory: Trajectory) -> tuple[Walk, Subtree]:
        """2**tree_depth new states: one leaf, then repeated doubling; fewer if they turn or diverge.

        The first half of a subtree is the loop's result so far, and only the second is a call. So one of the two
        recursive calls of the textbook version remains, and no chain descends to a leaf step by step.
        """
        walk, inner = leaf(walk, trajectory)
        while inner.valid & (inner.tree_depth < tree_depth):
            between = walk.point.momentum
            walk, outer = build_subtree(walk, inner.tree_depth, trajectory)
            depth = outer.tree_depth + 1
            # uniform progressive sampling within the subtree ([B] appendix A.3.1)
            log_weight = ops.logaddexp(inner.log_weight, outer.log_weight)
            uniform = random.uniform(event(trajectory.key, _MERGE, walk.n_steps * 32 + depth), (), dtype)
            proposal = choose(ops.log(uniform) < outer.log_weight - log_weight, outer.proposal, inner.proposal)
            # the whole, and each half with the first state of the other: a turn between the halves must be detected
            last = walk.point.momentum
            inverse_mass = trajectory.inverse_mass
            momentum_sum = inner.momentum_sum + outer.momentum_sum
            # without a branch: the values of an invalid half are never drawn
            valid = (
                outer.valid
                & no_u_turn(inner.first_momentum, last, momentum_sum, inverse_mass)
                & no_u_turn(
                    inner.first_momentum, outer.first_momentum, inner.momentum_sum + outer.first_momentum, inverse_mass
                )
                & no_u_turn(between, last, outer.momentum_sum + between, inverse_mass)
            )
            inner = Subtree(inner.first_momentum, momentum_sum, proposal, log_weight, depth, valid)
        return walk, inner

    @batch
    def nuts_transition(
        key: Array, position: Array, log_density: Array, gradient: Array, step_size: Array, inverse_mass: Array
    ) -> Transition:
        """Double the trajectory until it turns, diverges or is deep enough."""
        momentum = metric.sample_momentum(event(key, _MOMENTUM, 0), inverse_mass, dtype)
        initial_energy = metric.kinetic_energy(momentum, inverse_mass) - log_density
        force = force_of(gradient, inverse_mass)
        near = Point(position, momentum, force)
        far = Point(position, momentum, force)
        step = step_size
        momentum_sum = momentum
        proposal = Proposal(position, gradient, log_density, initial_energy)
        log_weight = ops.zeros_like(initial_energy)
        n_steps = 0
        acceptance_sum = log_weight
        diverging = False
        tree_depth = 0
        growing = True
        while growing:
            # a fair coin decides whether to extend this end or the other one
            flip = random.bernoulli(event(key, _DIRECTION, tree_depth))
            near, far = swap_if(flip, near, far)
            step = ops.where(flip, -step, step)
            walk, subtree = build_subtree(
                Walk(near, n_steps, acceptance_sum, diverging),
                tree_depth,
                Trajectory(key, step, inverse_mass, initial_energy),
            )
            # biased progressive sampling between the old trajectory and its extension ([B] appendix A.3.2)
            uniform = random.uniform(event(key, _SWITCH, tree_depth), (), dtype)
            switch = subtree.valid & (ops.log(uniform) < subtree.log_weight - log_weight)
            proposal = choose(switch, subtree.proposal, proposal)
            log_weight = ops.logaddexp(log_weight, subtree.log_weight)
            total = momentum_sum + subtree.momentum_sum
            last = walk.point.momentum
            growing = (
                subtree.valid
                & no_u_turn(far.momentum, last, total, inverse_mass)
                & no_u_turn(far.momentum, subtree.first_momentum, momentum_sum + subtree.first_momentum, inverse_mass)
                & no_u_turn(near.momentum, last, subtree.momentum_sum + near.momentum, inverse_mass)
            )
            momentum_sum = total
            near = walk.point
            n_steps = walk.n_steps
            acceptance_sum = walk.acceptance_sum
            diverging = walk.diverging
            tree_depth = tree_depth + ops.cast(subtree.valid, "int64")
            growing = growing & (tree_depth < max_tree_depth)
        leaves = ops.cast(n_steps // leapfrogs, dtype)
        unbounded = acceptance_sum == float("inf")  # then `near` is where it happened
        return Transition(
            ops.where(unbounded, near.position, proposal.position),
            proposal.gradient,
            ops.where(unbounded, acceptance_sum, proposal.log_density),
            proposal.energy,
            acceptance_sum / leaves,
            tree_depth,
            n_steps,
            diverging,
        )

    return nuts_transition
