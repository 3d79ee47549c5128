"""A density with its gradient as an expression, of which machine code is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import (
    Expression,
    NotRecorded,
    NotTyped,
    TensorLibrary,
    TensorType,
    as_function,
    depends_on_arguments_alone,
    expression_of_gradient,
    expression_of_library,
)
from batchnuts.mcmc.model.data_argument import Leaves, types_of
from batchnuts.mcmc.model.model import Model

MOST_ELEMENTS = 5_000_000
"""Elements up to which a gradient is machine code: one of more takes milliseconds on any engine."""

MOST_PRODUCTS, PRODUCTS_FOR_AN_ELEMENT, FEW = 65_000, 25, 16
"""Multiplications in products of matrices up to which a gradient is machine code for more than FEW chains, and how many
there may be for each element of what else is computed. An array library multiplies for all chains at once, and is
slower at all else (docs/decisions/0072-gradients-of-any-size.md)."""


class NotEmitted(Exception):
    """There is no machine code of a gradient. Its text says what stands in the way, after "because of"."""


SAME = 0.01
"""By how much an expression's values may differ from a library's, relative to their size: rounding does by less, and
another function by more."""


def agrees(
    expression: Expression, leaves: Leaves, position: NDArray[Any], log_density: NDArray[Any], gradient: NDArray[Any]
) -> bool:
    """Whether an expression gives that log-density and gradient at a position [dimension], with these data."""
    with np.errstate(all="ignore"):
        value, slope = as_function(expression)(position, *leaves)
    near = abs(value - log_density) <= SAME * max(1.0, abs(float(log_density)))
    return bool(near and np.linalg.norm(slope - gradient) <= SAME * (np.linalg.norm(gradient) + SAME))


def is_emitted(model: Model, chains: int | None = None) -> bool:
    """Whether an engine that makes machine code takes the density's expression, at positions of the model's dtype, as
    one written with `ops`.

    chains: as of `density_expression`.
    """
    try:
        density_expression(model, input_types(model), chains)
    except NotEmitted:
        return False
    return True


def input_types(model: Model) -> tuple[TensorType, ...]:
    """The types of a position, and of the arrays of the data that the density takes."""
    return TensorType(model.dtype, (model.dimension,)), *types_of(model.data)


def density_expression(
    model: Model, inputs: Sequence[TensorType], chains: int | None = None, library: TensorLibrary | None = None
) -> Expression:
    """The log-density and its gradient at a position.

    inputs: its type, and those of data (`input_types`); without these, the model's own are constants.

    Raises NotEmitted for a density that computes what is no expression or has no derivative, and for one that is too
    much work. A density with a twin written over chains is taken if it is written with `ops`.

    chains: how many there are in the run; None: many. library: that differentiates a density which is not written with
    `ops`, or calls a function of `ops` that machine code is not made of.
    """
    if model.batched_value_and_gradient is not None and library is not None:
        raise NotEmitted("a twin written for many chains")
    if not depends_on_arguments_alone(model.flat_log_density):  # then the compiler refuses it, by its line
        raise NotEmitted("what gives another value each time")
    refusals: list[Exception] = []
    expression = expression_of_gradient(model.flat_log_density, *inputs, refused=refusals.append)
    if expression is None and library is not None:
        expression = expression_of_library(library, model.flat_log_density, *inputs, refused=refusals.append)
    if expression is None:
        raise NotEmitted(_reason(refusals))
    elements, products = expression.elements, expression.products
    if elements > MOST_ELEMENTS:
        raise NotEmitted(f"its size: {elements:,} numbers, more than {MOST_ELEMENTS:,}")
    few = chains is not None and chains <= FEW
    if not few and products > MOST_PRODUCTS and products > PRODUCTS_FOR_AN_ELEMENT * elements:
        raise NotEmitted(f"products of matrices, {products:,} multiplications, which gain by many chains at once")
    return expression


def _reason(refusals: list[Exception]) -> str:
    """What in a density has no machine code, as the last attempt to record it says."""
    known = [str(refusal) for refusal in refusals if isinstance(refusal, (NotRecorded, NotTyped))]
    return known[-1] if known else "functions that have none"
