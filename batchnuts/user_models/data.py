"""Columns of a user's file as arrays for a density: numbers, integers, and categories with their labels.

CSV is read by pandas, which xarray needs anyway; Parquet and Arrow files by pyarrow (the extra `data`), npz by NumPy.
Every fault names the file, the column and the row.
"""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from batchnuts.models.tables import ColumnError, DataError, lost_by_rounding, require_file
from batchnuts.settings.schema import in_words, nearest, sentence, shown

if TYPE_CHECKING:
    import pandas

Kind = Literal["auto", "number", "integer", "category"]

_MISSING = ("", "NA", "N/A", "na", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "?")

_FORMATTED_NUMBER = re.compile(
    r"""[-+\u2212(]?\s*[$€£¥]?\s*[-+\u2212]?\s*
        (\d{1,3}(?:[,.'\u2019\s]\d{3})+(?:[.,]\d+)? | \d+[.,]?\d* | [.,]\d+) (?:[eE][-+]?\d+)?
        \s*[%‰$€£¥]?\s*\)?""",
    re.VERBOSE,
)
"""A number as people write it: with separators of thousands, a decimal comma, a percent or currency sign."""


_LEADING_ZERO = re.compile(rb"(?:^|[\s,\"])[-+]?0\d")
"""Where a file may have an integer that begins with zero, which is no number but a code."""

_CODE = re.compile(r"[-+]?\d+")
"""An integer, with zeros in front or without."""

_DATE = re.compile(
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(?:[T ]\d{1,2}:\d{2}.*)?"
    r"|\d{1,2}:\d{2}(?::\d{2}.*)?"
)


@dataclass(frozen=True)
class Column:
    """What is asked of one column: its name in the file, and what it is made."""

    name: str
    kind: Kind = "auto"
    order: tuple[str, ...] | None = None
    """Of a category: its labels in order, all that the file has and perhaps more; None: sorted."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Arrays by the names that the density uses, each [rows] (of an npz file as it is there), and the labels of the
    categories by the same names, in the order asked for or sorted; a category's array has their indices, int32."""

    arrays: dict[str, NDArray[Any]]
    labels: dict[str, list[str]]

    def __str__(self) -> str:
        """How each column was read: `y: number (float32), county: category (85 labels)`."""
        return ", ".join(f"{name}: {self._kind(name)}" for name in self.arrays)

    def _kind(self, name: str) -> str:
        if name in self.labels:
            return f"category ({in_words(len(self.labels[name]), 'label')})"
        dtype = self.arrays[name].dtype
        return f"{'integer' if dtype.kind == 'i' else 'number'} ({dtype})"


def read_columns(path: str | os.PathLike[str], columns: Any = None, dtype: str = "float32") -> Columns:
    """Read a file by its ending: .csv, .parquet, .feather or .arrow, .npz. Raises DataError for every fault.

    columns: as in a config, a list of names, or by the names of the arrays a column's name, a Column, or
    {"column": name, "as": kind, "order": labels}; None: all, under their own names. `auto` makes numbers of `dtype`,
    and categories of columns in which no value is a number; a column with both, of dates, or of numbers that begin with
    a zero as postal codes do, must be named a category, whose labels are the texts of the file.
    """
    if not isinstance(path, str | os.PathLike):
        raise DataError(f"path is {shown(path)}; expected the path of a file ({', '.join(_READERS)}).")
    if dtype not in ("float32", "float64"):
        raise DataError(f"{path}: dtype is {shown(dtype)}; expected 'float32' or 'float64'.")
    try:
        requested = columns_asked(columns)
    except DataError as error:
        raise DataError(f"{path}: {error}.") from None
    file = Path(path).expanduser()
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: the ending {file.suffix!r} is not known; expected one of {', '.join(_READERS)}.")
    require_file(str(path))
    table = reader(file, None if requested is None else {column.name for column in requested.values()})
    selected = {str(name): Column(str(name)) for name in table} if requested is None else requested
    arrays: dict[str, NDArray[Any]] = {}
    labels: dict[str, list[str]] = {}
    for name, column in selected.items():
        if column.name not in table:
            names = [str(column_name) for column_name in table]
            hint = nearest(column.name, names) or f"; its columns are {', '.join(names[:12])}"
            raise ColumnError(sentence(f"{file}: there is no column {column.name!r}{hint}"))
        arrays[name], column_labels = _converted(file, column, table[column.name], dtype)
        if column_labels is not None:
            labels[name] = column_labels
    if not arrays or not all(array.size for array in arrays.values()):
        raise DataError(f"{file}: there are column names but no rows.")
    return Columns(arrays, labels)


