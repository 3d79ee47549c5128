"""Solutions of ordinary differential equations, by diffrax: adaptive steps, differentiated through these."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from batchnuts.bridges.stan.functions.numerics import Array

ADJOINT = "adjoint_tol_ctl"
"""The method with all tolerances given; those of the solution are taken, as its derivative goes through its steps."""

DEFAULTS: dict[str, tuple[float, float, float]] = {
    "rk45": (1e-6, 1e-6, 1e6),
    "ckrk": (1e-6, 1e-6, 1e6),
    "adams": (1e-10, 1e-10, 1e8),
    "bdf": (1e-10, 1e-10, 1e8),
    ADJOINT: (1e-10, 1e-10, 1e8),
}
"""Relative and absolute tolerance and most steps, by the method that a function's name ends with."""

MOST_STEPS = 4_096
"""Steps of a solution: all of them are kept for its derivative."""


def is_possible() -> bool:
    """Whether diffrax is installed."""
    return find_spec("diffrax") is not None


def solution(
    method: str,
    slope: Callable[[Array, Array, tuple[Array, ...]], Array],
    start: Array,
    begin: Array,
    times: Array,
    arguments: tuple[Array, ...],
    tolerances: tuple[Any, Any, Any],
) -> Array:
    """y [times, n] of y' = slope(t, y, arguments) from y = start [n] at `begin`; NaN where it takes too many steps
    or the slope is not finite."""
    # Derivatives of linear solutions raise where an equation has no finite solution (lineax/_solve.py, throw=True);
    # equinox, which raises, gives NaN instead if it is imported with this.
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    import diffrax
    import jax.numpy as jnp

    relative, absolute, steps = tolerances
    solver = diffrax.Kvaerno5() if method in ("bdf", "adams", ADJOINT) else diffrax.Dopri5()
    solved = diffrax.diffeqsolve(
        diffrax.ODETerm(slope),
        solver,
        t0=begin,
        t1=times[-1],
        dt0=None,
        y0=start,
        args=arguments,
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=relative, atol=absolute),
        max_steps=int(min(steps, MOST_STEPS)),
        throw=False,
    )
    fine = solved.result == diffrax.RESULTS.successful
    return jnp.where(fine, solved.ys, jnp.nan)
