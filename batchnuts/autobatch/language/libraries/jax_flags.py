"""How JAX's programs are made: options of XLA for processors, and dtypes of 64 bits."""

from __future__ import annotations

import os
from typing import Any

import jax

OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""By itself XLA gives a library not only products of matrices but also sums, with the operations on elements that lead
to them: what these need it then stores in arrays of their own. Compiled by XLA they are faster."""


def options_in_force() -> bytes:
    """XLA's options as this process has them, read without making devices.

    Empty where jaxlib does not tell, since this is not JAX's public interface.
    """
    try:
        from jaxlib.xla_client import CompileOptions

        serialized: bytes = CompileOptions().SerializeAsString()
    except (ImportError, AttributeError):
        return b""
    return serialized


def compiled_with_options(lowered: Any) -> Any:
    """A lowered program (jax.stages) compiled with OPTIONS where they apply.

    Not where XLA_FLAGS has them as the user wants them, nor where XLA does not know them.
    """
    if jax.default_backend() == "cpu" and not any(name in os.environ.get("XLA_FLAGS", "") for name in OPTIONS):
        try:
            return lowered.compile(compiler_options=OPTIONS)
        except RuntimeError:  # of XLA: it refuses unknown options
            pass
    return lowered.compile()


def enable_x64(on: bool = True) -> Any:
    """A context in which JAX has 64-bit dtypes, or not: for this thread, and not beyond."""
    switch = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    return switch(on)
