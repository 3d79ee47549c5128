"""The phase of warmup: window after window, and between two of them what is pooled, compared and decided."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.execution.chain_states import ChainStates
from batchnuts.mcmc.execution.runner import Runner
from batchnuts.mcmc.execution.window_reduction import ReducedWindow, Reduction
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.settings.metric_kinds import METRIC_KINDS
from batchnuts.mcmc.starts.tuning import Tuning
from batchnuts.mcmc.statistics.chain_numbers import named_chains
from batchnuts.mcmc.statistics.outliers import find_outliers
from batchnuts.mcmc.statistics.window_moments import Centre, Moments
from batchnuts.mcmc.storage.draws import WarmupReport
from batchnuts.mcmc.warmup.agreement import (
    STANDARD_ERRORS,
    Agreement,
    change_of_metric,
    change_of_step,
    drift,
    log_ratios,
    memory,
)
from batchnuts.mcmc.warmup.arrival import deep, far_away, implausible, late
from batchnuts.mcmc.warmup.contract import WarmupRun
from batchnuts.mcmc.warmup.ensemble import after_call, begin, single
from batchnuts.mcmc.warmup.place import CHECK, ENSEMBLE, SETTLE, InWarmup, Pooled
from batchnuts.mcmc.warmup.pooling import corrected_step_size, need_their_own, pooled_metric, pooled_step_sizes
from batchnuts.mcmc.warmup.restarts import come_nearer, with_restarts
from batchnuts.mcmc.warmup.windows import GROWTH, SETTLE_STEP, Window, settling_window

LARGE_CHANGE = 2.0
"""Factor of a scale of the metric, or of the step size, from which on the step size is searched for again."""

MOST_SETTLING = 4
"""Windows, of SETTLE_STEP transitions each, in which the step size is found after an ensemble's burn-in, at most."""

FEWEST_MORE, MOST_MORE = 2, 20
"""Windows that chains which have not arrived are given in any case, and at most."""


def warm_up(run: WarmupRun, runner: Runner, place: InWarmup) -> tuple[ChainStates, WarmupReport]:
    """All windows: as many as are asked for, or until two in a row agree (`agreement`) and chains have settled; and
    some more while chains have not arrived."""
    if place.window == ENSEMBLE:
        place = _from_ensemble(run, place)
    if run.sampler.warmup.transitions == "auto":
        return _until_agreed(run, runner, place)
    total = run.sampler.warmup.transitions
    while place.window < len(run.windows):
        pooled, _ = _window(run, runner, place, run.windows[place.window], total)
        place = place.after(pooled, place.window + 1)
    place = _until_arrived(run, runner, place, len(run.windows), 2 * total)
    reason = "as requested" if run.tuning is None else f"as requested, from the tuning of {run.tuning}"
    report = _report(place, reason + place.checked)
    if (more := place.states.transitions_done - total) > 0:
        outcome = (
            f"in which {named_chains(report.late)} did not reach the others"
            if report.late
            else "until all chains had reached the others"
        )
        report = _report(place, f"{reason}, and {more} more, {outcome}{place.checked}")
    return place.states, report


