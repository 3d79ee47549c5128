"""Rows of CSV: what is read is what was written, and what is not a row is named."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batchnuts.experiments.harness import rows
from batchnuts.experiments.harness.rows import MeasurementsError, RowsFile, Status
from batchnuts.experiments.posterior_checks import task as posteriors
from batchnuts.experiments.samplers import task as samplers
from batchnuts.experiments.time_to_answer import task as answer
from batchnuts.experiments.vectorizers import task as vectorizers

RESULTS = sorted((Path(__file__).resolve().parents[2] / "docs" / "results").glob("*/measurements.csv"))


@dataclass(frozen=True)
class Row(rows.Row):
    """One column of each type."""

    task: str
    status: Status
    repetition: int
    calls: int | None
    seconds: float
    load: float | None

    needed = ("task", "seconds")


HEAD = "task,status,repetition,calls,seconds,load\n"


@pytest.fixture
def file(tmp_path: Path) -> RowsFile[Row]:
    return RowsFile(tmp_path / "rows.csv", Row)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_committed_results_are_read_and_written_back_byte_for_byte(path: Path, tmp_path: Path) -> None:
    kinds = {
        "answer": answer.Measurement,
        "pfor": vectorizers.Measurement,
        "posteriors": posteriors.Measurement,
    }
    kind: type[Any] = kinds.get(path.parent.name, samplers.Measurement)
    rows = RowsFile(path, kind).read()
    assert len(rows) == len(path.read_text().splitlines()) - 1
    copy = RowsFile(tmp_path / "copy.csv", kind)
    copy.rewrite(rows)
    assert copy.path.read_bytes() == path.read_bytes()


def test_values_have_the_types_of_their_columns(file: RowsFile[Row]) -> None:
    rows = [Row("a, b", "ok", 0, 3, 0.1 + 0.2, None), Row("", "failed", 1, None, 1e-300, 2.0)]
    for row in rows:
        file.append(row)
    assert file.read() == rows
    file.append(Row("c", "ok", 2, None, math.nan, math.nan))
    last = file.read()[-1]
    assert math.isnan(last.seconds)
    assert last.load is not None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a,ok,x,1,1.0,1.0", "column repetition: found 'x'; expected int"),
        ("a,ok,1.5,1,1.0,1.0", "column repetition: found '1.5'; expected int"),
        ("a,ok,,1,1.0,1.0", "column repetition: found ''; expected int"),
        ("a,ok,1,one,1.0,1.0", "column calls: found 'one'; expected int | None"),
        ("a,ok,1,1,,1.0", "column seconds: found ''; expected float"),
        ("a,ok,1,1,inf,1.0", "column seconds: found 'inf'; expected float"),
        ("a,ok,1,1,1.0,-inf", "column load: found '-inf'; expected float | None"),
        ("a,fine,1,1,1.0,1.0", "column status: found 'fine'; expected one of ok, missing, failed, stopped"),
        ("a,ok,1,1,0.0,1.0", "found a run (status ok) without task or seconds; expected numbers above 0, and texts"),
        ("a,ok,1,1,-1.0,1.0", "found a run (status ok) without task or seconds; expected numbers above 0, and texts"),
        ("a,ok,1,1,1.0", "found 5 values; expected 6"),
        (",ok,1,1,1.0,1.0", "found a run (status ok) without task or seconds; expected numbers above 0, and texts"),
    ],
)
def test_what_is_no_row_is_named_with_file_line_and_remedy(line: str, message: str, file: RowsFile[Row]) -> None:
    file.path.write_text(f"{HEAD}a,ok,0,,1.0,\n{line}\n")
    with pytest.raises(MeasurementsError) as caught:
        file.read()
    remedy = "Delete that line, move the folder away, or start again with --fresh."
    assert str(caught.value) == f"{file.path}:3: {message}. {remedy}"


def test_a_last_line_without_its_end_is_dropped_from_the_file(file: RowsFile[Row]) -> None:
    file.path.write_text(f"{HEAD}a,ok,0,,1.0,\na,ok,1,,1.")
    assert [row.repetition for row in file.read()] == [0]
    assert file.path.read_text() == f"{HEAD}a,ok,0,,1.0,\n"
