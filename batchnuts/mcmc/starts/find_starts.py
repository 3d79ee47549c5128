"""Where chains start: at positions with a finite log-density and gradient, drawn again where they are not finite."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import engine_infos
from batchnuts.mcmc.execution.evaluation import Checked, GradientService, not_finite, reached_by
from batchnuts.mcmc.model.check_model import check_density, refuse_unbounded
from batchnuts.mcmc.model.improper import refuse_improper
from batchnuts.mcmc.model.library_choice import DensityLibrary, density_library_of
from batchnuts.mcmc.model.lost_observations import lost_observations
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.starts.absurd_starts import absurd_starts
from batchnuts.mcmc.starts.methods import Proposals

TRIES = 100
"""How often a start is drawn before it is an error that the density is not finite there; as in Stan."""


class Starts(NamedTuple):
    """Where chains start."""

    position: NDArray[Any]
    """[chains, dimension]."""
    log_density: NDArray[Any]
    """[chains]."""
    gradient: NDArray[Any]
    """[chains, dimension]."""
    not_numbers: int
    """Of the chains' first proposals, those at which the log-density is not a number; they were drawn again."""


def check_at_starts(
    model: Model, density_library: DensityLibrary, proposals: Proposals, position: NDArray[Any]
) -> Checked:
    """Check the model: where its density can be evaluated, and what it is there.

    position [chains, dimension]: those that are tried first. Raises ModelError for a model that cannot be sampled.
    """
    one_by_one = (row for rows in chain([position], draw_again(proposals)) for row in rows)
    reached = reached_by(model)
    known: list[str] = []
    start, log_density, gradient = check_density(model, islice(one_by_one, TRIES), density_library, known.append)
    refuse_improper(model, density_library, position, gradient)
    values = np.asarray(log_density), np.asarray(gradient)
    return Checked(position[0], start, *values, reached, known[-1] if known else None)


def find_starts(
    model: Model,
    gradients: GradientService,
    proposals: Proposals,
) -> Starts:
    """A start for each chain: the proposed one, and others where the density is not finite there.

    Starts whose log-density is absurd beside those of the others (absurd_starts.py) are drawn again as well, where
    others can be drawn. The starts of a seed are always the same, and those of a superchain depend on the others by
    that alone (unless an initializer makes them). Raises ModelError
    where, after TRIES draws, a chain still has no start, UnboundedDensityError where the density is +inf.
    """
    position, drawn = proposals(0), draw_again(proposals)
    tries, not_numbers = 1, 0
    while True:
        log_density, gradient = gradients.evaluate(position)
        overflowed = np.isnan(gradient).any(axis=1)  # on the way to the density: drawn again
        refuse_unbounded(model, np.where(overflowed, -np.inf, log_density), position, "its start")
        bad = not_finite(log_density, gradient)
        if tries == 1:
            not_numbers = int(np.isnan(log_density).sum())
        absurd = bad.copy()
        absurd[~bad] = absurd_starts(log_density[~bad])
        if not absurd.any():
            return Starts(position, log_density, gradient, not_numbers)
        redrawn = next(drawn, None)
        if redrawn is None or (redrawn[absurd] == position[absurd]).all():
            if not bad.any():  # nothing better can be had
                return Starts(position, log_density, gradient, not_numbers)
            raise no_start(model, position, log_density, gradient, tries)
        bad = absurd
        position = np.where(bad[:, None], redrawn, position)
        tries += 1


def draw_again(proposals: Proposals) -> Iterator[NDArray[Any]]:
    """Other starts of all chains [chains, dimension], TRIES - 1 times."""
    return map(proposals, range(1, TRIES))


def values_at(model: Model, gradients: GradientService, position: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Log-density and gradient at given starts; raises ModelError where one of them is not finite."""
    log_density, gradient = gradients.evaluate(position)
    if not_finite(log_density, gradient).any():
        raise no_start(model, position, log_density, gradient, 1)
    return log_density, gradient


def no_start(
    model: Model, position: NDArray[Any], log_density: NDArray[Any], gradient: NDArray[Any], tries: int
) -> ModelError:
    """The error where chains at positions [chains, dimension] have a log-density [chains] or a gradient [chains,
    dimension] that is not finite.
    """
    finite = np.isfinite(log_density)
    quantity, values = "log-density", log_density
    if finite_density := bool(finite.all()):
        finite = np.isfinite(gradient).all(axis=-1)
        quantity, values = "gradient", gradient.sum(axis=-1)
    bad = np.flatnonzero(~finite)
    remedies = [] if finite_density else lost_observations(model, position[bad])
    if model.rejection is not None and (said := model.rejection(position[bad[0]])):
        remedies = [said]
    drawn = f", drawn {tries} times" if tries > 1 else ""
    return ModelError(
        f"Model {model.name!r}: its {quantity} is not finite at the initial position of {len(bad)} of {len(finite)} "
        f"chains (first: chain {bad[0]}, {values[bad[0]]}{drawn}). "
        f"{' '.join(remedies or _advice_on(model, values[bad]))}"
    )


def _advice_on(model: Model, values: NDArray[Any]) -> list[str]:
    """What may be done about values [n] that are not finite, where no observation is to blame."""
    remedies = []
    if np.isnan(values).any():
        wider = "" if model.dtype == "float64" else "compute in float64 (the model's dtype), "
        remedies.append(
            "NaN comes from a value that is missing in the data, or from arithmetic that fails, such as the Cholesky "
            "decomposition of a matrix that is nearly singular, 0/0, or the logarithm of a negative number: "
            f"{wider}add jitter to the diagonal of such a matrix, or avoid such values with "
            f"{engine_infos()[density_library_of(model).backend].where}, in the argument too."
        )
    if np.isinf(values).any():
        remedies.append(
            "A chain can only start where the density is positive and smooth: transform constrained parameters, or "
            "give the model an initializer."
        )
    return remedies
