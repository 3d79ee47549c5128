"""The named parts of a position: shapes, names of axes and elements, and where values lie; names and labels of the axes
of other arrays, as users give them."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchnutsError
from batchnuts.mcmc.model.supports import REAL, Interval, Lower, Real, Support, SupportError, Upper
from batchnuts.settings.schema import nearest, sentence, shown

Labels = Mapping[str, Sequence[Any]]
"""Labels of an axis's elements, by its name."""

Data = Mapping[str, tuple[tuple[str, ...], NDArray[Any]]]
"""Arrays by name, each with the names of its axes."""

RESERVED = frozenset({"chain", "draw"})
"""Axes of all draws, whose names nothing else may have."""


class ModelError(BatchnutsError):
    """A model that contradicts itself, or that cannot be sampled as it is declared."""


@dataclass(frozen=True)
class Variable:
    """One named part of the position.

    `shape` is its shape in one chain, `dims` the names of its axes (default `<name>_dim_<i>`, ArviZ's convention),
    `coords` the labels along an axis, by the axis's name, and `support` where its values lie. Raises ModelError for a
    shape with no elements or one that the support cannot have, for a name or an axis called `chain` or `draw` (the
    output file needs these), and for labels of the wrong count.
    """

    name: str
    shape: tuple[int, ...] = ()
    dims: tuple[str, ...] | None = None
    coords: Labels = field(default_factory=dict)
    support: Support = REAL

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ModelError(f"A variable is called {shown(self.name)}; expected a string as its name.")
        if not isinstance(self.dims, tuple | None) or not all(isinstance(axis, str) for axis in self.dims or ()):
            raise ModelError(f"Variable {self.name!r} has dims {shown(self.dims)}; expected a name for each axis.")
        if not self.name or self.name in RESERVED:
            raise ModelError(f"A variable cannot be called {self.name!r}; choose a name other than chain and draw.")
        if slashed := [name for name in (self.name, *(self.dims or ())) if "/" in name]:
            raise ModelError(
                f"Variable {self.name!r}: the name {slashed[0]!r} has a slash, which netCDF files do not allow."
            )
        if any(isinstance(length, bool) or not isinstance(length, int) or length < 1 for length in self.shape):
            raise ModelError(f"Variable {self.name!r} has shape {self.shape}; every axis needs at least one element.")
        if self.dims is None:
            object.__setattr__(self, "dims", tuple(f"{self.name}_dim_{axis}" for axis in range(len(self.shape))))
        dims = self.axis_names
        if len(dims) != len(self.shape) or len(set(dims)) != len(dims) or RESERVED & set(dims):
            raise ModelError(
                f"Variable {self.name!r} of shape {self.shape} has dims {dims}; expected one distinct name per axis, "
                f"none of them chain or draw."
            )
        object.__setattr__(self, "coords", checked_labels(f"Variable {self.name!r}", self.coords))
        for dim, labels in self.coords.items():
            refuse_repeated(f"Variable {self.name!r}", dim, labels)
            if dim not in dims or len(labels) != self.shape[dims.index(dim)]:
                raise ModelError(
                    f"Variable {self.name!r} has {len(labels)} coordinate labels for {dim!r}; its axes are "
                    f"{dict(zip(dims, self.shape, strict=True))}."
                )
        try:
            self.support.free(self.shape)
        except SupportError as error:
            raise ModelError(f"Variable {self.name!r} {error}.") from None

    @property
    def axis_names(self) -> tuple[str, ...]:
        """`dims`, which is never None once the variable is made."""
        return self.dims or ()

    @property
    def size(self) -> int:
        """Number of elements in one chain."""
        return math.prod(self.shape)

    @property
    def free(self) -> int:
        """Number of unconstrained real numbers that make its value in one chain."""
        return self.support.free(self.shape)

    @property
    def is_real(self) -> bool:
        """Whether its values are the unconstrained numbers themselves."""
        return isinstance(self.support, Real)

    @property
    def varies(self) -> NDArray[np.bool_]:
        """[size]: which of its elements are not the same for all values."""
        return self.support.varies(self.shape).reshape(-1)

    def element_names(self) -> list[str]:
        """A name for each element, in order: `mu`, `theta[0]`, `matrix[0, 1]`; labels stand in place of indices."""
        if not self.shape:
            return [self.name]
        labels = [
            list(self.coords.get(dim, range(length))) for dim, length in zip(self.axis_names, self.shape, strict=True)
        ]
        return [f"{self.name}[{', '.join(map(str, place))}]" for place in itertools.product(*labels)]

    def free_names(self) -> list[str]:
        """A name for each unconstrained number: that of an element if real, else `unconstrained(theta)[0]`."""
        if self.is_real:
            return self.element_names()
        if not self.shape:
            return [f"unconstrained({self.name})"]
        return [f"unconstrained({self.name})[{i}]" for i in range(self.free)]


