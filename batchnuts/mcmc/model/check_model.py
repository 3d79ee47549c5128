"""Validation of a user's density before anything is compiled, with messages in terms of the density itself."""

from __future__ import annotations

import functools
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from batchnuts.autobatch.machine import TensorLibrary
from batchnuts.mcmc.model.failures import ends_nothing, failed_with, foreign_arrays
from batchnuts.mcmc.model.library_choice import DensityLibrary
from batchnuts.mcmc.model.model import DType, Model, ModelError
from batchnuts.settings.schema import in_words

SHOWN_NUMBERS = 20
"""The most numbers of a position that a message shows; the exception has all of them."""


class UnboundedDensityError(ModelError):
    """A log-density of +inf: at `position` [dimension], encountered by `chain`."""

    def __init__(self, model: Model, chain: int, position: NDArray[Any], when: str) -> None:
        self.chain, self.position = chain, position
        names, values = model.element_names(), model.elements(position)
        numbers = ", ".join(f"{n} = {x}" for n, x in zip(names[:SHOWN_NUMBERS], values, strict=False))
        more = f" and {len(names) - SHOWN_NUMBERS} more" if len(names) > SHOWN_NUMBERS else ""
        if not np.isfinite(values).all():
            super().__init__(
                f"Model {model.name!r}: chain {chain} has gone to infinity ({when}): {numbers}{more}. The log-density "
                "does not fall to -inf there, so that its integral is infinite and it cannot be sampled: give each "
                "parameter a prior, and look for a wrong sign."
            )
            return
        super().__init__(
            f"Model {model.name!r}: its log-density is +inf at a position of chain {chain} ({when}): {numbers}{more}. "
            "Such a density cannot be sampled: no other position would ever be accepted. Look for an overflow, a "
            "division by zero or a wrong sign before a logarithm there; outside its support it must be -inf (`where`)."
        )


def refuse_unbounded(model: Model, log_density: NDArray[Any], position: NDArray[Any], when: str) -> None:
    """Raise UnboundedDensityError for the first chain whose log-density [chains] is +inf at its position."""
    unbounded = np.isposinf(log_density)
    if unbounded.any():
        chain = int(np.argmax(unbounded))
        raise UnboundedDensityError(model, chain, np.asarray(position)[chain], when)


_CALLBACK = "CpuCallback error"
"""What an error of XLA says where a callback has failed."""


def density_failure(model: Model, error: BaseException, when: str) -> ModelError | None:
    """The error to raise where an assertion or an operation of the density, or a function of Python that it calls, has
    ended a run; None for another error.
    """
    text = str(error)
    if is_decomposition(error):
        (message,) = re.findall(f".*(?:{_NO_DECOMPOSITION}).*", text)[:1]
        return ModelError(
            f"Model {model.name!r}: its log-density failed ({when}): {decomposition_help(model)} What TensorFlow said: "
            f"{message.strip()}"
        )
    if _CALLBACK in text:
        places = [f"{f}:{line}" for f, line in re.findall(r'File "(.*?)", line (\d+)', text) if is_users_file(f)]
        message = text.strip().splitlines()[-1]
        return ModelError(
            f"Model {model.name!r}: a Python function that its log-density calls by jax.pure_callback failed"
            f"{f' at {places[-1]}' if places else ''} ({when}): {message}. This ends the run. If such a place is "
            "outside of the support, so that a trajectory that gets there is rejected, let the log-density be -inf."
        )
    match = re.search(r"assertion failed: (.*)|.*: Tensor had .*", text)
    if match is None:
        return None
    message = match.group(1) or match.group(0)
    location = re.search(
        r"\s*\[?\(at (.*?:\d+)\)\]?", message
    )  # by pfor; of a twin, TensorFlow's list of frames has the line
    frames = re.findall(r'File "(.*?)", line (\d+)', text)
    own_places = [f"{file}:{line}" for file, line in frames if file in _files_of(model)]
    place = location.group(1) if location is not None else own_places[-1] if own_places else None
    message = message if location is None else message.replace(location.group(0), "")
    return ModelError(
        f"Model {model.name!r}: an assertion in its log-density{f' at {place}' if place else ''} does not hold "
        f"({when}): {message.strip()}. This ends the run. If such a place is outside of the support, so that a "
        "trajectory that gets there is rejected, write tf.where(condition, log_density, -inf) instead."
    )


