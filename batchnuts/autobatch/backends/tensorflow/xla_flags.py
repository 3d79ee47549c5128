"""How XLA compiles for processors: a setting that it reads once, from the environment."""

from __future__ import annotations

import tensorflow as tf

from batchnuts.autobatch.backends.tensorflow.environment import PROCESS
from batchnuts.autobatch.environment import variable_set, with_flag

SMALL_LOOP_BYTES = 30_000
"""A loop that moves fewer bytes in a trip becomes one function of machine code, instead of one for each operation and a
list of them to go through: the blocks of a machine of a few lanes. The bound is not larger, since XLA compiles
everything in such a function to plain loops, products of matrices too (decisions/0013)."""

PLAIN_LOOP_BYTES = 300_000
"""The bound where plain loops are not slower: no matrix is multiplied by more than one vector."""

_FLAG = "--xla_backend_extra_options"


def compile_small_loops_whole(plain: bool) -> int:
    """Set the bound, once in a process: the first program decides, which is `plain` if plain loops suit it.

    Returns the bound, or 0 where it was not set here: nothing happens if the user's XLA_FLAGS set such options, or XLA
    was used before. The environment is restored: other libraries in the process read the same variable.
    """
    with PROCESS.lock:
        if PROCESS.small_loop_bytes is None:
            bound = PLAIN_LOOP_BYTES if plain else SMALL_LOOP_BYTES
            flags = with_flag("XLA_FLAGS", _FLAG, f"xla_cpu_small_while_loop_byte_threshold={bound}")
            PROCESS.small_loop_bytes = 0 if flags is None else bound
            if flags is not None:
                with variable_set("XLA_FLAGS", flags):
                    tf.function(lambda x: x, jit_compile=True, autograph=False)(tf.constant(0.0))  # it reads them now
        return PROCESS.small_loop_bytes
