"""JAX programs with a reverse-mode derivative.

`lax.while_loop` has no reverse mode, since how many states it would have to keep depends on values. With a bound on
the number of sweeps the machine is a scan instead, whose states are computed again where the backward pass needs them:
of N sweeps it keeps the states after every sqrt(N)-th, and while it goes back through these, those between two of them
(two levels of Griewank, "Achieving logarithmic growth of temporal and spatial complexity in reverse automatic
differentiation", 1992). So a derivative makes each sweep three times, backward included, and keeps 2 sqrt(N) states.

Zero times a derivative need not be zero: what is computed on inactive lanes, in the branch that a lane does not take,
or of values that are not used, would make the derivative NaN where it is infinite. `guarded` leaves it out. Derivatives
of higher order are right all the same where one of first order is zero: at a mode, for example.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from batchnuts.autobatch.backends.backend import Array, BlockStep, State, SweepPlan
from batchnuts.autobatch.backends.jax.backend import JaxBackend
from batchnuts.autobatch.ir.program import COPY, Op, Primitive, PrimOp, Program


class BoundedJaxBackend(JaxBackend):
    """The JAX backend in mode xla for programs that make at most `max_sweeps` sweeps; see above.

    Lanes that have not halted then are where they are: who calls looks at their program counters.
    """

    def __init__(self, max_sweeps: int) -> None:
        super().__init__("xla")
        self.max_sweeps = max_sweeps

    def sweep(self, plan: SweepPlan, state: State, budget: Any, leave_at: Any) -> tuple[State, Any]:
        """See Backend; the budget is ours, not the caller's."""

        def lives(touched: State) -> Any:
            return self.count(touched["pc"] < plan.halted) > leave_at

        def next_sweep(touched: State, _: Any) -> tuple[State, None]:
            def make_it(touched: State) -> State:
                return self.one_sweep(plan, state, touched, _run_if_due)

            return lax.cond(lives(touched), make_it, _same, touched), None

        def stretch(touched: State, _: Any) -> tuple[State, None]:
            def make_it(touched: State) -> Any:
                return lax.scan(jax.checkpoint(next_sweep), touched, length=inner)[0]

            return lax.cond(lives(touched), make_it, _same, touched), None

        inner = math.isqrt(self.max_sweeps - 1) + 1
        outer, rest = divmod(self.max_sweeps, inner)
        touched = {name: jnp.asarray(state[name]) for name in plan.touches}
        touched, _ = lax.scan(jax.checkpoint(stretch), touched, length=outer)
        touched, _ = lax.scan(jax.checkpoint(next_sweep), touched, length=rest)
        return {**state, **touched}, touched["sweeps"] - state["sweeps"]


def _same(state: State) -> State:
    return state


def _run_if_due(step: BlockStep, due: Any, state: State) -> State:
    """The state after the step, if it is due; by a conditional, which has a reverse mode."""

    def once(touched: State) -> State:
        with jax.named_scope(step.label):
            after = step.run({**state, **touched})
        return {name: jnp.asarray(after[name]) for name in step.touches}

    touched = {name: state[name] for name in step.touches}
    return {**state, **lax.cond(due, once, _same, touched)}


def guarded(program: Program) -> Program:
    """The lowered program in which, lane by lane, a primitive passes no derivative back where none comes to it.

    So the derivative is that of the operations which led to the lane's result. It differs from what JAX computes of
    these alone where a factor of zero meets an infinite derivative: that is NaN there, and zero here.
    """

    def is_float(variable: str) -> Any:
        return jnp.issubdtype(program.var_defs[variable].dtype, jnp.inexact)

    def guard(op: Op) -> Op:
        if not isinstance(op, PrimOp) or op.function is COPY:
            return op
        if not (any(map(is_float, op.vars_in)) and any(map(is_float, op.vars_out))):
            return op
        return replace(op, function=_guarded(op.function))

    blocks = tuple(replace(block, ops=tuple(map(guard, block.ops))) for block in program.graph.blocks)
    return replace(program, graph=replace(program.graph, blocks=blocks))


