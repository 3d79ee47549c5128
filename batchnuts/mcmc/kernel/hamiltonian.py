"""The Hamiltonian system of one chain: energy, the leapfrog integrator, and the U-turn criterion.

    H(q, p) = -log pi(q) + p' M^-1 p / 2                                                              ([B] section 3)

Everything is written for one chain: positions and momenta are vectors [dimension], energies scalars. Everything that
depends on the form of M is in `metric.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from batchnuts.autobatch import ops, primitive
from batchnuts.autobatch.machine import Expression, TensorLibrary, TensorType, tensor_library_of
from batchnuts.mcmc.model.density_expression import NotEmitted, density_expression
from batchnuts.mcmc.model.library_choice import OPS, DensityLibrary, density_library_of
from batchnuts.mcmc.model.model import Model

Array = Any


class Point(NamedTuple):
    """A phase-space point of a trajectory with the force, which the integrator needs: three vectors [dimension]."""

    position: Array
    momentum: Array
    force: Array
    """How the momentum changes at the position: `Metric.force` of the log-density's gradient."""
    index: Array
    """Its number in the trajectory, which starts at 0: negative before the start. A whole number, but of the model's
    dtype, like all else that is stored with it."""


def value_and_gradient(
    model: Model, density_library: DensityLibrary | None = None, *, xla: bool = True, chains: int | None = None
) -> Callable[..., tuple[Array, Array]]:
    """The model's log-density and its gradient as one costly primitive of the language.

    One lane: position [dimension] -> (scalar, [dimension]), all of the model's dtype. A second argument is a tuple of
    arrays that take the place of those of the model's data, which are constants without it. The model's hand-batched
    twin is used if it has one; otherwise the one-chain density is differentiated by the library of the position and
    vectorized. density_library: differentiates; None: `density_library_of`, and machine code where there is an engine
    for it. xla: whether XLA compiles the programs. chains: how many there are in the run; None: many.
    """
    by_hand = model.batched_value_and_gradient

    def density_and_gradient(position: Array, data: tuple[Array, ...] = ()) -> tuple[Array, Array]:
        library = tensor_library_of(position)
        if library is None:
            return on_numpy()(position, *data)
        if by_hand is not None:
            log_density, gradient = library.call(by_hand, position)
        else:
            log_density, gradient = once(library)(position, *data)
        return log_density, gradient

    traced: dict[str, Callable[..., tuple[Array, Array]]] = {}

    def once(library: TensorLibrary) -> Callable[..., tuple[Array, Array]]:
        """The function of positions of this library, traced once."""
        if library.name not in traced:
            differentiated = functools.partial(library.value_and_gradient, model.flat_log_density)
            traced[library.name] = library.traced_once(differentiated, xla)
        return traced[library.name]

    @functools.cache
    def on_numpy() -> Callable[..., tuple[Array, Array]]:
        """The function of NumPy's arrays, by the density's library."""
        library = (density_library or density_library_of(model)).library
        function = library.compiled(by_hand) if by_hand is not None else library.differentiated(model.flat_log_density)

        def both(*arrays: Array) -> tuple[Array, Array]:
            log_density, gradient = function(*map(library.tensor, arrays))
            if library.trace_of(log_density) is not None:  # of a constant position, in a graph
                return log_density, gradient
            return np.asarray(log_density)[()], np.asarray(gradient)

        return both

    @functools.cache
    def expression(*inputs: TensorType) -> Expression | None:
        if density_library is None or density_library.backend == OPS:
            try:
                return density_expression(model, inputs, chains)
            except NotEmitted:
                if density_library is not None:  # it was chosen because there is one
                    raise
                return None
        if (known := density_library.expression) is not None and known.inputs == inputs:
            return known
        return density_expression(model, inputs, chains, density_library.library)

    record = expression if density_library is None or density_library.in_machine_code else None
    return primitive(density_and_gradient, batched=by_hand is not None, costly=True, record=record)


def kick(momentum: Array, force: Array, step: Array) -> Array:
    """Half a step of the momentum: p + step/2 * grad log pi(q)."""
    return momentum + 0.5 * step * force


def drift(position: Array, velocity: Array, step: Array) -> Array:
    """A full step of the position: q + step * M^-1 p."""
    return position + step * velocity


def keeps_going(first_momentum: Array, last_momentum: Array, dual_sum: Array) -> Array:
    """The generalized no-U-turn criterion ([B] appendix A.4.2): both ends still move along the trajectory.

    p_first' M^-1 rho > 0 and p_last' M^-1 rho > 0, with rho the sum of the momenta of all states between them, of which
    `dual_sum` is M^-1 rho, or what `Metric.dual` has in its place. It is symmetric in the two ends, so it does not
    matter in which direction the trajectory was built.
    """
    return (ops.dot(first_momentum, dual_sum) > 0) & (ops.dot(last_momentum, dual_sum) > 0)


def without_overflow(log_density: Array, kinetic: Array) -> Array:
    """The log-density of a state, and -inf for +inf beside a gradient that is not a number.

    Then something has overflowed on the way to the density (the square of a tiny scale, say): the trajectory diverges.
    A density of +inf with a gradient is a fault of the model. kinetic: of the state's momentum, which contains the
    gradient.
    """
    return ops.where(kinetic <= float("inf"), log_density, -float("inf"))
