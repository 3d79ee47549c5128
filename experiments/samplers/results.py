"""Measurements of samplers: measures by curve, problem and number of chains, and verdicts on claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from batchnuts.experiments.harness.results import ClaimResults, Value, Verdict
from batchnuts.experiments.harness.summary import shown
from batchnuts.experiments.samplers.config import Claim, ExperimentConfig, Measure
from batchnuts.experiments.samplers.task import Measurement

Summary = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Quantity:
    """How a measure is read off a run, summed up over the repetitions, and named on an axis."""

    of: Callable[[Measurement], float | None]
    summary: Summary
    axis: str
    digits: str
    """A format specification."""
    how: str
    """How the repetitions are summed up, in words."""


QUANTITIES: Mapping[Measure, Quantity] = {
    "rate": Quantity(lambda run: run.rate, max, "useful gradients per second", ",.3g", "best"),
    "typical_rate": Quantity(lambda run: run.rate, statistics.median, "useful gradients per second", ",.3g", "median"),
    "utilization": Quantity(
        lambda run: run.utilization, statistics.fmean, "utilization of the gradient", ".3f", "mean"
    ),
    "lockstep_utilization": Quantity(
        lambda run: run.lockstep_utilization, statistics.fmean, "utilization in lockstep", ".3f", "mean"
    ),
    "asynchronous_utilization": Quantity(
        lambda run: run.asynchronous_utilization, statistics.fmean, "utilization without waiting", ".3f", "mean"
    ),
    "ess_per_minute": Quantity(
        lambda run: run.ess_per_minute, statistics.median, "effective samples per minute (minimum)", ",.3g", "median"
    ),
    "ess_per_second": Quantity(
        lambda run: None if run.ess_per_minute is None else run.ess_per_minute / 60,
        statistics.median,
        "effective samples per second (minimum)",
        ",.3g",
        "median",
    ),
    "compile_seconds": Quantity(
        lambda run: run.prepare_seconds, statistics.median, "seconds to compile and run once", ",.3g", "median"
    ),
    "peak_memory": Quantity(lambda run: run.peak_memory_mb, max, "peak memory of the process, MB", ",.4g", "largest"),
}


@dataclass(frozen=True)
class Results(ClaimResults[ExperimentConfig, Measurement]):
    """The results of an experiment on samplers."""

    def value(self, measure: Measure, curve: str, problem: str, chains: int) -> Value | None:
        """A measure at one point; None where nothing was measured, or the sampler does not report it.

        None too where a run has no such figure: the effective sample size of very few draws, or of chains that stay.
        """
        quantity = QUANTITIES[measure]
        values = [quantity.of(run) for run in self.runs_of(curve, problem, chains)]
        figures = [figure for figure in values if figure is not None]
        if any(math.isnan(figure) for figure in figures):
            return None
        return Value.of(chains, figures, quantity.summary)

    def values(self, measure: Measure, curve: str, problem: str) -> list[Value]:
        """A measure along a curve, at points that have it."""
        if problem not in self.config.problems_of(curve):
            return []
        points = (self.value(measure, curve, problem, chains) for chains in self.config.chains_of(curve))
        return [point for point in points if point is not None]

    def judge(self, claim: Claim) -> Verdict:
        """A claim beside its figure, which may be the ratio of two."""
        problem = claim.problem or next(iter(self.config.problems))
        seen = self._at(claim.measure, claim.curve, problem, claim.chains)
        digits = QUANTITIES[claim.measure].digits
        if claim.over_curve is not None:
            below = self._at(claim.measure, claim.over_curve, problem, claim.over_chains or claim.chains)
            seen, digits = ratio(seen, below), ".3g"
        words = "-" if seen is None else shown(seen, digits, (claim.at_least, claim.at_most))
        return Verdict(claim, seen, words, self._in_words(claim))

    def _at(self, measure: Measure, curve: str, problem: str, chains: int | None) -> Value | None:
        values = self.values(measure, curve, problem)
        if chains is None:
            return max(values, key=lambda value: value.value, default=None)
        return next((value for value in values if value.size == chains), None)

    def _in_words(self, claim: Claim) -> str:
        """The figure that a claim is about."""
        config = self.config

        def curve_in_words(curve: str, chains: int | None) -> str:
            size = "its largest" if chains is None else f"{chains:,} chains"
            return f"{config.curves[curve].label} ({size})"

        words = f"{QUANTITIES[claim.measure].axis} of {curve_in_words(claim.curve, claim.chains)}"
        if claim.over_curve is not None:
            words += f" / {curve_in_words(claim.over_curve, claim.over_chains or claim.chains)}"
        return words if claim.problem is None else f"{words}, {config.problems[claim.problem].label}"


def ratio(above: Value | None, below: Value | None) -> Value | None:
    """The ratio of two figures; None where there is none, or the lower one may be 0."""
    return None if above is None or below is None or below.low <= 0 else above.over(below)
