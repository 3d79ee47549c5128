"""The metric: how the momentum of a chain is distributed, and how it moves the position.

NUTS and the search for a first step size use only the interface `Metric`. Its parameters, `inverse_mass`, are variables
of a chain; they are the same for all chains, and pooled over them in warmup.
"""

from __future__ import annotations

from typing import Any, Protocol

from batchnuts.autobatch import ops, random

Array = Any


class Metric(Protocol):
    """One form of M in H(q, p) = -log pi(q) + p' M^-1 p / 2; momenta are vectors [dimension]."""

    def sample_momentum(self, key: Array, inverse_mass: Array, dtype: str) -> Array:
        """p ~ N(0, M): [dimension]."""

    def kinetic_energy(self, momentum: Array, inverse_mass: Array) -> Array:
        """p' M^-1 p / 2, a scalar."""

    def velocity(self, momentum: Array, inverse_mass: Array) -> Array:
        """M^-1 p: [dimension]."""


class DiagonalMetric:
    """M^-1 is diagonal: `inverse_mass` [dimension]."""

    def sample_momentum(self, key: Array, inverse_mass: Array, dtype: str) -> Array:
        """See Metric."""
        return random.normal(key, inverse_mass.shape, dtype) / ops.sqrt(inverse_mass)

    def kinetic_energy(self, momentum: Array, inverse_mass: Array) -> Array:
        """See Metric."""
        return 0.5 * ops.dot(inverse_mass * momentum, momentum)

    def velocity(self, momentum: Array, inverse_mass: Array) -> Array:
        """See Metric."""
        return inverse_mass * momentum


DIAGONAL = DiagonalMetric()