def columns_asked(columns: Any) -> dict[str, Column] | None:
    """The columns that `read_columns` is asked for, by the names of the arrays; None: all.

    Raises DataError, without a full stop, for what is no such list or mapping.
    """
    if columns is None:
        return None
    if not isinstance(columns, Mapping | list | tuple):
        raise DataError(f"columns: found {shown(columns)}; expected a list of names, or columns by the names of arrays")
    if not isinstance(columns, Mapping):
        if wrong := [name for name in columns if not isinstance(name, str)]:
            raise DataError(f"columns: found {shown(wrong[0])} in the list; expected names of columns")
        return {name: Column(name) for name in columns}
    return {_text("columns", name): _column(name, column) for name, column in columns.items()}


def _column(name: str, declared: Any) -> Column:
    place = f"columns.{name}"
    if isinstance(declared, str):
        return Column(declared)
    if not isinstance(declared, Mapping | Column):
        raise DataError(
            f"{place}: found {shown(declared)}; expected a column's name, or {{column: name, as: category}}"
        )
    options: Mapping[str, Any] = (
        declared if isinstance(declared, Mapping) else {"column": declared.name, "as": declared.kind}
    )
    if unknown := next((key for key in options if key not in ("column", "as", "order")), None):
        raise DataError(f"{place}: unknown key {unknown!r}; expected column and as, or order")
    kind = options.get("as", "auto")
    if kind not in get_args(Kind):
        raise DataError(f"{place}.as: found {shown(kind)}; expected one of {', '.join(get_args(Kind))}")
    order = _order(place, options["order"], kind) if options.get("order") is not None else None
    if isinstance(declared, Column) and declared.order is not None:
        order = _order(place, declared.order, kind)
    return Column(_text(f"{place}.column", options.get("column", name)), cast(Kind, kind), order)


def _order(place: str, order: Any, kind: str) -> tuple[str, ...]:
    """The labels of a category in order."""
    if kind not in ("auto", "category"):
        raise DataError(f"{place}.order: found labels with as: {kind}; expected as: category")
    if (
        not isinstance(order, list | tuple)
        or not order
        or not all(isinstance(item, str | int | float) for item in order)
    ):
        raise DataError(f"{place}.order: found {shown(order)}; expected a list of all labels, such as [low, high]")
    labels = tuple(str(item) for item in order)
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise DataError(f"{place}.order: found {twice!r} twice; expected each label once")
    return labels


def _text(place: str, value: Any) -> str:
    if not isinstance(value, str):
        raise DataError(f"{place}: found {shown(value)}; expected a name")
    return value


# From a file to columns, each an array of NumPy's: numbers, or objects (text, None where missing). `wanted` names those
# that will be used; None: all


def _read_csv(file: Path, selected: set[str] | None) -> dict[str, NDArray[Any]]:
    import pandas

    options: Any = {"keep_default_na": False, "na_values": _MISSING, "skipinitialspace": True, "encoding": "utf-8-sig"}

    def read() -> pandas.DataFrame:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            return pandas.read_csv(file, index_col=False, **options)  # else a further cell moves all to the left

    names = _header(file, options)
    try:
        table = _read(file, read)
    except DataError as error:
        if not isinstance(error.__cause__, pandas.errors.ParserWarning):
            raise
        raise DataError(
            f"{file}: row 1 has more cells than there are column names. Name every column; write numbers without "
            "thousands separators, and put strings with a comma in quotes."
        ) from None
    names_read = [name for name in names if (name != "nan" if selected is None else name in selected)]
    if twice := next((name for name in names_read if names_read.count(name) > 1), None):
        raise DataError(f"{file}: {names_read.count(twice)} columns are called {twice!r}; give each a name of its own.")
    names = [str(column) if name == "nan" else name for column, name in zip(table, names, strict=True)]
    table.columns = pandas.Index(names)
    table = table.loc[:, [names.count(name) == 1 for name in names]]
    numeric = [name for name in table if table[name].dtype.kind in "iuf"]
    if numeric and _LEADING_ZERO.search(file.read_bytes()):  # pandas reads 02139 as 2139
        texts = _read(file, lambda: pandas.read_csv(file, index_col=False, dtype=str, **options))
        texts.columns = pandas.Index(names)
        for name in numeric:
            if texts[name].str.fullmatch(r"\s*[-+]?0\d+\s*").any():
                table[name] = texts[name]
    return _of_pandas(table, _MISSING)  # spaces behind them hide such words from pandas


