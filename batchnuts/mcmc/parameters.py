"""What a user declares of a variable: `variables={"mu": real(), "tau": positive(), "theta": simplex(8)}`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import ArrayLike

from batchnuts.mcmc.bijectors import Bijector
from batchnuts.mcmc.supports import (
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
from batchnuts.mcmc.variables import Labels, Variable

Names = Sequence[str] | str | None
"""Of axes; one may be given as a string, and None are ArviZ's."""


@dataclass(frozen=True)
class Parameter:
    """What is declared of a variable besides its name; made by `real`, `positive`, `simplex`, ..."""

    support: Support
    shape: tuple[int, ...] = ()
    dims: tuple[str, ...] | None = None
    coords: Labels = field(default_factory=dict)

    def named(self, name: str) -> Variable:
        """The variable of that name."""
        return Variable(name, self.shape, self.dims, self.coords, self.support)


def _declared(support: Support, shape: tuple[int, ...], dims: Names, coords: Labels | None) -> Parameter:
    names = (dims,) if isinstance(dims, str) else None if dims is None else tuple(dims)
    return Parameter(support, shape, names, dict(coords or {}))


def real(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Any real numbers: `real()` is one, `real(8)` a vector.

    Here and below: `dims` names the axes (one name may be given as a string), `coords` has labels by an axis's name.
    """
    return _declared(Real(), shape, dims, coords)


def positive(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Numbers above 0."""
    return _declared(Lower(0.0), shape, dims, coords)


def lower(bound: ArrayLike, *shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Numbers above a bound, or above those of an array that broadcasts to the shape."""
    return _declared(Lower(bound), shape, dims, coords)


def upper(bound: ArrayLike, *shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Numbers below a bound, or below those of an array that broadcasts to the shape."""
    return _declared(Upper(bound), shape, dims, coords)


def interval(
    low: ArrayLike,
    high: ArrayLike,
    *shape: int,
    dims: Names = None,
    coords: Labels | None = None,
) -> Parameter:
    """Numbers between two bounds, which may be arrays that broadcast to the shape."""
    return _declared(Interval(low, high), shape, dims, coords)


def unit_interval(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Numbers between 0 and 1."""
    return _declared(Interval(0.0, 1.0), shape, dims, coords)


def ordered(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Vectors whose numbers ascend: `ordered(4)`; the last axis is the ordered one."""
    return _declared(Ordered(), shape, dims, coords)


def positive_ordered(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Vectors whose numbers ascend from above 0; the last axis is the ordered one."""
    return _declared(Ordered(positive=True), shape, dims, coords)


def simplex(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Probabilities: positive, with sum 1 along the last axis. `simplex(8)` is one vector, `simplex(3, 8)` three."""
    return _declared(Simplex(), shape, dims, coords)


def unit_vector(*shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """Directions: vectors of length 1 along the last axis. The density is one over the sphere."""
    return _declared(UnitVector(), shape, dims, coords)


def correlation_cholesky(
    n: int, *, batch: Sequence[int] = (), dims: Names = None, coords: Labels | None = None
) -> Parameter:
    """The Cholesky factor of a correlation matrix [n, n]: lower triangular, with rows of length 1.

    batch: axes before those of the matrix. The density is that of the factor (LKJ's: `CholeskyLKJ`, `LKJCholesky`).
    """
    return _declared(CorrelationCholesky(), (*batch, n, n), dims, coords)


def covariance_cholesky(
    n: int, *, batch: Sequence[int] = (), dims: Names = None, coords: Labels | None = None
) -> Parameter:
    """The Cholesky factor of a covariance matrix [n, n]: lower triangular, with a positive diagonal.

    batch: axes before those of the matrix. The density is that of the factor, not of the covariances.
    """
    return _declared(CovarianceCholesky(), (*batch, n, n), dims, coords)


def bijector(transformation: Any, *shape: int, dims: Names = None, coords: Labels | None = None) -> Parameter:
    """What a bijector of TensorFlow Probability makes of real numbers; `shape` is that of the values."""
    return _declared(Bijector(transformation), shape, dims, coords)
