"""An ensemble start: the burn-in of all chains by isokinetic Langevin dynamics, before the first window of NUTS.

Each step takes one gradient of every chain, and none is rejected for its energy, so an ensemble gets to the typical set
with far fewer gradients than NUTS, whose trajectories are long where nothing is adapted yet. What it holds there is
biased by its step size; windows of NUTS follow, which know no such bias, and check what it gives them: positions, the
metric, and the mean of all chains.

All is taken from the ensemble as it is at that time. The scale of each coordinate lies half way between the spread of
all chains, by which they come out of places where they began together, and that of the metric `diag`, which is right
for a normal posterior wherever chains are in it; where they have settled the two are the same. Correlations are those
of the last window where the metric has any, and the step size follows the variance of the energy's changes. It ends as
warmup does, when two windows in a row and the superchains agree (agreement.py).

Source: Robnik et al., "Late adjusted parallel sampling", arXiv 2601.16696, section 3: [L].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.execution.metric_draws import MOST_DRAWS
from batchnuts.mcmc.kernel.isokinetic import IsokineticSteps
from batchnuts.mcmc.kernel.metric_estimates import BOUND, MetricParameters, estimate, unit_metric
from batchnuts.mcmc.settings.metric_kinds import METRIC_KINDS
from batchnuts.mcmc.settings.run_settings import SamplerSettings
from batchnuts.mcmc.statistics.outliers import find_outliers
from batchnuts.mcmc.statistics.window_moments import Centre, Moments, moments_of
from batchnuts.mcmc.warmup.agreement import STANDARD_ERRORS, Agreement, change_of_metric, drift, memory
from batchnuts.mcmc.warmup.arrival import deep, implausible

GOAL = 0.1
"""The variance of a step's energy error for each dimension, where equipartition is wrong by all of it; [L] C_alpha."""

FARTHEST = 1e12
"""The largest departure from equipartition that allows longer steps. Chains that are far away may take them: all of
their energy becomes that of others, and none of it is an error yet."""

FIRST_STEP = 0.01
"""The first step over sqrt(dimension): a small share of the size of a typical set of unit scale."""

CHANGE = 0.3, 3.0
"""By how much a call may change the step size."""

MOST_DIVERGED = 0.1
"""The share of all steps of a call that may diverge before the step size is halved."""

MOST_REDRAWN = 0.5
"""The share of chains that may go on from the places of others."""

SNAPSHOTS = 20
"""Calls of a window, after each of which positions are looked at and the step size is set."""

FIRST, GROWTH = 10, 1.5
"""Steps of the first window, and how much longer each is than the one before."""

METRIC_TOLERANCE = 0.25
"""By how much the metric may still change: NUTS corrects it, and few chains in rare places move it for long."""

TRANSITIONS = 0.7
"""The ratio of NUTS's step size, at an acceptance of 0.8, to the ensemble's: the median of ten packaged models."""

MAXIMUM = 500
"""Steps at which the ensemble gives up."""


class EnsembleRun(Protocol):
    """What the burn-in asks of a run."""

    @property
    def sampler(self) -> SamplerSettings:
        """What is sampled, and how."""

    @property
    def superchain(self) -> NDArray[np.int64]:
        """[chains]: the number of each chain's superchain."""

    def use(self, metric: MetricParameters) -> NDArray[Any]:
        """Let programs that start from now on have this metric."""

    def isokinetic_steps(self, ensemble: Ensemble, count: int) -> IsokineticSteps:
        """So many steps of all chains."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """All chains between two calls."""

    position: NDArray[Any]
    """[chains, dimension]."""
    velocity: NDArray[Any]
    """[chains, dimension]: unit vectors."""
    log_density: NDArray[Any]
    gradient: NDArray[Any]
    """[chains, dimension]."""
    metric: MetricParameters
    """Its scales are given with each call; its correlations are those that programs use."""
    step: float
    """In units of the metric's scales."""
    done: int = 0

    @property
    def decoherence(self) -> float:
        """The time in which a velocity is forgotten: sqrt(dimension), the size of a standard normal's typical set."""
        return math.sqrt(self.position.shape[1])

    @property
    def step_of_transitions(self) -> float:
        """About the step size of NUTS, whose momenta are sqrt(dimension) times as long as this velocity."""
        return TRANSITIONS * self.step / math.sqrt(self.position.shape[1])


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All chains after a call."""

    position: NDArray[Any]
    """[chains, dimension]."""
    log_density: NDArray[Any]
    gradient: NDArray[Any]
    """[chains, dimension]."""


@dataclass(frozen=True, eq=False)
class EnsembleWindow:
    """What is compared with the next window's, of the second half of a window."""

    moments: Moments
    counts: NDArray[np.bool_]
    """[chains]: which are no outliers."""
    metric: MetricParameters


