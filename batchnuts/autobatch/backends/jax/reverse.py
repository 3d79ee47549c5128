"""JAX programs with a reverse-mode derivative.

`lax.while_loop` has no reverse mode, since how many states it would have to keep depends on values. With a bound on
the number of sweeps the machine is a scan instead, whose states are computed again where the backward pass needs them:
of N sweeps it keeps the states after every sqrt(N)-th, and while it goes back through these, those between two of them
(two levels of Griewank, "Achieving logarithmic growth of temporal and spatial complexity in reverse automatic
differentiation", 1992). So a derivative makes each sweep three times, backward included, and keeps 2 sqrt(N) states.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from typing_extensions import override

from batchnuts.autobatch.backends.backend import BlockStep, State, SweepPlan
from batchnuts.autobatch.backends.jax.backend import JaxBackend


class BoundedJaxBackend(JaxBackend):
    """The JAX backend in mode xla for programs that make at most `max_sweeps` sweeps; see above.

    Lanes that have not halted then are where they are: who calls looks at their program counters.
    """

    def __init__(self, max_sweeps: int) -> None:
        super().__init__("xla")
        self.max_sweeps = max_sweeps

    @override
    def sweep(self, plan: SweepPlan, state: State, budget: Any, leave_at: Any) -> tuple[State, Any]:
        # the budget is ours, not the caller's

        def lives(touched: State) -> Any:
            return self.count(touched["pc"] < plan.halted) > leave_at

        def next_sweep(touched: State, _: Any) -> tuple[State, None]:
            def run_sweep(touched: State) -> State:
                return self.one_sweep(plan, state, touched, _run_if_due)

            return lax.cond(lives(touched), run_sweep, _same, touched), None

        def stretch(touched: State, _: Any) -> tuple[State, None]:
            def run_sweep(touched: State) -> Any:
                return lax.scan(jax.checkpoint(next_sweep), touched, length=inner)[0]

            return lax.cond(lives(touched), run_sweep, _same, touched), None

        inner = math.isqrt(self.max_sweeps - 1) + 1
        outer, remainder = divmod(self.max_sweeps, inner)
        state = {name: jnp.asarray(array) for name, array in state.items()}
        touched = {name: state[name] for name in plan.touches}
        touched, _ = lax.scan(jax.checkpoint(stretch), touched, length=outer)
        touched, _ = lax.scan(jax.checkpoint(next_sweep), touched, length=remainder)
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
