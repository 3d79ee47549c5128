"""The data sets of many fits, one after another: from arrays, lists, iterators, tables and folders.

Each is read when its fit is about to begin. Sizes that differ are padded to a few classes where that is asked for, so
that few programs are compiled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import flatten, leaf_names, parts, unflatten
from batchnuts.files.sealed_file import digest
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.settings.schema import nearest, shown

if TYPE_CHECKING:
    import pandas

Label = str | int

FILES = (".json", ".npz", ".csv", ".parquet", ".feather", ".arrow")
"""Endings of files with the data of one fit."""


@dataclass(frozen=True)
class DataSet:
    """The data of one fit."""

    number: int
    """Of the fit, from 0: its random numbers depend on this and the run's seed."""
    label: Label
    data: Any
    problem: str = ""
    """Why there are none, where a file could not be read."""
    truth: Mapping[str, Any] | None = None
    """The true values of parameters, where data were simulated."""
    held_out: Any = None
    """Data that the fit does not see, of which the log-likelihood is wanted."""

    @cached_property
    def digest(self) -> str:
        """Of all that the fit is given: by it a run that goes on finds data that have changed."""
        return digest_of((self.problem, self.data, self.truth, self.held_out))


def digest_of(content: Any) -> str:
    """A digest of a structure of arrays, or of anything else that stands in its place."""
    if isinstance(content, Mapping):
        named = [f"{name} {digest_of(content[name])}" for name in sorted(content, key=str)]
    elif (apart := parts(content)) is not None and not _is_array_like(content):
        named = [digest_of(part) for part in apart[1]]
    else:
        named = [_digest_of_leaf(content)]
    return hashlib.blake2b("\n".join(named).encode(), digest_size=16).hexdigest()


def _is_array_like(content: Any) -> bool:
    """Whether it is a list of numbers, which needs no digest for each."""
    return isinstance(content, list) and all(np.ndim(part) == 0 for part in content)


def _digest_of_leaf(content: Any) -> str:
    array = np.asarray(content)
    return repr(content) if array.dtype.hasobject else digest(array)


@dataclass(frozen=True, eq=False)
class DataSets:
    """Where data sets come from. count: None where it is not known before the last."""

    pairs: Iterable[tuple[Label, Any]]
    count: int | None

    def __iter__(self) -> Iterator[DataSet]:
        for number, (label, data) in enumerate(self.pairs):
            problem = str(data) if isinstance(data, NotRead) else ""
            yield DataSet(number, label, None if problem else data, problem)


class NotRead(Exception):
    """In place of data: why they could not be read."""


def data_sets(model: Model, data: Any, labels: Sequence[Label] | None = None, by: str | None = None) -> DataSets:
    """The data sets that a user's argument stands for.

    data: a structure like the model's data whose arrays have a leading axis of fits (those without it are the same for
        all); a list or an iterator of data sets; a table (pandas), whose rows with one value of the column `by` are a
        data set; or the path of a folder of files, one for each.
    labels: of the fits; None: numbers, the groups' values, or the files' names.

    Raises ModelError for anything else, and for labels that do not fit.
    """
    example_of(model)
    if by is not None and not hasattr(data, "groupby"):
        raise ModelError(f"by: found {by!r}, which names a column; data is a {type(data).__name__}, not a table.")
    if hasattr(data, "groupby") and hasattr(data, "columns"):
        sets = _of_table(model, data, by)
    elif isinstance(data, (str, os.PathLike)):
        sets = _of_folder(Path(data).expanduser())
    elif isinstance(data, list) and not _is_structure(model, data):
        sets = DataSets(list(enumerate(data)), len(data))
    elif isinstance(data, Iterator) or (
        not hasattr(data, "shape") and parts(data) is None and isinstance(data, Iterable)
    ):
        sets = DataSets(enumerate(data), len(data) if isinstance(data, Sized) else None)
    else:
        sets = _of_arrays(model, data)
    if sets.count == 0:
        raise ModelError("data: found no data sets.")
    return sets if labels is None else _labelled(sets, labels)


def require_model(caller: str, model: Any) -> Model:
    """The argument of a function of many fits, if it is a model. Raises ModelError."""
    if not isinstance(model, Model):
        raise ModelError(f"{caller} takes a Model, found {type(model).__name__}.")
    return model


