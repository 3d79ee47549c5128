"""Which observations make a log-density that is not finite where chains start: a missing one, or one that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model.library_choice import density_library_of
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.model.quantities import log_likelihood_at

TRIED = 8
"""Positions at most at which they are looked at."""


def lost_observations(model: Model, positions: NDArray[Any]) -> list[str]:
    """A sentence for each observed variable with a log-likelihood that is not finite at any of these positions.

    positions: [n, dimension], where the log-density is not finite. Nothing is known of a model without the function
    `log_likelihood`; of one whose function fails there, the density's own error says more.
    """
    if not model.gives("log_likelihood"):
        return []
    density_library = density_library_of(model, positions[0])
    try:
        log_likelihoods = log_likelihood_at(model, density_library, positions[:TRIED])
    except ModelError:
        return []
    sentences = []
    for name in log_likelihoods[0]:
        values = np.stack([of_draw[name] for of_draw in log_likelihoods])
        lost = ~np.isfinite(values).any(axis=0)
        if lost.any():
            sentences.append(_sentence(model, name, values[0], lost))
    return sentences


def _sentence(model: Model, name: str, values: NDArray[Any], lost: NDArray[np.bool_]) -> str:
    """values: log-likelihoods [*shape] at one position; lost: [*shape], which are not finite at any."""
    place = tuple(int(index) for index in np.argwhere(lost)[0])
    _, data = model.observed_data.get(name, ((), np.zeros(0)))
    aligned = data.shape[: lost.ndim] == lost.shape
    element = f"{name}[{', '.join(map(str, place))}]" if place else name
    is_what = f" = {data[place]}" if aligned and np.ndim(data[place]) == 0 else ""
    many = f"{int(lost.sum())} of {lost.size} observations of {name!r}"
    text = f"Where it is not, the log-likelihood is {values[place]} for {many}, first for {element}{is_what}"
    if aligned and np.issubdtype(data.dtype, np.floating) and not np.isfinite(data[place]).all():
        return f"{text}. Leave out what is missing or infinite, or fill it in."
    if lost.all():
        return f"{text}: look at what all of them have in common, such as a scale that may be negative."
    return f"{text}: is it outside of the support of its distribution, or is one of its covariates missing?"
