"""The phase of warmup: window after window, and between two of them what is pooled, compared and decided."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.chain_program import ChainResult
from batchnuts.mcmc.draws import WarmupReport
from batchnuts.mcmc.execution.runner import Runner
from batchnuts.mcmc.metric_estimates import MetricParameters
from batchnuts.mcmc.run import ChainStates, Run
from batchnuts.mcmc.tuning import Tuning
from batchnuts.mcmc.warmup.agreement import (
    STANDARD_ERRORS,
    Agreement,
    change_of_metric,
    change_of_step,
    drift,
    log_ratios,
    memory,
)
from batchnuts.mcmc.warmup.moments import Moments, moments_of
from batchnuts.mcmc.warmup.outliers import find_outliers
from batchnuts.mcmc.warmup.pooling import pooled_metric, pooled_step_sizes
from batchnuts.mcmc.warmup.windows import Window

LARGE_CHANGE = 2.0
"""Factor of a scale of the metric from which on the step size is searched for again."""

JITTER = 0.1
"""Of a chain that starts again near another: in standard deviations."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """What is known after a window: the states that the next one starts from, and what they are compared by."""

    states: ChainStates
    moments: Moments
    counts: NDArray[np.bool_]
    """[chains]: which chains count: those that are no outliers, and have drawn."""
    outliers: NDArray[np.bool_]
    """[chains]: see outliers.py."""


def warm_up(run: Run, runner: Runner, states: ChainStates) -> tuple[ChainStates, WarmupReport]:
    """All windows: as many as are asked for, or until two in a row agree (`agreement`) and chains have settled."""
    if run.sampler.warmup.transitions == "auto":
        return _until_agreed(run, runner, states)
    outliers: NDArray[np.bool_] = np.zeros(run.sampler.chain_count, bool)
    total = run.sampler.warmup.transitions
    for window in run.windows:
        pooled = _window(run, runner, states, window, total)
        states, outliers = pooled.states, ~pooled.counts
    reason = "as asked" if run.tuning is None else f"as asked, from the tuning of {run.tuning}"
    return states, _report(states, reason, outliers)


def _until_agreed(run: Run, runner: Runner, states: ChainStates) -> tuple[ChainStates, WarmupReport]:
    *windows, last = run.windows
    minimum = run.sampler.warmup.minimum - last.transitions
    before: Pooled | None = None
    missing: tuple[str, ...] = ("there was one window only",)
    checked = ""
    if run.tuning is not None:
        before, unfit = _check_tuning(run, runner, states, run.tuning)
        states = before.states
        if not unfit:
            reason = f"taken from {run.tuning}, confirmed after {states.transitions_done} transitions"
            return states, _report(states, reason, ~before.counts, agreed=True)
        missing = unfit
        checked = f"; the tuning of {run.tuning} did not fit: {', '.join(unfit)}"
    for window in windows:
        pooled = _window(run, runner, states, window, 0, missing if before is not None else ())
        if before is not None:
            missing = _compare(run, before, pooled).missing()
        before, states = pooled, pooled.states
        if not missing and states.transitions_done >= minimum:
            break
    pooled = _window(run, runner, states, last, 0, missing)
    if missing:
        reason = f"at its maximum of {run.sampler.warmup.maximum} transitions; {'; '.join(missing)}"
    else:
        reason = "step size, metric and mean agreed in two windows, and the starts were forgotten"
    return pooled.states, _report(pooled.states, reason + checked, ~pooled.counts, agreed=not missing)


def _report(states: ChainStates, reason: str, outliers: NDArray[np.bool_], agreed: bool | None = None) -> WarmupReport:
    numbers = tuple(int(chain) for chain in np.flatnonzero(outliers))
    return WarmupReport(states.transitions_done, reason, agreed, numbers)


def _window(
    run: Run, runner: Runner, states: ChainStates, window: Window, total: int, missing: tuple[str, ...] = ()
) -> Pooled:
    """One window: adapt in every chain, then pool. missing: what the windows before do not agree about."""
    result = _made(run, runner, states, window, total, missing)
    return run.timed("warmup", lambda: _pooled(run, states, result, window))


def _made(
    run: Run, runner: Runner, states: ChainStates, window: Window, total: int, missing: tuple[str, ...] = ()
) -> ChainResult:
    sampler, transitions = run.sampler, window.transitions
    adapting = sampler.step_size is None
    inputs = run.inputs(states, transitions, adapting, sampler.max_tree_depth_warmup)
    before = states.transitions_done
    return run.stretch(runner, inputs, transitions, "warmup", total, before, window.leave, missing=missing)


def _pooled(run: Run, before: ChainStates, result: ChainResult, window: Window) -> Pooled:
    now = _with_step_sizes(run, before, result, window)
    if window.estimates_metric and run.sampler.metric != "unit":
        now = _with_metric(run, now, _estimated(run, now, result), window)
    return _restarted(run, now)


def _with_step_sizes(run: Run, before: ChainStates, result: ChainResult, window: Window) -> Pooled:
    """The step sizes pooled; the metric is that before."""
    records, n = result.records, window.transitions
    moments = moments_of(
        records.position[:, :n], records.lp[:, :n], np.asarray(result.done), second_half=window.compared
    )
    outliers = find_outliers(moments)
    counts = ~outliers & (moments.count > 0)
    states = run.after(before, result, window)
    if run.sampler.step_size is None:
        step_size = pooled_step_sizes(result.adaptation.log_step_mean, run.group, counts)
        states = replace(states, step_size=step_size)
    return Pooled(states, moments, counts, outliers)


def _estimated(run: Run, now: Pooled, result: ChainResult) -> MetricParameters:
    """The metric from the draws of a window that count."""
    drawn = run.draws_with_gradients(now.states, result, np.asarray(result.done) - now.moments.count)
    return pooled_metric(run.sampler.metric, run.sampler.metric_rank, drawn, run.group, now.counts)


def _with_metric(run: Run, now: Pooled, metric: MetricParameters, window: Window) -> Pooled:
    """That metric taken, and the step size searched for again where it has changed much, or nothing is compared."""
    large = np.abs(log_ratios(now.states.metric.scales(), metric.scales())).max() > 2 * np.log(LARGE_CHANGE)
    states = replace(now.states, metric=metric, inverse_mass=run.use(metric))
    if run.sampler.step_size is None and (large or not window.compared):
        states = run.with_found_step_size(states)
    return replace(now, states=states)


def _restarted(run: Run, now: Pooled) -> Pooled:
    """Where that is allowed, each outlier near the position of another chain, drawn at random."""
    states, counts = now.states, now.counts
    outliers = now.outliers
    if not (outliers.any() and run.sampler.warmup.restart):
        return now
    rng = np.random.default_rng((run.sampler.seed, states.transitions_done))
    chosen = rng.choice(np.flatnonzero(counts), int(outliers.sum()))
    scale = np.sqrt(now.moments.of(counts).pooled_variance[1:])
    position = np.array(states.position)
    position[outliers] = position[chosen] + JITTER * scale * rng.normal(size=(len(chosen), position.shape[1]))
    log_density, gradient = run.evaluated(position)
    bad = ~(np.isfinite(log_density) & np.isfinite(gradient).all(axis=1))
    if bad.any():  # the other chain's own position, where the density is finite
        exact = np.array(states.position)
        exact[outliers] = exact[chosen]
        position = np.where(bad[:, None], exact, position)
        log_density, gradient = run.evaluated(position)
    return replace(now, states=replace(states, position=position, log_density=log_density, gradient=gradient))


def _check_tuning(run: Run, runner: Runner, states: ChainStates, tuning: Tuning) -> tuple[Pooled, tuple[str, ...]]:
    """One window with an earlier run's tuning, and what does not fit, in words.

    Where all fits, the metric stays, which comes from more draws than this window has; else it is taken from here, as
    after any window.
    """
    window = run.check
    assert window is not None
    result = _made(run, runner, states, window, 0)

    def judged() -> tuple[Pooled, tuple[str, ...]]:
        now = _with_step_sizes(run, states, result, window)
        metric = states.metric if run.sampler.metric == "unit" else _estimated(run, now, result)
        moments = now.moments.of(now.counts)
        found = Agreement(
            step=change_of_step(states.step_size, now.states.step_size),
            metric=change_of_metric(states.metric.scales(), metric.scales()),
            drift=drift(tuning.centre, moments.centre.of_position, moments.pooled_variance[1:]),
            memory=memory(moments, run.superchain[now.counts], STANDARD_ERRORS),
            single=_single(run),
            earlier=True,
        ).missing()
        if far := int(now.outliers.sum()):
            found += (f"{far} chain{' is' if far == 1 else 's are'} far from all others",)
        if found and metric is not states.metric:
            now = _with_metric(run, now, metric, window)
        return _restarted(run, now), found

    return run.timed("warmup", judged)


def _compare(run: Run, before: Pooled, now: Pooled) -> Agreement:
    both = before.counts & now.counts
    of_both = now.moments.of(both)
    return Agreement(
        step=change_of_step(before.states.step_size, now.states.step_size),
        metric=change_of_metric(before.states.metric.scales(), now.states.metric.scales()),
        drift=drift(before.moments.of(both).centre, of_both.centre, of_both.pooled_variance),
        memory=memory(now.moments.of(now.counts), run.superchain[now.counts]),
        single=_single(run),
    )


def _single(run: Run) -> bool:
    """Whether each chain is a superchain of its own."""
    return len(np.unique(run.superchain)) == run.sampler.chain_count
