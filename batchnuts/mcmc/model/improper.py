"""Parameters on which a log-density does not depend: they have no posterior that could be sampled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model.failures import ends_nothing
from batchnuts.mcmc.model.library_choice import DensityLibrary
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.model.supports import Real
from batchnuts.mcmc.model.variables import Variable

POSITIONS = 8
"""Initial positions, and as many others, at which the log-density is compared with that of other values of a
parameter."""

_REAL_MOVES = (-1e15, -1e3, 1e3, 1e15)
_LOG_MOVES = (-40.0, -7.0, 7.0, 40.0)
"""Where a parameter is moved to, of the numbers of a flat position; the squares of its values do not overflow."""


def refuse_improper(model: Model, density_library: DensityLibrary, positions: NDArray[Any], gradient: Any) -> None:
    """Raise ModelError where the log-density has the same value for all values of an unbounded parameter.

    positions [n, dimension]: initial ones. gradient [dimension]: of the flat log-density at one of them. It is 0 or 1
    along such a parameter, which is nearly never so otherwise; only then is the log-density computed elsewhere.
    """
    slope = np.asarray(gradient)
    suspects = [
        (variable, columns)
        for variable, columns in _unbounded(model)
        if ((slope[columns] == 0) | (slope[columns] == 1)).any()
    ]
    if not suspects:
        return
    library = density_library.library
    data = model.data_argument()
    density = library.compiled(lambda x: model.log_density(model.constrain(x) if model.structured else x, *data))

    def value(row: NDArray[Any]) -> float:
        try:
            with ends_nothing:
                return float(np.asarray(density(library.tensor(row))))
        except Exception:  # a matrix that cannot be decomposed there, say: so it does depend on the parameter
            return float("nan")

    def same_everywhere(columns: NDArray[np.int64], moves: tuple[float, ...]) -> bool:
        compared = False
        for row in tried:
            reference = value(row)
            if not np.isfinite(reference):
                continue
            if any(value(_moved(row, columns, move)) != reference for move in moves):
                return False
            compared = True
        return compared

    random_positions = np.random.default_rng(0).uniform(-2.0, 2.0, (POSITIONS, model.dimension)).astype(positions.dtype)
    tried = np.concatenate([positions[:POSITIONS], random_positions])
    for variable, columns in suspects:
        flat = columns[(slope[columns] == 0) | (slope[columns] == 1)]
        if same_everywhere(flat, _REAL_MOVES if isinstance(variable.support, Real) else _LOG_MOVES):
            raise _improper(model, variable, len(flat) == variable.free, flat - columns[0])


def _unbounded(model: Model) -> Iterator[tuple[Variable, NDArray[np.int64]]]:
    """The variables whose support leaves a constant density improper, with their columns of a flat position."""
    start = 0
    for variable in model.variables:
        if not variable.support.proper:
            yield variable, np.arange(start, start + variable.free)
        start += variable.free


def _moved(position: NDArray[Any], columns: NDArray[np.int64], to: float) -> NDArray[Any]:
    moved = position.copy()
    moved[columns] = to
    return moved


def _improper(model: Model, variable: Variable, all_elements: bool, places: NDArray[np.int64]) -> ModelError:
    name = variable.name
    if not all_elements or (model.parameters is not None and model.parameters.free_names):
        first = sum(other.free for other in model.variables[: model.variables.index(variable)])
        name = model.free_names()[first + int(places[0])]
    name = re.sub(r"unconstrained\((.*?)\)", r"\1", name)  # the user's own word for it
    return ModelError(
        f"Model {model.name!r}: its log-density does not depend on {name!r}: it has the same value for all values of "
        "that parameter. Without a prior its posterior is improper and cannot be sampled. Use the parameter in the "
        "log-density, give it a prior, or leave it out of the model."
    )