def _until_agreed(run: WarmupRun, runner: Runner, place: InWarmup) -> tuple[ChainStates, WarmupReport]:
    *windows, last = run.windows
    minimum, maximum = run.sampler.warmup.minimum - last.transitions, run.sampler.warmup.maximum
    if run.tuning is not None and place.window == CHECK:
        checked, unfit = _check_tuning(run, runner, place, run.tuning)
        place = place.after(checked, 0)
        if not unfit:
            reason = f"taken from {run.tuning}, confirmed after {place.states.transitions_done} transitions"
            return place.states, _report(place, reason, agreed=True)
        remark = f"; the tuning of {run.tuning} did not fit: {', '.join(unfit)}"
        place = replace(place, missing=unfit, checked=remark)
    from_ensemble = place.centre is not None
    while place.window == SETTLE:
        place = _settle_step(run, runner, place)
    while place.centre is not None and place.window < len(windows):
        place = _check_ensemble(run, runner, place, windows[place.window], place.centre)
    while place.window < len(windows):
        pooled, missing = _window(run, runner, place, windows[place.window], 0)
        enough = not missing and pooled.states.transitions_done >= minimum
        place = replace(place.after(pooled, len(windows) if enough else place.window + 1), missing=missing)
    if place.window == len(windows):
        pooled, _ = _window(run, runner, place, last, 0)
        place = place.after(pooled, place.window + 1)
    place = _until_arrived(run, runner, place, len(windows) + 1, maximum)
    if place.missing:
        reason = f"at its maximum of {maximum} transitions; {'; '.join(place.missing)}"
    else:
        stable = "step size, metric and mean were stable over two adaptation windows"
        if from_ensemble:
            stable = "metric and mean were stable in the last adaptation window"
        reason = f"{stable}, and initial values no longer matter"
    left_out = _report(place, reason)
    if without := sorted({*left_out.outliers, *left_out.late}):
        reason += f"; not so for {named_chains(without)}" if place.missing else f", of all but {named_chains(without)}"
    return place.states, _report(place, reason + place.checked, agreed=not place.missing)


def _from_ensemble(run: WarmupRun, place: InWarmup) -> InWarmup:
    """All chains after an ensemble's burn-in, with its metric and a step size for that."""
    before = place.states
    burn_in = place.burn_in or begin(run.sampler, before.position, before.log_density, before.gradient)
    run.use(burn_in.ensemble.metric)
    while not burn_in.is_over:
        run.enter(replace(place, burn_in=burn_in))
        burn_in = run.timed("warmup", functools.partial(after_call, run, burn_in))
    ensemble, window = burn_in.ensemble, burn_in.before
    assert window is not None, "the last one"
    states = replace(
        before,
        position=ensemble.position,
        log_density=ensemble.log_density,
        gradient=ensemble.gradient,
        metric=window.metric,
        inverse_mass=run.use(window.metric),
    )
    if run.sampler.step_size is None:
        states = replace(states, step_size=np.full_like(states.step_size, ensemble.step_of_transitions))
    remark = f"; the ensemble had not settled: {', '.join(burn_in.missing)}" if burn_in.missing else ""
    to_check = run.sampler.warmup.transitions == "auto"
    return replace(
        place,
        states=states,
        window=SETTLE if to_check else 0,
        centre=burn_in.centre if to_check else None,
        missing=("what the ensemble found is not confirmed yet",),
        checked=remark,
        burn_in=None,
        burnt_in=ensemble.done,
        restarted=tuple(np.flatnonzero(burn_in.redrawn).tolist()),
    )


def _settle_step(run: WarmupRun, runner: Runner, place: InWarmup) -> InWarmup:
    """After a few transitions that find the step size for what the ensemble gave; again if it was far from that."""
    window, states, before = Window(SETTLE_STEP, False), place.states, place.before
    apart = None if before is None else before.apart
    reduced = _run_window(run, runner, place, window, 0)
    pooled = run.timed(
        "warmup",
        lambda: with_restarts(
            run, before, _with_step_sizes(run, states, reduced, window, apart, corrected=True), waited=False
        ),
    )
    is_far = change_of_step(states.step_size, pooled.states.step_size) > np.log(LARGE_CHANGE)
    again = is_far and pooled.states.transitions_done < MOST_SETTLING * SETTLE_STEP
    return place.after(pooled, SETTLE if again else 0)


