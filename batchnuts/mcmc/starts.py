"""Where chains start: at positions with a finite log-density and gradient, drawn again where they are not finite."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchedFunction, CompileError, batch
from batchnuts.mcmc.check_model import (
    check_density,
    decomposition_help,
    density_failure,
    first_line,
    is_decomposition,
    place_of,
    refuse_unbounded,
)
from batchnuts.mcmc.engine import Engine, default_engine
from batchnuts.mcmc.execution.fingerprint import Fingerprint, fingerprint
from batchnuts.mcmc.improper import refuse_improper
from batchnuts.mcmc.in_parts import in_parts, width_for
from batchnuts.mcmc.initialization import Proposals
from batchnuts.mcmc.lost_observations import lost_observations
from batchnuts.mcmc.model import Model, ModelError
from batchnuts.mcmc.settings import ExecutionSettings
from batchnuts.mcmc.warmup.arrival import absurd_starts

TRIES = 100
"""How often a start is drawn before it is an error that the density is not finite there; as in Stan."""

_WHERE = {"jax": "jax.numpy.where", "tensorflow": "tf.where"}
"""By backend."""


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


@dataclass(frozen=True, eq=False)
class Checked:
    """A model that was checked, and where."""

    tried: NDArray[Any]
    """[dimension]: the first position that was tried."""
    position: NDArray[Any]
    """[dimension]: where the density could be evaluated."""
    log_density: NDArray[Any]
    """[], there."""
    gradient: NDArray[Any]
    """[dimension]."""
    reached: Fingerprint
    """What the density found around it, before it was called."""
    identity: str | None = None
    """The identity of the density with its gradient (`TensorLibrary.identity_of`), where the check found it out."""

    def is_of(self, position: NDArray[Any]) -> bool:
        """Whether a check that begins at this position [dimension] would find the same."""
        return np.array_equal(self.tried, position)


def check_at_starts(model: Model, engine: Engine, proposals: Proposals, position: NDArray[Any]) -> Checked:
    """Check the model: where its density can be evaluated, and what it is there.

    position [chains, dimension]: those that are tried first. Raises ModelError for a model that cannot be sampled.
    """
    one_by_one = (row for rows in chain([position], draw_again(proposals)) for row in rows)
    reached = reached_by(model)
    known: list[str] = []
    found, log_density, gradient = check_density(model, islice(one_by_one, TRIES), engine, known.append)
    refuse_improper(model, engine, position, gradient)
    values = np.asarray(log_density), np.asarray(gradient)
    return Checked(position[0], found, *values, reached, known[-1] if known else None)


def reached_by(model: Model) -> Fingerprint:
    """What the density of a model, and its twin, find around them now."""
    return fingerprint(model.log_density, model.batched_value_and_gradient)


def find_starts(
    model: Model,
    evaluate: BatchedFunction,
    proposals: Proposals,
    execution: ExecutionSettings,
) -> Starts:
    """A start for each chain: the proposed one, and others where the density is not finite there.

    Starts whose log-density is absurd beside those of the others (arrival.py) are drawn again as well, where others can
    be drawn. The starts of a seed are always the same, and those of a superchain depend on the others by that alone
    (unless an initializer makes them). evaluate: made by `make_evaluate`. Raises ModelError where, after TRIES draws, a
    chain still has no start, UnboundedDensityError where the density is +inf.
    """
    position, drawn = proposals(0), draw_again(proposals)
    tries, not_numbers = 1, 0
    while True:
        log_density, gradient = evaluate_at(model, evaluate, position, execution)
        overflowed = np.isnan(gradient).any(axis=1)  # on the way to the density: drawn again
        refuse_unbounded(model, np.where(overflowed, -np.inf, log_density), position, "its start")
        bad = not_finite(log_density, gradient)
        if tries == 1:
            not_numbers = int(np.isnan(log_density).sum())
        absurd = bad.copy()
        absurd[~bad] = absurd_starts(log_density[~bad])
        if not absurd.any():
            return Starts(position, log_density, gradient, not_numbers)
        others = next(drawn, None)
        if others is None or (others[absurd] == position[absurd]).all():
            if not bad.any():  # nothing better can be had
                return Starts(position, log_density, gradient, not_numbers)
            raise no_start(model, position, log_density, gradient, tries)
        bad = absurd
        position = np.where(bad[:, None], others, position)
        tries += 1


def draw_again(proposals: Proposals) -> Iterator[NDArray[Any]]:
    """Other starts of all chains [chains, dimension], TRIES - 1 times."""
    return map(proposals, range(1, TRIES))


def values_at(
    model: Model, evaluate: BatchedFunction, position: NDArray[Any], execution: ExecutionSettings
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Log-density and gradient at given starts; raises ModelError where one of them is not finite."""
    log_density, gradient = evaluate_at(model, evaluate, position, execution)
    if not_finite(log_density, gradient).any():
        raise no_start(model, position, log_density, gradient, 1)
    return log_density, gradient


def not_finite(log_density: NDArray[Any], gradient: NDArray[Any]) -> NDArray[Any]:
    """[chains]: where one of the log-density [chains] and the gradient [chains, dimension] is not."""
    finite: NDArray[Any] = np.isfinite(log_density) & np.isfinite(gradient).all(axis=-1)
    return ~finite