@dataclass(frozen=True, eq=False)
class BurnIn:
    """A burn-in between two calls: all that the rest of it depends on."""

    ensemble: Ensemble
    length: float
    """The window's length, but for rounding and for what is left of MAXIMUM."""
    began: int
    """The steps before the window."""
    seen: tuple[Snapshot, ...]
    """What the second half of the window has seen so far."""
    made: NDArray[np.int64]
    """[chains]: the window's steps that did not diverge."""
    before: EnsembleWindow | None
    """The last window; None in the first one."""
    missing: tuple[str, ...]
    """What the last two windows did not agree about, in words; empty where they did."""
    redrawn: NDArray[np.bool_]
    """[chains]: which went on from another one's place."""
    is_over: bool = False

    @property
    def steps(self) -> int:
        """The window's steps; a remainder shorter than the next window joins this one."""
        steps, remaining = round(self.length), MAXIMUM - self.began
        return remaining if remaining < steps + round(GROWTH * self.length) else steps

    @property
    def centre(self) -> Centre:
        """[dimension]: of all chains in the last window."""
        assert self.before is not None, "there is one by then"
        return self.before.moments.of(self.before.counts).centre.of_position


def begin(
    sampler: SamplerSettings, position: NDArray[Any], log_density: NDArray[Any], gradient: NDArray[Any]
) -> BurnIn:
    """A burn-in from positions [chains, dimension], each chain in a random direction."""
    chains, dimension = position.shape
    velocity = np.random.default_rng((sampler.seed, 0, chains)).normal(size=position.shape)
    velocity = (velocity / np.linalg.norm(velocity, axis=1, keepdims=True)).astype(position.dtype)
    metric, step = unit_metric(dimension, sampler.metric), FIRST_STEP * math.sqrt(dimension)
    ensemble = Ensemble(position, velocity, log_density, gradient, metric, step)
    none, one = np.zeros(chains, np.int64), ("there was one window only",)
    return BurnIn(ensemble, FIRST, 0, (), none, None, one, np.zeros(chains, bool))


def after_call(run: EnsembleRun, burn_in: BurnIn) -> BurnIn:
    """The burn-in after some more steps, and, where they end a window, after what is compared and decided then."""
    calls = min(SNAPSHOTS, burn_in.steps)
    bounds = burn_in.began + np.arange(calls + 1) * burn_in.steps // calls
    call = int(np.searchsorted(bounds, burn_in.ensemble.done))
    count = int(bounds[call + 1] - bounds[call])
    result = run.isokinetic_steps(burn_in.ensemble, count)
    seen = (Snapshot(result.position, result.log_density, result.gradient),) if call >= calls // 2 else ()
    after = replace(
        burn_in,
        ensemble=controlled(burn_in.ensemble, result, count),
        seen=(*burn_in.seen, *seen),
        made=burn_in.made + result.made,
    )
    return after if call + 1 < calls else _after_window(run, after)


def _after_window(run: EnsembleRun, burn_in: BurnIn) -> BurnIn:
    window, before, ensemble = _reduced(run, burn_in), burn_in.before, burn_in.ensemble
    missing = burn_in.missing if before is None else _compare(run, before, window).missing()
    again = _without_a_place(burn_in, window)
    if run.sampler.warmup.restart is False:
        again = np.zeros_like(again)
    if again.any():
        ensemble = _redrawn(run, ensemble, again)
    if METRIC_KINDS[run.sampler.metric].has_directions:
        run.use(window.metric)
        ensemble = replace(ensemble, metric=window.metric)
    return BurnIn(
        ensemble,
        burn_in.length * GROWTH,
        ensemble.done,
        (),
        np.zeros_like(burn_in.made),
        window,
        missing,
        burn_in.redrawn | again,
        is_over=ensemble.done >= MAXIMUM or not (missing or again.any()),
    )


