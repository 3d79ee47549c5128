"""Posteriors as what an experiment measures."""

from __future__ import annotations

from batchnuts.experiments.harness.experiment import Subject
from batchnuts.experiments.harness.row_by_row import RowByRow
from batchnuts.experiments.posterior_checks.config import PosteriorsConfig, load_posteriors
from batchnuts.experiments.posterior_checks.measurements import Measurement
from batchnuts.experiments.posterior_checks.results import PosteriorResults
from batchnuts.experiments.posterior_checks.summary import how_made, verdicts_table

POSTERIORS: Subject[PosteriorsConfig, Measurement, PosteriorResults] = Subject(
    load=load_posteriors,
    measuring=RowByRow,
    rows=Measurement,
    results=PosteriorResults,
    target="posterior",
    sizes="chains",
    claims=verdicts_table,
    how_made=how_made,
)
