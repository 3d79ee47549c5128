"""The supports that configs name: the one place where a support is entered for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

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
"""The values of `model.variables.NAME.support`: the names of the declarations in parameters.py."""
