"""Of which model a result of this process is: what is done with a result next needs the model."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.settings.schema import shown

MOST_BYTES = 2**28
"""Positions of a result are kept up to this size, where they do not follow from its draws."""


@dataclass(frozen=True, eq=False)
class _Fit:
    """What is known of a result of this process."""

    result: weakref.ref[Any]
    model: Model
    position: NDArray[Any] | None
    """[chains, draws, dimension]: of a model of another library, which reports other numbers than those that moved."""


_FITS: dict[int, _Fit] = {}
"""By identity of a result."""


def remember(result: Any, model: Model, position: NDArray[Any] | None) -> None:
    """Note of which model a result is, as long as there is the result, and its positions [chains, draws, dimension]
    where they are known."""
    key = id(result)
    kept = None
    if position is not None and not model.reports_variables and position.nbytes <= MOST_BYTES:
        kept = np.array(position)  # not a part of the buffers of all draws
    _FITS[key] = _Fit(weakref.ref(result, lambda _: _FITS.pop(key, None)), model, kept)


def fitted(function: str, result: Any, model: Model | None) -> tuple[Model, NDArray[Any] | None]:
    """The model of a result, and its positions [chains, draws, dimension] where they are kept.

    function: who asks. model: as a user gave it. Raises ModelError where it is not known.
    """
    fit = _FITS.get(id(result))
    if fit is not None and (fit.result() is not result or (model or fit.model) is not fit.model):
        fit = None
    if model is None and fit is not None:
        model = fit.model
    if model is None:
        raise ModelError(
            f"{function}: it is not known of which model this result is. Expected what sample_chains returned in this "
            "process, itself; of a file, or a part of a result, give model=..., the model that was fitted."
        )
    if not isinstance(model, Model):
        raise ModelError(f"{function}: model is {shown(model)}; expected the Model that was fitted.")
    return model, None if fit is None else fit.position
