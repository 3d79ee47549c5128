"""TensorFlow's devices, and what has to be settled before it makes them: where it stores what XLA compiles."""

from __future__ import annotations

import shutil
import tempfile

from batchnuts.autobatch.backends.tensorflow.environment import PROCESS
from batchnuts.autobatch.environment import variable_set, with_flag
from batchnuts.process.quiet import import_tensorflow

_KEEP = "--tf_xla_persistent_cache_directory"
"""A flag of the variable TF_XLA_FLAGS: where TensorFlow keeps the programs that XLA has compiled. Read when it first
looks for devices."""

MIN_FREE_BYTES = 1 << 30
"""What must be free where temporary files are. A program takes some 5 MB."""


def use_own_threads(shards: int) -> bool:
    """Prepare the disk cache: threads run programs at once by themselves. Returns whether there are at least two."""
    prepare_disk_cache()
    return shards >= 2


def has_accelerator() -> bool:
    """Whether there is a graphics card, on which TensorFlow computes what it can."""
    import_tensorflow()
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def prepare_disk_cache() -> None:
    """Have TensorFlow search for devices for the first time, with a flag for where to keep programs.

    The flag is not set where there is little room, since TensorFlow fails if it cannot store a program, or where the
    user's own flags set it. If TensorFlow has looked before, it keeps none.
    """
    import_tensorflow()
    import tensorflow as tf

    flags = None
    try:
        if PROCESS.programs is None and shutil.disk_usage(tempfile.gettempdir()).free >= MIN_FREE_BYTES:
            directory = tempfile.TemporaryDirectory(prefix="batchnuts-")
            flags = with_flag("TF_XLA_FLAGS", _KEEP, directory.name)
            if flags is not None:
                PROCESS.programs = directory
            else:
                directory.cleanup()
    except OSError:  # no such folder
        pass
    if flags is not None:
        with variable_set("TF_XLA_FLAGS", flags):
            tf.config.list_physical_devices("CPU")