def example_of(model: Model) -> Any:
    """The data that a model was made with. Raises ModelError for a model that cannot have others."""
    if model.data is not None:
        return model.data
    if model.remade is not None:
        return dict(model.remade.example)
    raise ModelError(
        f"Model {model.name!r}: its functions take no data; make it with data=..., an example of a data set, and "
        "functions whose last argument is the data. (A model of Stan, NumPyro, PyMC or TensorFlow Probability needs "
        "data, arrays as arguments, data containers, or pinned values.)"
    )


def _is_structure(model: Model, data: list[Any]) -> bool:
    """Whether a list is a structure like the model's data, not a list of these."""
    example = example_of(model)
    return isinstance(example, list) and flatten(data)[1] == flatten(example)[1]


def _labelled(sets: DataSets, labels: Sequence[Label]) -> DataSets:
    found = [label.item() if isinstance(label, np.generic) else label for label in labels]
    for label in found:
        if isinstance(label, bool) or not isinstance(label, (str, int)):
            raise ModelError(f"labels: found {shown(label)}; expected texts or integers.")
    if len(set(found)) != len(found):
        twice = next(label for label in found if found.count(label) > 1)
        raise ModelError(f"labels: found {twice!r} twice; expected a label of its own for each fit.")
    if sets.count is not None and len(found) != sets.count:
        raise ModelError(f"labels: found {len(found)} for {sets.count} data sets.")
    return DataSets(((label, data) for label, (_, data) in zip(found, sets.pairs, strict=False)), len(found))


def _of_arrays(model: Model, data: Any) -> DataSets:
    leaves, tree = flatten(data)
    of_model = example_of(model)
    if model.remade is not None and isinstance(data, Mapping):  # which may leave some as they are
        of_model = {name: value for name, value in of_model.items() if name in data}
    examples, own = flatten(of_model)
    if tree != own and not (isinstance(data, Mapping) and isinstance(of_model, dict)):
        raise ModelError(f"data is {_in_words(data)}; expected {own}, as the model's own data, with an axis of fits.")
    if isinstance(of_model, dict):
        _refuse_other_names(of_model, data)
        data = {name: _as_leaf(example, data[name]) for name, example in of_model.items()}
        leaves, tree = flatten(data)
    arrays = [np.asarray(leaf) for leaf in leaves]
    names = leaf_names("data", tree)
    varying = [array.ndim == example.ndim + 1 for array, example in zip(arrays, examples, strict=True)]
    for name, array, example, varies in zip(names, arrays, examples, varying, strict=True):
        if not varies and array.ndim != example.ndim:
            raise ModelError(
                f"{name} has {array.ndim} axes; expected {example.ndim + 1}, an axis of fits and those of the model's "
                f"own data, or {example.ndim}, where it is the same for all fits."
            )
    lengths = {len(array) for array, varies in zip(arrays, varying, strict=True) if varies}
    if len(lengths) != 1:
        raise ModelError(
            f"data: found {sorted(lengths)} fits along the first axes; expected one number for all arrays."
            if lengths
            else "data: no array has an axis of fits; for one data set use model.with_data and sample_chains."
        )
    (count,) = lengths

    def one(number: int) -> Any:
        return unflatten(tree, [a[number] if varies else a for a, varies in zip(arrays, varying, strict=True)])

    return DataSets(((number, one(number)) for number in range(count)), count)


def _as_leaf(example: Any, value: Any) -> Any:
    """A list of numbers as an array, where the model has an array."""
    return np.asarray(value) if isinstance(example, np.ndarray) else value


