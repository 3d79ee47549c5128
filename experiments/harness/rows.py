"""Measurements on disk: one CSV row per run, written as soon as it is done, and read back to continue where it
stopped."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError, create_model

from batchnuts.autobatch import BatchnutsError

Status = Literal["ok", "missing", "failed", "stopped"]


class MeasurementsError(BatchnutsError):
    """A measurements file that cannot be read; the message names the line."""


class Row:
    """Base of measurements: frozen dataclasses of numbers and texts, any of them `| None`.

    A subclass declares all columns of its file, in their order; these are among them, and mean the same everywhere.
    """

    task: str
    """The task's fingerprint: rows of one task belong together, whatever curve shows them."""
    status: Status
    """`ok`: a run; else why there is none, and figures are None."""
    repetition: int
    """The number of the run among the task's."""
    seconds: float | None
    load: float | None
    """The machine's load average before the run."""
    environment: str
    """A name of environment.json."""
    started: str
    """Date and time, UTC."""
    note: str
    """Why there is no run."""

    needed: ClassVar[tuple[str, ...]] = ("seconds",)
    """Columns without which there is no run: numbers above 0, and texts."""

    @property
    def ok(self) -> bool:
        """Whether it is a run."""
        return self.status == "ok"

    def lacks(self) -> str | None:
        """What the row lacks that its status requires, in words; None for a row in order."""
        if self.ok and any(_is_nothing(getattr(self, name)) for name in self.needed):
            return f"found a run (status ok) without {' or '.join(self.needed)}; expected numbers above 0, and texts"
        return None


class GroupRow(Row):
    """Base of measurements that name the group they were made in."""

    group: str
    """Rows with the same one were made in turns: each repetition compares all ways under the same load."""
    difference: float | None
    """Relative, of the outputs from those of the first way of the group; None where they are not compared."""


def _is_nothing(value: float | str | None) -> bool:
    return not value or (not isinstance(value, str) and value < 0)


Kind = TypeVar("Kind", bound=Row)

_REMEDY = "Delete that line, move the folder away, or start again with --fresh."


class RowsFile(Generic[Kind]):
    """A CSV file of rows of one kind that grows by one row at a time."""

    def __init__(self, path: Path, kind: type[Kind]) -> None:
        self.path = path
        self.kind = kind
        hints = get_type_hints(kind)
        self.columns = {field.name: hints[field.name] for field in fields(kind)}  # type: ignore[arg-type]
        self.schema = _schema(self.columns)

    def read(self) -> list[Kind]:
        """All rows so far. A last line that a crash cut short is dropped. Raises MeasurementsError for other damage."""
        if not self.path.exists():
            return []
        try:
            text = self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise MeasurementsError(f"{self.path}: found bytes that are not UTF-8 text ({error}). {_REMEDY}") from error
        if not text.endswith("\n"):
            text = text[: text.rfind("\n") + 1]
            self.path.write_text(text, encoding="utf-8")
        try:
            rows = list(csv.reader(text.split("\n")[:-1]))
        except csv.Error as error:
            raise MeasurementsError(f"{self.path}: found a file that is not CSV ({error}). {_REMEDY}") from error
        if not rows:
            return []
        if rows[0] != list(self.columns):
            raise MeasurementsError(
                f"{self.path}:1: found the columns {', '.join(rows[0])}; expected {', '.join(self.columns)}. The file "
                f"is damaged, or another version's. {_REMEDY}"
            )
        return [self._row(values, line) for line, values in enumerate(rows[1:], start=2)]

    def _row(self, values: Sequence[str], line: int) -> Kind:
        if len(values) != len(self.columns):
            raise MeasurementsError(
                f"{self.path}:{line}: found {len(values)} values; expected {len(self.columns)}. {_REMEDY}"
            )
        try:
            checked = self.schema.model_validate(dict(zip(self.columns, values, strict=True)))
        except ValidationError as error:
            first = error.errors()[0]
            column = str(first["loc"][0])
            raise MeasurementsError(
                f"{self.path}:{line}: column {column}: found {first['input']!r}; expected "
                f"{_expected(self.columns[column])}. {_REMEDY}"
            ) from error
        row = self.kind(**dict(checked))
        lacks = row.lacks()
        if lacks is not None:
            raise MeasurementsError(f"{self.path}:{line}: {lacks}. {_REMEDY}")
        return row

    def append(self, row: Kind) -> None:
        """Write one row, safely on disk when this returns."""
        new = not self.path.exists() or self.path.stat().st_size == 0
        with self.path.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            if new:
                writer.writerow(self.columns)
            writer.writerow(_values(row))
            stream.flush()
            os.fsync(stream.fileno())

    def rewrite(self, rows: Sequence[Kind]) -> None:
        """Replace the content, at once."""
        scratch = self.path.with_suffix(".new")
        with scratch.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(_values(row) for row in rows)
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(self.path)


def _values(row: Row) -> list[Any]:
    return ["" if value is None else value for value in asdict(row).values()]  # type: ignore[call-overload]


def _schema(columns: Mapping[str, Any]) -> type[BaseModel]:
    """Checks the texts of a row, and makes values of the columns' types of them."""
    kinds: dict[str, Any] = {name: (_from_text(kind), ...) for name, kind in columns.items()}
    return create_model("Columns", **kinds)


def _from_text(kind: Any) -> Any:
    """A column's type with what pydantic does not know of ours: an empty text is None, and no number is infinite."""
    rules: list[Any] = []
    if float in (kind, *get_args(kind)):
        rules.append(AfterValidator(_not_infinite))
    if NoneType in get_args(kind):
        rules.append(BeforeValidator(_none_if_empty))
    for rule in rules:
        kind = Annotated[kind, rule]
    return kind


def _not_infinite(number: float | None) -> float | None:
    if number is not None and math.isinf(number):
        raise ValueError("infinite")
    return number


def _none_if_empty(text: str) -> str | None:
    return text or None


def _expected(kind: Any) -> str:
    """A column's type in words."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return kind.__name__ if isinstance(kind, type) else str(kind)
