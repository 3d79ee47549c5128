"""Measurements of vectorizers as pictures and tables look at them: speeds, ratios of curves, verdicts on claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from batchnuts.experiments.harness.results import ClaimResults, Value, Verdict
from batchnuts.experiments.harness.summary import shown
from batchnuts.experiments.vectorizers.config import Claim, VectorizingConfig
from batchnuts.experiments.vectorizers.task import Measurement


@dataclass(frozen=True)
class VectorizingResults(ClaimResults[VectorizingConfig, Measurement]):
    """The results of an experiment on vectorizers."""

    def rate(self, curve: str, workload: str, size: int) -> Value | None:
        """Units per second: the median of the repetitions; None where nothing was measured."""
        return Value.of(size, [run.rate for run in self.runs_of(curve, workload, size)])

    def rates(self, curve: str, workload: str) -> list[Value]:
        """Rates along the sizes, where there is one."""
        rates = (self.rate(curve, workload, size) for size in self.config.workloads[workload].sizes)
        return [value for value in rates if value is not None]

    def ratio(self, curve: str, over: str, workload: str, size: int) -> Value | None:
        """How many times as fast one curve is as another: the median over the repetitions, each of which compares
        timings made side by side, and their range. None unless both were measured, in one group."""
        above, below = (
            {(run.group, run.repetition): run.rate for run in self.runs_of(name, workload, size)}
            for name in (curve, over)
        )
        return Value.of(size, [above[turn] / below[turn] for turn in above.keys() & below.keys()])

    def ratios(self, claim: Claim) -> Iterator[tuple[str, Value]]:
        """(workload, ratio) of all points that a claim is about and that have both curves."""
        for workload, size, curves in self.config.groups():
            about = claim.workloads is None or workload in claim.workloads
            if about and claim.size in (None, size) and {claim.curve, claim.over_curve} <= set(curves):
                ratio = self.ratio(claim.curve, claim.over_curve, workload, size)
                if ratio is not None:
                    yield workload, ratio

    def judge(self, claim: Claim) -> Verdict:
        """A claim beside the minimum of its ratios."""
        curves = self.config.curves
        figure = f"speed of {curves[claim.curve].label} / {curves[claim.over_curve].label}"
        ratios = list(self.ratios(claim))
        if not ratios:
            return Verdict(claim, None, figure=figure, where="-")
        workload, lowest = min(ratios, key=lambda ratio: ratio[1].value)
        where = f"{self.config.workloads[workload].label}, {lowest.size:,} (minimum of {len(ratios)})"
        return Verdict(claim, lowest, shown(lowest, ".3g", (claim.at_least, claim.at_most)), figure, where)