def make_evaluate(value_and_gradient: Any) -> BatchedFunction:
    """The program that gives log-density and gradient of one chain's position."""

    @batch
    def evaluate(position: Any) -> tuple[Any, Any]:
        """Both at one chain's position."""
        log_density, gradient = value_and_gradient(position)
        return log_density, gradient

    return evaluate


def evaluate_at(
    model: Model,
    evaluate: BatchedFunction,
    position: NDArray[Any],
    execution: ExecutionSettings,
    width: int | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Log-density [chains] and gradient [chains, dimension] at positions [chains, dimension].

    width: chains of a call (in_parts.py), where these are some of the run's chains.
    """
    options: Any = {"executor": execution.executor, "backend": execution.backend, "mode": execution.mode}
    try:
        log_density, gradient = in_parts(
            functools.partial(evaluate.run, **options), [position], width or width_for(len(position))
        )
    except Exception as error:
        cause = error.__cause__ or error
        if is_decomposition(cause):
            raise ModelError(
                f"Model {model.name!r}: its log-density failed at a chain's initial position{place_of(cause, model)}: "
                f"{decomposition_help(model)} What TensorFlow said: {first_line(cause)}"
            ) from error
        if failed := density_failure(model, cause, f"the start of {_chain_that_fails(model, position)}"):
            raise failed from error
        if isinstance(cause, CompileError):  # ours, with its own advice
            place = "" if cause.source is None else f" at {cause.source.filename}:{cause.source.line}"
            reason = re.sub("Move it out of the loop, or .*", "Leave it out of the density", cause.message)
            raise ModelError(
                f"Model {model.name!r}: its log-density runs for one chain but not for many{place}: {reason}."
            ) from error
        if type(cause).__name__ == "JaxRuntimeError":  # compiled, and then failed
            raise ModelError(
                f"Model {model.name!r}: its log-density runs for one chain, but XLA failed to run it for "
                f"{len(position)}: {first_line(cause)}. If memory is short, use fewer chains."
            ) from error
        raise ModelError(
            f"Model {model.name!r}: its log-density runs for one chain but not for many{place_of(cause, model)}. "
            f"{_advice(execution.backend, cause)}: {type(cause).__name__}: {first_line(cause)}"
        ) from error
    return log_density, gradient


_NO_BOUND_OF_TRIPS = "requires a fixed tensor list size"
"""In XLA's words."""


def _advice(backend: str, cause: BaseException) -> str:
    """What to write instead, and the begin of what the library said."""
    if _NO_BOUND_OF_TRIPS in str(cause):
        return (
            "It has the gradient of a loop, for which XLA needs a bound of the number of trips: give tf.while_loop "
            "maximum_iterations=, or run with execution.mode=graph. What TensorFlow said"
        )
    if backend == "jax":
        return (
            "JAX traces it: write branches on values with jax.numpy.where or jax.lax.cond, and loops over values with "
            "jax.lax. What JAX said"
        )
    return (
        "TensorFlow traces it: write branches on values with tf.where or tf.cond, and loops over values with tensor "
        "operations. An operation that XLA lacks may run with execution.mode=graph. What TensorFlow said"
    )


def _chain_that_fails(model: Model, position: NDArray[Any]) -> str:
    """Which one the density alone raises for, among the first hundred."""
    library = default_engine(model).library
    for chain_number, row in enumerate(position[:100]):
        try:
            library.call(model.flat_log_density, library.tensor(row))
        except Exception:
            return f"chain {chain_number}"
    return "a chain"


def no_start(
    model: Model, position: NDArray[Any], log_density: NDArray[Any], gradient: NDArray[Any], tries: int
) -> ModelError:
    """The error where chains at positions [chains, dimension] have a log-density [chains] or a gradient [chains,
    dimension] that is not finite.
    """
    finite = np.isfinite(log_density)
    what, values = "log-density", log_density
    if finite_density := bool(finite.all()):
        finite = np.isfinite(gradient).all(axis=-1)
        what, values = "gradient", gradient.sum(axis=-1)
    bad = np.flatnonzero(~finite)
    remedies = [] if finite_density else lost_observations(model, position[bad])
    drawn = f", drawn {tries} times" if tries > 1 else ""
    return ModelError(
        f"Model {model.name!r}: its {what} is not finite at the initial position of {len(bad)} of {len(finite)} chains "
        f"(first: chain {bad[0]}, {values[bad[0]]}{drawn}). {' '.join(remedies or _advice_on(model, values[bad]))}"
    )


def _advice_on(model: Model, values: NDArray[Any]) -> list[str]:
    """What may be done about values [n] that are not finite, where no observation is to blame."""
    remedies = []
    if np.isnan(values).any():
        wider = "" if model.dtype == "float64" else "compute in float64 (the model's dtype), "
        remedies.append(
            "NaN comes from a value that is missing in the data, or from arithmetic that fails, such as the Cholesky "
            "decomposition of a matrix that is nearly singular, 0/0, or the logarithm of a negative number: "
            f"{wider}add jitter to the diagonal of such a matrix, or keep out of such places with "
            f"{_WHERE[default_engine(model).backend]}, in the argument too."
        )
    if np.isinf(values).any():
        remedies.append(
            "A chain can only start where the density is positive and smooth: transform constrained parameters, or "
            "give the model an initializer."
        )
    return remedies
