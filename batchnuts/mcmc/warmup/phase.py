"""The phase of warmup: window after window, and between two of them what is pooled, compared and decided."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.chain_states import ChainStates
from batchnuts.mcmc.draws import WarmupReport, WindowTuning
from batchnuts.mcmc.execution.runner import Runner
from batchnuts.mcmc.metric_estimates import MetricParameters, of_all_chains
from batchnuts.mcmc.run import Run
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
from batchnuts.mcmc.warmup.moments import Moments
from batchnuts.mcmc.warmup.outliers import find_outliers
from batchnuts.mcmc.warmup.pooling import pooled_metric, pooled_step_sizes
from batchnuts.mcmc.warmup.reduced import ReducedWindow, Reduction
from batchnuts.mcmc.warmup.windows import Window

LARGE_CHANGE = 2.0
"""Factor of a scale of the metric from which on the step size is searched for again."""

JITTER = 0.1
"""The jitter of a chain that starts again near another one, in standard deviations."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """What is known after a window: the states that the next one starts from, and what they are compared by."""

    states: ChainStates
    moments: Moments
    counts: NDArray[np.bool_]
    """[chains]: which chains count: those that are no outliers, and have drawn."""
    outliers: NDArray[np.bool_]
    """[chains]: see outliers.py."""


@dataclass(frozen=True, eq=False)
class InWarmup:
    """Before which window a run is, and what is known so far: all that the rest of warmup depends on."""

    states: ChainStates
    window: int = 0
    """The number of the next one; CHECK for that of an earlier run's tuning."""
    before: Pooled | None = None
    """After the last one, where windows are compared."""
    missing: tuple[str, ...] = ("there was one window only",)
    """In what the last two differ."""
    checked: str = ""
    """What did not fit in an earlier run's tuning, in words."""
    made: tuple[WindowTuning, ...] = ()
    """What windows so far came to."""

    def after(self, pooled: Pooled) -> tuple[WindowTuning, ...]:
        """The same with one window more."""
        states, counts = pooled.states, pooled.counts
        step_size = states.step_size[counts] if counts.any() else states.step_size
        variance = of_all_chains(states.metric.scales()[0])
        return *self.made, WindowTuning(states.transitions_done, np.quantile(step_size, (0.0, 0.5, 1.0)), variance)


CHECK = -1


def warm_up(run: Run, runner: Runner, place: InWarmup) -> tuple[ChainStates, WarmupReport]:
    """All windows: as many as are asked for, or until two in a row agree (`agreement`) and chains have settled."""
    if run.sampler.warmup.transitions == "auto":
        return _until_agreed(run, runner, place)
    total = run.sampler.warmup.transitions
    while place.window < len(run.windows):
        pooled, _ = _window(run, runner, place, run.windows[place.window], total)
        place = InWarmup(pooled.states, place.window + 1, pooled, made=place.after(pooled))
    reason = "as asked" if run.tuning is None else f"as asked, from the tuning of {run.tuning}"
    nothing: NDArray[np.bool_] = np.zeros(run.sampler.chain_count, bool)
    outliers = nothing if place.before is None else ~place.before.counts
    return place.states, _report(place.states, reason, outliers, place.made)


def _until_agreed(run: Run, runner: Runner, place: InWarmup) -> tuple[ChainStates, WarmupReport]:
    *windows, last = run.windows
    minimum = run.sampler.warmup.minimum - last.transitions
    if run.tuning is not None and place.window == CHECK:
        checked, unfit = _check_tuning(run, runner, place, run.tuning)
        states = checked.states
        if not unfit:
            reason = f"taken from {run.tuning}, confirmed after {states.transitions_done} transitions"
            return states, _report(states, reason, ~checked.counts, place.after(checked), agreed=True)
        said = f"; the tuning of {run.tuning} did not fit: {', '.join(unfit)}"
        place = InWarmup(states, 0, checked, unfit, said, place.after(checked))
    while place.window < len(windows):
        pooled, missing = _window(run, runner, place, windows[place.window], 0)
        enough = not missing and pooled.states.transitions_done >= minimum
        following = len(windows) if enough else place.window + 1
        made = place.after(pooled)
        place = replace(place, states=pooled.states, window=following, before=pooled, missing=missing, made=made)
    pooled, _ = _window(run, runner, place, last, 0)
    if place.missing:
        reason = f"at its maximum of {run.sampler.warmup.maximum} transitions; {'; '.join(place.missing)}"
    else:
        reason = "step size, metric and mean agreed in two windows, and the starts were forgotten"
    reason, made = reason + place.checked, place.after(pooled)
    return pooled.states, _report(pooled.states, reason, ~pooled.counts, made, agreed=not place.missing)


