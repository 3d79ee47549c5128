"""What the summary of the benchmark of vectorizers says of how it was measured."""

from __future__ import annotations

from batchnuts.experiments.harness.experiment import Subject
from batchnuts.experiments.harness.summary import claims_table
from batchnuts.experiments.harness.whole_groups import WholeGroups
from batchnuts.experiments.vectorizers.config import VectorizingConfig, load_vectorizing
from batchnuts.experiments.vectorizers.results import VectorizingResults
from batchnuts.experiments.vectorizers.task import Measurement


def how_made(results: VectorizingResults) -> list[str]:
    """How far outputs are apart, and how the figures were summed up."""
    apart = max((row.difference for row in results.runs() if row.difference is not None), default=0.0)
    return [
        f"- The outputs of all ways agree to {apart:.1g} of their norm.",
        f"- Every point has {results.config.measurement.repetitions} timings, all in measurements.csv. Speeds are "
        "their median. A ratio is the median over the repetitions, each of which times all ways, in an order that "
        "changes; ranges are over all of them.",
    ]


VECTORIZERS: Subject[VectorizingConfig, Measurement, VectorizingResults] = Subject(
    load=load_vectorizing,
    measuring=WholeGroups,
    rows=Measurement,
    results=VectorizingResults,
    target="workload",
    sizes="sizes",
    claims=claims_table,
    how_made=how_made,
)
