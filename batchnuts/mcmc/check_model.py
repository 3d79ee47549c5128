"""What is wrong with a user's density is said before anything is compiled, in terms of the density itself."""

from __future__ import annotations

import traceback
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch import BatchedFunction, batch
from batchnuts.mcmc.model import DType, Model, ModelError
from batchnuts.mcmc.settings import ExecutionSettings


def check_density(model: Model, positions: NDArray[Any]) -> None:
    """Evaluate the one-chain density once, with its gradient; raise ModelError for what no sampler could use.

    positions [chains, dimension]: where the chains start; the first one is tried.
    """
    import tensorflow as tf

    position = tf.convert_to_tensor(positions[0])
    here = f"Model {model.name!r}: its log-density, given one chain's position"
    try:
        with tf.GradientTape() as tape:
            tape.watch(position)
            value = model.flat_log_density(position)
    except Exception as error:
        raise ModelError(
            f"{here} of {model.dimension} numbers ({model.dtype}), failed with {type(error).__name__}: {error}"
            f"{place_of(error, model)}"
        ) from error
    if not tf.is_tensor(value):
        raise ModelError(
            f"{here}, returned {type(value).__name__}; expected a TensorFlow scalar, so that it can be differentiated. "
            "Write it with tf operations."
        )
    if value.shape.rank != 0:
        raise ModelError(
            f"{here}, returned shape {tuple(value.shape)}; expected a scalar. Sum over observations and coordinates."
        )
    if value.dtype.name != model.dtype:
        declare = f", or declare the model's dtype as {value.dtype.name}" if value.dtype.name in get_args(DType) else ""
        raise ModelError(
            f"{here} of dtype {model.dtype}, returned {value.dtype.name}. Convert data and constants to "
            f"{model.dtype}{declare}."
        )
    gradient = tape.gradient(value, position)
    if gradient is None:
        raise ModelError(
            f"{here}, has no gradient: it does not depend on the position through differentiable TensorFlow operations."
        )
    gradient = tf.convert_to_tensor(gradient)
    if tuple(gradient.shape) != (model.dimension,):
        raise ModelError(f"{here}, has a gradient of shape {tuple(gradient.shape)}; expected ({model.dimension},).")
    if model.batched_value_and_gradient is not None:
        _check_twin(model, positions)


def _check_twin(model: Model, starts: NDArray[Any]) -> None:
    """The hand-batched density against the one-chain one: shapes and dtypes (agreement is the model's own test)."""
    import tensorflow as tf

    lanes = 3
    positions = tf.convert_to_tensor(np.resize(starts, (lanes, model.dimension)))
    assert model.batched_value_and_gradient is not None
    try:
        values, gradients = (tf.convert_to_tensor(x) for x in model.batched_value_and_gradient(positions))
    except Exception as error:
        raise ModelError(
            f"Model {model.name!r}: its batched_value_and_gradient, given {lanes} positions, failed with "
            f"{type(error).__name__}: {error}. Expected a pair: log-densities [lanes] and gradients [lanes, dimension]."
        ) from error
    found = (tuple(values.shape), tuple(gradients.shape))
    expected = ((lanes,), (lanes, model.dimension))
    if found != expected:
        raise ModelError(
            f"Model {model.name!r}: its batched_value_and_gradient, given {lanes} positions, returned shapes "
            f"{found[0]} and {found[1]}; expected {expected[0]} and {expected[1]}."
        )
    if {values.dtype.name, gradients.dtype.name} != {model.dtype}:
        raise ModelError(
            f"Model {model.name!r}: its batched_value_and_gradient returned {values.dtype.name} and "
            f"{gradients.dtype.name}; expected {model.dtype}."
        )


def place_of(error: BaseException, model: Model) -> str:
    """Where in the user's file an error came up, as ` at file:line`; empty if it did not pass through that file."""
    code = getattr(model.log_density, "__code__", None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if code and f.filename == code.co_filename]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def make_evaluate(value_and_gradient: Any) -> BatchedFunction:
    """The program `evaluate`: position [dimension] of one chain -> log-density, gradient [dimension]."""

    @batch
    def evaluate(position: Any) -> tuple[Any, Any]:
        """Both at one chain's position."""
        log_density, gradient = value_and_gradient(position)
        return log_density, gradient

    return evaluate


def evaluate_at(
    model: Model, evaluate: BatchedFunction, position: np.ndarray, execution: ExecutionSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Log-density [chains] and gradient [chains, dimension] at the initial positions.

    evaluate: made by `make_evaluate`. Raises ModelError naming the chains where either is not finite.
    """
    try:
        log_density, gradient = evaluate.run(
            position, executor=execution.executor, backend=execution.backend, mode=execution.mode
        )
    except Exception as error:
        cause = error.__cause__ or error
        raise ModelError(
            f"Model {model.name!r}: its log-density runs for one chain but not for many{place_of(cause, model)}. "
            "TensorFlow traces it: write branches on values with tf.where or tf.cond, and loops over values with "
            "tensor operations. An operation that XLA lacks may run with execution.mode=graph. What TensorFlow said: "
            f"{type(cause).__name__}: {_first_line(cause)}"
        ) from error
    for what, finite in (
        ("log-density", np.isfinite(log_density)),
        ("gradient", np.isfinite(gradient).all(axis=-1)),
    ):
        if not finite.all():
            bad = np.flatnonzero(~finite)
            value = log_density[bad[0]] if what == "log-density" else "NaN or infinity"
            # NaN comes of arithmetic that went wrong (a Cholesky decomposition in float32), -inf of a support
            remedy = "transform constrained parameters, or give the model an initializer"
            if what == "log-density" and np.isnan(value):
                wider = "compute in float64 (the model's dtype)" if model.dtype == "float32" else "look for 0/0"
                remedy = f"{wider}, add jitter to a matrix before its Cholesky decomposition, or {remedy}"
            raise ModelError(
                f"Model {model.name!r}: its {what} is not finite at the initial position of {len(bad)} of "
                f"{len(finite)} chains (first: chain {bad[0]}, {value}). A chain can only start where the density is "
                f"positive and smooth: {remedy}."
            )
    return log_density, gradient