def check_bounds(owner: str, variables: Iterable[Variable], dtype: str) -> None:
    """Raise ModelError for bounds, or a distance between two, that overflow the dtype. owner: begins the message."""
    for variable in variables:
        support, shape = variable.support, variable.shape
        if not isinstance(support, Lower | Upper | Interval):
            continue
        with np.errstate(all="ignore"):
            value, _ = support.constrain(np.zeros(variable.free, dtype), shape)
        if not np.isfinite(value).all():
            raise ModelError(
                f"{owner}: the bounds of variable {variable.name!r} overflow {dtype}, whose largest number is "
                f"{np.finfo(dtype).max:.3g}. Rescale the variable{', or use dtype float64' * (dtype == 'float32')}."
            )


def check_group(
    owner: str,
    arrays: Mapping[str, tuple[Sequence[str], Sequence[int]]],
    labels: Labels,
    *,
    of_draws: bool = True,
) -> None:
    """Raise ModelError where arrays cannot be saved in one group of a file.

    owner: begins the message. arrays: by name, the axes in one chain, and their lengths. xarray takes an array that has
    the name of an axis for its labels, has one length for each axis, and netCDF files exclude slashes. labels: of all
    axes that have any. of_draws: whether there is such an array for each draw; data may be labels.
    """
    lengths: dict[str, tuple[str, int]] = {}
    for name, (dims, shape) in arrays.items():
        if slashed := [part for part in (name, *dims) if "/" in part]:
            raise ModelError(
                f"{owner}: the name {slashed[0]!r} has a slash, which netCDF files do not allow; rename it."
            )
        if of_draws and (reserved := RESERVED & {name, *dims}):
            raise ModelError(
                f"{owner}: {name!r} is called {min(reserved)!r}, or an axis of it is; that is an axis of all draws. "
                "Choose another name."
            )
        for dim, length in zip(dims, shape, strict=True):
            first, expected = lengths.setdefault(dim, (name, length))
            if expected != length:
                raise ModelError(f"{owner}: axis {dim!r} has length {expected} in {first!r} and {length} in {name!r}.")
            if dim in labels and len(labels[dim]) != length:
                raise ModelError(
                    f"{owner}: axis {dim!r} has length {length} in {name!r}, and {len(labels[dim])} labels in coords; "
                    "give a label for each element, or rename the axis (dims)."
                )
    if twice := next((name for name in arrays if name in lengths and name in labels), None):
        raise ModelError(f"{owner}: {twice!r} is an array, and coords has labels of that axis; leave one of them out.")
    names = [name for name, (dims, _) in arrays.items() if of_draws or tuple(dims) != (name,)]
    if clash := next((name for name in names if name in lengths), None):
        raise ModelError(
            f"{owner}: {clash!r} is the name of an array and of an axis, of {lengths[clash][0]!r}; in a file the array "
            "would be taken for the axis's labels. Rename one of them (an axis by dims)."
        )


