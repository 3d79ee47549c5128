"""How XLA compiles for processors: a setting that it reads once, from the environment."""

from __future__ import annotations

import functools
import os

import tensorflow as tf

SMALL_LOOP_BYTES = 30_000
"""A loop that moves fewer bytes in a trip becomes one function of machine code, instead of one for each operation and a
list of them to go through: the blocks of a machine of a few lanes. Not more, since XLA compiles what is in such a
function to plain loops, products of matrices too (decisions/0013)."""

_FLAG = "--xla_backend_extra_options"


@functools.cache
def compile_small_loops_whole() -> None:
    """Set it, once in a process. Nothing happens where the user's XLA_FLAGS set such options, or XLA was used before.

    The environment is afterwards as it was: other libraries in the process read the same variable.
    """
    given = os.environ.get("XLA_FLAGS")
    if given is not None and _FLAG in given:
        return
    ours = f"{_FLAG}=xla_cpu_small_while_loop_byte_threshold={SMALL_LOOP_BYTES}"
    os.environ["XLA_FLAGS"] = f"{given} {ours}" if given else ours
    try:
        tf.function(lambda x: x, jit_compile=True, autograph=False)(tf.constant(0.0))  # XLA reads its flags now
    finally:
        if given is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = given
