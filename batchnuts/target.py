"""A user's own model in a config: `model: {target: package.module:function, variables: {...}, ...}`."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_serializer, model_validator

from batchnuts.mcmc.model import DType, Model, ModelError
from batchnuts.mcmc.parameters import Parameter
from batchnuts.mcmc.settings import MOST_NUMBERS
from batchnuts.mcmc.supports import (
    REAL,
    CorrelationCholesky,
    CovarianceCholesky,
    Interval,
    Lower,
    Ordered,
    Simplex,
    Support,
    UnitVector,
    Upper,
)
from batchnuts.settings.schema import Settings, shown
from batchnuts.settings.yaml import ConfigError
from batchnuts.users_code import imported, refuse_other_than_place

SupportName = Literal[
    "real",
    "positive",
    "lower",
    "upper",
    "interval",
    "unit_interval",
    "ordered",
    "positive_ordered",
    "simplex",
    "unit_vector",
    "correlation_cholesky",
    "covariance_cholesky",
]

_BOUNDS = {"lower": ("bound",), "upper": ("bound",), "interval": ("low", "high")}
"""Of the supports that have any: their keys."""

_WITHOUT_BOUNDS: dict[str, Support] = {
    "real": REAL,
    "positive": Lower(0.0),
    "unit_interval": Interval(0.0, 1.0),
    "ordered": Ordered(),
    "positive_ordered": Ordered(positive=True),
    "simplex": Simplex(),
    "unit_vector": UnitVector(),
    "correlation_cholesky": CorrelationCholesky(),
    "covariance_cholesky": CovarianceCholesky(),
}

FUNCTIONS = ("initializer", "generated", "log_likelihood", "predictive", "prior")
"""Keys that name a further function of the model."""


class VariableOptions(Settings):
    """One entry of `model.variables`."""

    support: SupportName = Field("real", description="where its values lie")
    shape: list[int] = Field(default_factory=list, description="in one chain; a matrix for a Cholesky factor")
    dims: list[str] | None = Field(None, description="names of its axes")
    coords: dict[str, list[Any]] = Field(default_factory=dict, description="labels by the name of an axis")
    bound: float | None = Field(None, description="of the supports lower and upper")
    low: float | None = Field(None, description="of the support interval")
    high: float | None = Field(None, description="of the support interval")

    @model_validator(mode="after")
    def _sizes(self) -> VariableOptions:
        lengths = self.shape
        if any(not 1 <= length <= MOST_NUMBERS for length in lengths) or math.prod(lengths) > MOST_NUMBERS:
            raise ValueError(
                f"found the shape {shown(lengths)}; expected lengths of at least 1, and at most {MOST_NUMBERS} numbers "
                "in all"
            )
        needed = _BOUNDS.get(self.support, ())
        for key in ("bound", "low", "high"):
            if (getattr(self, key) is None) == (key in needed):
                expected = f"needs {' and '.join(needed)}" if key in needed else f"has no {key}"
                raise ValueError(f"the support {self.support} {expected}")
        return self

    def parameter(self) -> Parameter:
        """As it is declared in Python."""
        support = self._support()
        return Parameter(support, tuple(self.shape), None if self.dims is None else tuple(self.dims), self.coords)

    def _support(self) -> Support:
        match self.support:
            case "lower":
                return Lower(self.bound or 0.0)
            case "upper":
                return Upper(self.bound or 0.0)
            case "interval":
                return Interval(self.low or 0.0, self.high or 0.0)
            case _:
                return _WITHOUT_BOUNDS[self.support]


def _in_full(given: Any) -> Any:
    """A support or a shape alone, as options."""
    if isinstance(given, str):
        return {"support": given}
    return {"shape": given} if isinstance(given, list) else given


class TargetOptions(Settings):
    """Options of a user's own model."""

    target: str = Field(
        description="your own log-density, as package.module:function (the current folder is importable)"
    )
    dimension: int | None = Field(
        None, ge=1, le=MOST_NUMBERS, description="length of the flat position that the function takes"
    )
    variables: dict[str, Annotated[VariableOptions, BeforeValidator(_in_full)]] | None = Field(
        None,
        description="in place of dimension, by name: a shape, a support, or both with dims and coords, e.g. "
        "{mu: [], tau: positive, theta: {support: simplex, shape: [8], dims: [school]}}; the function takes a dict",
    )
    dtype: DType = Field("float32", description="precision of the sampler's arithmetic")
    initializer: str | None = Field(None, description="function of a NumPy generator and the number of chains: starts")
    generated: str | None = Field(None, description="function of a draw's values: further quantities, in a dict")
    log_likelihood: str | None = Field(None, description="function of a draw's values: of each observation")
    predictive: str | None = Field(None, description="function of a draw's values and a seed: data like those observed")
    prior: str | None = Field(None, description="function of a seed: values drawn from the prior, in a dict")

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


def build_target(options: TargetOptions) -> Model:
    """Make the model; raises ConfigError where a function cannot be imported."""
    density = imported("target", options.target)
    module = options.target.partition(":")[0]
    named = {key: getattr(options, key) for key in FUNCTIONS if getattr(options, key) is not None}
    functions = {key: imported(key, name if ":" in name else f"{module}:{name}") for key, name in named.items()}
    try:
        return Model.from_function(
            density,
            dimension=options.dimension,
            variables=None if options.variables is None else {k: v.parameter() for k, v in options.variables.items()},
            name=options.target,
            dtype=options.dtype,
            **functions,
        )
    except ModelError as error:
        raise ConfigError(f"model.variables: {error}") from error