def _check_ensemble(run: WarmupRun, runner: Runner, place: InWarmup, window: Window, centre: Centre) -> InWarmup:
    """After a window whose metric and mean over all chains are compared with what they were before: in the ensemble, or
    in the last such window. Where they agree nothing is changed, and no more windows are needed."""
    states, before, since = place.states, place.before, place.since
    window = replace(window, leave=0.0, whole=True)
    reduced = _run_window(run, runner, place, window, 0)
    checked, missing = run.timed(
        "warmup", lambda: _checked(run, before, states, reduced, window, centre, 0.0, since=since, of_run=False)
    )
    enough = not missing and checked.states.transitions_done >= run.sampler.warmup.minimum
    number = len(run.windows) if enough else place.window + 1
    mean = checked.moments.of(checked.counts).centre.of_position
    since = checked.moments if since is None else since.joined(checked.moments)
    return replace(place.after(checked, number), missing=missing, centre=mean, since=since.without(checked.restarted))


def _until_arrived(run: WarmupRun, runner: Runner, place: InWarmup, first: int, most: int) -> InWarmup:
    """Windows from number `first` on while chains are on their way or have just started again, each longer than the one
    before; FEWEST_MORE of them, and more as long as chains have made fewer than `most` transitions. Chains that are
    far, but no lower than others, or have step sizes of their own, are not waited for any longer than that: they may be
    in a mode of their own. Those
    that are too low for any mode, and have waited FEWEST_MORE windows, start again where that is allowed."""
    settling = settling_window(run.sampler.chain_count)
    longest = max((window.transitions for window in run.windows), default=0)
    while (previous := place.before) is not None and (number := place.window - first) < MOST_MORE:
        few = number < FEWEST_MORE
        waited_for = (previous.far & ~previous.outliers) | previous.apart
        if not (previous.late | previous.restarted | (waited_for & few)).any():
            break
        transitions = max(1, min(round(settling.transitions * GROWTH**number), longest))
        enough = previous.states.transitions_done + transitions > most
        if enough and not few and not previous.restarted.any():
            break
        waited = number >= FEWEST_MORE - 1
        pooled, _ = _window(run, runner, place, replace(settling, transitions=transitions), 0, waited)
        place = place.after(pooled, place.window + 1)
    return place


def _report(place: InWarmup, reason: str, agreed: bool | None = None) -> WarmupReport:
    previous = place.before
    outliers = (
        () if previous is None else tuple(np.flatnonzero(previous.outliers | (previous.moments.count == 0)).tolist())
    )
    late = () if previous is None else tuple(np.flatnonzero(previous.late).tolist())
    if previous is not None and previous.apart.any():
        apart = np.flatnonzero(previous.apart).tolist()
        have = "has a step size of its own" if len(apart) == 1 else "have step sizes of their own"
        reason += f"; {named_chains(apart)} {have}, because transitions diverged there with that of the others"
    return WarmupReport(
        place.states.transitions_done,
        reason,
        agreed,
        outliers,
        place.made,
        place.restarted,
        late,
        place.not_numbers,
        place.burnt_in,
        place.records,
    )


def _window(
    run: WarmupRun, runner: Runner, place: InWarmup, window: Window, total: int, waited: bool = False
) -> tuple[Pooled, tuple[str, ...]]:
    """One window: adapt in every chain, then pool. And in what it differs from the one before.

    waited: chains that are too low for any mode have been waited for.
    """
    reduced = _run_window(run, runner, place, window, total)
    return run.timed("warmup", lambda: _pooled(run, place, reduced, window, waited))


def _run_window(run: WarmupRun, runner: Runner, place: InWarmup, window: Window, total: int) -> ReducedWindow:
    run.enter(place)
    states, sampler, transitions = place.states, run.sampler, window.transitions
    adapting = sampler.step_size is None
    inputs = run.inputs(states, transitions, adapting, sampler.max_tree_depth_warmup, settled=place.centre is not None)
    transitions_done, missing = states.transitions_done, place.missing if place.before is not None else ()
    reduction = Reduction(
        transitions=transitions,
        chains=sampler.chain_count,
        leaves=window.leave > 0,
        second_half=window.compared and not window.whole,
        errors=single(run),
        gradients=window.estimates_metric and METRIC_KINDS[sampler.metric].is_adapted,
        keeps=run.keeps_warmup,
    )
    result = run.stretch(
        runner,
        inputs,
        transitions,
        "warmup",
        total,
        transitions_done,
        window.leave,
        missing=missing,
        reduction=reduction,
    )
    return run.timed("warmup", lambda: run.reduced(result, states, reduction))