def check_axes(owner: str, variables: Iterable[Variable], dims: Mapping[str, Any], coords: Labels) -> None:
    """Raise ModelError for dims of a variable that are not its own, and for repeated labels of its axes."""
    for variable in variables:
        if dims.get(variable.name, variable.axis_names) != variable.axis_names:
            raise ModelError(
                f"{owner}: dims[{variable.name!r}] is {dims[variable.name]}, but the variable's own dims are "
                f"{variable.axis_names}; leave one of them out."
            )
        for axis in variable.axis_names:
            refuse_repeated(owner, axis, coords.get(axis, ()))


def refuse_repeated(owner: str, dim: str, labels: Sequence[Any]) -> None:
    """Raise ModelError for two equal labels of an axis, by which its elements are named."""
    if twice := [label for label, count in Counter(labels).items() if count > 1]:
        raise ModelError(
            f"{owner}: several elements along {dim!r} have the label {twice[0]!r} (coords); give each a label of its "
            "own."
        )


def refuse_unknown_names(
    owner: str, dims: Mapping[str, Any], coords: Labels, axes: Mapping[str, Sequence[str]]
) -> None:
    """Raise ModelError for dims of arrays, and for labels of axes, that there are not.

    owner: begins the message. axes: by the name of an array, those of all arrays.
    """
    if (name := next((name for name in dims if name not in axes), None)) is not None:
        hint = nearest(name, axes) or f"; expected names among {', '.join(axes)}"
        raise ModelError(
            sentence(f"{owner}: dims has {name!r}, which is not one of its variables, data or quantities{hint}")
        )
    all_axes = dict.fromkeys(axis for names in axes.values() for axis in names)
    if (axis := next((axis for axis in coords if axis not in all_axes), None)) is not None:
        hint = nearest(axis, all_axes) or (f"; its axes are {', '.join(all_axes)}" if all_axes else "; it has no axes")
        raise ModelError(sentence(f"{owner}: coords has labels of {axis!r}, which is not one of its axes{hint}"))


def checked_dims(owner: str, dims: Any) -> dict[str, tuple[str, ...]]:
    """Names of axes by the name of an array, of which one may be given as a text.

    owner: prefix of error messages. Raises ModelError for anything else.
    """
    if not isinstance(dims, Mapping | None):
        raise ModelError(f"{owner}: dims is {shown(dims)}; expected names of axes by the name of an array, {_DIMS}.")
    checked: dict[str, tuple[str, ...]] = {}
    for name, value in (dims or {}).items():
        _require_text(f"{owner}: dims", name)
        axes = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else None
        if axes is None or not all(isinstance(axis, str) for axis in axes):
            raise ModelError(f"{owner}: dims[{name!r}] is {shown(value)}; expected a name for each axis, {_DIMS}.")
        checked[name] = axes
    return checked


_DIMS = 'as in {"theta": ["school"]}'


def checked_labels(owner: str, coords: Any) -> dict[str, list[Any]]:
    """Labels by the name of an axis, as files can hold them: numbers, times, and texts. What else labels an axis, or is
    of several of these kinds, becomes text.

    owner: prefix of error messages. Raises ModelError for what is no mapping, and for None and containers as labels.
    """
    if not isinstance(coords, Mapping | None):
        example = '{"school": ["A", "B"]}'
        raise ModelError(
            f"{owner}: coords is {shown(coords)}; expected labels by the name of an axis, as in {example}."
        )
    for axis in coords or {}:
        _require_text(f"{owner}: coords", axis)
    return {axis: _labels(f"{owner}: coords[{axis!r}]", labels) for axis, labels in (coords or {}).items()}


def _require_text(owner: str, name: Any) -> None:
    if not isinstance(name, str):
        raise ModelError(f"{owner} has the name {shown(name)}; expected a string.")


