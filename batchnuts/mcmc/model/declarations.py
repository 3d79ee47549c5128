"""What a user declares of a variable: `variables={"mu": real(), "tau": positive()}`, or in a config a support by name.

A new support is a class in supports.py; here a function, and an entry in `SUPPORTS`, its name in configs; and a public
name in `batchnuts/__init__.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from numpy.typing import ArrayLike

from batchnuts.mcmc.model.supports import (
    CorrelationCholesky,
    CovarianceCholesky,
    Interval,
    Lower,
    Ordered,
    Real,
    Simplex,
    Support,
    UnitVector,
    Upper,
)
from batchnuts.mcmc.model.tfp_bijectors import Bijector, is_bijector
from batchnuts.mcmc.model.variables import Labels, ModelError, Variable

Names = Sequence[str] | str | None
"""Names of axes; one name may be given as a string, and None means ArviZ's default names."""


@dataclass(frozen=True)
class Parameter:
    """What is declared of a variable besides its name; made by `real`, `positive`, `simplex`, ..."""

    support: Support
    shape: tuple[int, ...] = ()
    dims: tuple[str, ...] | None = None
    coords: Labels = field(default_factory=dict)

    def named(self, name: str, dims: tuple[str, ...] | None = None) -> Variable:
        """The variable of that name; dims: of its axes, where the declaration names none."""
        return Variable(name, self.shape, dims if self.dims is None else self.dims, self.coords, self.support)


def _declared(support: Support, shape: tuple[int, ...], dims: Any, coords: Any) -> Parameter:
    """The Parameter of what a user gives, which is checked once the variable has a name."""
    alone = dims is not None and (isinstance(dims, str) or not isinstance(dims, Iterable))
    names = (dims,) if alone else None if dims is None else tuple(dims)
    return Parameter(
        support, shape, names, dict(coords) if isinstance(coords, Mapping) else {} if coords is None else coords
    )


