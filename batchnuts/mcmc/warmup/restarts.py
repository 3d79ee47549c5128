"""Which chains start again near others between two windows, and which are on their way and need not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.execution.chain_states import ChainStates
from batchnuts.mcmc.statistics.outliers import NATS, spread
from batchnuts.mcmc.warmup.arrival import late
from batchnuts.mcmc.warmup.contract import WarmupRun
from batchnuts.mcmc.warmup.place import Pooled

NEAR = 0.5
"""A chain will arrive soon whose depth below the others is less than this share of that a window ago."""

RISE = 3.0
"""Standard deviations by which log-densities of chains that have arrived may rise in a window."""

JITTER = 0.1
"""The jitter of a chain that starts again near another one, in standard deviations."""


def with_restarts(run: WarmupRun, previous: Pooled | None, pooled: Pooled, waited: bool) -> Pooled:
    """Where that is allowed, put each outlier near the position of another chain, drawn at random.

    With `restart: auto` those that were implausible before this window too, and have not come half of the way up, and
    those that were in a narrow place before it, lower than others; once chains have been waited for also those that are
    too low for any mode, whether they move or not.
    """
    states, counts = pooled.states, pooled.counts
    restarted = pooled.outliers if run.sampler.warmup.restart else np.zeros_like(pooled.outliers)
    if run.sampler.warmup.restart == "auto":
        restarted = _nowhere_for_long(previous, pooled) | _narrow_for_long(previous, pooled) | (pooled.low & waited)
    if not (restarted.any() and counts.any()):
        return pooled
    rng = np.random.default_rng((run.sampler.seed, states.transitions_done))
    chosen = rng.choice(np.flatnonzero(counts), int(restarted.sum()))
    scale = np.sqrt(pooled.moments.of(counts).pooled_variance[1:])
    position = np.array(states.position)
    position[restarted] = position[chosen] + JITTER * scale * rng.normal(size=(len(chosen), position.shape[1]))
    log_density, gradient = run.gradients.evaluate(position)
    bad = ~(np.isfinite(log_density) & np.isfinite(gradient).all(axis=1))
    if bad.any():  # the other chain's own position, where the density is finite
        exact = np.array(states.position)
        exact[restarted] = exact[chosen]
        position = np.where(bad[:, None], exact, position)
        log_density, gradient = run.gradients.evaluate(position)
    moved = replace(states, position=position, log_density=log_density, gradient=gradient)
    outliers, behind = pooled.outliers & ~restarted, pooled.late & ~restarted
    return replace(pooled, states=moved, restarted=restarted, outliers=outliers, late=behind)


def _nowhere_for_long(previous: Pooled | None, pooled: Pooled) -> NDArray[np.bool_]:
    """[chains]: which were implausible after the last two windows, and are not on their way up."""
    if previous is None or not pooled.counts.any():
        return np.zeros_like(pooled.implausible)
    typical = float(np.median(pooled.states.log_density[pooled.counts]))
    depth, previous_depth = (
        typical - states.log_density.astype(np.float64) for states in (pooled.states, previous.states)
    )
    with np.errstate(invalid="ignore"):
        near: NDArray[np.bool_] = depth < NEAR * previous_depth
    return pooled.implausible & previous.implausible & ~near


def _narrow_for_long(previous: Pooled | None, pooled: Pooled) -> NDArray[np.bool_]:
    """[chains]: which had to take shorter steps than others in the last two windows, at lower log-densities: a place
    that is both narrower and lower has no weight."""
    if previous is None:
        return np.zeros_like(pooled.apart)
    of_both = (each.apart & late(each.moments, each.states.log_density) for each in (previous, pooled))
    return np.logical_and(*of_both)


def come_nearer(previous: ChainStates, pooled: Pooled) -> NDArray[np.bool_]:
    """[chains]: whose log-density has risen in the window by more than that of chains which have arrived may."""
    if not pooled.counts.any():
        return np.zeros_like(pooled.outliers)
    of_others = pooled.moments.of(pooled.counts)
    scale = spread(of_others.mean[:, :1], of_others.variance[:, :1])[0]
    risen = pooled.states.log_density.astype(np.float64) - previous.log_density
    return risen > NATS + RISE * scale  # type: ignore[no-any-return]
