"""The section `model` of configs for models of other libraries: schemas, and the models that they ask for.

Importing this module imports none of the libraries.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, field_serializer, model_validator

from batchnuts.bridges.tfp import import_tfp
from batchnuts.bridges.versions import NUMPYRO, PYMC
from batchnuts.mcmc.model.failures import ends_nothing
from batchnuts.mcmc.model.model import DType, Model, ModelError
from batchnuts.models.tables import existing_file
from batchnuts.settings.schema import Settings, nearest, sentence, shown
from batchnuts.settings.yaml import ConfigError
from batchnuts.user_models.target import DataOptions, VariableOptions, in_full
from batchnuts.user_models.users_code import Place, imported, refuse_other_than_place

Tree = Any
T = TypeVar("T")

_OF_DRAWS = ("initializer", "generated", "log_likelihood", "predictive", "prior")
_OF_JAX = ("transform", "inverse", "log_jacobian", *_OF_DRAWS)
"""Keys that name a further function of a JAX density's module."""


class JaxOptions(Settings):
    """A log-density in JAX, of any tree of arrays."""

    jax: Place = Field(description="your log-density of a tree of arrays, as package.module:function")
    example: Any = Field(
        description="such a tree: numbers, lists of numbers (arrays), mappings and lists of these; or the "
        "package.module:name of one, or of a function that makes one"
    )
    supports: dict[str, Annotated[VariableOptions, BeforeValidator(in_full)]] = Field(
        default_factory=dict,
        description="supports by part name, as in {tau: positive, group.scale: positive}",
    )
    transform: str | None = Field(
        None, description="function that maps a tree of unconstrained numbers to the tree of parameters"
    )
    inverse: str | None = Field(None, description="inverse of the transform")
    log_jacobian: str | None = Field(
        None, description="function that maps a tree of unconstrained numbers to log |det J| of the transform"
    )
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")
    dims: dict[str, list[str]] = Field(default_factory=dict, description="names of axes, by part name")
    coords: dict[str, list[Any]] = Field(default_factory=dict, description="labels by axis name")
    initializer: str | None = Field(
        None, description="function of a NumPy generator and the number of chains that returns initial values"
    )
    generated: str | None = Field(None, description="function of a draw's tree: generated quantities, in a dict")
    log_likelihood: str | None = Field(
        None, description="function of a draw's tree: log-likelihood of each observation, in a dict"
    )
    predictive: str | None = Field(None, description="function of a draw's tree and a seed: simulated data")
    prior: str | None = Field(None, description="function of a seed: a tree drawn from the prior")

    @model_validator(mode="after")
    def _places(self) -> JaxOptions:
        refuse_other_than_place("jax", self.jax)
        for key in _OF_JAX:
            if (name := getattr(self, key)) is not None and not name.isidentifier():
                refuse_other_than_place(key, name)
        if isinstance(self.example, str):
            refuse_other_than_place("example", self.example)
        return self

    @field_serializer("supports")
    def _short(self, supports: dict[str, VariableOptions]) -> dict[str, Any]:
        """Without what is the default."""
        return {name: options.model_dump(exclude_defaults=True) for name, options in supports.items()}


def build_jax(options: JaxOptions) -> Model:
    """Make the model; raises ConfigError for what cannot be imported or does not fit."""
    from batchnuts.bridges.jax import from_jax

    density = imported("jax", options.jax)
    module = options.jax.partition(":")[0]
    named = {key: getattr(options, key) for key in _OF_JAX if getattr(options, key) is not None}
    functions = {key: imported(key, name if ":" in name else f"{module}:{name}") for key, name in named.items()}
    example = options.example
    if isinstance(example, str):
        example = imported("example", example, function=False)
        example = called("example", options.example, example) if callable(example) else example
    else:
        example = arrays_of(example, options.dtype, options.dtype)
    supports = {name: entry.parameter(name, {}) for name, entry in options.supports.items()}
    return built(
        "example",
        lambda: from_jax(
            density,
            example,
            supports=supports,
            name=options.jax,
            dtype=options.dtype,
            dims=options.dims,
            coords=options.coords,
            **functions,
        ),
    )


