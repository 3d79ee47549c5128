"""A user's own model in a config: `model: {target: package.module:function, variables: {...}, ...}`."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    field_serializer,
    field_validator,
    model_validator,
)

from batchnuts.mcmc.model.declarations import SUPPORTS, Parameter
from batchnuts.mcmc.model.model import DType, Model, ModelError
from batchnuts.mcmc.model.supports import Support
from batchnuts.mcmc.settings.run_settings import MOST_NUMBERS
from batchnuts.models.tables import DataError, existing_file
from batchnuts.settings.schema import Settings, nearest, sentence, shown
from batchnuts.settings.yaml import ConfigError
from batchnuts.user_models.data import Column, Columns, columns_asked, read_columns
from batchnuts.user_models.users_code import Place, imported, refuse_other_than_place

if TYPE_CHECKING:
    SupportName = str
else:
    SupportName = Literal[tuple(SUPPORTS)]

_DISCRETE = ("integer", "int", "discrete", "categorical", "category", "binary", "boolean", "bool", "count", "bernoulli")
"""Words that users write in place of a support, and that have none."""

FUNCTIONS = ("initializer", "generated", "log_likelihood", "predictive", "prior")
"""Keys that name a further function of the model."""


class VariableOptions(Settings):
    """One entry of `model.variables`."""

    support: SupportName = Field("real", description="where its values lie")
    shape: list[int | str] = Field(
        default_factory=list,
        description="in one chain; a matrix for a Cholesky factor; the name of a category of the data for their number",
    )
    dims: list[str] | None = Field(None, description="names of its axes")
    coords: dict[str, list[Any]] = Field(default_factory=dict, description="labels by axis name")
    bound: float | None = Field(None, description="of the supports lower and upper")
    low: float | None = Field(None, description="of the support interval")
    high: float | None = Field(None, description="of the support interval")

    @field_validator("support", mode="before")
    @classmethod
    def _continuous(cls, support: Any) -> Any:
        if support in _DISCRETE:
            raise ValueError(
                f"found {support!r}, but discrete parameters cannot be sampled; sum them out of the log-density"
            )
        return support

    @model_validator(mode="after")
    def _sizes(self) -> VariableOptions:
        lengths = [length for length in self.shape if isinstance(length, int)]
        if any(not 1 <= length <= MOST_NUMBERS for length in lengths) or math.prod(lengths) > MOST_NUMBERS:
            raise ValueError(
                f"found the shape {shown(self.shape)}; expected lengths of at least 1, and at most {MOST_NUMBERS} "
                "numbers in all"
            )
        needed = SUPPORTS[self.support].bounds
        for key in ("bound", "low", "high"):
            if (getattr(self, key) is None) == (key in needed):
                expected = f"needs {' and '.join(needed)}" if key in needed else f"has no {key}"
                raise ValueError(f"the support {self.support} {expected}")
        return self

    def parameter(self, name: str, labels: Mapping[str, list[str]]) -> Parameter:
        """The variable as it is declared in Python; labels: of the data's categories, which name axes.

        Raises ConfigError for a category that the data do not have.
        """
        shape, axes, coords = [], [], dict(self.coords)
        for axis, length in enumerate(self.shape):
            if isinstance(length, int):
                shape.append(length)
                axes.append(f"{name}_dim_{axis}")
                continue
            if length not in labels:
                available = f"the data have {', '.join(labels)}" if labels else "the data have no category"
                raise ConfigError(f"model.variables.{name}.shape: found {length!r}, but {available}.")
            shape.append(len(labels[length]))
            axes.append(length)
            coords[length] = labels[length]
        dims = self.dims if self.dims is not None else axes or None
        return Parameter(self._support(), tuple(shape), None if dims is None else tuple(dims), coords)

    def _support(self) -> Support:
        named = SUPPORTS[self.support]
        return named.make(*(getattr(self, key) for key in named.bounds))


def in_full(value: Any) -> Any:
    """A support or a shape alone, as options."""
    match value:
        case str():
            return {"support": value}
        case list():
            return {"shape": value}
        case Mapping():
            return value
    raise ValueError(
        f"found {shown(value)}; expected a shape such as [3] ([] for one number), a support such as positive, or a "
        "mapping with both"
    )


class DataOptions(Settings):
    """The section `model.data`."""

    path: Annotated[str, AfterValidator(existing_file)] = Field(
        description="a .csv, .parquet, .feather, .arrow or .npz file, relative to the current folder"
    )
    columns: list[str] | dict[str, str | dict[str, str | list[str | int | float]]] | None = Field(
        None,
        description="which columns the functions get, in the dict `data`: names, or by new names a column or "
        "{column: name, as: number | integer | category, order: [labels of a category]}; default: all",
    )
    observed: list[str] = Field(default_factory=list, description="columns that are saved as observed data")

    _folder: Path = PrivateAttr(default_factory=Path.cwd)
    """The current one when the config was read, which the user's module may change."""

    @model_validator(mode="after")
    def _columns(self) -> DataOptions:
        _ = self.requested()
        return self

    def requested(self) -> dict[str, Column] | None:
        """The columns that are asked for, by the names that the functions use; raises ValueError for unknown keys."""
        try:
            return columns_asked(self.columns)
        except DataError as error:
            raise ValueError(error) from None

    def read(self, dtype: str) -> Columns:
        """The columns; raises DataError for what the file cannot give."""
        path = self.path if Path.cwd() == self._folder else self._folder / Path(self.path).expanduser()
        return read_columns(path, self.requested(), dtype)