def _pooled(
    run: WarmupRun, place: InWarmup, reduced: ReducedWindow, window: Window, waited: bool
) -> tuple[Pooled, tuple[str, ...]]:
    before = None if place.before is None else place.before.apart
    pooled = _with_step_sizes(run, place.states, reduced, window, before)
    # outliers that come no nearer are where they want to be, and are not waited for, unless nothing can be there
    coming, low = come_nearer(place.states, pooled), deep(pooled.moments, pooled.states.log_density)
    pooled = replace(pooled, late=pooled.late & (~pooled.outliers | coming | low), low=pooled.outliers & low & ~coming)
    if window.estimates_metric and METRIC_KINDS[run.sampler.metric].is_adapted:
        pooled = _with_metric(run, pooled, _estimated(run, pooled, reduced))
    missing = place.missing
    if window.compared and place.before is not None:
        missing = _compare(run, place.before, pooled).missing()
    if missing:  # else the step size that the window came to is the one that agrees
        pooled = _with_search(run, place.states.metric, pooled, window)
    return with_restarts(run, place.before, pooled, waited), missing


def _with_step_sizes(
    run: WarmupRun,
    previous: ChainStates,
    reduced: ReducedWindow,
    window: Window,
    before: NDArray[np.bool_] | None = None,
    *,
    corrected: bool = False,
) -> Pooled:
    """The states with pooled step sizes, and the metric that they had. before: which had step sizes of their own.
    corrected: the common step size is set by the acceptance rate of all chains, not by what each has adapted."""
    moments = reduced.moments
    nowhere = implausible(moments, reduced.log_density)
    outliers = find_outliers(moments) | nowhere
    counts = ~outliers & (moments.count > 0)
    states = replace(
        previous,
        position=reduced.position,
        log_density=reduced.log_density,
        gradient=reduced.gradient,
        transitions_done=previous.transitions_done + window.transitions,
    )
    apart = none = np.zeros_like(outliers)
    if run.sampler.step_size is None:
        step_size = pooled_step_sizes(reduced.log_step, run.group, counts)
        if corrected:
            used, acceptance, diverged = reduced.log_step_used, reduced.acceptance, reduced.diverged
            target = run.sampler.target_acceptance
            step_size[:] = corrected_step_size(used, acceptance, diverged, counts, target)
        apart = need_their_own(reduced.log_step, step_size, reduced.diverged, before)
        step_size = np.where(apart, np.exp(reduced.log_step.astype(np.float64)), step_size)
        states = replace(states, step_size=step_size)
    below, far = late(moments, reduced.log_density), far_away(moments)
    return Pooled(
        states,
        moments,
        counts,
        outliers,
        nowhere,
        below,
        low=none,
        far=far,
        apart=apart,
        restarted=none,
        kept=reduced.kept,
    )


def _estimated(run: WarmupRun, pooled: Pooled, reduced: ReducedWindow) -> MetricParameters:
    """The metric from the draws of a window that count."""
    assert reduced.drawn is not None, "they were asked for"
    return pooled_metric(run.sampler.metric, run.sampler.metric_rank, reduced.drawn, run.group, pooled.counts)


def _with_metric(run: WarmupRun, pooled: Pooled, metric: MetricParameters) -> Pooled:
    """The states with this metric, which the programs use from now on."""
    return replace(pooled, states=replace(pooled.states, metric=metric, inverse_mass=run.use(metric)))


