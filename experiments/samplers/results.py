"""Measurements of samplers: measures by curve, problem and number of chains, and verdicts on claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from batchnuts.experiments.harness.results import PointResults, Value, word
from batchnuts.experiments.samplers.config import Claim, ExperimentConfig, Measure
from batchnuts.experiments.samplers.measurements import Measurement

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
class Results(PointResults[ExperimentConfig, Measurement]):
    """The results of an experiment on samplers."""

    def value(self, measure: Measure, curve: str, problem: str, chains: int) -> Value | None:
        """A measure at one point; None where nothing was measured, or the sampler does not report it.

        None too where a run has no such figure: the effective sample size of very few draws, or of chains that stay.
        """
        quantity = QUANTITIES[measure]
        values = [quantity.of(row) for row in self.rows_of(curve, problem, chains) if row.ok]
        figures = [figure for figure in values if figure is not None]
        if not figures or any(math.isnan(figure) for figure in figures):
            return None
        return Value(chains, quantity.summary(figures), min(figures), max(figures), len(figures))

    def values(self, measure: Measure, curve: str, problem: str) -> list[Value]:
        """A measure along a curve, at points that have it."""
        if problem not in self.config.problems_of(curve):
            return []
        points = (self.value(measure, curve, problem, chains) for chains in self.config.chains_of(curve))
        return [point for point in points if point is not None]


@dataclass(frozen=True)
class Verdict:
    """A claim beside what was seen."""

    claim: Claim
    seen: Value | None
    """The claim's figure with the range that the repetitions allow; None if a part of it was not measured."""

    @property
    def word(self) -> str:
        """Whether the claim holds, as `results.word` says; or that it was not measured."""
        return "not measured" if self.seen is None else word(self.seen, self.claim.at_least, self.claim.at_most)


def judge(results: Results, claim: Claim) -> Verdict:
    """Look a claim's figure up; a ratio's range is from the smallest over the largest to the largest over the
    smallest."""
    problem = claim.problem or next(iter(results.config.problems))
    above = _at(results, claim.measure, claim.curve, problem, claim.chains)
    if claim.over_curve is None or above is None:
        return Verdict(claim, above)
    chains = claim.over_chains or claim.chains
    below = _at(results, claim.measure, claim.over_curve, problem, chains)
    return Verdict(claim, None if below is None else ratio(above, below))


def ratio(above: Value, below: Value) -> Value | None:
    """The ratio of two figures, with the widest range that repetitions allow; None where the lower one may be 0."""
    if below.low <= 0:
        return None
    return Value(
        above.size,
        above.value / below.value,
        above.low / below.high,
        above.high / below.low,
        min(above.repetitions, below.repetitions),
    )


def _at(results: Results, measure: Measure, curve: str, problem: str, chains: int | None) -> Value | None:
    values = results.values(measure, curve, problem)
    if chains is None:
        return max(values, key=lambda value: value.value, default=None)
    return next((value for value in values if value.size == chains), None)
