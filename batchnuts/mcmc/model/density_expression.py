"""A density with its gradient as an expression, of which machine code is made; for densities written with `ops`."""

from __future__ import annotations

from batchnuts.autobatch.machine import Expression, TensorType, expression_of_gradient
from batchnuts.mcmc.model.model import Model

MOST_WORK = 5_000
"""Elements and multiplications up to which a gradient is computed for one chain at a time. What is more gains by the
array library's products, and by its vectors over chains."""


def is_emitted(model: Model) -> bool:
    """Whether an engine that makes machine code takes the density's expression, at positions of the model's dtype."""
    return density_expression(model, TensorType(model.dtype, (model.dimension,))) is not None


def density_expression(model: Model, position: TensorType) -> Expression | None:
    """The log-density and its gradient at a position of that type; None for a density that calls functions other than
    the language's or has none of their derivatives, for one with a twin written over chains, and for one that is too
    much work."""
    if model.batched_value_and_gradient is not None:
        return None
    expression = expression_of_gradient(model.flat_log_density, position)
    return expression if expression is not None and expression.work <= MOST_WORK else None
