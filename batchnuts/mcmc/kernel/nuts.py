"""The No-U-Turn Sampler for one chain, recursive, in the language of autobatch; the trees of WALNUTS too.

A trajectory doubles, forwards or backwards at random, until it turns back on itself. States are drawn from it by
progressive sampling: with weight exp(-H), as in Stan (multinomial, [B] appendix A.3), or all states within a slice
with the same weight ([H] Algorithm 3). The two differ in the weight of a leaf alone.

The variables that are live across the recursive call of `build_subtree` need stacks. The integrator's point is threaded
through (passed to each call, taken from its result), so only five vectors of a finished first half are kept for the
second: its first and last momentum, its momentum sum, and its proposal's position and gradient. Of its scalars those of
the proposal are one array, so that one push saves all of them. Where gradients are
cheap, the speed of the machine depends on the number of blocks that a chain goes through for each gradient: here four.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from batchnuts.autobatch import BatchedFunction, batch, ops, random
from batchnuts.mcmc.kernel.hamiltonian import Point, drift, keeps_going, kick, without_overflow
from batchnuts.mcmc.kernel.metric import DIAGONAL, Metric
from batchnuts.mcmc.kernel.transition import Transition

Array = Any

_MOMENTUM, _DIRECTION, _SWITCH, _MERGE = range(4)
"""What a transition's random numbers are for: the low bits of the integers folded into its key. Number 1 of the
momentum's is the height of the slice."""


class Proposal(NamedTuple):
    """A state drawn from a (sub)tree in proportion to its weight."""

    position: Array
    gradient: Array
    scalars: Array
    """[3]: its log-density, its energy, and its index in the trajectory."""


class Walk(NamedTuple):
    """The values threaded through the recursion: the integrator's state and statistics so far."""

    point: Any
    """The end that is being extended: a Point, or one with more fields."""
    n_steps: Array
    """Leapfrog steps taken in this transition."""
    acceptance_sum: Array
    """Sum over the new states of min(1, exp(H_0 - H)) ([H] equation (6), as a statistic of multinomial NUTS).

    Infinite as soon as a state's density was: that ends the trajectory there, and needs no further variable.
    """
    max_energy_error: Array
    """H - H_0 of the new state for which it is largest by absolute value; infinite where H is not a number."""
    diverging: Array


class Subtree(NamedTuple):
    """The result of a finished subtree for the one that contains it."""

    first_momentum: Array
    """Momentum of its first state in the order of integration."""
    momentum_sum: Array
    """rho: the sum of the momenta of its states."""
    proposal: Proposal
    log_weight: Array
    """log of the sum of its states' weights: exp(H_0 - H), or for a slice 1 within and 0 outside."""
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
    log_slice: Array
    """log u + H_0 for a slice, with u uniform on (0, exp(-H_0)) ([H] section 3.1.1); not read for multinomial."""
    data: tuple[Array, ...]
    """What the density takes beside the position."""


@dataclass(frozen=True)
class NutsOptions:
    """Constants of the sampler; see SamplerSettings for their meaning."""

    max_tree_depth: int = 10
    """The depth where a transition is called without one."""
    leapfrogs_per_leaf: int = 1
    divergence_threshold: float = 1000.0
    dtype: str = "float32"
    metric: Metric = DIAGONAL
    selection: Literal["multinomial", "slice"] = "multinomial"


def swap_if(condition: Array, first: Any, second: Any) -> tuple[Any, Any]:
    """The two points, exchanged where the condition holds."""
    return (
        type(first)(*(ops.where(condition, b, a) for a, b in zip(first, second))),
        type(first)(*(ops.where(condition, a, b) for a, b in zip(first, second))),
    )


def choose(condition: Array, chosen: Proposal, otherwise: Proposal) -> Proposal:
    """Choose one of two proposals by a condition."""
    return Proposal(*(ops.where(condition, a, b) for a, b in zip(chosen, otherwise)))


def larger(one: Array, other: Array) -> Array:
    """The number that is larger by absolute value, the first if none is."""
    return ops.where(ops.abs(other) > ops.abs(one), other, one)


def event(trajectory_key: Array, purpose: int, number: Array) -> Array:
    """The key of one random decision within a transition."""
    return random.fold_in(trajectory_key, number * 4 + purpose)


