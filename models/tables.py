"""Reading a user's table of features and 0/1 labels from CSV or NumPy files; every fault is named with its place."""

from __future__ import annotations

import csv
import os
import warnings
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError
from batchnuts.settings.schema import nearest, sentence, shown
from batchnuts.settings.yaml import ConfigError

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_FORMATS = ".csv, .npy, .npz"


class DataError(BatchnutsError):
    """The user's data file is missing, unreadable, or does not hold what the model needs."""


class ColumnError(DataError, ConfigError):
    """A config names a column that the user's data file does not have, or that cannot be what it is asked for."""


@dataclass(frozen=True, eq=False)
class LabelledTable:
    """Features float64 [rows, columns], labels float64 [rows] of 0 and 1, and a name for each column."""

    features: NDArray[np.float64]
    labels: NDArray[np.float64]
    names: tuple[str, ...]


def require_file(path: str) -> None:
    """Raise DataError where there is no file at a path."""
    file = Path(path).expanduser()
    if not os.path.isfile(file):  # false, too, for a name that is too long
        raise DataError(f"{path}: there is no such file (looked for {file.absolute()}).")


def existing_file(path: str | None) -> str | None:
    """For the validator of a key that names a file of data: the path; raises ValueError where there is no file."""
    if path is not None:
        try:
            require_file(path)
        except DataError as error:
            raise ValueError(str(error).removesuffix(".")) from None
    return path


@dataclass(frozen=True)
class LostByRounding:
    """What a column of numbers loses in a dtype."""

    what: str
    dtype: str
    small_integers: bool
    """Whether all are integers of 32 bits."""

    def remedy(self, *, integers: bool) -> str:
        """What to do about it; integers: whether a column can be asked for as integers."""
        remedies = ["set dtype: float64"] * (self.dtype != "float64")
        remedies += ["ask for integers (as: integer)"] * (integers and self.small_integers)
        remedies.append("subtract a constant from the column, such as its smallest value")
        text = ", or ".join(remedies)
        return f"{text[0].upper()}{text[1:]}."


MOST_LOST = 1e-3
"""Of a column's standard deviation: the largest error that rounding to a dtype may make."""


def lost_by_rounding(values: NDArray[Any], dtype: str) -> LostByRounding | None:
    """Whether numbers [n] lose their differences when they are rounded to `dtype`: an error above MOST_LOST."""
    exact = values.astype(np.longdouble)
    if not len(values) or exact.min() == exact.max():
        return None
    rounded = values.astype(dtype).astype(np.longdouble)
    errors = np.abs(rounded - exact)
    worst = int(np.argmax(errors))
    if errors[worst] <= MOST_LOST * exact.std():
        return None
    order = np.argsort(exact, kind="stable")
    merged = np.flatnonzero((np.diff(exact[order]) > 0) & (np.diff(rounded[order]) == 0))
    if len(merged):
        first, second = sorted(order[merged[0] : merged[0] + 2])
        loss = (
            f"{values[first]} and {values[second]} become the same number in {dtype}, "
            f"{values[first].astype(dtype):.12g}"
        )
    else:
        loss = (
            f"{values[worst]} becomes {values[worst].astype(dtype):.12g} in {dtype}, an error of "
            f"{errors[worst] / exact.std():.1%} of the column's standard deviation"
        )
    small = bool((exact == np.round(exact)).all() and np.abs(exact).max() < 2**31)
    return LostByRounding(loss, dtype, small)


def read_labelled(
    path: str, label: str | int | None, features: Sequence[str | int] | None, dtype: str = "float64"
) -> LabelledTable:
    """Read a file by its ending. Raises DataError, naming the file and the row and column of the fault.

    Values that `dtype`, in which the model computes, cannot hold are faults too.

    `label` and `features` name columns (`.csv`) or give their indices from 0 (`.npy`). An `.npz` file holds the
    features in the array `X` and the labels in the array `y`, or in the one that `label` names; `features` are indices
    into `X`.
    """
    file = Path(path).expanduser()
    readers = {".csv": _read_csv, ".npy": _read_npy, ".npz": _read_npz}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: the ending {file.suffix!r} is not known; expected one of {_FORMATS}.")
    require_file(path)
    try:
        table = reader(file, label, features, dtype)
    except UnicodeDecodeError:
        raise _not_text(file) from None
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as {file.suffix}: {_cause(error)}.") from error
    for name, column in zip(table.names, table.features.T, strict=True):
        if lost := lost_by_rounding(column, dtype):
            raise DataError(f"{file}: column {name!r}: {lost.what}. {lost.remedy(integers=False)}")
    return table


