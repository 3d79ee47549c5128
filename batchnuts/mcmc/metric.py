"""The metric: how the momentum of a chain is distributed, and how it moves the position.

NUTS and the search for a first step size use only the interface `Metric`. Its parameters, `inverse_mass`, are variables
of a chain; they are the same for all chains, and pooled over them in warmup.
"""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

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


def pooled_inverse_mass(positions: NDArray[Any]) -> NDArray[Any]:
    """The diagonal inverse metric from draws [chains, draws, dimension] of all chains together.

    Each coordinate's variance about the mean over chains and draws, shrunk towards 1e-3 as in Stan with the weight of
    5 draws in n: n/(n+5) var + 5/(n+5) 1e-3. float64 [dimension].
    """
    flat = positions.reshape(-1, positions.shape[-1]).astype("float64")
    n = len(flat)
    shrunk: NDArray[Any] = n / (n + 5.0) * flat.var(axis=0, ddof=1) + 5.0 / (n + 5.0) * 1e-3
    return shrunk