def _labels(owner: str, values: Any) -> list[Any]:
    scalar = isinstance(values, np.ndarray) and not values.shape
    if scalar or isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ModelError(f"{owner} is {shown(values)}; expected a list with a label for each element.")
    if hasattr(values, "__array__") and hasattr(values, "dtype") and getattr(values.dtype, "kind", "O") in "biufMmUS":
        values = np.asarray(values)  # of xarray or JAX, whose elements would be arrays
        values = np.char.decode(values) if values.dtype.kind == "S" else values
    labels = list(values)
    for label in labels:
        if label is None or isinstance(label, list | tuple | Mapping | set) or np.ndim(label):
            raise ModelError(
                f"{owner} has the label {shown(label)}; expected a string or a number: join several into one string."
            )
    if all(isinstance(label, datetime) and label.tzinfo is None for label in labels):
        return labels
    alike = all(isinstance(label, bool | int | float | np.generic) for label in labels)
    return labels if alike and np.asarray(labels).dtype.kind in "biufMm" else list(map(str, labels))


def checked_data(owner: str, data: Any, dims: Mapping[str, Sequence[str]]) -> Data:
    """Data by name, each with the names of its axes: given as (dims, array), or as an array, whose axes are named by
    `dims`, else as ArviZ does.

    owner: prefix of error messages. Raises ModelError for anything else.
    """
    if not isinstance(data, Mapping | None):
        raise ModelError(f"{owner} is {shown(data)}; expected arrays by name.")
    checked: dict[str, tuple[tuple[str, ...], NDArray[Any]]] = {}
    for name, value in (data or {}).items():
        _require_text(owner, name)
        names, array = value if _has_names(value) else (dims.get(name), value)
        array = _array(f"{owner}[{name!r}]", array)
        axes = tuple(f"{name}_dim_{axis}" for axis in range(array.ndim)) if names is None else names
        checked[name] = ((axes,) if isinstance(axes, str) else tuple(axes), array)
        if array.ndim != len(checked[name][0]):
            raise ModelError(f"{owner}[{name!r}] has shape {array.shape} but dims {checked[name][0]}.")
    return checked


def _array(owner: str, data: Any) -> NDArray[Any]:
    """Data that a file can hold: numbers, times or texts. Values that a mask hides are NaN."""
    try:
        array = np.asarray(data)
        if isinstance(data, np.ma.MaskedArray):
            array = np.where(np.ma.getmaskarray(data), np.nan, array)
        if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat):
            array = array.astype(str)
    except (TypeError, ValueError):  # rows of several lengths
        array = np.array(None)
    if array.dtype.kind not in "biufcUSMm":
        raise ModelError(f"{owner} is {shown(data)}; expected an array of numbers or strings.")
    return array


def _has_names(value: Any) -> bool:
    """Whether data are given as (dims, array); two texts in a list are an array."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    names = value[0]
    single = isinstance(names, str) and isinstance(value, tuple)
    return single or (isinstance(names, tuple | list) and all(isinstance(axis, str) for axis in names))


def variables_in_words(variables: Iterable[Variable]) -> list[str]:
    """For each variable its name, shape and support, by which two models are compared."""
    return [f"{v.name} {list(v.shape)} {_support_in_words(v.support)}" for v in variables]


def _support_in_words(support: Support) -> str:
    """The kind of a support, with bounds or other numbers that it has; of arrays a digest."""
    numbers = []
    parts: tuple[Field[Any], ...] = fields(support) if is_dataclass(support) else ()
    for part in parts:
        value = getattr(support, part.name)
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            numbers.append(type(value).__name__)
        elif array.size == 1:
            numbers.append(f"{array.item():.15g}")
        else:
            numbers.append(f"array {hashlib.sha256(array.astype(np.float64).tobytes()).hexdigest()[:8]}")
    return f"{support.kind}({', '.join(numbers)})" if numbers else support.kind
