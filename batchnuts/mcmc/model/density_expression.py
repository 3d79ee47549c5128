"""A density with its gradient as an expression, of which machine code is made; for densities written with `ops`."""

from __future__ import annotations

from batchnuts.autobatch.machine import Expression, TensorType, expression_of_gradient
from batchnuts.mcmc.model.model import Model

MOST_WORK, MOST_WORK_OF_FEW, FEW = 15_000, 300_000, 16
"""Elements and multiplications up to which a gradient is computed for one chain at a time: of many chains, and of up to
FEW. What is more gains by the array library's products over chains, of which one call serves few chains no better
(docs/decisions/0068-gradients-of-expressions.md)."""


def is_emitted(model: Model, chains: int | None = None) -> bool:
    """Whether an engine that makes machine code takes the density's expression, at positions of the model's dtype.

    chains: as of `density_expression`.
    """
    return density_expression(model, TensorType(model.dtype, (model.dimension,)), chains) is not None


def density_expression(model: Model, position: TensorType, chains: int | None = None) -> Expression | None:
    """The log-density and its gradient at a position of that type; None for a density that calls functions other than
    the language's or has none of their derivatives, for one with a twin written over chains, and for one that is too
    much work.

    chains: how many there are in the run; None: many.
    """
    if model.batched_value_and_gradient is not None:
        return None
    expression = expression_of_gradient(model.flat_log_density, position)
    most = MOST_WORK if chains is None or chains > FEW else MOST_WORK_OF_FEW
    return expression if expression is not None and expression.work <= most else None
