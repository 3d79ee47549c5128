"""Starting points by a function of the user's, checked."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchnuts.mcmc.model.failures import ends_nothing
from batchnuts.mcmc.model.supports import SupportError
from batchnuts.mcmc.model.variables import ModelError

INITIALIZER = (
    "a function of NumPy's random generator and the number of chains that returns positions [chains, dimension], or a "
    "dict of the variables' values [chains, *shape]"
)
"""In words, for messages."""


def initialized(
    title: str,
    initializer: Callable[[np.random.Generator, int], Any],
    rng: np.random.Generator,
    shape: tuple[int, int],
    dtype: str,
    unconstrain: Callable[[Mapping[str, Any]], NDArray[Any]],
) -> NDArray[Any]:
    """What an initializer gives, as positions [chains, dimension] of that dtype.

    title: the model's name. unconstrain: positions of values by name, which may raise SupportError. Raises ModelError
    where the initializer fails, or its result has another shape or holds NaN or infinity.
    """
    chains, _ = shape
    try:
        initial = ends_nothing(initializer)(rng, chains)
    except ModelError:
        raise
    except Exception as error:
        file = getattr(getattr(initializer, "__code__", None), "co_filename", None)
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        raise ModelError(
            f"Model {title!r}: its initializer, called with a random generator and {chains} chains, failed"
            f"{f' at {file}:{lines[-1]}' if lines else ''} with {type(error).__name__}: {error}. Expected "
            f"{INITIALIZER}."
        ) from error
    try:
        positions = unconstrain(initial) if isinstance(initial, Mapping) else _as_numbers(title, initial, dtype)
    except SupportError as error:
        raise ModelError(f"Model {title!r}: its initializer returned values by name: {error}.") from None
    if positions.shape != shape:
        raise ModelError(
            f"Model {title!r}: its initializer returned positions of shape {positions.shape}; expected {shape}, one "
            "row per chain."
        )
    if not np.isfinite(positions).all():
        chain = int(np.argwhere(~np.isfinite(positions))[0, 0])
        raise ModelError(f"Model {title!r}: its initializer returned a position that is not finite for chain {chain}.")
    return positions


def _as_numbers(title: str, initial: Any, dtype: str) -> NDArray[Any]:
    """What an initializer gave, as an array of the dtype; raises ModelError where it is none of numbers."""
    try:
        array = np.asarray(initial)
        if array.dtype.kind not in "biuf":
            raise TypeError
    except (TypeError, ValueError):  # of rows of different lengths
        raise ModelError(
            f"Model {title!r}: its initializer returned a {type(initial).__name__} that is not an array of real "
            f"numbers. Expected {INITIALIZER}."
        ) from None
    with np.errstate(over="ignore"):  # a number that is too large is reported as not finite
        return array.astype(dtype)
