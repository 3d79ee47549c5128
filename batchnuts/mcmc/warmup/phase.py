"""The phase of warmup: window after window, and between two of them what is pooled, compared and decided."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.chain_program import ChainResult
from batchnuts.mcmc.draws import WarmupReport
from batchnuts.mcmc.execution.runner import Runner
from batchnuts.mcmc.run import ChainStates, Run
from batchnuts.mcmc.warmup.agreement import Agreement, change_of_metric, change_of_step, drift, memory
from batchnuts.mcmc.warmup.moments import Moments, moments_of
from batchnuts.mcmc.warmup.outliers import find_outliers
from batchnuts.mcmc.warmup.pooling import pooled_metric, pooled_step_sizes
from batchnuts.mcmc.warmup.windows import Window

LARGE_CHANGE = 2.0
"""Factor of a scale of the metric from which on the step size is searched for anew."""

JITTER = 0.1
"""Of a chain that starts again near another: in standard deviations."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """What is known after a window: the states that the next one starts from, and what they are compared by."""

    states: ChainStates
    moments: Moments
    counts: NDArray[np.bool_]
    """[chains]: which chains count: those that are no outliers, and have drawn."""


def warm_up(run: Run, runner: Runner, states: ChainStates) -> tuple[ChainStates, WarmupReport]:
    """All windows: as many as are asked for, or until two in a row agree (`agreement`) and chains have settled."""
    if run.sampler.warmup.transitions == "auto":
        return _until_agreed(run, runner, states)
    outliers: NDArray[np.bool_] = np.zeros(run.sampler.chain_count, bool)
    total = run.sampler.warmup.transitions
    for window in run.windows:
        pooled = _window(run, runner, states, window, total)
        states, outliers = pooled.states, ~pooled.counts
    return states, _report(states, "as asked", outliers)


def _until_agreed(run: Run, runner: Runner, states: ChainStates) -> tuple[ChainStates, WarmupReport]:
    *windows, last = run.windows
    minimum = run.sampler.warmup.minimum - last.transitions
    before: Pooled | None = None
    missing: tuple[str, ...] = ("there was one window only",)
    for window in windows:
        pooled = _window(run, runner, states, window, 0)
        if before is not None:
            missing = _compare(run, before, pooled).missing()
        before, states = pooled, pooled.states
        if not missing and states.transitions_done >= minimum:
            break
    pooled = _window(run, runner, states, last, 0)
    if missing:
        reason = f"at its maximum of {run.sampler.warmup.maximum} transitions; {'; '.join(missing)}"
    else:
        reason = "step size, metric and mean agreed in two windows, and the starts were forgotten"
    return pooled.states, _report(pooled.states, reason, ~pooled.counts, agreed=not missing)


def _report(states: ChainStates, reason: str, outliers: NDArray[np.bool_], agreed: bool | None = None) -> WarmupReport:
    numbers = tuple(int(chain) for chain in np.flatnonzero(outliers))
    return WarmupReport(states.transitions_done, reason, agreed, numbers)


def _window(run: Run, runner: Runner, states: ChainStates, window: Window, total: int) -> Pooled:
    """One window: adapt in every chain, then pool."""
    sampler, transitions = run.sampler, window.transitions
    adapting = sampler.step_size is None
    inputs = run.inputs(states, transitions, adapting, sampler.max_tree_depth_warmup)
    result = run.stretch(runner, inputs, transitions, "warmup", total, states.transitions_done, window.leave)
    return run.timed("warmup", lambda: _pooled(run, states, result, window))


def _pooled(run: Run, before: ChainStates, result: ChainResult, window: Window) -> Pooled:
    sampler, records, n = run.sampler, result.records, window.transitions
    moments = moments_of(
        records.position[:, :n], records.lp[:, :n], np.asarray(result.done), second_half=window.leave > 0
    )
    outliers = find_outliers(moments)
    counts = ~outliers & (moments.count > 0)
    states = run.after(before, result, window)
    adapting = sampler.step_size is None
    if adapting:
        step_size = pooled_step_sizes(result.adaptation.log_step_mean, run.group, counts)
        states = replace(states, step_size=step_size)
    if window.estimates_metric and sampler.metric != "unit":
        drawn = run.draws_with_gradients(states, result, np.asarray(result.done) - moments.count)
        metric = pooled_metric(sampler.metric, sampler.metric_rank, drawn, run.group, counts)
        large = np.abs(np.log(metric.scales() / states.metric.scales())).max() > 2 * np.log(LARGE_CHANGE)
        states = replace(states, metric=metric, inverse_mass=run.use(metric))
        if adapting and (large or not window.leave):
            states = run.with_found_step_size(states)
    if outliers.any() and sampler.warmup.restart:
        states = _restarted(run, states, outliers, counts, moments)
    return Pooled(states, moments, counts)


def _restarted(
    run: Run,
    states: ChainStates,
    outliers: NDArray[np.bool_],
    counts: NDArray[np.bool_],
    moments: Moments,
) -> ChainStates:
    """The states with each outlier near the position of another chain, drawn at random."""
    rng = np.random.default_rng((run.sampler.seed, states.transitions_done))
    chosen = rng.choice(np.flatnonzero(counts), int(outliers.sum()))
    scale = np.sqrt(moments.of(counts).pooled_variance[1:])
    position = np.array(states.position)
    position[outliers] = position[chosen] + JITTER * scale * rng.normal(size=(len(chosen), position.shape[1]))
    log_density, gradient = run.evaluated(position)
    bad = ~(np.isfinite(log_density) & np.isfinite(gradient).all(axis=1))
    if bad.any():  # the other chain's own position, where the density is finite
        exact = np.array(states.position)
        exact[outliers] = exact[chosen]
        position = np.where(bad[:, None], exact, position)
        log_density, gradient = run.evaluated(position)
    return replace(states, position=position, log_density=log_density, gradient=gradient)


def _compare(run: Run, before: Pooled, now: Pooled) -> Agreement:
    both = before.counts & now.counts
    superchain = run.superchain
    return Agreement(
        step=change_of_step(before.states.step_size, now.states.step_size),
        metric=change_of_metric(before.states.metric.scales(), now.states.metric.scales()),
        drift=drift(before.moments.of(both), now.moments.of(both)),
        memory=memory(now.moments.of(now.counts), superchain[now.counts]),
        single=len(np.unique(superchain)) == len(superchain),
    )