def _report(
    states: ChainStates,
    reason: str,
    outliers: NDArray[np.bool_],
    made: tuple[WindowTuning, ...],
    agreed: bool | None = None,
) -> WarmupReport:
    numbers = tuple(int(chain) for chain in np.flatnonzero(outliers))
    return WarmupReport(states.transitions_done, reason, agreed, numbers, made)


def _window(run: Run, runner: Runner, place: InWarmup, window: Window, total: int) -> tuple[Pooled, tuple[str, ...]]:
    """One window: adapt in every chain, then pool. And in what it differs from the one before."""
    reduced = _made(run, runner, place, window, total)
    return run.timed("warmup", lambda: _pooled(run, place, reduced, window))


def _made(run: Run, runner: Runner, place: InWarmup, window: Window, total: int) -> ReducedWindow:
    run.enter(runner, place)
    states, sampler, transitions = place.states, run.sampler, window.transitions
    adapting = sampler.step_size is None
    inputs = run.inputs(states, transitions, adapting, sampler.max_tree_depth_warmup)
    before, missing = states.transitions_done, place.missing if place.before is not None else ()
    reduction = Reduction(
        transitions=transitions,
        chains=sampler.chain_count,
        leaves=window.leave > 0,
        second_half=window.compared,
        errors=_single(run),
        gradients=window.estimates_metric and sampler.metric != "unit",
    )
    result = run.stretch(
        runner, inputs, transitions, "warmup", total, before, window.leave, missing=missing, reduction=reduction
    )
    return run.timed("warmup", lambda: run.reduced(runner, result, states, reduction))


def _pooled(run: Run, place: InWarmup, reduced: ReducedWindow, window: Window) -> tuple[Pooled, tuple[str, ...]]:
    now = _with_step_sizes(run, place.states, reduced, window)
    if window.estimates_metric and run.sampler.metric != "unit":
        now = _with_metric(run, now, _estimated(run, now, reduced))
    missing = place.missing
    if window.compared and place.before is not None:
        missing = _compare(run, place.before, now).missing()
    if missing:  # else the step size that the window came to is the one that agrees
        now = _with_search(run, place.states.metric, now, window)
    return _restarted(run, now), missing


def _with_step_sizes(run: Run, before: ChainStates, reduced: ReducedWindow, window: Window) -> Pooled:
    """The step sizes pooled; the metric is that before."""
    moments = reduced.moments
    outliers = find_outliers(moments)
    counts = ~outliers & (moments.count > 0)
    states = replace(
        before,
        position=reduced.position,
        log_density=reduced.log_density,
        gradient=reduced.gradient,
        transitions_done=before.transitions_done + window.transitions,
    )
    if run.sampler.step_size is None:
        step_size = pooled_step_sizes(reduced.log_step, run.group, counts)
        states = replace(states, step_size=step_size)
    return Pooled(states, moments, counts, outliers)


def _estimated(run: Run, now: Pooled, reduced: ReducedWindow) -> MetricParameters:
    """The metric from the draws of a window that count."""
    assert reduced.drawn is not None, "they were asked for"
    return pooled_metric(run.sampler.metric, run.sampler.metric_rank, reduced.drawn, run.group, now.counts)


def _with_metric(run: Run, now: Pooled, metric: MetricParameters) -> Pooled:
    """The states with this metric, which the programs use from now on."""
    return replace(now, states=replace(now.states, metric=metric, inverse_mass=run.use(metric)))


def _with_search(run: Run, before: MetricParameters, now: Pooled, window: Window) -> Pooled:
    """The step size searched for again where the metric has changed much, or has changed and nothing is compared.

    What is found has little to do with the target of the acceptance rate, and is not compared with anything.
    """
    metric = now.states.metric
    if run.sampler.step_size is not None or metric is before:
        return now
    large = np.abs(log_ratios(before.scales(), metric.scales())).max() > 2 * np.log(LARGE_CHANGE)
    return replace(now, states=run.with_found_step_size(now.states)) if large or not window.compared else now


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


def _check_tuning(run: Run, runner: Runner, place: InWarmup, tuning: Tuning) -> tuple[Pooled, tuple[str, ...]]:
    """One window with an earlier run's tuning, and what does not fit, in words.

    Where all fits, the metric stays, which comes from more draws than this window has; else it is taken from here, as
    after any window.
    """
    window = run.check
    assert window is not None
    states = place.states
    reduced = _made(run, runner, place, window, 0)

    def judged() -> tuple[Pooled, tuple[str, ...]]:
        now = _with_step_sizes(run, states, reduced, window)
        metric = states.metric if run.sampler.metric == "unit" else _estimated(run, now, reduced)
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
            now = _with_search(run, states.metric, _with_metric(run, now, metric), window)
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