class NumpyroOptions(Settings):
    """A NumPyro model, with its arguments."""

    numpyro: Place = Field(description="your NumPyro model, as package.module:function")
    args: list[Any] = Field(default_factory=list, description="its positional arguments; a list of numbers is an array")
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="its keyword arguments; lists of numbers are arrays"
    )
    data: DataOptions | None = Field(
        None,
        description="a file whose columns become its arguments of the same names, or its argument `data`, a dict: "
        "{path, columns}",
    )
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")
    dims: dict[str, list[str]] = Field(default_factory=dict, description="names of axes, by site name")
    coords: dict[str, list[Any]] = Field(
        default_factory=dict, description="labels by axis name, which is that of a plate"
    )

    @model_validator(mode="after")
    def _place(self) -> NumpyroOptions:
        refuse_other_than_place("numpyro", self.numpyro)
        return self


def build_numpyro(options: NumpyroOptions) -> Model:
    """Make the model; raises ConfigError for what cannot be imported or does not fit."""
    built("numpyro", NUMPYRO.check_version)  # before the user's module imports it, which may fail within
    model = imported("numpyro", options.numpyro)
    args, kwargs, labels = _arguments("numpyro", model, options)
    named = {"name": options.numpyro, "dims": options.dims, "coords": options.coords}
    result = built("numpyro", lambda: Model.from_numpyro(model, *args, dtype=options.dtype, **named, **kwargs))
    return replace(result, coords={**labels, **result.coords})  # a category need not be an axis


class PymcOptions(Settings):
    """A PyMC model, or a function that makes one, with its arguments."""

    pymc: Place = Field(description="your pymc.Model, or a function that makes one, as package.module:name")
    args: list[Any] = Field(default_factory=list, description="the function's arguments; a list of numbers is an array")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="its keyword arguments")
    data: DataOptions | None = Field(
        None,
        description="a file whose columns become its arguments of the same names, or its argument `data`, a dict: "
        "{path, columns}",
    )
    dtype: DType | None = Field(None, description="precision of the sampler's arithmetic; null: that of the model")

    @model_validator(mode="after")
    def _place(self) -> PymcOptions:
        refuse_other_than_place("pymc", self.pymc)
        return self


def build_pymc(options: PymcOptions) -> Model:
    """Make the model; raises ConfigError for what cannot be imported or does not fit."""
    built("pymc", PYMC.check_version)
    model = imported("pymc", options.pymc, function=False)
    is_function = inspect.isroutine(model) or isinstance(model, functools.partial)
    if is_function:
        args, kwargs, _ = _arguments("pymc", model, options)
        model = called("pymc", options.pymc, model, *args, **kwargs)
        if model is None:
            raise ConfigError(
                f"model.pymc: the function {options.pymc!r} returned None; expected it to return the model."
            )
    elif options.args or options.kwargs or options.data is not None:
        raise ConfigError(
            f"model.pymc: {options.pymc!r} is a {type(model).__name__}, so args, kwargs and data have no effect; name "
            "a function that makes the model from them."
        )
    return built("pymc", lambda: Model.from_pymc(model, name=options.pymc, dtype=options.dtype))


class JointDistributionOptions(Settings):
    """A joint distribution of TensorFlow Probability, and the values of its pinned parts."""

    joint_distribution: Place = Field(
        description="a joint distribution of TensorFlow Probability, or a function that returns one, as "
        "package.module:name (the current folder is importable)"
    )
    pinned: dict[str, Any] = Field(
        default_factory=dict, description="data by part name: numbers, or the name of a column of `data`"
    )
    data: DataOptions | None = Field(
        None, description="a file whose columns the function gets as its argument `data`: {path, columns}"
    )
    dtype: DType = Field(
        "float32", description="dtype of the columns of `data`; the model's dtype comes from its parts"
    )
    dims: dict[str, list[str]] = Field(default_factory=dict, description="names of axes, by part name")
    coords: dict[str, list[Any]] = Field(default_factory=dict, description="labels by axis name")

    @model_validator(mode="after")
    def _place(self) -> JointDistributionOptions:
        refuse_other_than_place("joint_distribution", self.joint_distribution)
        return self