def _with_search(run: WarmupRun, previous: MetricParameters, pooled: Pooled, window: Window) -> Pooled:
    """Search for the step size again where the metric has changed much, or has changed and nothing is compared.

    What is found has little to do with the target of the acceptance rate, and is not compared with anything.
    """
    metric = pooled.states.metric
    if run.sampler.step_size is not None or metric is previous:
        return pooled
    large = np.abs(log_ratios(previous.scales(), metric.scales())).max() > 2 * np.log(LARGE_CHANGE)
    if large or not window.compared:
        searched = run.with_searched_step_size(pooled.states)
        step_size = np.where(pooled.apart, pooled.states.step_size, searched.step_size)
        return replace(pooled, states=replace(searched, step_size=step_size))
    return pooled


def _check_tuning(run: WarmupRun, runner: Runner, place: InWarmup, tuning: Tuning) -> tuple[Pooled, tuple[str, ...]]:
    """One window with an earlier run's tuning, and what does not fit, in words.

    Where all fits, the metric stays, which comes from more draws than this window has; else it is taken from here, as
    after any window.
    """
    window, states = run.check, place.states
    assert window is not None
    reduced = _run_window(run, runner, place, window, 0)
    centre, errors = tuning.centre, STANDARD_ERRORS
    return run.timed("warmup", lambda: _checked(run, None, states, reduced, window, centre, errors, of_run=True))


def _checked(
    run: WarmupRun,
    before: Pooled | None,
    states: ChainStates,
    reduced: ReducedWindow,
    window: Window,
    centre: Centre,
    errors: float,
    *,
    since: Moments | None = None,
    of_run: bool,
) -> tuple[Pooled, tuple[str, ...]]:
    """A window from these states with a metric that is to be confirmed, and what does not fit, in words.

    centre [dimension]: where all chains are expected. errors: of what is left of starts (`memory`). since: moments of
    the draws before this window that count: chains remember no more of their starts now than they did on average since
    then, so the longer time may tell too that nothing is left, with less of chance. of_run: whether all is of an
    earlier run, and so the step size is expected too, and no chain apart from the others.
    """
    apart = None if before is None else before.apart
    pooled = _with_step_sizes(run, states, reduced, window, apart, corrected=not of_run)
    metric = _estimated(run, pooled, reduced) if METRIC_KINDS[run.sampler.metric].is_adapted else states.metric
    moments = pooled.moments.of(pooled.counts)
    spans = [moments] if since is None else [moments, since.joined(pooled.moments).of(pooled.counts)]
    misfits = Agreement(
        step=change_of_step(states.step_size, pooled.states.step_size),
        metric=change_of_metric(states.metric.scales(), metric.scales()),
        drift=drift(centre, moments.centre.of_position, moments.pooled_variance[1:]),
        memory=min(memory(span, run.superchain[pooled.counts], errors) for span in spans),
        single=single(run),
        earlier=of_run,
    ).missing()
    if of_run and (far_count := int(pooled.outliers.sum())):
        misfits += (f"{far_count} chain{' is' if far_count == 1 else 's are'} far from all others",)
    if of_run and (late_count := int(pooled.late.sum())):
        misfits += (f"{late_count} chain{' has' if late_count == 1 else 's have'} not reached the others",)
    if misfits and metric is not states.metric:
        pooled = _with_metric(run, pooled, metric)
        if of_run:
            pooled = _with_search(run, states.metric, pooled, window)
    return with_restarts(run, before, pooled, waited=False), misfits


def _compare(run: WarmupRun, previous: Pooled, pooled: Pooled) -> Agreement:
    common = previous.counts & pooled.counts
    of_common = pooled.moments.of(common)
    return Agreement(
        step=change_of_step(previous.states.step_size, pooled.states.step_size),
        metric=change_of_metric(previous.states.metric.scales(), pooled.states.metric.scales()),
        drift=drift(previous.moments.of(common).centre, of_common.centre, of_common.pooled_variance),
        memory=memory(pooled.moments.of(pooled.counts), run.superchain[pooled.counts]),
        single=single(run),
    )