def _refuse_other_names(own: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    for name in own:
        if name not in data:
            raise ModelError(
                f"data lack {name!r}, which the model's own data have{nearest(name, map(str, data)) or '.'}"
            )
    for name in data:
        if name not in own:
            raise ModelError(f"data have {name!r}, which the model's own data lack{nearest(str(name), own) or '.'}")


def _in_words(data: Any) -> str:
    return f"an array of shape {data.shape}" if isinstance(data, np.ndarray) else f"a {type(data).__name__}"


def _of_table(model: Model, table: pandas.DataFrame, by: str | None) -> DataSets:
    columns = [str(column) for column in table.columns]
    if not isinstance(by, str) or by not in columns:
        hint = "" if by is None else nearest(str(by), columns)
        raise ModelError(
            f"by: found {by!r}; expected the column that tells data sets apart, of {', '.join(columns)}{hint}."
        )
    example = example_of(model)
    if not isinstance(example, dict):
        raise ModelError(f"Model {model.name!r}: its data are no dict, whose names could be columns of a table.")
    if model.remade is not None:  # which may leave some as they are
        example = {name: value for name, value in example.items() if name in columns}
    for name in example:
        if name not in columns:
            raise ModelError(f"data: the table has no column {name!r}{nearest(name, columns) or '.'}")

    def one(rows: Any) -> Any:
        found = {}
        for name, of_model in example.items():
            values = rows[name].to_numpy()
            if np.ndim(of_model) == 0:
                if len(np.unique(values)) != 1:
                    return NotRead(f"the column {name!r} has several values, of which the model takes one")
                values = values[0]
            found[name] = values
        return found

    groups = table.groupby(by, sort=False)
    pairs = ((label.item() if hasattr(label, "item") else label, one(rows)) for label, rows in groups)
    return DataSets(pairs, groups.ngroups)


def _of_folder(folder: Path) -> DataSets:
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() in FILES)
    except OSError as error:
        raise ModelError(f"data: {str(folder)!r} is no folder that can be read: {error.strerror or error}.") from None
    if not files:
        raise ModelError(f"data: {str(folder)!r} holds no files of {', '.join(FILES)}.")
    stems = [file.stem for file in files]
    names = stems if len(set(stems)) == len(stems) else [file.name for file in files]
    return DataSets(((name, _read(file)) for name, file in zip(names, files, strict=True)), len(files))


def _read(file: Path) -> Any:
    from batchnuts.models.tables import DataError
    from batchnuts.user_models.data import read_columns

    try:
        if file.suffix.lower() == ".json":
            return json.loads(file.read_text(encoding="utf-8"))
        return dict(read_columns(file, dtype="float64").arrays)
    except (OSError, ValueError, DataError) as error:
        return NotRead(f"{file.name} cannot be read: {error}")


# ---- sizes that differ -----------------------------------------------------------------------------------------------


def size_class(length: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is not below the length: at most half as much again."""
    power = 1
    while power < length:
        if 2 * power >= length and 3 * power // 2 >= length and power > 1:
            return 3 * power // 2
        power *= 2
    return power


@dataclass
class Padding:
    """Brings data sets to sizes of classes, and counts what that costs. mask: the entry of the data that says which
    rows are data; None: nothing is padded."""

    model: Model
    mask: str | None
    rows: int = 0
    """Rows of data so far."""
    padded: int = 0
    """Rows with those that were added."""

    def __post_init__(self) -> None:
        if self.mask is None:
            return
        data = example_of(self.model)
        if not isinstance(data, dict) or self.mask not in data or np.ndim(data[self.mask]) != 1:
            raise ModelError(
                f"mask: found {self.mask!r}; expected the name of an entry of the model's data, a vector with one "
                "element for each row, true where it is data."
            )

    def __call__(self, data: Any) -> Any:
        """The data set with a mask, and rows added up to a class of sizes. Raises ModelError."""
        if self.mask is None:
            return data
        example, mask = example_of(self.model), self.mask
        if not isinstance(data, Mapping):
            raise ModelError(f"data is {_in_words(data)}; expected a dict, as the model's own data.")
        along = [
            name for name, array in example.items() if name != mask and np.shape(array)[:1] == np.shape(example[mask])
        ]
        if missing := [name for name in along if name not in data]:
            raise ModelError(f"data lack {missing[0]!r}, which the model's own data have.")
        lengths = {name: len(data[name]) for name in along}
        if len(set(lengths.values())) != 1:
            raise ModelError(f"data: rows differ in number, {lengths}; expected one number for all.")
        (length,) = set(lengths.values())
        if not length:
            raise ModelError("data: found no rows.")
        total = size_class(length)
        given = data.get(mask)
        own = np.ones(length, bool) if given is None else np.asarray(given)
        places = np.minimum(np.arange(total), length - 1)
        self.rows, self.padded = self.rows + length, self.padded + total
        padded: dict[str, NDArray[Any] | Any] = {name: np.asarray(data[name])[places] for name in along}
        kept = {name: data[name] for name in data if name not in padded and name != mask}
        filled = np.zeros(total, own.dtype)
        filled[:length] = own
        return {**kept, **padded, mask: filled}

    @property
    def share(self) -> float:
        """The share of all rows that were added."""
        return 1 - self.rows / self.padded if self.padded else 0.0