def build_joint_distribution(options: JointDistributionOptions) -> Model:
    """Make the model; raises ConfigError for what cannot be imported or does not fit."""
    import_tfp()
    distribution = imported("joint_distribution", options.joint_distribution, function=False)
    columns = None if options.data is None else options.data.read(options.dtype)
    arrays = {} if columns is None else columns.arrays
    if inspect.isfunction(distribution):
        distribution = _joint_distribution_of(options, distribution, arrays if options.data is not None else None)
    pinned = {}
    for part, value in options.pinned.items():
        if isinstance(value, str) and value not in arrays:
            hint = nearest(value, arrays) or (f"; the columns are {', '.join(arrays)}" if arrays else "")
            raise ConfigError(
                sentence(f"model.pinned.{part}: found {value!r}, which is not a column of model.data{hint}")
            )
        pinned[part] = arrays[value] if isinstance(value, str) else value
    labels = {**({} if columns is None else columns.labels), **options.coords}
    named = {"name": options.joint_distribution, "dims": options.dims, "coords": labels}
    return built("joint_distribution", lambda: Model.from_joint_distribution(distribution, pinned, **named))


def _joint_distribution_of(
    options: JointDistributionOptions, function: Callable[..., Any], data: Mapping[str, Any] | None
) -> Any:
    """The result of the user's function, which gets the columns of the data if it takes them."""
    takes = inspect.signature(function).parameters
    needed = [p.name for p in takes.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if unknown := [argument for argument in needed if argument != "data" or data is None]:
        raise ConfigError(
            f"model.joint_distribution: {options.joint_distribution} takes ({', '.join(takes)}), but "
            f"{unknown[0]!r} is not given; expected a function without arguments, or with `data` where the config has "
            "model.data."
        )
    arguments = {"data": data} if "data" in takes and data is not None else {}
    return called("joint_distribution", options.joint_distribution, function, **arguments)


class StanOptions(Settings):
    """A Stan program, with its data."""

    stan: Annotated[str, AfterValidator(existing_file)] = Field(
        description="a .stan file, relative to the current folder"
    )
    data: str | dict[str, Any] | None = Field(
        None,
        description="its data: a .json file, a table whose columns they are (.csv, .parquet, .npz), or a mapping of "
        "names to numbers and lists",
    )
    include_paths: list[str] = Field(default_factory=list, description="folders of files that it includes")
    engine: Literal["auto", "c", "jax"] = Field(
        "auto", description="what computes the density: Stan's own C function, a translation to JAX, or what is faster"
    )
    dtype: DType | None = Field(None, description="precision of engine jax; Stan's own is float64")
    log_likelihood: list[str] | None = Field(
        None, description="names of generated quantities that go into the group log_likelihood; * is any text"
    )
    predictive: list[str] | None = Field(
        None, description="names of generated quantities that go into the group posterior_predictive; * is any text"
    )
    dims: dict[str, list[str]] = Field(default_factory=dict, description="names of axes, by the variable's name")
    coords: dict[str, list[Any]] = Field(default_factory=dict, description="labels by axis name")


def build_stan(options: StanOptions) -> Model:
    """Make the model; raises ConfigError for a program or data that Stan refuses."""
    patterns = {name: getattr(options, name) for name in ("log_likelihood", "predictive")}
    return built(
        "stan",
        lambda: Model.from_stan(
            Path(options.stan),
            data=options.data,
            include_paths=options.include_paths,
            engine=options.engine,
            dtype=options.dtype,
            dims=options.dims,
            coords=options.coords,
            **{name: value for name, value in patterns.items() if value is not None},
        ),
    )


class GymOptions(Settings):
    """A target of the Inference Gym."""

    inference_gym: str = Field(description="a target of the Inference Gym by the name of its class, e.g. EightSchools")
    options: dict[str, Any] = Field(
        default_factory=dict, description="arguments of its constructor, e.g. {ndims: 5}, {use_markov_chain: true}"
    )


def build_gym(options: GymOptions) -> Model:
    """Make the model; raises ConfigError for a target that does not exist or cannot be made so."""
    from batchnuts.bridges.inference_gym import from_inference_gym, make_target

    return built("inference_gym", lambda: from_inference_gym(make_target(options.inference_gym, **options.options)))


def _arguments(key: str, function: Any, options: Any) -> tuple[list[Any], dict[str, Any], dict[str, list[str]]]:
    """Positional and keyword arguments of a config, with the columns of its data; labels of categories by name.

    Raises ConfigError for data that the function does not take, and arguments that are given twice.
    """
    dtype = options.dtype or "float64"
    args = [arrays_of(value, dtype, "int32") for value in options.args]
    kwargs = {name: arrays_of(value, dtype, "int32") for name, value in options.kwargs.items()}
    if options.data is None:
        return args, kwargs, {}
    if options.data.observed:
        raise ConfigError(f"model.data.observed: the model ({key}) says which data are observed; leave it out.")
    data = options.data.read(dtype)
    takes, takes_any = list(data.arrays), False
    with suppress(TypeError, ValueError):  # a function without a signature
        parameters = inspect.signature(function).parameters
        takes, takes_any = list(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    columns: dict[str, Any] = {"data": data.arrays} if "data" in takes else dict(data.arrays)
    for name in columns:
        if name in kwargs:
            raise ConfigError(
                f"model.kwargs.{name}: this argument is a column of model.data too; leave one of them out."
            )
        if name not in takes and not takes_any:
            hint = nearest(name, takes) or f"; it takes ({', '.join(takes)})"
            raise ConfigError(
                sentence(f"model.data: the column {name!r} is not an argument of the model{hint}")
                + " Choose columns with model.data.columns, under new names if needed: {argument: column}."
            )
    return args, {**kwargs, **columns}, data.labels


def built(key: str, make: Callable[[], T]) -> T:
    """The result of `make`; its ModelError becomes a ConfigError of the key `model.<key>`."""
    try:
        return make()
    except ModelError as error:
        raise ConfigError(f"model.{key}: {error}") from error


def called(key: str, place: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a user's function; raises ConfigError where it fails."""
    from batchnuts.bridges.errors import place_in_users_code, text_of

    try:
        return ends_nothing(function)(*args, **kwargs)
    except Exception as error:
        raise ConfigError(f"model.{key}: {place!r} failed with {text_of(error)}{place_in_users_code(error)}") from error


def arrays_of(tree: Any, dtype: str, integers: str) -> Tree:
    """A value of a config in which lists of numbers are arrays of a dtype; of `integers` where all are integers, of
    bool where all are true or false.

    Lists of other things and mappings stay as they are, with the same done within.
    """
    if isinstance(tree, Mapping):
        return {key: arrays_of(value, dtype, integers) for key, value in tree.items()}
    if not isinstance(tree, list):
        return tree
    kinds = set(_kinds(tree))
    if not kinds or (kinds != {bool} and not kinds <= {int, float}):
        return [arrays_of(value, dtype, integers) for value in tree]
    try:
        array = np.array(tree, integers if kinds == {int} else bool if kinds == {bool} else dtype)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"model: found {shown(tree)}; expected rows of one length, and integers below 2**31."
        ) from None
    return array


def _kinds(tree: Any) -> list[type]:
    if isinstance(tree, list):
        return [kind for value in tree for kind in _kinds(value)]
    return [type(tree)]