def _header(file: Path, options: Mapping[str, Any]) -> list[str]:
    """The names of the columns. Raises DataError where something other than commas is between them."""
    import pandas

    header = _read(file, lambda: pandas.read_csv(file, header=None, nrows=1, dtype=str, **options))
    names = [str(name).strip() for name in header.iloc[0]]  # pandas numbers those that come again
    for separator, word in ((";", "semicolons"), ("\t", "tabulators"), ("|", "bars")):
        if len(names) == 1 and separator in names[0]:
            raise DataError(
                f"{file}: line 1 is {shown(names[0])}: its cells are separated by {word}. Save it with commas between "
                "them and decimal points in numbers (1.5)."
            )
    return names


def _read_parquet(file: Path, selected: set[str] | None) -> dict[str, NDArray[Any]]:
    import pandas

    _require_pyarrow(file)
    return _of_pandas(_read(file, lambda: pandas.read_parquet(file)))


def _read_arrow(file: Path, selected: set[str] | None) -> dict[str, NDArray[Any]]:
    import pandas

    _require_pyarrow(file)
    return _of_pandas(_read(file, lambda: pandas.read_feather(file)))


def _read_npz(file: Path, selected: set[str] | None) -> dict[str, NDArray[Any]]:
    def load() -> dict[str, NDArray[Any]]:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as loaded:  # no file may run code
            return {name: loaded[name] for name in loaded.files}

    arrays: dict[str, NDArray[Any]] = _read(file, load)
    return arrays


_READERS: dict[str, Callable[[Path, set[str] | None], dict[str, NDArray[Any]]]] = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".feather": _read_arrow,
    ".arrow": _read_arrow,
    ".npz": _read_npz,
}


