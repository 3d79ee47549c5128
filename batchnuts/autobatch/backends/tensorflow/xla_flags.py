"""How XLA compiles for processors: a setting that it reads once, from the environment."""

from __future__ import annotations

import tensorflow as tf

from batchnuts.autobatch.backends.tensorflow.environment import variable_set, with_flag

SMALL_LOOP_BYTES = 30_000
"""A loop that moves fewer bytes in a trip becomes one function of machine code, instead of one for each operation and a
list of them to go through: the blocks of a machine of a few lanes. Not more, since XLA compiles what is in such a
function to plain loops, products of matrices too (decisions/0013)."""

PLAIN_LOOP_BYTES = 300_000
"""The same where plain loops are as good as anything: no matrix is multiplied by more than one vector."""

_FLAG = "--xla_backend_extra_options"


def compile_small_loops_whole(plain: bool) -> int:
    """Set the bound, once in a process: the first program decides, which is `plain` if plain loops suit it. Gives it,
    or 0 where it is not ours.

    Nothing happens where the user's XLA_FLAGS set such options, or XLA was used before. The environment is afterwards
    as it was: other libraries in the process read the same variable.
    """
    return _set_bound(PLAIN_LOOP_BYTES if plain else SMALL_LOOP_BYTES)


_done: list[int] = []
"""The bound that was set; 0 where it is the user's."""


def _set_bound(bound: int) -> int:
    if _done:
        return _done[0]
    flags = with_flag("XLA_FLAGS", _FLAG, f"xla_cpu_small_while_loop_byte_threshold={bound}")
    _done.append(bound if flags is not None else 0)
    if flags is not None:
        with variable_set("XLA_FLAGS", flags):
            tf.function(lambda x: x, jit_compile=True, autograph=False)(tf.constant(0.0))  # XLA reads its flags now
    return _done[0]
