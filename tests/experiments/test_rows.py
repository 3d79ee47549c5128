"""Rows of CSV: what is read is what was written, and what is not a row is named."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from batchnuts.experiments.harness import rows, task
from batchnuts.experiments.harness.rows import MeasurementsError, RowsFile, Status
from batchnuts.experiments.harness.task import Attempt, Preparation, row_of
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


@dataclass(frozen=True)
class Task(task.Task):
    """With options, a switch, and a field that does not identify it."""

    calls: int
    options: dict[str, int]
    switch: bool
    folder: str = field(compare=False)

    size_field = "calls"
    size_words = "{} calls"


@dataclass(frozen=True)
class Told(rows.Row):
    """Columns of which some are the task's, some the attempt's, and some figures."""

    task: str
    options: str
    switch: int
    calls: int
    status: Status
    repetition: int
    seconds: float | None
    of: str
    prepare_seconds: float | None
    load: float | None
    environment: str
    started: str
    note: str


def test_a_row_takes_each_column_by_its_name() -> None:
    one = Task(3, {"b": 1, "a": 2}, True, "here")
    attempt = Attempt("ok", 1, 7, "env", "now", Preparation(0.5), {"seconds": 2.0, "of": "x", "load": 0.1})
    assert row_of(Told, one, attempt) == Told(
        one.fingerprint(), '{"a": 2, "b": 1}', 1, 3, "ok", 1, 2.0, "x", 0.5, 0.1, "env", "now", ""
    )
    failed = row_of(Told, one, Attempt("failed", 0, 7, "env", "now", note="why\nso"))
    assert (failed.seconds, failed.of, failed.prepare_seconds, failed.note) == (None, "", None, "why so")
    with pytest.raises(AssertionError, match="Told has no column secnods"):
        row_of(Told, one, replace(attempt, figures={"secnods": 2.0}))


def test_tasks_that_differ_only_in_size_are_a_line() -> None:
    one = Task(3, {}, True, "here")
    assert replace(one, calls=4_000).line == one.line != replace(one, switch=False).line
    assert replace(one, folder="there").fingerprint() == one.fingerprint() != replace(one, calls=4).fingerprint()
    assert replace(one, calls=4_000).size_in_words == "4,000 calls"


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