def real(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Any real numbers: `real()` is one, `real(8)` a vector.

    Here and in the other declarations: `shape` is the shape in one chain, `dims` names its axes (one name may be given
    as a string; default: ArviZ's names), and `coords` has labels by the name of an axis. All of it is checked when the
    model is made, which raises ModelError for an axis without elements, dims that are not one distinct name for each
    axis, and labels of an unknown axis or of another number than it has elements.
    """
    return _declared(Real(), shape, dims, coords)


def positive(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Numbers above 0. shape, dims, coords and errors: see `real`."""
    return _declared(Lower(0.0), shape, dims, coords)


def lower(bound: ArrayLike, *shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Numbers above a bound, or above those of an array that broadcasts to the shape. Making the model raises
    ModelError for bounds that are not finite numbers or do not broadcast, and as for `real`."""
    return _declared(Lower(bound), shape, dims, coords)


def upper(bound: ArrayLike, *shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Numbers below a bound, or below those of an array that broadcasts to the shape; errors as for `lower`."""
    return _declared(Upper(bound), shape, dims, coords)


def interval(
    low: ArrayLike,
    high: ArrayLike,
    *shape: int,
    dims: Names = None,
    coords: Labels | None = None,
) -> Parameter:
    """Numbers between two bounds, which may be arrays that broadcast to the shape. Making the model raises ModelError
    where `low` is not below `high`, and as for `lower`."""
    return _declared(Interval(low, high), shape, dims, coords)


def unit_interval(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Numbers between 0 and 1. shape, dims, coords and errors: see `real`."""
    return _declared(Interval(0.0, 1.0), shape, dims, coords)


def ordered(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Vectors whose numbers ascend along the last axis: `ordered(4)` is one vector, `ordered(3, 4)` three. Making the
    model raises ModelError for a shape without axes, and as for `real`."""
    return _declared(Ordered(), shape, dims, coords)


def positive_ordered(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Vectors whose numbers are above 0 and ascend along the last axis; shape and errors as for `ordered`."""
    return _declared(Ordered(positive=True), shape, dims, coords)


def simplex(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Probabilities: positive, with sum 1 along the last axis. `simplex(8)` is one vector, `simplex(3, 8)` three. Your
    log-density is that of all but the last number of each vector, which these determine. Making the model raises
    ModelError for a shape without axes or whose last axis is shorter than 2, and as for `real`."""
    return _declared(Simplex(), shape, dims, coords)


def unit_vector(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Directions: vectors of length 1 along the last axis. Your log-density is taken with respect to the uniform
    measure on the unit sphere. Making the model raises ModelError for a shape without axes or whose last axis is
    shorter than 2, and as for `real`."""
    return _declared(UnitVector(), shape, dims, coords)


def correlation_cholesky(
    n: int, *, batch: Sequence[int] = (), dims: Names = None, coords: Labels | None = None
) -> Parameter:
    """The Cholesky factor of a correlation matrix [n, n]: lower triangular, with rows of length 1.

    batch: axes before those of the matrix.

    Your log-density is that of the factor L, as LKJ's is (`CholeskyLKJ`, `LKJCholesky`), not of L L^T. Making the model
    raises ModelError for n below 2, and as for `real`.
    """
    return _declared(CorrelationCholesky(), (*batch, n, n), dims, coords)


def covariance_cholesky(
    n: int, *, batch: Sequence[int] = (), dims: Names = None, coords: Labels | None = None
) -> Parameter:
    """The Cholesky factor of a covariance matrix [n, n]: lower triangular, with a positive diagonal.

    batch: axes before those of the matrix.

    Your log-density is that of the factor L, not of the covariances L L^T. Making the model raises ModelError for n
    below 1, and as for `real`.
    """
    return _declared(CovarianceCholesky(), (*batch, n, n), dims, coords)


def bijector(transformation: Any, *shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """The values that a bijector of TensorFlow Probability makes of real numbers; `shape` is that of the values.

    transformation: a bijector such as `tfb.Softplus()`, of `tfp` or of its JAX substrate, or any object with its
    `forward`, `inverse`, `forward_log_det_jacobian`, `forward_event_shape` and `inverse_event_shape`.

    The model then runs on the library of its arrays (JAX for the substrate, else TensorFlow). Making the model raises
    ModelError for a shape that the bijector refuses or does not make, and as for `real`.
    """
    return _declared(Bijector(transformation), shape, dims, coords)


@dataclass(frozen=True)
class NamedSupport:
    """A support that configs name."""

    make: Callable[..., Support]
    """Makes it of its bounds."""
    bounds: tuple[str, ...] = ()
    """The keys of these."""


SUPPORTS: Mapping[str, NamedSupport] = MappingProxyType(
    {
        "real": NamedSupport(Real),
        "positive": NamedSupport(lambda: Lower(0.0)),
        "lower": NamedSupport(Lower, ("bound",)),
        "upper": NamedSupport(Upper, ("bound",)),
        "interval": NamedSupport(Interval, ("low", "high")),
        "unit_interval": NamedSupport(lambda: Interval(0.0, 1.0)),
        "ordered": NamedSupport(Ordered),
        "positive_ordered": NamedSupport(lambda: Ordered(positive=True)),
        "simplex": NamedSupport(Simplex),
        "unit_vector": NamedSupport(UnitVector),
        "correlation_cholesky": NamedSupport(CorrelationCholesky),
        "covariance_cholesky": NamedSupport(CovarianceCholesky),
    }
)
"""The values of `model.variables.NAME.support`: the names of the declarations above, but for `bijector`."""


def declared_variables(title: str, variables: Any, dims: Mapping[str, tuple[str, ...]]) -> tuple[Variable, ...]:
    """The variables that a user declares by name; raises ModelError, which names the model, for anything else.

    dims: by the name of a variable, those of its axes.
    """
    expected = 'expected names with their shapes or supports, as in {"mu": real(), "tau": positive(), "theta": [8]}'
    if not isinstance(variables, Mapping):
        raise ModelError(f"Model {title!r}: variables is {variables!r}; {expected}.")
    if not variables:
        raise ModelError(f"Model {title!r}: variables is empty; expected at least one name and its shape.")
    layout = []
    for name, declaration in variables.items():
        if isinstance(declaration, Parameter):
            layout.append(declaration.named(name, dims.get(name)))
        elif is_bijector(declaration):
            layout.append(Variable(name, (), dims.get(name), support=Bijector(declaration)))
        elif isinstance(declaration, Sequence) and not isinstance(declaration, str):
            layout.append(Variable(name, tuple(declaration), dims.get(name)))
        else:
            hint = " (call it, as in `positive()`)" if inspect.isfunction(declaration) else ""
            raise ModelError(f"Model {title!r}: variables[{name!r}] is {declaration!r}{hint}; {expected}.")
    return tuple(layout)