def _cause(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _not_text(file: Path) -> DataError:
    data = file.read_bytes()
    try:
        data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return DataError(f"{file}: line {line} cannot be read as .csv: it is not UTF-8 text ({error.reason}).")
    return DataError(f"{file}: changed while it was read.")


def _read_csv(file: Path, label: str | int | None, features: Sequence[str | int] | None, dtype: str) -> LabelledTable:
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
        columns = [target, *chosen]
        values = _at_once(file, reader.line_num, len(header), columns)
        if values is None or not _is_sound(values, dtype):
            values = _line_by_line(file, reader, header, columns, dtype)
    if not len(values):
        raise DataError(f"{file}: there are column names but no rows.")
    return LabelledTable(values[:, 1:], values[:, 0], tuple(header[column] for column in chosen))


def _at_once(file: Path, skipped: int, width: int, columns: Sequence[int]) -> NDArray[np.float64] | None:
    """All rows [rows, columns], by NumPy's reader; None where it stumbles, which says too little about the place.

    It takes what `_line_by_line` takes, or less, and gives the same numbers. A column that is not asked for is read as
    its first character: every row must have all columns.
    """
    column_set = set(columns)
    types: Any = np.dtype([(f"c{column}", "f8" if column in column_set else "U1") for column in range(width)])
    if len(column_set) == width:
        types = np.float64  # in one piece, which is faster
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input contained no data", category=UserWarning)
            table = np.loadtxt(
                file, types, delimiter=",", skiprows=skipped, quotechar='"', comments=None, encoding="utf-8-sig",
                ndmin=2 if types is np.float64 else 1,
            )  # fmt: skip
    except ValueError:
        return None
    if types is np.float64:
        return table[:, columns] if table.shape[1] == width else None
    return np.stack([table[f"c{column}"] for column in columns], axis=1)


def _is_sound(values: NDArray[np.float64], dtype: str) -> bool:
    """Whether all are finite in `dtype`, and the labels, in the first column, 0 or 1."""
    return bool((np.abs(values) <= _largest(dtype)).all() and np.isin(values[:, 0], (0.0, 1.0)).all())


def _line_by_line(
    file: Path, reader: Any, header: Sequence[str], columns: Sequence[int], dtype: str
) -> NDArray[np.float64]:
    """All rows like `_at_once`, but slower; names the first fault."""
    largest = _largest(dtype)
    flat = array("d")
    try:
        for cells in reader:
            if not cells:
                continue  # a blank line
            if len(cells) != len(header):
                raise DataError(
                    f"{file}: line {reader.line_num} has {len(cells)} cells; line 1 names {len(header)} columns."
                )
            try:
                row = [float(cells[column]) for column in columns]
                sound = row[0] in (0.0, 1.0) and all(-largest <= value <= largest for value in row)
            except ValueError:
                sound = False
            if not sound or "_" in "".join(cells):
                line = reader.line_num
                row = [_number(file, line, header[column], cells[column], dtype) for column in columns]
                _check_label(file, f"line {line}, column {header[columns[0]]!r}", row[0])
            flat.extend(row)
    except csv.Error as error:
        raise DataError(f"{file}: line {reader.line_num}: {error}.") from error
    return np.frombuffer(flat, np.float64).reshape(-1, len(columns)).copy()


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
    listing = ", ".join(header[:12]) + (f", ... ({len(header)} in all)" if len(header) > 12 else "")
    raise ColumnError(
        sentence(f"{file}: {key} is {name!r}, but there is no such column{nearest(str(name), header)}")
        + f" Columns: {listing}."
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
        raise ColumnError(f"{file}: no feature columns are left beside the label{hint}; expected at least one.")
    if target is not None and target in chosen:
        raise ColumnError(f"{file}: column {names[target]!r} is the label and also one of features.")
    for column in chosen:
        if chosen.count(column) > 1:
            raise ColumnError(f"{file}: column {names[column]!r} is listed twice in features.")


def _number(file: Path, line: int, column: str, cell: str, dtype: str) -> float:
    text = cell.strip()
    place = f"{file}: line {line}, column {column!r}"
    if text.lower() in _MISSING:
        raise DataError(
            f"{place}: the value is missing ({shown(cell)}). Remove the row or fill it in; none is dropped silently."
        )
    try:
        value = float(text)
    except ValueError:
        value = None
    if value is None or "_" in text:  # 1_000 is a number in Python only
        raise DataError(f"{place}: {shown(cell)} is not a number.")
    if not np.isfinite(value):
        raise DataError(f"{place}: {shown(cell)} is not a finite number.")
    if abs(value) > _largest(dtype):
        raise DataError(f"{place}: {shown(cell)} {_too_large(dtype)}")
    return value


def _largest(dtype: str) -> float:
    return float(np.finfo(dtype).max)


def _too_large(dtype: str) -> str:
    return f"is too large for {dtype} (at most {_largest(dtype):.2g}). Scale the column, or set model.dtype: float64."


def _check_label(file: Path, place: str, value: float) -> None:
    if value not in (0.0, 1.0):
        raise DataError(f"{file}: {place}: the label is {value:g}; expected 0 or 1. Recode it so that 1 is the event.")


def _read_npy(file: Path, label: str | int | None, features: Sequence[str | int] | None, dtype: str) -> LabelledTable:
    values = _finite_matrix(file, "the array", _load(file), dtype)
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


def _read_npz(file: Path, label: str | int | None, features: Sequence[str | int] | None, dtype: str) -> LabelledTable:
    arrays = _load(file)
    array_names = list(arrays)
    name = "y" if label is None else label
    for required in ("X", name):
        if required not in array_names:
            raise ColumnError(
                f"{file}: there is no array {required!r}{nearest(str(required), array_names)}; it holds "
                f"{', '.join(array_names) or 'none'}. "
                f"Expected features in 'X' and labels in 'y' (or in the array that model.label names)."
            )
    values = _finite_matrix(file, "array 'X'", arrays["X"], dtype)
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
        with file.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            with loaded:
                return {name: loaded[name] for name in loaded.files}
    except Exception as error:  # damaged bytes make the parsers of NumPy, zip and Python raise whatever they raise
        raise DataError(f"{file}: cannot be read as a NumPy file: {_cause(error)}") from error


def _index(file: Path, column: str | int, width: int, key: str) -> int:
    if isinstance(column, str) or not 0 <= column < width:
        raise ColumnError(f"{file}: {key} is {column!r}; expected a column's index from 0 to {width - 1}.")
    return column


def _numbers(file: Path, place: str, values: Any) -> NDArray[np.float64]:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub":
        kind = f"dtype {values.dtype}" if isinstance(values, np.ndarray) else "several arrays"
        raise DataError(f"{file}: {place} has {kind}; expected real numbers.")
    with np.errstate(over="ignore"):  # of longdouble; what is infinite is reported where it stands
        return values.astype(np.float64)


def _finite_matrix(file: Path, place: str, array: Any, dtype: str) -> NDArray[np.float64]:
    values = _numbers(file, place, array)
    if values.ndim != 2 or 0 in values.shape:
        raise DataError(f"{file}: {place} has shape {values.shape}; expected [rows, columns], neither of them empty.")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        raise DataError(
            f"{file}: {place}, row {row}, column {column}: the value is {values[row, column]}; "
            f"{len(bad)} values in all are missing or infinite. Remove those rows or fill them in."
        )
    large = np.argwhere(np.abs(values) > _largest(dtype))
    if len(large):
        row, column = large[0]
        raise DataError(f"{file}: {place}, row {row}, column {column}: {values[row, column]:g} {_too_large(dtype)}")
    return values


def _table(
    file: Path, features: NDArray[np.float64], labels: NDArray[np.float64], names: Iterable[str], place: str
) -> LabelledTable:
    wrong = np.flatnonzero(~np.isin(labels, (0.0, 1.0)))
    if len(wrong):
        _check_label(file, f"{place}, row {wrong[0]}", float(labels[wrong[0]]))
    return LabelledTable(features, labels, tuple(names))
