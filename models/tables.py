"""Reading a user's table of features and 0/1 labels from CSV or NumPy files; every fault is named with its place."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.errors import BatchnutsError
from batchnuts.mcmc.settings import nearest

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_FORMATS = ".csv, .npy, .npz"


class DataError(BatchnutsError):
    """The user's data file is missing, unreadable, or does not hold what the model needs."""


@dataclass(frozen=True, eq=False)
class LabelledTable:
    """Features float64 [rows, columns], labels float64 [rows] of 0 and 1, and a name for each column."""

    features: NDArray[np.float64]
    labels: NDArray[np.float64]
    names: tuple[str, ...]


def read_labelled(path: str, label: str | int | None, features: Sequence[str | int] | None) -> LabelledTable:
    """Read a file by its ending. Raises DataError, naming the file and the row and column of the fault.

    `label` and `features` name columns (`.csv`) or give their indices from 0 (`.npy`). An `.npz` file holds the
    features in the array `X` and the labels in the array `y`, or in the one that `label` names; `features` are indices
    into `X`.
    """
    file = Path(path).expanduser()
    readers = {".csv": _read_csv, ".npy": _read_npy, ".npz": _read_npz}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: the ending {file.suffix!r} is not known; expected one of {_FORMATS}.")
    if not file.is_file():
        raise DataError(f"{path}: there is no such file (looked for {file.absolute()}).")
    try:
        return reader(file, label, features)
    except (OSError, UnicodeDecodeError, csv.Error, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as {file.suffix}: {error}.") from error


def _read_csv(file: Path, label: str | int | None, features: Sequence[str | int] | None) -> LabelledTable:
    # utf-8-sig: spreadsheet programs put a mark before the first column's name.
    with file.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.reader(stream)
        header = [name.strip() for name in next(reader, [])]
        if not header:
            raise DataError(f"{file}: the file is empty; expected a line of column names and rows of numbers.")
        if all(map(_is_number, header)):
            raise DataError(
                f"{file}: line 1 holds only numbers ({', '.join(header[:3])}, ...); expected column names. Put a line "
                "of names in front, or the first observation would be lost."
            )
        if "" in header:
            raise DataError(f"{file}: column {header.index('') + 1} has no name in line 1. Give every column one.")
        if len(set(header)) != len(header):
            twice = sorted({name for name in header if header.count(name) > 1})
            raise DataError(f"{file}: line 1 has two columns called {', '.join(map(repr, twice))}.")
        target = len(header) - 1 if label is None else _named_column(file, header, label, "label")
        chosen = _feature_columns(file, header, target, features)
        wanted = [target, *chosen]
        rows: list[list[float]] = []
        for cells in reader:
            if not cells:
                continue  # a blank line
            if len(cells) != len(header):
                raise DataError(
                    f"{file}: line {reader.line_num} has {len(cells)} cells; line 1 names {len(header)} columns."
                )
            rows.append([_number(file, reader.line_num, header[column], cells[column]) for column in wanted])
            _check_label(file, f"line {reader.line_num}, column {header[target]!r}", rows[-1][0])
    if not rows:
        raise DataError(f"{file}: there are column names but no rows.")
    values = np.asarray(rows)
    return LabelledTable(values[:, 1:], values[:, 0], tuple(header[column] for column in chosen))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _named_column(file: Path, header: Sequence[str], name: str | int, key: str) -> int:
    # A header may well be a number, and YAML reads it as one.
    if str(name) in header:
        return header.index(str(name))
    shown = ", ".join(header[:12]) + (f", ... ({len(header)} in all)" if len(header) > 12 else "")
    raise DataError(
        f"{file}: {key} is {name!r}, but there is no such column{nearest(str(name), header)}. Columns: {shown}."
    )


def _feature_columns(
    file: Path, header: Sequence[str], target: int, features: Sequence[str | int] | None
) -> Sequence[int]:
    if features is None:
        chosen = [column for column in range(len(header)) if column != target]
    else:
        chosen = [_named_column(file, header, name, "features") for name in features]
    _check_choice(file, chosen, target, header)
    return chosen


def _check_choice(file: Path, chosen: Sequence[int], target: int | None, names: Sequence[str]) -> None:
    if not chosen:
        hint = " (are the cells separated by something other than commas?)" if len(names) == 1 else ""
        raise DataError(f"{file}: no feature columns are left beside the label{hint}; expected at least one.")
    if target is not None and target in chosen:
        raise DataError(f"{file}: column {names[target]!r} is the label and also one of features.")
    for column in chosen:
        if chosen.count(column) > 1:
            raise DataError(f"{file}: column {names[column]!r} is listed twice in features.")


def _number(file: Path, line: int, column: str, cell: str) -> float:
    text = cell.strip()
    place = f"{file}: line {line}, column {column!r}"
    if text.lower() in _MISSING:
        raise DataError(
            f"{place}: the value is missing ({cell!r}). Remove the row or fill it in; none is dropped silently."
        )
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{place}: {cell!r} is not a number.") from None
    if not np.isfinite(value):
        raise DataError(f"{place}: {cell!r} is not a finite number.")
    return value


def _check_label(file: Path, place: str, value: float) -> None:
    if value not in (0.0, 1.0):
        raise DataError(f"{file}: {place}: the label is {value:g}; expected 0 or 1. Recode it so that 1 is the event.")


def _read_npy(file: Path, label: str | int | None, features: Sequence[str | int] | None) -> LabelledTable:
    array = _load(file)
    values = _finite_matrix(file, "the array", array)
    width = values.shape[1]
    names = [str(column) for column in range(width)]
    target = width - 1 if label is None else _index(file, label, width, "label")
    chosen = (
        [column for column in range(width) if column != target]
        if features is None
        else [_index(file, column, width, "features") for column in features]
    )
    _check_choice(file, chosen, target, names)
    return _table(file, values[:, chosen], values[:, target], [names[c] for c in chosen], f"column {target}")


def _read_npz(file: Path, label: str | int | None, features: Sequence[str | int] | None) -> LabelledTable:
    arrays = _load(file)
    held = list(arrays)
    name = "y" if label is None else label
    for wanted in ("X", name):
        if wanted not in held:
            raise DataError(
                f"{file}: there is no array {wanted!r}{nearest(str(wanted), held)}; it holds "
                f"{', '.join(held) or 'none'}. "
                f"Expected features in 'X' and labels in 'y' (or in the array that model.label names)."
            )
    values = _finite_matrix(file, "array 'X'", arrays["X"])
    labels = _numbers(file, f"array {name!r}", arrays[str(name)])
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (len(values),):
        raise DataError(
            f"{file}: array 'X' has shape {values.shape} and array {name!r} {labels.shape}; expected as many labels as "
            f"rows, ({len(values)},)."
        )
    width = values.shape[1]
    chosen = list(range(width)) if features is None else [_index(file, c, width, "features") for c in features]
    names = [str(column) for column in range(width)]
    _check_choice(file, chosen, None, names)
    return _table(file, values[:, chosen], labels, [names[c] for c in chosen], f"array {name!r}")


def _load(file: Path) -> Any:
    try:
        # No pickles: a data file must not be able to run code.
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except ValueError as error:
        raise DataError(f"{file}: cannot be read as a NumPy file: {error}") from error


def _index(file: Path, column: str | int, width: int, key: str) -> int:
    if isinstance(column, str) or not 0 <= column < width:
        raise DataError(f"{file}: {key} is {column!r}; expected a column's index from 0 to {width - 1}.")
    return column


def _numbers(file: Path, what: str, array: Any) -> NDArray[np.float64]:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        found = f"dtype {array.dtype}" if isinstance(array, np.ndarray) else "several arrays"
        raise DataError(f"{file}: {what} has {found}; expected real numbers.")
    return array.astype(np.float64)


def _finite_matrix(file: Path, what: str, array: Any) -> NDArray[np.float64]:
    values = _numbers(file, what, array)
    if values.ndim != 2 or 0 in values.shape:
        raise DataError(f"{file}: {what} has shape {values.shape}; expected [rows, columns], neither of them empty.")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        raise DataError(
            f"{file}: {what}, row {row}, column {column}: the value is {values[row, column]}; "
            f"{len(bad)} values in all are missing or infinite. Remove those rows or fill them in."
        )
    return values


def _table(
    file: Path, features: NDArray[np.float64], labels: NDArray[np.float64], names: Iterable[str], place: str
) -> LabelledTable:
    wrong = np.flatnonzero(~np.isin(labels, (0.0, 1.0)))
    if len(wrong):
        _check_label(file, f"{place}, row {wrong[0]}", float(labels[wrong[0]]))
    return LabelledTable(features, labels, tuple(names))