def _guarded(primitive: Primitive) -> Primitive:
    axes = 1 if primitive.batched else 0

    def pull(cotangents: Arrays, floats: Arrays, others: Arrays, places: Places) -> Arrays:
        """What comes back to the inputs that are floats: the transposed Jacobian there, times the cotangents."""

        def float_outputs(*floats: Array) -> Arrays:
            found = map(jnp.asarray, primitive.call(*_joined(floats, others, places)))  # of Python's numbers, too
            return tuple(filter(_is_float, found))

        return tuple(jax.vjp(float_outputs, *floats)[1](cotangents))

    def at(lanes: Array, arrays: Arrays) -> Arrays:
        """The arrays on these lanes, and zero on the others."""
        return tuple(jnp.where(jnp.reshape(lanes, lanes.shape + (1,) * (a.ndim - axes)), a, 0) for a in arrays)

    def used(cotangents: Arrays) -> Array:
        """The lanes on which a derivative comes to the primitive."""
        some = (jnp.any(c != 0, axis=tuple(range(axes, c.ndim))) for c in cotangents)
        return functools.reduce(jnp.logical_or, some)

    def finite(arrays: Arrays) -> Array:
        """The lanes on which all of these are finite."""
        every = (jnp.all(jnp.isfinite(r), axis=tuple(range(axes, r.ndim))) for r in arrays)
        return functools.reduce(jnp.logical_and, every)

    @functools.partial(jax.custom_jvp, nondiff_argnums=(3,))
    def pull_where_used(cotangents: Arrays, floats: Arrays, others: Arrays, places: Places) -> Arrays:
        return at(used(cotangents), pull(cotangents, floats, others, places))

    def pushed(places: Places, primals: Any, tangents: Any) -> Any:
        """The derivative of that, for higher orders: linear in the tangents, so that it has a reverse mode.

        A cotangent may be zero and change. So where it is zero the derivative is left out only if it would be NaN,
        which it is where the primitive's own derivatives are infinite.
        """
        cotangents, floats, others = primals
        of_cotangents, of_floats, _ = tangents

        def bent(cotangents: Arrays, of_floats: Arrays) -> Arrays:
            return tuple(jax.jvp(lambda *x: pull(cotangents, x, others, places), floats, of_floats)[1])

        lanes, ones = used(cotangents), tuple(map(jnp.ones_like, cotangents))
        straight_on = lanes | finite(pull(ones, floats, others, places))
        bent_on = lanes | finite(bent(ones, tuple(map(jnp.ones_like, floats))))
        straight = at(straight_on, pull(at(straight_on, of_cotangents), floats, others, places))
        tangent = tuple(map(jnp.add, straight, at(bent_on, bent(cotangents, at(bent_on, of_floats)))))
        return pull_where_used(*primals, places), tangent

    pull_where_used.defjvp(pushed)

    def forward(*values: Array) -> Any:
        return primitive.call(*values), values

    def backward(values: Arrays, cotangents: Any) -> tuple[Any, ...]:
        places = tuple(map(_is_float, values))
        floats = tuple(filter(_is_float, values))
        others = tuple(v for v in values if not _is_float(v))
        found = pull_where_used(tuple(filter(_is_float, cotangents)), floats, others, places)
        return _joined(found, (None,) * len(others), places)

    call = jax.custom_vjp(primitive.call)
    call.defvjp(forward, backward)
    return replace(primitive, call=call)


Arrays = tuple[Any, ...]

Places = tuple[bool, ...]
"""Of each input of a primitive, whether it is a float."""


def _is_float(array: Array) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _joined(floats: Arrays, others: Arrays, places: Places) -> Arrays:
    """Both in the order of the inputs."""
    one, other = iter(floats), iter(others)
    return tuple(next(one if place else other) for place in places)