def _read(file: Path, reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except Exception as error:  # damaged files make parsers raise whatever they raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{file}: cannot be read as {file.suffix}: {lines[0]}.") from error


def _require_pyarrow(file: Path) -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError(f"{file}: {file.suffix} files are read by pyarrow; install it: pip install 'batchnuts[data]'.")


def _of_pandas(frame: pandas.DataFrame, words: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """words: texts that mean a missing value."""
    columns: dict[str, NDArray[Any]] = {}
    for name, column in frame.items():
        missing = column.isna().to_numpy()
        if column.dtype.kind in "biuf":
            columns[str(name)] = column.to_numpy()
        else:
            values = [
                None if is_missing else _stripped(value) for value, is_missing in zip(column, missing, strict=True)
            ]
            columns[str(name)] = np.array([None if value in words else value for value in values], object)
    return columns


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


# From a column to an array


def _converted(file: Path, column: Column, values: NDArray[Any], dtype: str) -> tuple[NDArray[Any], list[str] | None]:
    place = f"{file}: column {column.name!r}"
    is_text = values.dtype.kind in "OUS"
    _refuse_missing(place, values, is_text)
    kind = "category" if column.order is not None else column.kind
    if kind in ("number", "integer") and is_text and all(_CODE.fullmatch(str(value)) for value in values.reshape(-1)):
        values, is_text = values.astype("float64"), False
    if kind == "auto":
        if is_text:
            _refuse_texts_of_numbers(place, values.reshape(-1))
        kind = "category" if is_text else "number"
    if kind == "category":
        if values.dtype.kind == "f" and (values == np.round(values)).all():
            values = values.astype("int64")  # 3.0 is labelled 3
        if column.order is not None:
            return _ordered(place, values, column.order), list(column.order)
        labels, codes = np.unique(values, return_inverse=True) if not is_text else _text_categories(values)
        return codes.reshape(values.shape).astype("int32"), [str(label) for label in labels]
    if is_text:
        first = next((i for i, value in enumerate(values.reshape(-1)) if not _is_number(value)), 0)
        raise DataError(f"{place}: {_row(first)} is {values.reshape(-1)[first]!r}; expected a number, not a string.")
    return (_integers(place, values) if kind == "integer" else _numbers(place, values, dtype)), None


def _refuse_texts_of_numbers(place: str, flat: NDArray[Any]) -> None:
    """Raise DataError for texts that are no labels of categories: some or all of them are numbers, or dates."""
    if not len(flat):
        return
    if all(_DATE.fullmatch(str(value)) for value in flat):
        raise DataError(
            f"{place}: its values are dates or times: {_row(0)} is {str(flat[0])!r}. Write a number, such as days "
            "since the first one; or, if they are labels of groups, name the column a category (as: category)."
        )
    coded = [row for row, value in enumerate(flat) if re.fullmatch(r"[-+]?0\d+", str(value))]
    if coded and all(_CODE.fullmatch(str(value)) for value in flat):
        raise DataError(
            f"{place}: {_row(coded[0])} is {str(flat[coded[0]])!r}, which begins with a zero, as codes do: a number "
            "would lose it. Name the column a category (as: category), which keeps the text, or a number (as: number)."
        )
    if all(_is_number(value) or _FORMATTED_NUMBER.fullmatch(str(value)) for value in flat):
        raise DataError(
            f"{place}: its values look like numbers, but they are strings: {_row(0)} is {str(flat[0])!r}. Write plain "
            "numbers, such as 1234.5 without quotes, percent or currency signs, or thousands separators; or, if "
            "they are labels, name the column a category (as: category)."
        )
    first_text = next(i for i, value in enumerate(flat) if not _is_number(value))
    if any(map(_is_number, flat)):
        raise DataError(
            f"{place}: {_row(first_text)} is {flat[first_text]!r}, which is not a number, among numbers. Correct it, "
            "or name the column a category."
        )


def _ordered(place: str, values: NDArray[Any], order: tuple[str, ...]) -> NDArray[np.int32]:
    """The index of each label."""
    index = {label: i for i, label in enumerate(order)}
    for row, value in enumerate(values.reshape(-1)):
        if str(value) not in index:
            raise ColumnError(
                sentence(
                    f"{place}: {_row(row)} is {str(value)!r}, which is not among its labels in `order` "
                    f"({', '.join(order[:12])}){nearest(str(value), order)}"
                )
            )
    codes = [index[str(value)] for value in values.reshape(-1)]
    return np.array(codes, "int32").reshape(values.shape)


def _text_categories(values: NDArray[Any]) -> tuple[Sequence[str], NDArray[Any]]:
    labels = sorted({str(value) for value in values.reshape(-1)})
    index = {label: i for i, label in enumerate(labels)}
    return labels, np.array([index[str(value)] for value in values.reshape(-1)])


def _refuse_missing(place: str, values: NDArray[Any], is_text: bool) -> None:
    flat = values.reshape(-1)
    if is_text:
        missing = np.array([value is None for value in flat], bool)
    elif values.dtype.kind == "f":
        missing = np.isnan(flat)
    elif values.dtype.kind in "biu":
        return
    else:
        raise DataError(f"{place}: it holds {values.dtype}; expected numbers or strings.")
    if missing.any():
        first = int(np.argmax(missing))
        raise DataError(
            f"{place}: {_row(first)} has no value ({int(missing.sum())} in all). Remove such rows or fill them in; "
            "none is dropped silently."
        )


def _numbers(place: str, values: NDArray[Any], dtype: str) -> NDArray[Any]:
    largest = np.finfo(dtype).max
    wrong = ~(np.abs(values.reshape(-1).astype("float64")) <= largest)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise DataError(
            f"{place}: {_row(first)} is {values.reshape(-1)[first]}; expected finite numbers of at most {largest:.2g} "
            f"({dtype})."
        )
    if lost := lost_by_rounding(values.reshape(-1), dtype):
        raise DataError(f"{place}: {lost.what}. {lost.remedy(integers=True)}")
    return values.astype(dtype)


def _integers(place: str, values: NDArray[Any]) -> NDArray[np.int32]:
    flat = values.reshape(-1)
    wrong = ~((flat == np.round(flat)) & (np.abs(flat.astype("float64")) < 2**31))
    if wrong.any():
        first = int(np.argmax(wrong))
        raise DataError(f"{place}: {_row(first)} is {flat[first]}; expected an integer of 32 bits.")
    return values.astype("int32")


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _row(index: int) -> str:
    """The name of a row, counted without the line of names."""
    return f"row {index + 1}"
