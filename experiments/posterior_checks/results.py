"""What the measurements say of each posterior: comparisons with its reference, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scipy import stats

from batchnuts.cli.config import build_model
from batchnuts.experiments.harness.results import PointResults
from batchnuts.experiments.posterior_checks.config import KNOWN, PosteriorsConfig
from batchnuts.experiments.posterior_checks.moments import Comparison, Moments, MomentsError, compare, decode
from batchnuts.experiments.posterior_checks.task import Measurement
from batchnuts.experiments.posterior_checks.truths import known_moments


@dataclass(frozen=True)
class Compared:
    """A run beside its reference, or why it is not."""

    curve: str
    problem: str
    comparisons: tuple[Comparison, ...]
    trouble: str = ""
    """Why there are none."""
    skipped: bool = False
    """There are none because a library is not installed: no fault of the posterior's."""

    @property
    def worst(self) -> Comparison | None:
        """The comparison with the largest |z|."""
        return max(self.comparisons, key=lambda comparison: abs(comparison.z), default=None)

    @property
    def rms(self) -> float:
        """Root of the mean square of z: 1 where both posteriors are the same and their errors are right."""
        return math.sqrt(sum(comparison.z**2 for comparison in self.comparisons) / len(self.comparisons))


@dataclass(frozen=True)
class Verdict:
    """The verdict on one run of ours."""

    compared: Compared
    reasons: tuple[str, ...]
    """Reasons why it is wrong; empty if it is right."""

    @property
    def right(self) -> bool:
        """Nothing is wrong."""
        return not self.reasons


@dataclass(frozen=True)
class PosteriorResults(PointResults[PosteriorsConfig, Measurement]):
    """The results of the check of posteriors."""

    def run_of(self, curve: str, problem: str) -> Measurement | None:
        """The run of a curve on a problem, if there is one."""
        if curve not in self.config.curves_of(problem):
            return None
        return next(iter(self.runs_of(curve, problem, self.config.size(curve, problem))), None)

    @cached_property
    def truths(self) -> Mapping[str, Moments | None]:
        """What is known without a sampler, of the problems that are compared with it and have a run."""
        configs = self.config.configs
        return {
            name: known_moments(configs[name].model, build_model(configs[name].model))
            if problem.moments is None
            else decode(Path(problem.moments).read_text(encoding="utf-8"))
            for name, problem in self.config.problems.items()
            if problem.reference == KNOWN and any(self.run_of(curve, name) for curve in self.config.curves)
        }

    def reference_of(self, problem: str) -> Moments | str:
        """The moments that a problem's posterior should have; or why there are none."""
        reference = self.config.problems[problem].reference
        if reference == KNOWN:
            truth = self.truths[problem]
            return truth if truth is not None else "no reference: nothing is known of this model (truths.py)"
        row = self.run_of(reference, problem)
        if row is None:
            why = self.why_no_run(reference, problem, self.config.size(reference, problem))
            return f"no reference: {self.config.curves[reference].label} has no run ({why})"
        if not (row.rhat is not None and row.rhat < self.config.verdict.rhat):
            return f"no reference: R-hat of {self.config.curves[reference].label} is {shown_rhat(row)} ({row.rhat_of})"
        return row.decoded

    @cached_property
    def compared(self) -> list[Compared]:
        """Every run but the references' own beside its reference, in the order of the config."""
        comparisons = []
        for curve, problem, _ in self.config.points():
            if curve == self.config.problems[problem].reference:
                continue
            comparisons.append(self._comparison(curve, problem))
        return comparisons

    def _comparison(self, curve: str, problem: str) -> Compared:
        row = self.run_of(curve, problem)
        if row is None:
            point = curve, problem, self.config.size(curve, problem)
            missing = any(other.status == "missing" for other in self.rows_of(*point))
            return Compared(curve, problem, (), self.why_no_run(*point), skipped=missing)
        reference = self.reference_of(problem)
        if isinstance(reference, str):
            return Compared(curve, problem, (), reference)
        try:
            return Compared(curve, problem, tuple(compare(row.decoded, reference)))
        except MomentsError as error:
            return Compared(curve, problem, (), str(error))

    @property
    def judged(self) -> list[Compared]:
        """The comparisons of our sampler."""
        return [compared for compared in self.compared if self.config.curves[compared.curve].ours]

    @cached_property
    def bound(self) -> float:
        """On |z|: all comparisons of our sampler together pass it by chance with the probability `verdict.alpha`."""
        count = sum(len(compared.comparisons) for compared in self.judged)
        return float(stats.norm.isf(self.config.verdict.alpha / 2 / max(count, 1)))

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """The verdict on every run of ours."""
        return [Verdict(compared, tuple(self._reasons(compared))) for compared in self.judged]

    @property
    def failures(self) -> list[Verdict]:
        """The posteriors that are not right. What is skipped is none of them."""
        return [verdict for verdict in self.verdicts if not verdict.right and not verdict.compared.skipped]

    def _reasons(self, compared: Compared) -> list[str]:
        limits, row = self.config.verdict, self.run_of(compared.curve, compared.problem)
        reasons = [compared.trouble] if compared.trouble else []
        beyond = [comparison for comparison in compared.comparisons if not abs(comparison.z) <= self.bound]
        if beyond:
            worst = max(beyond, key=lambda comparison: abs(comparison.z))
            reasons.append(
                f"{len(beyond)} of {len(compared.comparisons)} |z| above {self.bound:.2f}, the largest "
                f"{worst.statistic} of {worst.element}: {worst.found:.4g}, expected {worst.expected:.4g}, z = "
                f"{worst.z:.1f}"
            )
        if row is not None and not (row.rhat is not None and row.rhat < limits.rhat):
            reasons.append(f"R-hat {shown_rhat(row)} ({row.rhat_of}), expected below {limits.rhat:g}")
        if row is not None and (row.divergences or 0) > limits.divergences * row.chains * row.draws:
            share = 100 * (row.divergences or 0) / (row.chains * row.draws)
            reasons.append(f"{share:.3g}% of the draws diverged, expected {100 * limits.divergences:g}% at most")
        return reasons


def shown_rhat(row: Measurement) -> str:
    """A run's largest R-hat, in words where there is none."""
    return "not defined" if row.rhat is None or math.isnan(row.rhat) else f"{row.rhat:.4f}"
