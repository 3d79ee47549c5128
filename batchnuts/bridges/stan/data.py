"""A user's data as Stan's JSON: from a file, a mapping of arrays, or columns of a table."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from batchnuts.mcmc.model.variables import ModelError
from batchnuts.settings.schema import shown

StanData = Mapping[str, Any] | str | os.PathLike[str] | None


def read_data(title: str, data: StanData) -> dict[str, Any]:
    """Values by name, as JSON has them. Raises ModelError for what is no data of Stan's."""
    if data is None:
        return {}
    if isinstance(data, Mapping):
        return {str(name): _value(title, str(name), value) for name, value in data.items()}
    if not isinstance(data, (str, os.PathLike)):
        raise ModelError(
            f"Model {title!r}: its data are {shown(data)}; expected a mapping of names and arrays, or the path of a "
            ".json file."
        )
    path = Path(data).expanduser()
    if path.suffix.lower() in (".csv", ".parquet", ".feather", ".arrow", ".npz"):
        return _columns(title, path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"Model {title!r}: its data cannot be read: {error}.") from None
    except ValueError as error:
        raise ModelError(f"Model {title!r}: {path} is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise ModelError(f"Model {title!r}: {path} holds {shown(content)}; expected names and values, {{...}}.")
    return {name: _value(title, name, value) for name, value in content.items()}


def _columns(title: str, path: Path) -> dict[str, Any]:
    """The columns of a table, and `N`, the number of its rows; categories are numbered from 1."""
    from batchnuts.models.tables import DataError
    from batchnuts.user_models.data import read_columns

    try:
        columns = read_columns(path, dtype="float64")
    except DataError as error:
        raise ModelError(f"Model {title!r}: {error}") from None
    arrays = {name: _whole(array) + (name in columns.labels) for name, array in columns.arrays.items()}
    rows = {len(array) for array in arrays.values() if np.ndim(array)}
    found = {name: _value(title, name, array) for name, array in arrays.items()}
    return {"N": rows.pop(), **found} if len(rows) == 1 and "N" not in found else found


def _whole(array: Any) -> Any:
    """Whole numbers as integers, which Stan takes for real numbers too."""
    return array.astype(int) if np.isfinite(array).all() and (array == np.trunc(array)).all() else array


def _value(title: str, name: str, value: Any) -> Any:
    """A value as JSON has it: numbers, and lists of them."""
    if isinstance(value, str):
        if value in ("NaN", "Inf", "-Inf", "Infinity", "-Infinity", "inf", "-inf", "nan"):
            return _value(title, name, float(value.replace("Inf", "inf")))
        raise ModelError(f"Model {title!r}: its data {name!r} is the text {value!r}; expected numbers.")
    if isinstance(value, Mapping):  # a tuple
        return {str(part): _value(title, f"{name}.{part}", inner) for part, inner in value.items()}
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if isinstance(value, (list, tuple)) and any(isinstance(part, (Mapping, str)) for part in value):
        return [_value(title, name, part) for part in value]
    try:
        array = np.asarray(value)
    except ValueError:
        raise ModelError(f"Model {title!r}: its data {name!r} has rows of different lengths.") from None
    if array.dtype.kind == "O" and all(isinstance(part, (int, float, bool)) for part in array.reshape(-1)):
        array = array.astype(float)  # integers beyond 64 bits
    if array.dtype.kind not in "biufc":
        missing = array.dtype.kind == "O" and any(part is None for part in array.reshape(-1))
        found = "missing values (null, None)" if missing else f"{shown(value)}"
        raise ModelError(f"Model {title!r}: its data {name!r} is {found}; expected numbers, or nested lists of them.")
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    if array.dtype.kind == "b":
        array = array.astype(int)
    return _texts(array.tolist()) if array.dtype.kind == "f" and not np.isfinite(array).all() else array.tolist()


def _texts(value: Any) -> Any:
    """Numbers that JSON lacks as Stan's texts."""
    if isinstance(value, list):
        return [_texts(part) for part in value]
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