def make_nuts(value_and_gradient: Callable[..., tuple[Array, Array]], options: NutsOptions) -> BatchedFunction:
    """The program `nuts_transition(key, position, log_density, gradient, step_size, inverse_mass, max_tree_depth,
    data)`.

    One chain: key uint32[2]; position, gradient, inverse_mass [dimension]; log_density, step_size scalars, all of
    dtype `options.dtype`; max_tree_depth an integer, by default that of the options; data arrays that the density takes
    beside the position, by default none. Returns a Transition.
    """
    selection = options.selection
    leapfrogs = options.leapfrogs_per_leaf
    threshold = options.divergence_threshold
    dtype = options.dtype
    metric = options.metric
    velocity_of, force_of = metric.velocity, metric.force

    def move(position: Array, velocity: Array, step: Array, log_density: Array) -> Array:
        """A step of the position, from which no leaf returns if its density is +inf; one leapfrog starts at none."""
        there = drift(position, velocity, step)
        return ops.where(log_density >= float("inf"), position, there) if leapfrogs > 1 else there  # `==` has no type

    @batch
    def leaf(walk: Walk, trajectory: Trajectory) -> tuple[Walk, Subtree]:
        """One new state: a few leapfrog steps, and a test of the energy."""
        position, momentum, force, index = walk.point
        log_density = trajectory.initial_energy
        for _ in range(leapfrogs):
            momentum = kick(momentum, force, trajectory.step)
            velocity = velocity_of(momentum, trajectory.inverse_mass)
            position = move(position, velocity, trajectory.step, log_density)
            log_density, gradient = value_and_gradient(position, trajectory.data)
            force = force_of(gradient, trajectory.inverse_mass)
            momentum = kick(momentum, force, trajectory.step)
        kinetic = metric.kinetic_energy(momentum, trajectory.inverse_mass)
        log_density = without_overflow(log_density, kinetic)
        energy = kinetic - log_density
        gain = trajectory.initial_energy - energy
        # NaN, or an infinite density: not a state that may be drawn
        gain = ops.where(gain < float("inf"), gain, -float("inf"))
        log_weight = gain
        lowest = -threshold
        if selection == "slice":  # known: the other program has no trace of it
            log_weight = ops.where(gain >= trajectory.log_slice, ops.zeros_like(gain), -float("inf"))
            lowest = trajectory.log_slice - threshold  # [H] section 3.1.2
        diverging = ops.logical_not(gain >= lowest)
        acceptance = ops.where(log_density == float("inf"), float("inf"), ops.exp(ops.minimum(gain, 0.0)))
        index = index + ops.cast(ops.where(trajectory.step > 0, 1, -1), dtype)
        new_walk = Walk(
            Point(position, momentum, force, index),
            walk.n_steps + leapfrogs,
            walk.acceptance_sum + acceptance,
            larger(walk.max_energy_error, -gain),
            walk.diverging | diverging,
        )
        proposal = Proposal(position, gradient, ops.stack([log_density, energy, index]))
        return new_walk, Subtree(momentum, momentum, proposal, log_weight, 0, ops.logical_not(diverging))

    def start(position: Array, momentum: Array, force: Array, index: Array, energy: Array) -> Point:
        """The trajectory's first point; a leaf computes the energy that it needs."""
        return Point(position, momentum, force, index)

    return make_doubling(leaf, start, options)


def make_doubling(leaf: BatchedFunction, start: Callable[..., Any], options: NutsOptions) -> BatchedFunction:
    """The program `nuts_transition` (see make_nuts) of trajectories whose states are made by a given leaf.

    leaf: (Walk, Trajectory) -> (Walk, Subtree): the next state, as a subtree of it alone. start: (position, momentum,
    force, index, energy) -> the first `Walk.point`, which has the first four as fields.
    """
    selection = options.selection
    dtype = options.dtype
    metric = options.metric
    force_of = metric.force

    def no_u_turn(first: Array, last: Array, momentum_sum: Array, inverse_mass: Array) -> Array:
        """Whether the trajectory between two states goes on, by their momenta and the sum of the momenta on the way."""
        return keeps_going(first, last, metric.dual(momentum_sum, inverse_mass))

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
            # a sum, not a difference: both halves may lie outside the slice, with weights of log 0
            proposal = choose(ops.log(uniform) + log_weight < outer.log_weight, outer.proposal, inner.proposal)
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
        key: Array,
        position: Array,
        log_density: Array,
        gradient: Array,
        step_size: Array,
        inverse_mass: Array,
        max_tree_depth: Array = options.max_tree_depth,
        data: tuple[Array, ...] = (),
    ) -> Transition:
        """Double the trajectory until it turns, diverges or is deep enough."""
        momentum = metric.sample_momentum(event(key, _MOMENTUM, 0), inverse_mass, dtype)
        initial_energy = metric.kinetic_energy(momentum, inverse_mass) - log_density
        force = force_of(gradient, inverse_mass)
        index = ops.zeros_like(initial_energy)
        near = start(position, momentum, force, index, initial_energy)
        far = near
        step = step_size
        log_slice = index
        if selection == "slice":
            log_slice = ops.log(random.uniform(event(key, _MOMENTUM, 1), (), dtype))
        momentum_sum = momentum
        proposal = Proposal(position, gradient, ops.stack([log_density, initial_energy, index]))
        log_weight = ops.zeros_like(initial_energy)
        n_steps = 0
        acceptance_sum = log_weight
        max_energy_error = log_weight
        diverging = False
        tree_depth = 0
        growing = True
        while growing:
            # a fair coin decides whether to extend this end or the other one
            flip = random.bernoulli(event(key, _DIRECTION, tree_depth))
            near, far = swap_if(flip, near, far)
            step = ops.where(flip, -step, step)
            walk, subtree = build_subtree(
                Walk(near, n_steps, acceptance_sum, max_energy_error, diverging),
                tree_depth,
                Trajectory(key, step, inverse_mass, initial_energy, log_slice, data),
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
            max_energy_error = walk.max_energy_error
            diverging = walk.diverging
            tree_depth = tree_depth + ops.cast(subtree.valid, "int64")
            growing = growing & (tree_depth < max_tree_depth)
        unbounded = acceptance_sum == float("inf")  # then `near` is where it happened
        log_density, energy, index = proposal.scalars
        return Transition(
            ops.where(unbounded, near.position, proposal.position),
            proposal.gradient,
            ops.where(unbounded, acceptance_sum, log_density),
            energy,
            acceptance_sum / ops.abs(near.index - far.index),  # the ends are as far apart as there are new states
            tree_depth,
            n_steps,
            diverging,
            energy - initial_energy,
            max_energy_error,
            ops.cast(index, "int32"),
            near.position,
        )

    return nuts_transition