class TargetOptions(Settings):
    """Options of a user's own model."""

    target: Place = Field(
        description="your own log-density, as package.module:function (the current folder is importable)"
    )
    dimension: int | None = Field(
        None, ge=1, le=MOST_NUMBERS, description="length of the flat position that the function takes"
    )
    variables: dict[str, Annotated[VariableOptions, BeforeValidator(in_full)]] | None = Field(
        None,
        description="in place of dimension, by name: a shape, a support, or both with dims and coords, e.g. "
        "{mu: [], tau: positive, theta: {support: simplex, shape: [8], dims: [school]}}; the function takes a dict",
    )
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")
    dims: dict[str, list[str]] = Field(
        default_factory=dict,
        description="axis names of what the functions return, by name, e.g. {effect: [county]}: a category of "
        "the data labels its axis",
    )
    data: DataOptions | None = Field(
        None, description="a file whose columns the functions get as their argument `data`: {path, columns, observed}"
    )
    initializer: Place | None = Field(
        None, description="function of a NumPy generator and the number of chains that returns initial values"
    )
    generated: Place | None = Field(None, description="function of a draw's values: generated quantities, in a dict")
    log_likelihood: Place | None = Field(
        None, description="function of a draw's values: log-likelihood of each observation"
    )
    predictive: Place | None = Field(None, description="function of a draw's values and a seed: simulated data")
    prior: Place | None = Field(None, description="function of a seed: values drawn from the prior, in a dict")

    @model_validator(mode="after")
    def _layout(self) -> TargetOptions:
        refuse_other_than_place("target", self.target)
        for key in FUNCTIONS:
            if (name := getattr(self, key)) is not None and not name.isidentifier():
                refuse_other_than_place(key, name)
        if (self.dimension is None) == (self.variables is None):
            raise ValueError(
                "target needs exactly one of dimension (the function takes a vector) and variables (a dict)"
            )
        if self.variables is not None and not self.variables:
            raise ValueError("variables is empty; expected at least one name and its shape")
        return self

    @field_serializer("variables")
    def _short(self, variables: dict[str, VariableOptions] | None) -> dict[str, Any] | None:
        """Without what is the default."""
        if variables is None:
            return None
        return {name: options.model_dump(exclude_defaults=True) for name, options in variables.items()}


