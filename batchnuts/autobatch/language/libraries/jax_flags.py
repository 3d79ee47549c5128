"""How XLA compiles JAX's programs for processors: a setting that it reads once, from the environment."""

from __future__ import annotations

from batchnuts.autobatch.environment import variable_set, with_flag

SMALL_LOOP_BYTES = 300_000
"""A loop that moves fewer bytes in a trip becomes one function of machine code, instead of one for each operation and a
list of them to go through: a machine of a few lanes. (decisions/0013; on TensorFlow the bound is lower for programs
that multiply matrices, where JAX was not slower with this one.)"""

FLAG = "--xla_backend_extra_options"


def compile_small_loops_whole() -> None:
    """Set the bound, before JAX makes its first array: then XLA reads its options.

    Nothing happens if it has done so, or if the user's XLA_FLAGS set such options. The environment is restored.
    """
    flags = with_flag("XLA_FLAGS", FLAG, f"xla_cpu_small_while_loop_byte_threshold={SMALL_LOOP_BYTES}")
    if flags is None:
        return
    try:
        from jaxlib.xla_client import CompileOptions

        with variable_set("XLA_FLAGS", flags):
            _ = CompileOptions().executable_build_options.debug_options  # reads them now, and makes no devices
    except (ImportError, AttributeError):  # not JAX's public interface: few lanes are slower then
        pass
