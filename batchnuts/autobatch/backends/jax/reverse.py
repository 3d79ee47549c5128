"""JAX programs with a reverse-mode derivative.

`lax.while_loop` has no reverse mode, since how many states it would have to keep depends on values. With a bound on
the number of sweeps the machine is a scan instead, whose states are computed again where the backward pass needs them:
of N sweeps it keeps the states after every sqrt(N)-th, and while it goes back through these, those between two of them
(two levels of Griewank, "Achieving logarithmic growth of temporal and spatial complexity in reverse automatic
differentiation", 1992). So a derivative makes each sweep three times, backward included, and keeps 2 sqrt(N) states.

Zero times a derivative need not be zero: what is computed on inactive lanes, in the branch that a lane does not take,
or of values that are not used, would make the derivative NaN where it is infinite. `guarded` leaves it out.
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

    def over(array: Array, lanes: Array) -> Array:
        return jnp.reshape(lanes, lanes.shape + (1,) * (array.ndim - axes))

    def forward(*values: Array) -> Any:
        return jax.vjp(primitive.call, *values)

    def backward(pull_back: Any, cotangents: Any) -> tuple[Any, ...]:
        floats = [c for c in cotangents if jnp.issubdtype(c.dtype, jnp.inexact)]
        used = functools.reduce(jnp.logical_or, (jnp.any(c != 0, axis=tuple(range(axes, c.ndim))) for c in floats))
        return tuple(
            jnp.where(over(c, used), c, 0) if jnp.issubdtype(c.dtype, jnp.inexact) else None
            for c in pull_back(cotangents)
        )

    call = jax.custom_vjp(primitive.call)
    call.defvjp(forward, backward)
    return replace(primitive, call=call)
