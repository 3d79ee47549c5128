"""What the summary of the benchmark of vectorizers says of claims, and of how it was measured."""

from __future__ import annotations

from batchnuts.experiments.harness.summary import shown, table, when
from batchnuts.experiments.vectorizers.config import Claim
from batchnuts.experiments.vectorizers.results import VectorizingResults


def claims_table(results: VectorizingResults) -> str:
    """Every claim with its verdict."""
    if not results.config.claims:
        return ""
    rows = []
    for claim in results.config.claims.values():
        lowest, verdict = results.judge(claim)
        figure, place = "-", "-"
        if lowest is not None:
            figure = shown(lowest.value, ".3g", (claim.at_least,))
            label = results.config.workloads[lowest.workload].label
            place = f"{label}, {lowest.value.size:,} (minimum of {len(results.ratios(claim))})"
        rows.append(
            (claim.says, claim.source, _figure(results, claim), f"≥ {claim.at_least:g}", figure, place, verdict)
        )
    head = ("claim", "source", "figure", "holds from", "seen here (range)", "where", "verdict")
    return "## Claims\n\n" + table(head, [(*row[:-1], f"**{row[-1]}**") for row in rows])


def _figure(results: VectorizingResults, claim: Claim) -> str:
    curves = results.config.curves
    return f"speed of {curves[claim.curve].label} / {curves[claim.over_curve].label}"


def how_made(results: VectorizingResults) -> list[str]:
    """The days, and how the figures were summed up."""
    runs = results.runs()
    lines = []
    if runs:
        lines.append(f"- {len(runs)} timings, {when(runs)}.")
        apart = max((row.difference for row in runs if row.difference is not None), default=0.0)
        lines.append(f"- The outputs of all ways agree to {apart:.1g} of their norm.")
    lines.append(
        f"- Every point has {results.config.measurement.repetitions} timings, all in measurements.csv. Speeds are "
        "their median. A ratio is the median over the repetitions, each of which times all ways, in an order that "
        "changes; ranges are over all of them."
    )
    return lines
