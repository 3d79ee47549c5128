"""Samplers as what an experiment measures."""

from __future__ import annotations

from batchnuts.experiments.harness.experiment import Subject
from batchnuts.experiments.harness.row_by_row import RowByRow
from batchnuts.experiments.samplers.config import ExperimentConfig, load_experiment
from batchnuts.experiments.samplers.measurements import Measurement
from batchnuts.experiments.samplers.results import Results
from batchnuts.experiments.samplers.summary import claims_table, how_made

SAMPLERS: Subject[ExperimentConfig, Measurement, Results] = Subject(
    load=load_experiment,
    measuring=RowByRow,
    rows=Measurement,
    results=Results,
    target="problem",
    sizes="chains",
    claims=claims_table,
    how_made=how_made,
)
