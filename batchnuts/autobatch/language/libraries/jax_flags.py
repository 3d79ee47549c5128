"""How JAX's programs are made: options of XLA for processors, some read once, and dtypes of 64 bits."""

from __future__ import annotations

import os
from typing import Any

import jax

from batchnuts.autobatch.environment import variable_set, with_flag

SMALL_LOOP_BYTES = 300_000
"""A loop that moves fewer bytes in a trip becomes one function of machine code, instead of one for each operation and a
list of them to go through: a machine of a few lanes, which is ten times as fast (decisions/0013)."""

_EXTRA = "--xla_backend_extra_options"

OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
"""By itself XLA gives a library not only products of matrices but also sums, with the operations on elements that lead
to them: what these need it then stores in arrays of their own. Compiled by XLA they are faster."""


def compile_small_loops_whole() -> None:
    """Set the bound, before JAX makes its first array: then XLA reads its options.

    Nothing happens if it has done so, or if the user's XLA_FLAGS set such options. The environment is restored.
    """
    flags = with_flag("XLA_FLAGS", _EXTRA, f"xla_cpu_small_while_loop_byte_threshold={SMALL_LOOP_BYTES}")
    if flags is not None:
        with variable_set("XLA_FLAGS", flags):
            options_in_force()


def options_in_force() -> bytes:
    """XLA's options as this process has them, read without making devices.

    Empty where jaxlib does not tell, since this is not JAX's public interface; few lanes are slower then.
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
