"""Measurements of vectorizers as pictures and tables look at them: speeds, and ratios of curves."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from batchnuts.experiments.harness.results import PointResults, Value, word
from batchnuts.experiments.vectorizers.config import Claim, VectorizingConfig
from batchnuts.experiments.vectorizers.measurements import Measurement


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one curve is as another at one point."""

    workload: str
    value: Value
    """The median over the repetitions, each of which compares timings made side by side; and their range."""


@dataclass(frozen=True)
class VectorizingResults(PointResults[VectorizingConfig, Measurement]):
    """The results of an experiment on vectorizers."""

    def rate(self, curve: str, workload: str, size: int) -> Value | None:
        """Units per second: the median of the repetitions; None where nothing was measured."""
        rates = [row.rate for row in self.rows_of(curve, workload, size) if row.ok]
        if not rates:
            return None
        return Value(size, statistics.median(rates), min(rates), max(rates), len(rates))

    def rates(self, curve: str, workload: str) -> list[Value]:
        """Rates along the sizes, where there is one."""
        rates = (self.rate(curve, workload, size) for size in self.config.workloads[workload].sizes)
        return [value for value in rates if value is not None]

    def ratio(self, curve: str, over: str, workload: str, size: int) -> Ratio | None:
        """The ratio of two curves' speeds; None unless both were measured, in one group."""
        above = {(row.group, row.repetition): row for row in self.rows_of(curve, workload, size) if row.ok}
        below = {(row.group, row.repetition): row for row in self.rows_of(over, workload, size) if row.ok}
        ratios = [above[turn].rate / below[turn].rate for turn in above.keys() & below.keys()]
        if not ratios:
            return None
        return Ratio(workload, Value(size, statistics.median(ratios), min(ratios), max(ratios), len(ratios)))

    def ratios(self, claim: Claim) -> list[Ratio]:
        """Ratios at all points that a claim is about and that have both curves."""
        ratios = []
        for workload, size, curves in self.config.groups():
            about = claim.workloads is None or workload in claim.workloads
            if about and claim.size in (None, size) and {claim.curve, claim.over_curve} <= set(curves):
                ratios.append(self.ratio(claim.curve, claim.over_curve, workload, size))
        return [ratio for ratio in ratios if ratio is not None]

    def judge(self, claim: Claim) -> tuple[Ratio | None, str]:
        """The minimum of the ratios, and the verdict on the claim."""
        ratios = self.ratios(claim)
        if not ratios:
            return None, "not measured"
        lowest = min(ratios, key=lambda ratio: ratio.value.value)
        return lowest, word(lowest.value, claim.at_least, None)
