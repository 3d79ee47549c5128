"""What Stan's functions are written with: NumPy and SciPy for values that are known, else JAX.

A function takes a `Numerics` first, and then arrays of one lane: integers and reals are arrays without axes, vectors
and row vectors have one, matrices two, arrays of these further ones in front.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

Array = Any
StanFunction = Callable[..., Array]


@dataclass(frozen=True)
class Numerics:
    """numpy, its special functions, and its linear algebra."""

    np: ModuleType
    special: ModuleType
    linalg: ModuleType
    is_known: bool


@functools.cache
def known() -> Numerics:
    """Of NumPy's arrays."""
    import scipy.linalg
    import scipy.special

    return Numerics(np, scipy.special, scipy.linalg, True)


@functools.cache
def traced() -> Numerics:
    """Of JAX's arrays."""
    import jax.numpy
    import jax.scipy.linalg
    import jax.scipy.special

    return Numerics(jax.numpy, jax.scipy.special, jax.scipy.linalg, False)