def build_target(options: TargetOptions, columns: Columns | None = None) -> Model:
    """Make the model; raises ConfigError where a function cannot be imported.

    columns: in place of the file's, those of one data set, which are then an argument of the model (`Model.data`).
    """
    as_argument = columns is not None
    density = imported("target", options.target)
    module = options.target.partition(":")[0]
    references = {key: getattr(options, key) for key in FUNCTIONS if getattr(options, key) is not None}
    functions = {key: imported(key, name if ":" in name else f"{module}:{name}") for key, name in references.items()}
    groups: dict[str, Any] = {}
    labels: dict[str, list[str]] = {}
    if options.data is not None:
        columns = columns or options.data.read(options.dtype)
        labels, groups = columns.labels, data_groups(options.data, columns)
        if as_argument:
            groups = {"data": columns.arrays, "observed_data": list(groups.get("observed_data", ()))}
        bind = _taking_data if as_argument else _with_data
        density = bind("target", density, columns)
        functions = {key: f if key == "initializer" else bind(key, f, columns) for key, f in functions.items()}
    variables = None
    if options.variables is not None:
        variables = {name: entry.parameter(name, labels) for name, entry in options.variables.items()}
    for name in (variables or {}).keys() & labels.keys():
        shaped = [
            parameter_name for parameter_name, parameter in (variables or {}).items() if name in (parameter.dims or ())
        ]
        if shaped:
            raise ConfigError(
                f"model.variables.{name}: a category of the data is called {name!r} too, and its labels name an axis "
                f"of {shaped[0]!r}; in a file an axis and an array cannot share a name. Rename the parameter, or the "
                f"category, model.data.columns: {{{name}_index: {{column: {name}, as: category}}}}, with shape: "
                f"[{name}_index]."
            )
    axes = {axis for parameter in (variables or {}).values() for axis in parameter.dims or ()}
    axes |= {axis for names in options.dims.values() for axis in names}
    try:
        return Model.from_function(
            density,
            dimension=options.dimension,
            variables=variables,
            name=options.target,
            dtype=options.dtype,
            dims=options.dims,
            coords={axis: names for axis, names in labels.items() if axis in axes},
            **groups,
            **functions,
        )
    except ModelError as error:
        raise ConfigError(f"model.variables: {error}") from error


def _with_data(key: str, function: Callable[..., Any], columns: Columns) -> Callable[..., Any]:
    """The function with its argument `data`; raises ConfigError where it has none."""
    _require_data(key, function)
    return functools.partial(function, data=columns.arrays)


def _taking_data(key: str, function: Callable[..., Any], columns: Columns) -> Callable[..., Any]:
    """The function with its argument `data` as the last one; raises ConfigError where it has none."""
    _require_data(key, function)

    @functools.wraps(function)
    def of_data(*arguments: Any) -> Any:
        *own, data = arguments
        return function(*own, data=data)

    return of_data


def _require_data(key: str, function: Callable[..., Any]) -> None:
    try:
        takes = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of some builtins
        takes = ["data"]
    if "data" not in takes:
        raise ConfigError(
            f"model.{key}: {function.__name__} takes ({', '.join(takes)}); expected an argument `data`, since the "
            "config has model.data."
        )


def data_groups(options: DataOptions, columns: Columns) -> dict[str, Any]:
    """What is saved of the data: each array with axes named by its rows, or after itself."""
    for name in options.observed:
        if name not in columns.arrays:
            hint = nearest(name, columns.arrays) or f"; expected one of {', '.join(columns.arrays)}"
            raise ConfigError(sentence(f"model.data.observed: found {name!r}, which is not a column{hint}"))
    lengths = {len(array) for array in columns.arrays.values()}
    groups: dict[str, Any] = {"observed_data": {}, "constant_data": {}}
    for name, array in columns.arrays.items():
        dims = (
            ("row",) if array.ndim == 1 and len(lengths) == 1 else tuple(f"{name}_dim_{i}" for i in range(array.ndim))
        )
        group = "observed_data" if name in options.observed else "constant_data"
        groups[group][name] = (dims, array)
    return groups
