"""The metric: how the momentum of a chain is distributed, and how it moves the position.

M^-1 should be the covariance of the posterior. NUTS and the search for a first step size use only the interface
`Metric`. Its parameters are the same for all chains and pooled over them in warmup (metric_estimates.py):
`inverse_mass` [dimension] is a variable of each chain; what a metric with correlations needs besides it is in shared
arrays, once for all chains, that change between windows without a new compilation.

A metric with correlations, M^-1 = S C S with S the diagonal matrix of sqrt(inverse_mass), computes with r = F S p in
place of the momentum p, where F is the symmetric square root of C. Then r ~ N(0, I), and the only products with a
matrix are two in a leapfrog step; the U-turn criterion takes scalar products of r (decision 39).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import Shared, ops, primitive, random
from batchnuts.mcmc.kernel.metric_estimates import MetricParameters
from batchnuts.mcmc.settings.metric_kinds import METRIC_KINDS

Array = Any

Product = Callable[[Array, Array], Array]
"""A function of a vector [dimension] of one chain and its `inverse_mass`: their product. It is one of a lane, or a
batched primitive, which a batched function calls itself, not through a helper."""


def _shape(x: Array) -> tuple[int, ...]:
    """The shape, which is known when a program is compiled."""
    shape: Any = ops.static_shape(x)
    return tuple(shape)


class Metric(Protocol):
    """One form of M in H(q, p) = -log pi(q) + p' M^-1 p / 2.

    A momentum [dimension] is what the metric takes it to be, A^-1 p for some matrix A. With A the identity it is p.
    """

    @property
    def velocity(self) -> Product:
        """(momentum, inverse_mass) -> M^-1 p, by which the position moves: [dimension]."""

    @property
    def force(self) -> Product:
        """(gradient of the log density, inverse_mass) -> by how much the momentum changes, A^-1 gradient."""

    def sample_momentum(self, key: Array, inverse_mass: Array, dtype: str) -> Array:
        """The momentum for p ~ N(0, M): [dimension]."""

    def kinetic_energy(self, momentum: Array, inverse_mass: Array) -> Array:
        """p' M^-1 p / 2, a scalar."""

    def dual(self, momentum: Array, inverse_mass: Array) -> Array:
        """A' M^-1 p: its scalar product with another momentum is that of p, by M^-1, with the other's p."""

    @property
    def scaled_velocity(self) -> Product:
        """(u, inverse_mass) -> A u for some A with A A' = M^-1: a vector of unit scale as a velocity."""

    @property
    def scaled_force(self) -> Product:
        """(gradient of the log density, inverse_mass) -> A' gradient, for the same A."""

    def set(self, parameters: MetricParameters) -> NDArray[Any]:
        """Take these parameters from the next start of a machine on; returns `inverse_mass` [dimension]."""


class DiagonalMetric:
    """M^-1 is diagonal: `inverse_mass` [dimension]."""

    def velocity(self, momentum: Array, inverse_mass: Array) -> Array:
        """M^-1 p, by elements."""
        return inverse_mass * momentum

    def force(self, gradient: Array, inverse_mass: Array) -> Array:
        """The gradient itself, as A is the identity."""
        return gradient

    def scaled_velocity(self, vector: Array, inverse_mass: Array) -> Array:
        """M^-1/2 u, by elements."""
        return ops.sqrt(inverse_mass) * vector

    def scaled_force(self, gradient: Array, inverse_mass: Array) -> Array:
        """M^-1/2 gradient, by elements."""
        return ops.sqrt(inverse_mass) * gradient

    def sample_momentum(self, key: Array, inverse_mass: Array, dtype: str) -> Array:
        """Draw p, each coordinate by itself."""
        return random.normal(key, _shape(inverse_mass), dtype) / ops.sqrt(inverse_mass)

    def kinetic_energy(self, momentum: Array, inverse_mass: Array) -> Array:
        """p' M^-1 p / 2, a scalar."""
        return 0.5 * ops.dot(inverse_mass * momentum, momentum)

    def dual(self, momentum: Array, inverse_mass: Array) -> Array:
        """M^-1 p, as A is the identity."""
        return inverse_mass * momentum

    def set(self, parameters: MetricParameters) -> NDArray[Any]:
        """Give `inverse_mass`: nothing is shared."""
        return parameters.inverse_mass