def user_functions(model: Model) -> list[Any]:
    """The density, its twin and what is computed of draws, with what partials and decorators hide."""
    names = ("log_density", "batched_value_and_gradient", "generated", "log_likelihood", "predictive", "prior")
    return [f for name in names for f in _within(getattr(model, name))]


def _names_of(model: Model) -> list[str]:
    """Names of the parameters that the log-density takes by name."""
    return [variable.name for variable in model.variables] if model.structured else []


def _files_of(model: Model) -> set[str]:
    """The files in which the density and its twin are written."""
    codes = [f.__code__ for f in user_functions(model) if hasattr(f, "__code__")]
    return {code.co_filename for code in codes if not Path(code.co_filename).is_relative_to(_BRIDGES)}


def _within(function: Any) -> list[Any]:
    """A function; of functools.partial too, with the functions that it binds, as bridges bind the user's."""
    bound = function.args if isinstance(function, functools.partial) else ()
    return [f for candidate in (function, *bound) for f in _unwrapped(candidate)]


def _unwrapped(function: Any) -> Iterator[Any]:
    """It, and the functions in partials, decorators and NumPyro's handlers around them."""
    for _ in range(20):
        yield function
        inner = next(
            (f for name in ("func", "__wrapped__", "fn") if callable(f := getattr(function, name, None))), None
        )
        if inner is None:
            return
        function = inner


_BRIDGES = Path(__file__).resolve().parents[1] / "bridges"


def _undifferentiated(model: Model, position: Any) -> Any:
    """What a density gives that could not be differentiated; None if it fails alone."""
    with suppress(Exception):
        return model.flat_log_density(position)
    return None


def _refuse_container(subject: str, value: Any) -> None:
    if isinstance(value, (tuple, list, Mapping)):
        raise ModelError(
            f"{subject}, returned a {type(value).__name__} of {len(value)}; expected a scalar tensor alone. What else "
            "is computed from a draw belongs in the model's function generated."
        )


def check_density(
    model: Model,
    positions: Iterable[NDArray[Any]],
    density_library: DensityLibrary,
    known: Callable[[str], None] | None = None,
) -> tuple[NDArray[Any], Any, Any]:
    """Evaluate the one-chain density once, with its gradient; raise ModelError for a density that cannot be sampled.

    positions: where a chain may start, each [dimension]. The first one is tried, and another one only where a matrix
    could not be inverted or decomposed: some operations give NaN then, and others raise an error. Returns the one at
    which the density could be evaluated, its value there [] and gradient [dimension]. known: see
    `TensorLibrary.differentiated`.
    """
    library = density_library.library
    density = library.differentiated(model.flat_log_density, known)
    subject = f"Model {model.name!r}: its log-density, given one chain's position"
    tried = 0
    for start in positions:
        tried += 1  # noqa: SIM113 (it is reported after the loop)
        try:
            value, gradient = density(library.tensor(start))
            break
        except Exception as error:
            failure = error
            if not is_decomposition(error):
                _refuse_container(subject, _undifferentiated(model, library.tensor(start)))
                failed = failed_with(error, place_of(error, model), _names_of(model), *user_functions(model))
                size = in_words(model.dimension, "number")
                raise ModelError(f"{subject} of {size} ({model.dtype}), {failed}") from error
    else:
        raise ModelError(
            f"{subject}, failed at all of {tried} initial positions{place_of(failure, model)}: "
            f"{decomposition_help(model)} What TensorFlow said: {first_line(failure)}"
        ) from failure
    _refuse_container(subject, value)
    if not density_library.has(value):
        raise ModelError(
            f"{subject}, returned {type(value).__name__}; expected a scalar tensor, so that it can be differentiated. "
            "Write it with operations of TensorFlow, of JAX or of batchnuts.autobatch.ops, which run on either."
            f"{f' {foreign}' if (foreign := foreign_arrays(*user_functions(model))) else ''}"
        )
    dtype = library.dtype_of(value).name
    if library.static_shape(value) != ():
        raise ModelError(
            f"{subject}, returned shape {tuple(value.shape)}; expected a scalar. Sum over observations and coordinates."
        )
    if dtype != model.dtype:
        declare = f", or declare the model's dtype as {dtype}" if dtype in get_args(DType) else ""
        raise ModelError(
            f"{subject} of dtype {model.dtype}, returned {dtype}. Convert data and constants to {model.dtype}{declare}."
        )
    if gradient is None:
        raise ModelError(
            f"{subject}, has no gradient: it does not depend on the position through differentiable {library.name} "
            "operations."
        )
    if tuple(gradient.shape) != (model.dimension,):
        raise ModelError(f"{subject}, has a gradient of shape {tuple(gradient.shape)}; expected ({model.dimension},).")
    if model.batched_value_and_gradient is not None:
        _check_twin(model, start, library)
    return start, value, gradient


