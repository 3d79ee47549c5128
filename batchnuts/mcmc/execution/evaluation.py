"""A model's log-density and gradient at the positions of chains: the contract, the batched program that keeps it, and
where a model was first evaluated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from batchnuts.autobatch import BatchedFunction, CompileError, batch
from batchnuts.mcmc.execution.in_parts import in_parts, width_for
from batchnuts.mcmc.model.check_model import decomposition_help, density_failure, first_line, is_decomposition, place_of
from batchnuts.mcmc.model.data_argument import Leaves, leaves_of
from batchnuts.mcmc.model.fingerprint import Fingerprint, fingerprint
from batchnuts.mcmc.model.library_choice import OPS, density_library_for, density_library_of
from batchnuts.mcmc.model.model import Model, ModelError
from batchnuts.mcmc.settings.run_settings import ExecutionSettings

MOST_AT_ONCE = 1024
"""Positions of a call where their number needs no program of its own."""


MOST_NUMBERS = 1 << 22
"""The most numbers of data that such a call copies."""


def of_lanes(leaves: Leaves, lanes: int) -> Leaves:
    """The arrays of a data set for chains that all have it: [lanes, ...]."""
    return tuple(np.broadcast_to(leaf, (lanes, *leaf.shape)) for leaf in leaves)


class GradientService(Protocol):
    """Evaluates a model's density for some chains at a time, by whatever library or compiled function."""

    def evaluate(self, position: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Log-density [k] and gradient [k, dimension] at positions [k, dimension], of any number k.

        What a row gives depends on that row alone, except for rounding. Raises ModelError.
        """

    def at_once(self, chains: int) -> int:
        """How many positions to give in a call, where a run evaluates many for each of so many chains.

        As many as there are chains have a compiled program already.
        """
        return chains


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


def reached_by(model: Model) -> Fingerprint:
    """What the density of a model, and its twin, find around them now."""
    return fingerprint(model.log_density, model.batched_value_and_gradient)


def not_finite(log_density: NDArray[Any], gradient: NDArray[Any]) -> NDArray[Any]:
    """[chains]: where one of the log-density [chains] and the gradient [chains, dimension] is not."""
    finite: NDArray[Any] = np.isfinite(log_density) & np.isfinite(gradient).all(axis=-1)
    return ~finite


def make_evaluate(value_and_gradient: Any) -> BatchedFunction:
    """The program that gives log-density and gradient of one chain's position."""

    @batch
    def evaluate(position: Any, data: tuple[Any, ...] = ()) -> tuple[Any, Any]:
        """The log-density and its gradient at one chain's position. data: what the density takes beside it."""
        log_density, gradient = value_and_gradient(position, data)
        return log_density, gradient

    return evaluate


@dataclass(frozen=True, eq=False)
class ProgramGradients(GradientService):
    """Evaluates the density by a batched program, some chains in a call (in_parts.py)."""

    model: Model
    program: BatchedFunction
    """Made by `make_evaluate`."""
    execution: ExecutionSettings
    width: int | None = None
    """Chains of a call, where those that are evaluated are some of the run's; None: by their number."""
    outlined: bool = False
    """Whether the density is machine code of its own, and nothing is compiled for a number of positions."""

    @override
    def at_once(self, chains: int) -> int:
        numbers = sum(leaf.size for leaf in leaves_of(self.model.data))
        return max(chains, min(MOST_AT_ONCE, MOST_NUMBERS // max(1, numbers))) if self.outlined else chains

    @override
    def evaluate(self, position: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        options: Any = {name: self.execution.run_options[name] for name in ("executor", "backend", "mode", "style")}
        leaves = leaves_of(self.model.data)

        def call(rows: NDArray[Any]) -> Any:
            data = (of_lanes(leaves, len(rows)),) if leaves else ()
            return self.program.run(rows, *data, **options)

        try:
            width = len(position) if self.outlined else self.width or width_for(len(position))
            log_density, gradient = in_parts(call, [position], width)
        except Exception as error:
            library = density_library_for(self.model, self.execution.backend).backend
            raise _failure(self.model, position, library, error) from error
        return log_density, gradient


def _failure(model: Model, position: NDArray[Any], library: str, error: Exception) -> ModelError:
    """The error where a density that runs for one chain fails at positions [chains, dimension], in users' terms.

    library: that differentiates it.
    """
    cause = error.__cause__ or error
    if is_decomposition(cause):
        return ModelError(
            f"Model {model.name!r}: its log-density failed at a chain's initial position{place_of(cause, model)}: "
            f"{decomposition_help(model)} What TensorFlow said: {first_line(cause)}"
        )
    if failed := density_failure(model, cause, f"the start of {_chain_that_fails(model, position)}"):
        return failed
    if isinstance(cause, CompileError):  # ours, with its own advice
        place = "" if cause.source is None else f" at {cause.source.filename}:{cause.source.line}"
        reason = re.sub("Move it out of the loop, or .*", "Leave it out of the density", cause.message)
        return ModelError(
            f"Model {model.name!r}: its log-density runs for one chain but not for many{place}: {reason}."
        )
    if type(cause).__name__ == "JaxRuntimeError":  # compiled, and then failed
        return ModelError(
            f"Model {model.name!r}: its log-density runs for one chain, but XLA failed to run it for "
            f"{len(position)}: {first_line(cause)}. If memory is short, use fewer chains."
        )
    return ModelError(
        f"Model {model.name!r}: its log-density runs for one chain but not for many{place_of(cause, model)}. "
        f"{_advice(library, cause)}: {type(cause).__name__}: {first_line(cause)}"
    )


_NO_BOUND_OF_TRIPS = "requires a fixed tensor list size"
"""A part of XLA's message for a loop without a bound of its trips."""


def _advice(library: str, cause: BaseException) -> str:
    """Advice what to write instead, and the beginning of what the library said."""
    if _NO_BOUND_OF_TRIPS in str(cause):
        return (
            "It has the gradient of a loop, for which XLA needs a bound of the number of trips: give tf.while_loop "
            "maximum_iterations=, or run with execution.expert.mode=graph. What TensorFlow said"
        )
    if library == OPS:
        return "Machine code for it has failed: run with execution.backend jax, and please report it. What was said"
    if library == "jax":
        return (
            "JAX traces it: write branches on values with jax.numpy.where or jax.lax.cond, and loops over values with "
            "jax.lax. What JAX said"
        )
    return (
        "TensorFlow traces it: write branches on values with tf.where or tf.cond, and loops over values with tensor "
        "operations. An operation that XLA lacks may run with execution.expert.mode=graph. What TensorFlow said"
    )


def _chain_that_fails(model: Model, position: NDArray[Any]) -> str:
    """The chain for which the density alone raises, among the first hundred, in words."""
    library = density_library_of(model).library
    for chain_number, row in enumerate(position[:100]):
        try:
            library.call(model.flat_log_density, library.tensor(row))
        except Exception:
            return f"chain {chain_number}"
    return "a chain"