DIAGONAL = DiagonalMetric()


class _WhiteMomentum:
    """What metrics with correlations have in common: A^-1 p = r = F S p is N(0, I), so A' M^-1 A = I."""

    def __init__(self, apply: Callable[..., Array], shared: tuple[Shared, ...]) -> None:
        """apply: (vectors [chains, dimension], *shared arrays) -> F times each of them."""

        def velocity(momentum: Array, inverse_mass: Array, *arrays: Array) -> Array:
            return ops.sqrt(inverse_mass) * apply(momentum, *arrays)  # M^-1 p = S F r

        def force(gradient: Array, inverse_mass: Array, *arrays: Array) -> Array:
            return apply(ops.sqrt(inverse_mass) * gradient, *arrays)  # dr/dt = F S dp/dt

        self.velocity = primitive(velocity, batched=True, shared=shared)
        self.force = primitive(force, batched=True, shared=shared)
        self.scaled_velocity, self.scaled_force = self.velocity, self.force  # A = S F

    def sample_momentum(self, key: Array, inverse_mass: Array, dtype: str) -> Array:
        """Draw r from N(0, I)."""
        return random.normal(key, _shape(inverse_mass), dtype)

    def kinetic_energy(self, momentum: Array, inverse_mass: Array) -> Array:
        """r' r / 2."""
        return 0.5 * ops.dot(momentum, momentum)

    def dual(self, momentum: Array, inverse_mass: Array) -> Array:
        """r itself, since A' M^-1 A = I."""
        return momentum


class DenseMetric(_WhiteMomentum):
    """F is any symmetric matrix [dimension, dimension]: a product costs dimension**2 multiplications for a chain."""

    def __init__(self, dimension: int, dtype: str) -> None:
        self.factor = Shared("metric.factor", np.eye(dimension, dtype=dtype))
        super().__init__(_times_matrix, (self.factor,))

    def set(self, parameters: MetricParameters) -> NDArray[Any]:
        """Take the root of C for F."""
        dtype = self.factor.value.dtype
        self.factor.value = parameters.root().astype(dtype)
        return parameters.inverse_mass


class LowRankMetric(_WhiteMomentum):
    """F = I + U (sqrt(eigenvalues) - 1) U': a product costs 2 rank * dimension multiplications for a chain."""

    def __init__(self, dimension: int, rank: int, dtype: str) -> None:
        self.inward = Shared("metric.inward", np.zeros((dimension, rank), dtype))
        """U, its columns orthonormal or zero."""
        self.outward = Shared("metric.outward", np.zeros((rank, dimension), dtype))
        """(sqrt(eigenvalues) - 1) U'."""
        super().__init__(_times_low_rank, (self.inward, self.outward))

    def set(self, parameters: MetricParameters) -> NDArray[Any]:
        """Take the eigenvectors and eigenvalues of C. Raises ValueError for more directions than there is room for."""
        inward, outward = (np.zeros_like(array.value) for array in (self.inward, self.outward))
        directions = parameters.eigenvectors.shape[1]
        inward[:, :directions] = parameters.eigenvectors
        outward[:directions] = ((np.sqrt(parameters.eigenvalues) - 1.0) * parameters.eigenvectors).T
        self.inward.value, self.outward.value = inward, outward
        return parameters.inverse_mass


def _times_matrix(vectors: Array, factor: Array) -> Array:
    return ops.matmul(vectors, factor)


def _times_low_rank(vectors: Array, inward: Array, outward: Array) -> Array:
    return vectors + ops.matmul(ops.matmul(vectors, inward), outward)


_MAKERS: dict[str, Callable[[int, str, int], Metric]] = {
    "diag": lambda dimension, dtype, rank: DIAGONAL,
    "dense": lambda dimension, dtype, rank: DenseMetric(dimension, dtype),
    "low_rank": lambda dimension, dtype, rank: LowRankMetric(dimension, min(rank, dimension), dtype),
}
"""By the kind whose program it is."""


def make_metric(kind: str, dimension: int, dtype: str, rank: int) -> Metric:
    """The metric of that kind (see `METRIC_KINDS`), at first the identity.

    rank: the most directions that `low_rank` corrects.
    """
    return _MAKERS[METRIC_KINDS[kind].program or kind](dimension, dtype, rank)
