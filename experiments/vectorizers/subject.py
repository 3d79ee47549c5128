"""Vectorizers as what an experiment measures."""

from __future__ import annotations

from batchnuts.experiments.harness.experiment import Subject
from batchnuts.experiments.harness.whole_groups import WholeGroups
from batchnuts.experiments.vectorizers.config import VectorizingConfig, load_vectorizing
from batchnuts.experiments.vectorizers.measurements import Measurement
from batchnuts.experiments.vectorizers.results import VectorizingResults
from batchnuts.experiments.vectorizers.summary import claims_table, how_made

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