def is_decomposition(error: BaseException) -> bool:
    """TensorFlow could not decompose or invert a matrix of numbers."""
    return re.search(_NO_DECOMPOSITION, str(error)) is not None


_NO_DECOMPOSITION = "not invertible|decomposition was not successful"


def decomposition_help(model: Model) -> str:
    """What to do where a matrix cannot be decomposed or inverted."""
    wider = "" if model.dtype == "float64" else "compute in float64 (the model's dtype), or "
    return f"a matrix is singular after rounding: {wider}add jitter to its diagonal."


def _check_twin(model: Model, start: NDArray[Any], library: TensorLibrary) -> None:
    """The hand-batched density against the one-chain one: shapes and dtypes (agreement is the model's own test)."""
    lanes = 3
    positions = library.tensor(np.resize(start, (lanes, model.dimension)))
    assert model.batched_value_and_gradient is not None
    twin = library.compiled(ends_nothing(model.batched_value_and_gradient))
    try:
        values, gradients = map(library.tensor, twin(positions))
    except Exception as error:
        raise ModelError(
            f"Model {model.name!r}: its batched_value_and_gradient, given {lanes} positions, failed with "
            f"{type(error).__name__}: {error}. Expected a pair: log-densities [lanes] and gradients [lanes, dimension]."
        ) from error
    shapes = (tuple(values.shape), tuple(gradients.shape))
    expected = ((lanes,), (lanes, model.dimension))
    if shapes != expected:
        raise ModelError(
            f"Model {model.name!r}: its batched_value_and_gradient, given {lanes} positions, returned shapes "
            f"{shapes[0]} and {shapes[1]}; expected {expected[0]} and {expected[1]}."
        )
    dtypes = [library.dtype_of(array).name for array in (values, gradients)]
    if set(dtypes) != {model.dtype}:
        raise ModelError(
            f"Model {model.name!r}: its batched_value_and_gradient returned {dtypes[0]} and {dtypes[1]}; expected "
            f"{model.dtype}."
        )


def place_of(error: BaseException, model: Model) -> str:
    """Where in the user's file an error came up, as ` at file:line`; empty if it did not pass through that file."""
    if str(getattr(model.log_density, "__module__", "")).startswith("batchnuts.bridges."):
        return users_place(error)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in _files_of(model)]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def users_place(error: BaseException) -> str:
    """The same, where the user's file is not known: the last place that is neither batchnuts' own nor installed."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users_file(f.filename)]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def is_users_file(filename: str) -> bool:
    """Whether a file is neither of batchnuts, but for its models, nor installed."""
    path = str(Path(filename).resolve())
    return os.path.exists(path) and not path.startswith(_NOT_USERS)


_PACKAGE = Path(__file__).resolve().parents[1]
_NOT_USERS = (
    f"{_PACKAGE}{os.sep}",
    *(f"{Path(sysconfig.get_path(name)).resolve()}{os.sep}" for name in ("stdlib", "purelib", "platlib")),
)


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return next(iter(str(error).strip().splitlines()), "")
