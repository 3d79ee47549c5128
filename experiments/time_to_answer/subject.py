"""Times to an answer as what an experiment measures."""

from __future__ import annotations

from batchnuts.experiments.harness.experiment import Subject
from batchnuts.experiments.harness.row_by_row import RowByRow
from batchnuts.experiments.time_to_answer.config import AnswerConfig, load_answer
from batchnuts.experiments.time_to_answer.measurements import Measurement
from batchnuts.experiments.time_to_answer.results import AnswerResults
from batchnuts.experiments.time_to_answer.summary import claims_table, how_made

ANSWERS: Subject[AnswerConfig, Measurement, AnswerResults] = Subject(
    load=load_answer,
    measuring=RowByRow,
    rows=Measurement,
    results=AnswerResults,
    target="posterior",
    sizes="effective draws",
    claims=claims_table,
    how_made=how_made,
)