def controlled(ensemble: Ensemble, result: IsokineticSteps, count: int) -> Ensemble:
    """The ensemble after so many steps, with the scale and the step size for the next ones."""
    dimension = result.position.shape[1]
    made = float(np.sum(result.made))
    total, squares = (
        float(np.sum(result.error_sum, dtype=np.float64)),
        float(np.sum(result.error_squares, dtype=np.float64)),
    )
    if made < (1 - MOST_DIVERGED) * count * len(result.made):
        factor = 0.5
    else:
        error = squares / made - (total / made) ** 2
        # the step size enters the error by its third power, as in a leapfrog step of one dimension: [L] equation (8)
        wanted = GOAL * min(departure(result.position, result.gradient), FARTHEST) ** (3 / 8)
        factor = float(np.clip((wanted * dimension / max(error, 1e-30)) ** (1 / 6), *CHANGE))
    by_gradients = estimate("diag", result.position, result.gradient, 0).inverse_mass
    of_chains = np.var(result.position, axis=0, dtype=np.float64)
    variance = np.sqrt(by_gradients * np.where(of_chains > 0, of_chains, by_gradients))
    inverse_mass = variance * ensemble.metric.inverse_mass / ensemble.metric.scales()[0]  # what is not by correlations
    inverse_mass = np.clip(inverse_mass, 1 / BOUND, BOUND)
    return Ensemble(
        result.position,
        result.velocity,
        result.log_density,
        result.gradient,
        replace(ensemble.metric, inverse_mass=inverse_mass),
        ensemble.step * factor,
        ensemble.done + count,
    )


def departure(position: NDArray[Any], gradient: NDArray[Any]) -> float:
    """How far the ensemble is from equipartition, E[-(x_i - E x_i) d log pi / dx_i] = 1: the mean over coordinates of
    the squared differences ([L] equation (6))."""
    about = position - position.mean(axis=0, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(np.mean((1 + np.mean(about * gradient, axis=0)) ** 2))
    return value if math.isfinite(value) else math.inf


def _reduced(run: EnsembleRun, burn_in: BurnIn) -> EnsembleWindow:
    seen = burn_in.seen
    position, log_density = (
        np.stack([getattr(each, name) for each in seen], 1) for name in ("position", "log_density")
    )
    chains, calls = log_density.shape
    moments = moments_of(position, log_density, np.full(chains, calls), second_half=False, errors=single(run))
    counts = ~(find_outliers(moments) | implausible(moments, log_density[:, -1]))
    last = seen[-max(1, MOST_DRAWS // chains) :]
    drawn, gradients = (
        np.concatenate([getattr(each, name)[counts] for each in last]) for name in ("position", "gradient")
    )
    return EnsembleWindow(moments, counts, estimate(run.sampler.metric, drawn, gradients, run.sampler.metric_rank))


def _compare(run: EnsembleRun, previous: EnsembleWindow, window: EnsembleWindow) -> Agreement:
    moments, common = window.moments.of(window.counts), previous.counts & window.counts
    before, now = (each.moments.of(common) for each in (previous, window))
    return Agreement(
        step=0.0,
        metric=change_of_metric(previous.metric.scales(), window.metric.scales()),
        drift=drift(before.centre, now.centre, now.pooled_variance),
        memory=memory(moments, run.superchain[window.counts], STANDARD_ERRORS),
        single=single(run),
        metric_tolerance=METRIC_TOLERANCE,
    )


def single(run: EnsembleRun) -> bool:
    """Whether each chain is a superchain of its own."""
    return len(np.unique(run.superchain)) == run.sampler.chain_count


def _without_a_place(burn_in: BurnIn, window: EnsembleWindow) -> NDArray[np.bool_]:
    """[chains]: which could not move in a window, and which are where nothing that matters can be; none where these are
    most of all."""
    stuck = 2 * burn_in.made < burn_in.steps
    lost = stuck | deep(window.moments, burn_in.ensemble.log_density)
    return lost if lost.mean() <= MOST_REDRAWN else np.zeros_like(lost)


def _redrawn(run: EnsembleRun, ensemble: Ensemble, lost: NDArray[np.bool_]) -> Ensemble:
    """The ensemble with each of these chains where one of the others is, drawn at random, in the opposite direction."""
    rng, place = np.random.default_rng((run.sampler.seed, ensemble.done)), np.arange(len(lost))
    place[lost] = rng.choice(np.flatnonzero(~lost), int(lost.sum()))
    return replace(
        ensemble,
        position=ensemble.position[place],
        velocity=np.where(lost[:, None], -1, 1).astype(ensemble.velocity.dtype) * ensemble.velocity[place],
        log_density=ensemble.log_density[place],
        gradient=ensemble.gradient[place],
    )
