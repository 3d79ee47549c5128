"""Arrays of every library, by its name. Tests of JAX are skipped where it is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

HAS_JAX = importlib.util.find_spec("jax") is not None


def as_jax(values: Any) -> Any:
    """An array of JAX with NumPy's dtype, though 64 bits are off for the user."""
    import jax.numpy as jnp

    from batchnuts.autobatch.language.libraries.jax_flags import enable_x64

    with enable_x64():
        return jnp.asarray(np.asarray(values))


def in_jax(function: Callable[..., Any], *, lanes: bool) -> Callable[..., Any]:
    """The function compiled by JAX, as a backend of 64 bits does it; lanes: over the first axis of its arguments."""
    import jax

    from batchnuts.autobatch.language.libraries.jax_flags import enable_x64

    def compiled(*arguments: Any) -> Any:
        with enable_x64():
            return jax.jit(jax.vmap(function) if lanes else function)(*arguments)

    return compiled


needs_jax = pytest.mark.skipif(not HAS_JAX, reason="JAX is not installed")
TENSORS = [pytest.param(tf.constant, id="tensorflow"), pytest.param(as_jax, id="jax", marks=needs_jax)]
every_tensor = pytest.mark.parametrize("as_array", TENSORS)
every_library = pytest.mark.parametrize("as_array", [pytest.param(np.asarray, id="numpy"), *TENSORS])
